/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/rate_limiter.h"

#include "base/checked.h"
#include "cache/rate_limiter_internal.h"
#include "cache/redis_limits.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define CLOSED_RETRY_MS  1000u
#define PROCESS_RETRY_MS 1000u

/* Under the mutex, as those below. */

static mr_bucket_size requests_size(const mr_rate_limits *limits)
{
    return (mr_bucket_size){.rate = limits->requests_per_s, .burst = limits->burst_requests};
}

static mr_bucket_size tokens_size(const mr_rate_limits *limits)
{
    return (mr_bucket_size){.rate = mr_rate_tokens_per_s(limits), .burst = limits->burst_tokens};
}

/* NULL: every place is taken by a tenant that has requests. */
static mr_tenant_state *find_state(mr_rate_limiter *limiter, const char *name)
{
    mr_tenant_state *idle = NULL;
    for (uint32_t i = 0; i < limiter->n_tenants; i++) {
        mr_tenant_state *state = &limiter->tenants[i];
        if (strcmp(state->name, name) == 0) {
            return state;
        }
        idle = state->running == 0 ? state : idle;
    }
    if (limiter->n_tenants < MR_RATE_MAX_TENANTS) {
        idle = &limiter->tenants[limiter->n_tenants++];
    }
    if (idle != NULL) {
        *idle = (mr_tenant_state){0};
        memcpy(idle->name, name, strlen(name) + 1);
    }
    return idle;
}

static void fill(mr_tenant_state *state, uint64_t now_ns)
{
    const mr_rate_limits *limits = &state->limits;
    if (limits->requests_per_s > 0) {
        mr_token_bucket_fill(&state->requests, requests_size(limits), now_ns);
    }
    if (limits->tokens_per_min > 0) {
        mr_token_bucket_fill(&state->tokens, tokens_size(limits), now_ns);
    }
}

static void charge(mr_tenant_state *state, const mr_rate_ticket *ticket)
{
    if (ticket->limits.requests_per_s > 0) {
        mr_token_bucket_take(&state->requests, 1);
    }
    if (ticket->limits.tokens_per_min > 0) {
        mr_token_bucket_take(&state->tokens, (double)ticket->tokens);
    }
    state->running++;
}

/* What is short, of filled buckets, and for how long. */
static mr_rate_limit find_short(const mr_tenant_state *state, const mr_rate_ticket *ticket,
                                uint32_t *wait_ms)
{
    const mr_rate_limits *limits = &ticket->limits;
    *wait_ms = PROCESS_RETRY_MS;
    if (limits->max_concurrent > 0 && state->running >= limits->max_concurrent) {
        return MR_RATE_CONCURRENT;
    }
    uint32_t requests = 0;
    uint32_t tokens = 0;
    if (limits->requests_per_s > 0) {
        requests = mr_token_bucket_wait_ms(&state->requests, requests_size(limits), 1);
    }
    if (limits->tokens_per_min > 0) {
        tokens =
            mr_token_bucket_wait_ms(&state->tokens, tokens_size(limits), (double)ticket->tokens);
    }
    *wait_ms = requests >= tokens ? requests : tokens;
    if (*wait_ms == 0) {
        return MR_RATE_NONE;
    }
    return requests >= tokens ? MR_RATE_REQUESTS : MR_RATE_TOKENS;
}

static void link_in(mr_rate_limiter *limiter, mr_rate_ticket *ticket)
{
    ticket->prev = NULL;
    ticket->next = limiter->leases;
    if (limiter->leases != NULL) {
        limiter->leases->prev = ticket;
    }
    limiter->leases = ticket;
}

static void link_out(mr_rate_limiter *limiter, mr_rate_ticket *ticket)
{
    if (ticket->prev != NULL) {
        ticket->prev->next = ticket->next;
    } else {
        limiter->leases = ticket->next;
    }
    if (ticket->next != NULL) {
        ticket->next->prev = ticket->prev;
    }
}

static void hold(mr_rate_limiter *limiter, mr_rate_ticket *ticket)
{
    ticket->holds = true;
    if (mr_rate_leases_in_redis(ticket)) {
        link_in(limiter, ticket);
    }
}

/* From here on without the mutex. */

