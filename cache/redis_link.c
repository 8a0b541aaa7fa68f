/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/redis_link.h"

#include "base/checked.h"
#include "cache/redis_link_internal.h"

#include <hiredis.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define MAX_WAITING 4096u /* commands in the queue */

static void ring(mr_redis_link *link)
{
    const uint64_t one = 1;
    /* Fails only when the counter is full, and then the thread is awake. */
    const ssize_t written = write(link->wake_fd, &one, sizeof(one));
    (void)written;
}

bool mr_redis_link_submit(mr_redis_link *link, mr_redis_command *command)
{
    const mr_clock clock = mr_clock_monotonic();
    command->next = NULL;
    command->replied = 0;
    command->reloaded = false;
    command->deadline_ns = mr_time_add(mr_clock_now(&clock), command->timeout_ns);
    pthread_mutex_lock(&link->mutex);
    const bool taken = link->accepts && link->waiting < MAX_WAITING;
    const bool wakes = taken && link->first == NULL;
    if (taken) {
        if (link->first == NULL) {
            link->first = command;
        } else {
            link->last->next = command;
        }
        link->last = command;
        link->waiting++;
    }
    pthread_mutex_unlock(&link->mutex);
    if (!taken) {
        mr_counter_add(&link->refused, 1);
    } else if (wakes) {
        ring(link);
    }
    return taken;
}

void mr_redis_link_wake(mr_redis_link *link)
{
    pthread_mutex_lock(&link->mutex);
    link->kicked = true;
    pthread_mutex_unlock(&link->mutex);
    ring(link);
}

bool mr_redis_link_available(mr_redis_link *link)
{
    return mr_counter_get(&link->available) != 0;
}

void mr_redis_link_stats_get(mr_redis_link *link, mr_redis_link_stats *out)
{
    *out = (mr_redis_link_stats){
        .connected = mr_counter_get(&link->connected) != 0,
        .available = mr_counter_get(&link->available) != 0,
        .sent = mr_counter_get(&link->sent),
        .errors = mr_counter_get(&link->errors),
        .refused = mr_counter_get(&link->refused),
        .connects = mr_counter_get(&link->connects),
    };
}

mr_status mr_redis_link_create(const mr_redis_url *url, mr_redis_link **out, mr_error *err)
{
    mr_redis_link *link = mr_calloc(1, sizeof(*link));
    if (link == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "out of memory for the connection to Redis");
    }
    link->url = *url;
    mr_redis_url_show(url, link->shown, sizeof(link->shown));
    pthread_mutex_init(&link->mutex, NULL);
    link->backoff_ns = MR_REDIS_FIRST_BACKOFF_NS;
    link->give_up_ns = MR_NEVER;
    link->probe.on_done = mr_redis_thread_on_probe;
    const mr_redis_arg ping = mr_redis_text("PING");
    mr_status status = mr_redis_command_add(&link->probe, &ping, 1);
    link->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (link->wake_fd < 0) {
        status = MR_RESOURCE_EXHAUSTED;
    }
    if (status != MR_OK) {
        mr_redis_link_destroy(link);
        return mr_fail(err, status, "no memory or descriptor left for the connection to Redis");
    }
    *out = link;
    return MR_OK;
}

void mr_redis_link_hook(mr_redis_link *link, mr_redis_hook hook)
{
    MR_CHECK(!link->started && link->n_hooks < MR_REDIS_MAX_HOOKS);
    link->hooks[link->n_hooks++] = hook;
}

mr_status mr_redis_link_start(mr_redis_link *link, mr_error *err)
{
    if (pthread_create(&link->thread, NULL, mr_redis_thread_main, link) != 0) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "the system gave no thread for Redis");
    }
    link->started = true;
    return MR_OK;
}

void mr_redis_link_destroy(mr_redis_link *link)
{
    if (link == NULL) {
        return;
    }
    if (link->started) {
        pthread_mutex_lock(&link->mutex);
        link->stopping = true;
        link->accepts = false;
        pthread_mutex_unlock(&link->mutex);
        mr_redis_link_wake(link);
        pthread_join(link->thread, NULL);
    }
    if (link->redis != NULL) {
        redisFree(link->redis);
    }
    if (link->wake_fd >= 0) {
        close(link->wake_fd);
    }
    mr_redis_command_deinit(&link->probe);
    pthread_mutex_destroy(&link->mutex);
    free(link);
}
