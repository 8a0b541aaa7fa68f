/* SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"
#include "cache/rate_limiter_internal.h"
#include "cache/redis_limits.h"

#include <stdlib.h>
#include <string.h>

#define BACKGROUND_NS (5 * MR_NS_PER_S)

bool mr_rate_leases_in_redis(const mr_rate_ticket *ticket)
{
    return ticket->limiter->options.link != NULL && ticket->limits.max_concurrent > 0;
}

/* What nobody waits for. */

static void free_background(mr_redis_command *command, mr_status status)
{
    (void)status;
    mr_redis_command_deinit(command);
    free(command);
}

static mr_redis_command *new_background(void)
{
    mr_redis_command *command = mr_calloc(1, sizeof(*command));
    if (command != NULL) {
        command->timeout_ns = BACKGROUND_NS;
        command->on_done = free_background;
    }
    return command;
}

/* `made` is the status of what filled the command. */
static bool send_background(mr_redis_link *link, mr_redis_command *command, mr_status made)
{
    if (made == MR_OK && mr_redis_link_submit(link, command)) {
        return true;
    }
    free_background(command, made);
    return false;
}

/* Ends a lease. */
typedef struct release_command {
    mr_redis_command command; /* first */
    mr_rate_limiter *limiter;
    mr_old_lease lease;
} release_command;

/* With the mutex. */
static void keep_old(mr_rate_limiter *limiter, const mr_old_lease *lease)
{
    if (limiter->n_old < MR_RATE_MAX_OLD_LEASES) {
        limiter->old_leases[limiter->n_old++] = *lease;
    }
}

/* The link's thread. A lease is never used again, so that it may be ended twice. */
static void on_release_done(mr_redis_command *command, mr_status status)
{
    release_command *release = (release_command *)command;
    if (status != MR_OK) {
        pthread_mutex_lock(&release->limiter->mutex);
        keep_old(release->limiter, &release->lease);
        pthread_mutex_unlock(&release->limiter->mutex);
    }
    free_background(command, status);
}

/* False: nothing was sent. */
static bool send_release(mr_rate_limiter *limiter, const mr_old_lease *lease)
{
    char key[MR_TENANT_KEY_BYTES];
    mr_redis_tenant_key(lease->tenant, key);
    release_command *release = mr_calloc(1, sizeof(*release));
    if (release == NULL) {
        return false;
    }
    *release = (release_command){
        .command = {.timeout_ns = BACKGROUND_NS, .on_done = on_release_done},
        .limiter = limiter,
        .lease = *lease,
    };
    return send_background(limiter->options.link, &release->command,
                           mr_redis_limits_release(&release->command, key, lease->lease));
}

void mr_rate_release_lease(const mr_rate_ticket *ticket)
{
    mr_rate_limiter *limiter = ticket->limiter;
    mr_old_lease lease;
    memcpy(lease.tenant, ticket->tenant, sizeof(lease.tenant));
    memcpy(lease.lease, ticket->lease, sizeof(lease.lease));
    if (send_release(limiter, &lease)) {
        return;
    }
    pthread_mutex_lock(&limiter->mutex);
    keep_old(limiter, &lease);
    pthread_mutex_unlock(&limiter->mutex);
}

static void release_old_leases(mr_rate_limiter *limiter)
{
    pthread_mutex_lock(&limiter->mutex);
    while (limiter->n_old > 0) {
        if (!send_release(limiter, &limiter->old_leases[limiter->n_old - 1])) {
            break;
        }
        limiter->n_old--;
    }
    pthread_mutex_unlock(&limiter->mutex);
}

void mr_rate_refund_tokens(const mr_rate_ticket *ticket, const mr_rate_limits *limits,
                           uint64_t tokens)
{
    char key[MR_TENANT_KEY_BYTES];
    mr_redis_tenant_key(ticket->tenant, key);
    mr_redis_command *command = new_background();
    if (command != NULL) {
        (void)send_background(ticket->limiter->options.link, command,
                              mr_redis_limits_refund(command, key, limits, tokens));
    }
}

/* So that the first of each need not be sent twice, and stays ahead of what follows it. */
static void load_scripts(mr_redis_link *link)
{
    static const mr_redis_script *const scripts[] = {&mr_redis_take, &mr_redis_refund,
                                                     &mr_redis_renew};
    for (size_t i = 0; i < sizeof(scripts) / sizeof(scripts[0]); i++) {
        mr_redis_command *command = new_background();
        if (command != NULL) {
            const mr_redis_arg args[] = {mr_redis_text("SCRIPT"), mr_redis_text("LOAD"),
                                         mr_redis_text(scripts[i]->body)};
            (void)send_background(link, command, mr_redis_command_add(command, args, 3));
        }
    }
}

static void renew_leases(mr_rate_limiter *limiter)
{
    /* The mutex keeps a renewal from being queued behind the same lease's end. */
    pthread_mutex_lock(&limiter->mutex);
    for (mr_rate_ticket *t = limiter->leases; t != NULL; t = t->next) {
        char key[MR_TENANT_KEY_BYTES];
        mr_redis_tenant_key(t->tenant, key);
        mr_redis_command *command = new_background();
        if (command != NULL) {
            (void)send_background(limiter->options.link, command,
                                  mr_redis_limits_renew(command, key, t->lease));
        }
    }
    pthread_mutex_unlock(&limiter->mutex);
}

uint64_t mr_rate_tick(void *ctx, uint64_t now_ns, bool fresh)
{
    mr_rate_limiter *limiter = ctx;
    if (fresh) {
        load_scripts(limiter->options.link);
    }
    release_old_leases(limiter);
    if (fresh || now_ns >= limiter->renew_due_ns) {
        renew_leases(limiter);
        limiter->renew_due_ns = now_ns + MR_LEASE_RENEW_MS * MR_NS_PER_MS;
    }
    return limiter->renew_due_ns;
}