static void count(mr_rate_limiter *limiter, const mr_rate_decision *decision)
{
    mr_counter_add(&limiter->decisions[decision->mode], 1);
    if (!decision->granted) {
        mr_counter_add(&limiter->refusals[decision->short_of], 1);
    }
}

static void decide_here(mr_rate_limiter *limiter, mr_rate_ticket *ticket, mr_rate_mode mode)
{
    mr_rate_decision *decision = &ticket->decision;
    *decision = (mr_rate_decision){.mode = mode};
    const uint64_t now_ns = mr_clock_now(&limiter->options.clock);
    pthread_mutex_lock(&limiter->mutex);
    mr_tenant_state *state = find_state(limiter, ticket->tenant);
    if (state == NULL) {
        decision->short_of = MR_RATE_CONCURRENT;
        decision->retry_after_ms = PROCESS_RETRY_MS;
    } else {
        state->limits = ticket->limits;
        fill(state, now_ns);
        decision->short_of = find_short(state, ticket, &decision->retry_after_ms);
    }
    if (decision->short_of == MR_RATE_NONE) {
        decision->granted = true;
        charge(state, ticket);
        hold(limiter, ticket);
    }
    pthread_mutex_unlock(&limiter->mutex);
}

/* Somebody else has granted it; the buckets here follow, so that a failure of Redis does not find
 * them full. */
static void take_over(mr_rate_limiter *limiter, mr_rate_ticket *ticket)
{
    const uint64_t now_ns = mr_clock_now(&limiter->options.clock);
    pthread_mutex_lock(&limiter->mutex);
    mr_tenant_state *state = find_state(limiter, ticket->tenant);
    if (state != NULL) {
        state->limits = ticket->limits;
        fill(state, now_ns);
        charge(state, ticket);
    }
    hold(limiter, ticket);
    pthread_mutex_unlock(&limiter->mutex);
}

static void decide_without_redis(mr_rate_limiter *limiter, mr_rate_ticket *ticket)
{
    const mr_rate_mode mode = limiter->options.on_failure;
    if (mode == MR_RATE_LOCAL) {
        decide_here(limiter, ticket, mode);
        return;
    }
    ticket->decision = (mr_rate_decision){.mode = mode, .granted = mode == MR_RATE_OPEN};
    if (ticket->decision.granted) {
        take_over(limiter, ticket);
    } else {
        ticket->decision.short_of = MR_RATE_UNKNOWN;
        ticket->decision.retry_after_ms = CLOSED_RETRY_MS;
    }
}

static mr_rate_ticket *ticket_of(mr_redis_command *command)
{
    return (mr_rate_ticket *)(void *)((char *)command - offsetof(mr_rate_ticket, command));
}

static void on_take_reply(mr_redis_command *command, uint32_t index, const struct redisReply *reply)
{
    (void)index;
    mr_rate_ticket *ticket = ticket_of(command);
    ticket->answered = mr_redis_limits_read(reply, &ticket->decision);
}

static void on_take_done(mr_redis_command *command, mr_status status)
{
    mr_rate_ticket *ticket = ticket_of(command);
    mr_rate_limiter *limiter = ticket->limiter;
    mr_redis_command_deinit(command);
    ticket->answered = ticket->answered && status == MR_OK;
    if (!ticket->answered) {
        decide_without_redis(limiter, ticket);
        if (!ticket->decision.granted && mr_rate_leases_in_redis(ticket)) {
            mr_rate_release_lease(ticket); /* it may have been granted, too late */
        }
    } else if (ticket->decision.granted) {
        take_over(limiter, ticket);
    }
    count(limiter, &ticket->decision);
    ticket->on_decided(ticket);
}

/* False: Redis cannot be asked. */
static bool ask_redis(mr_rate_limiter *limiter, mr_rate_ticket *ticket)
{
    if (!mr_redis_link_available(limiter->options.link)) {
        return false;
    }
    char key[MR_TENANT_KEY_BYTES];
    mr_redis_tenant_key(ticket->tenant, key);
    ticket->command = (mr_redis_command){.timeout_ns = limiter->options.timeout_ns,
                                         .on_reply = on_take_reply,
                                         .on_done = on_take_done};
    if (mr_redis_limits_take(&ticket->command, key, &ticket->limits, ticket->tokens,
                             ticket->lease) == MR_OK &&
        mr_redis_link_submit(limiter->options.link, &ticket->command)) {
        return true;
    }
    mr_redis_command_deinit(&ticket->command);
    return false;
}

bool mr_rate_limiter_take(mr_rate_limiter *limiter, mr_rate_ticket *ticket)
{
    ticket->limiter = limiter;
    ticket->answered = false;
    ticket->holds = false;
    MR_CHECK(memchr(ticket->tenant, '\0', sizeof(ticket->tenant)) != NULL);
    if (limiter->options.link == NULL) {
        decide_here(limiter, ticket, MR_RATE_BY_PROCESS);
    } else if (ask_redis(limiter, ticket)) {
        return false;
    } else {
        decide_without_redis(limiter, ticket);
    }
    count(limiter, &ticket->decision);
    return true;
}

/* The limits of a ticket may be older than those in effect: what has come in by these is not cut
 * off at its end. The next take cuts off what is too much. */
static void widen(mr_rate_limits *old, const mr_rate_limits *now)
{
    if (now->tokens_per_min > 0) {
        old->tokens_per_min = now->tokens_per_min;
        old->burst_tokens =
            old->burst_tokens > now->burst_tokens ? old->burst_tokens : now->burst_tokens;
    }
}

void mr_rate_limiter_finish(mr_rate_ticket *ticket, uint64_t used_tokens)
{
    if (!ticket->holds) {
        return;
    }
    ticket->holds = false;
    mr_rate_limiter *limiter = ticket->limiter;
    mr_rate_limits limits = ticket->limits;
    const uint64_t unused = ticket->tokens > used_tokens ? ticket->tokens - used_tokens : 0;
    const bool refunds = limits.tokens_per_min > 0 && unused > 0;
    const bool leases = mr_rate_leases_in_redis(ticket);
    pthread_mutex_lock(&limiter->mutex);
    mr_tenant_state *state = find_state(limiter, ticket->tenant);
    if (state != NULL) {
        state->running -= state->running > 0 ? 1 : 0;
        widen(&limits, &state->limits);
    }
    if (state != NULL && refunds) {
        mr_token_bucket_refund(&state->tokens, tokens_size(&limits), (double)unused);
    }
    if (leases) {
        link_out(limiter, ticket);
    }
    pthread_mutex_unlock(&limiter->mutex);
    /* Redis gives back only what it knows to have been taken from it. */
    if (refunds && ticket->decision.mode == MR_RATE_BY_REDIS) {
        mr_rate_refund_tokens(ticket, &limits, unused);
    }
    if (leases) {
        mr_rate_release_lease(ticket);
    }
}

mr_status mr_rate_limiter_create(const mr_rate_options *options, mr_rate_limiter **out,
                                 mr_error *err)
{
    mr_rate_limiter *limiter = mr_calloc(1, sizeof(*limiter));
    mr_tenant_state *tenants = mr_calloc(MR_RATE_MAX_TENANTS, sizeof(*tenants));
    mr_old_lease *old_leases = mr_calloc(MR_RATE_MAX_OLD_LEASES, sizeof(*old_leases));
    if (limiter == NULL || tenants == NULL || old_leases == NULL) {
        free(limiter);
        free(tenants);
        free(old_leases);
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "out of memory for the rate limits");
    }
    limiter->options = *options;
    limiter->tenants = tenants;
    limiter->old_leases = old_leases;
    pthread_mutex_init(&limiter->mutex, NULL);
    if (options->link != NULL) {
        mr_redis_link_hook(options->link, (mr_redis_hook){.tick = mr_rate_tick, .ctx = limiter});
    }
    *out = limiter;
    return MR_OK;
}

void mr_rate_limiter_destroy(mr_rate_limiter *limiter)
{
    if (limiter == NULL) {
        return;
    }
    pthread_mutex_destroy(&limiter->mutex);
    free(limiter->tenants);
    free(limiter->old_leases);
    free(limiter);
}

void mr_rate_limiter_stats_get(mr_rate_limiter *limiter, mr_rate_stats *out)
{
    for (uint32_t i = 0; i < MR_RATE_MODES; i++) {
        out->decisions[i] = mr_counter_get(&limiter->decisions[i]);
    }
    for (uint32_t i = 0; i < MR_RATE_LIMITS; i++) {
        out->refusals[i] = mr_counter_get(&limiter->refusals[i]);
    }
}
