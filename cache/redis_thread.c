/* SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"
#include "base/log.h"
#include "base/random.h"
#include "cache/redis_connect.h"
#include "cache/redis_link_internal.h"

#include <hiredis.h>
#include <poll.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* A reply longer than what anything of ours asks for, bytes. */
#define MAX_REPLY          (8u << 20)
#define TRIP_AFTER         3u
#define PROBE_NS           (100 * MR_NS_PER_MS)
#define PROBE_TIMEOUT_NS   (50 * MR_NS_PER_MS)
#define SILENCE_NS         MR_NS_PER_S
#define LONGEST_BACKOFF_NS (500 * MR_NS_PER_MS)
#define FAREWELL_NS        (200 * MR_NS_PER_MS)

static bool is_stopping(mr_redis_link *link)
{
    pthread_mutex_lock(&link->mutex);
    const bool stopping = link->stopping;
    pthread_mutex_unlock(&link->mutex);
    return stopping;
}

static void set_accepts(mr_redis_link *link, bool accepts)
{
    pthread_mutex_lock(&link->mutex);
    link->accepts = accepts && !link->stopping;
    pthread_mutex_unlock(&link->mutex);
    mr_counter_set(&link->available, accepts ? 1 : 0);
}

static void end(mr_redis_link *link, mr_redis_command *command, mr_status status)
{
    if (status != MR_OK) {
        mr_counter_add(&link->errors, 1);
    }
    command->on_done(command, status);
}

static mr_redis_flight *flight_at(mr_redis_link *link, uint32_t index)
{
    return &link->flights[(link->oldest + index) % MR_REDIS_MAX_FLIGHT];
}

static bool launch(mr_redis_link *link, mr_redis_command *command, const mr_buffer *text,
                   uint32_t replies)
{
    if (link->n_flights == MR_REDIS_MAX_FLIGHT ||
        redisAppendFormattedCommand(link->redis, (const char *)text->data, text->size) !=
            REDIS_OK) {
        return false;
    }
    *flight_at(link, link->n_flights++) =
        (mr_redis_flight){.command = command, .left = replies, .sent_ns = mr_monotonic_ns()};
    mr_counter_add(&link->sent, replies);
    return true;
}

static void take_queue(mr_redis_link *link)
{
    pthread_mutex_lock(&link->mutex);
    mr_redis_command *first = link->first;
    link->first = link->last = NULL;
    pthread_mutex_unlock(&link->mutex);
    mr_redis_command **tail = &link->queued;
    while (*tail != NULL) {
        tail = &(*tail)->next;
    }
    *tail = first;
}

static void count_out(mr_redis_link *link)
{
    pthread_mutex_lock(&link->mutex);
    link->waiting--;
    pthread_mutex_unlock(&link->mutex);
}

static void launch_queued(mr_redis_link *link)
{
    while (link->queued != NULL && link->n_flights < MR_REDIS_WINDOW) {
        mr_redis_command *command = link->queued;
        link->queued = command->next;
        count_out(link);
        if (!launch(link, command, &command->text, command->n_replies)) {
            end(link, command, MR_UNAVAILABLE);
        }
    }
}

static void fail_all(mr_redis_link *link)
{
    set_accepts(link, false);
    take_queue(link);
    while (link->n_flights > 0) {
        mr_redis_flight *f = flight_at(link, 0);
        mr_redis_command *command = f->command;
        link->oldest = (link->oldest + 1) % MR_REDIS_MAX_FLIGHT;
        link->n_flights--;
        if (command != NULL) {
            end(link, command, MR_UNAVAILABLE);
        }
    }
    while (link->queued != NULL) {
        mr_redis_command *command = link->queued;
        link->queued = command->next;
        count_out(link);
        end(link, command, MR_UNAVAILABLE);
    }
}

/* Half of the base to one and a half times it: replicas that lost Redis together come back apart.
 */
static uint64_t with_jitter(uint64_t base_ns)
{
    uint32_t random = 0;
    if (mr_random_fill(&random, sizeof(random), "jitter", NULL) != MR_OK) {
        return base_ns;
    }
    return base_ns / 2 + (uint64_t)((double)base_ns * random / UINT32_MAX);
}

static void schedule_connect(mr_redis_link *link)
{
    link->connect_due_ns = mr_monotonic_ns() + with_jitter(link->backoff_ns);
    link->backoff_ns = mr_min_u64(2 * link->backoff_ns, LONGEST_BACKOFF_NS);
}

static void disconnect(mr_redis_link *link, const char *why)
{
    char said[300];
    if (!is_stopping(link)) {
        mr_log_folded(MR_LOG_WARN, "redis", "connection lost", "address=%s cause=%s", link->shown,
                      mr_log_quote(why, said, sizeof(said)));
    }
    redisFree(link->redis);
    link->redis = NULL;
    link->unsent = false;
    link->demoted = false;
    mr_counter_set(&link->connected, 0);
    fail_all(link);
    schedule_connect(link);
}

static void close_circuit(mr_redis_link *link)
{
    link->late = 0;
    set_accepts(link, true);
    pthread_mutex_lock(&link->mutex);
    link->kicked = true; /* what the hooks could not send meanwhile */
    pthread_mutex_unlock(&link->mutex);
}

static void connect_now(mr_redis_link *link)
{
    mr_error err = {0};
    if (mr_redis_connect(&link->url, &link->redis, &err) != MR_OK) {
        char said[300];
        mr_log_folded(MR_LOG_WARN, "redis", "cannot connect", "address=%s cause=%s", link->shown,
                      mr_log_quote(err.message, said, sizeof(said)));
        schedule_connect(link);
        return;
    }
    mr_log_folded(MR_LOG_INFO, "redis", "connected", "address=%s", link->shown);
    link->backoff_ns = MR_REDIS_FIRST_BACKOFF_NS;
    link->fresh = true;
    mr_counter_set(&link->connected, 1);
    mr_counter_add(&link->connects, 1);
    close_circuit(link);
}

/* Redis before 7 puts what a script met behind words of its own. */
static bool says_read_only(const redisReply *reply)
{
    static const char code[] = "READONLY ";
    return reply->type == REDIS_REPLY_ERROR && (strncmp(reply->str, code, sizeof(code) - 1) == 0 ||
                                                strstr(reply->str, "-READONLY ") != NULL);
}

/* True when the reply only said that the script is unknown: it is sent, and the command behind it.
 * The replies come in that order. */
static bool reload(mr_redis_link *link, mr_redis_command *command, const redisReply *reply)
{
    static const char unknown[] = "NOSCRIPT";
    if (command->script == NULL || command->reloaded || reply->type != REDIS_REPLY_ERROR ||
        strncmp(reply->str, unknown, sizeof(unknown) - 1) != 0) {
        return false;
    }
    command->reloaded = true;
    mr_redis_command loader = {0};
    const mr_redis_arg args[] = {mr_redis_text("SCRIPT"), mr_redis_text("LOAD"),
                                 mr_redis_text(command->script->body)};
    const bool sent = mr_redis_command_add(&loader, args, 3) == MR_OK &&
                      launch(link, NULL, &loader.text, 1) &&
                      launch(link, command, &command->text, 1);
    mr_redis_command_deinit(&loader);
    return sent;
}

static void on_reply(mr_redis_link *link, const redisReply *reply)
{
    mr_redis_flight *f = flight_at(link, 0);
    mr_redis_command *command = f->command;
    f->left--;
    const bool over = f->left == 0;
    link->demoted = link->demoted || says_read_only(reply);
    if (over) {
        link->oldest = (link->oldest + 1) % MR_REDIS_MAX_FLIGHT;
        link->n_flights--;
    }
    if (command == NULL) {
        return; /* too late, or nobody's */
    }
    if (link->late < TRIP_AFTER) {
        link->late = 0;
    }
    if (reload(link, command, reply)) {
        return;
    }
    if (reply->type == REDIS_REPLY_ERROR) {
        mr_counter_add(&link->errors, 1);
        char said[300];
        mr_log_folded(MR_LOG_WARN, "redis", "Redis refuses a command", "reply=%s",
                      mr_log_quote(reply->str, said, sizeof(said)));
    }
    if (command->on_reply != NULL) {
        command->on_reply(command, command->replied, reply);
    }
    command->replied++;
    if (over) {
        command->on_done(command, MR_OK);
    }
}

/* False when the connection is no use any more. */
static bool read_replies(mr_redis_link *link)
{
    if (redisBufferRead(link->redis) != REDIS_OK) {
        return false;
    }
    for (;;) {
        void *reply = NULL;
        if (redisGetReplyFromReader(link->redis, &reply) != REDIS_OK) {
            return false;
        }
        if (reply == NULL) {
            return link->redis->reader->len < MAX_REPLY;
        }
        const bool expected = link->n_flights > 0;
        if (expected) {
            on_reply(link, reply);
        }
        freeReplyObject(reply);
        if (!expected || link->demoted) {
            return false;
        }
    }
}

static const char *why_useless(const mr_redis_link *link)
{
    if (link->demoted) {
        return "Redis takes no writes any more: it has become a replica";
    }
    return link->redis->err != 0 ? link->redis->errstr : "an unexpected reply";
}

static void count_late(mr_redis_link *link)
{
    if (link->late < TRIP_AFTER && ++link->late == TRIP_AFTER) {
        mr_log_folded(MR_LOG_WARN, "redis", "Redis is too slow: going on without it", "address=%s",
                      link->shown);
        set_accepts(link, false);
        link->probe_due_ns = mr_monotonic_ns() + PROBE_NS;
    }
}

/* Ends what is out of time; gives the next time at which something will be. */
static uint64_t expire(mr_redis_link *link, uint64_t now)
{
    uint64_t next = MR_NEVER;
    for (uint32_t i = 0; i < link->n_flights; i++) {
        mr_redis_flight *f = flight_at(link, i);
        mr_redis_command *command = f->command;
        if (command == NULL) {
            continue;
        }
        if (command->deadline_ns > now) {
            next = mr_min_u64(next, command->deadline_ns);
            continue;
        }
        f->command = NULL;
        count_late(link);
        end(link, command, MR_DEADLINE_EXCEEDED);
    }
    mr_redis_command **at = &link->queued;
    while (*at != NULL) {
        mr_redis_command *command = *at;
        if (command->deadline_ns > now) {
            next = mr_min_u64(next, command->deadline_ns);
            at = &command->next;
            continue;
        }
        *at = command->next;
        count_out(link);
        end(link, command, MR_DEADLINE_EXCEEDED);
    }
    return next;
}

void mr_redis_thread_on_probe(mr_redis_command *command, mr_status status)
{
    mr_redis_link *link = (void *)((char *)command - offsetof(mr_redis_link, probe));
    link->probing = false;
    if (status == MR_OK) {
        close_circuit(link);
        mr_log_folded(MR_LOG_INFO, "redis", "Redis answers in time again", "address=%s",
                      link->shown);
    }
}

/* While the circuit is open and nothing is on its way, a PING finds out whether it may be closed.
 * Gives the time of the next look. */
static uint64_t probe(mr_redis_link *link, uint64_t now)
{
    if (link->late < TRIP_AFTER || link->probing || link->n_flights > 0) {
        return MR_NEVER;
    }
    if (now < link->probe_due_ns) {
        return link->probe_due_ns;
    }
    link->probe_due_ns = now + PROBE_NS;
    link->probe.replied = 0;
    link->probe.deadline_ns = now + PROBE_TIMEOUT_NS;
    link->probing = launch(link, &link->probe, &link->probe.text, 1);
    return link->probe_due_ns;
}

static bool take_kick(mr_redis_link *link)
{
    pthread_mutex_lock(&link->mutex);
    const bool kicked = link->kicked;
    link->kicked = false;
    pthread_mutex_unlock(&link->mutex);
    return kicked;
}

static uint64_t run_hooks(mr_redis_link *link, uint64_t now)
{
    uint64_t next = MR_NEVER;
    if (link->late >= TRIP_AFTER) {
        return next; /* nothing would be accepted */
    }
    const bool kicked = take_kick(link);
    for (uint32_t i = 0; i < link->n_hooks; i++) {
        if (link->fresh || kicked || now >= link->hook_due_ns[i]) {
            link->hook_due_ns[i] = link->hooks[i].tick(link->hooks[i].ctx, now, link->fresh);
        }
        next = mr_min_u64(next, link->hook_due_ns[i]);
    }
    link->fresh = false;
    return next;
}

/* Waits for Redis, a ring or a time; true when Redis has something to read, or is gone. */
static bool wait_for(mr_redis_link *link, uint64_t until)
{
    struct pollfd fds[2] = {{.fd = link->wake_fd, .events = POLLIN}, {.fd = -1}};
    if (link->redis != NULL) {
        fds[1].fd = link->redis->fd;
        fds[1].events = link->unsent ? POLLIN | POLLOUT : POLLIN;
    }
    const uint64_t now = mr_monotonic_ns();
    until = mr_min_u64(until, link->give_up_ns);
    const uint64_t left = until > now ? until - now : 0;
    const struct timespec limit = {.tv_sec = (time_t)(left / MR_NS_PER_S),
                                   .tv_nsec = (long)(left % MR_NS_PER_S)};
    if (ppoll(fds, 2, until == MR_NEVER ? NULL : &limit, NULL) <= 0) {
        return false;
    }
    uint64_t count;
    if ((fds[0].revents & POLLIN) != 0 && read(link->wake_fd, &count, sizeof(count)) < 0) {
        return false; /* somebody else's: there is nobody, and nothing is lost */
    }
    return (fds[1].revents & ~POLLOUT) != 0;
}

static bool flush(mr_redis_link *link)
{
    int done = 0;
    if (redisBufferWrite(link->redis, &done) != REDIS_OK) {
        return false;
    }
    link->unsent = done == 0;
    return true;
}

/* One turn while connected. */
static void serve(mr_redis_link *link)
{
    uint64_t until = run_hooks(link, mr_monotonic_ns());
    take_queue(link);
    launch_queued(link);
    const uint64_t now = mr_monotonic_ns();
    until = mr_min_u64(until, expire(link, now));
    until = mr_min_u64(until, probe(link, now));
    if (link->n_flights > 0) {
        const uint64_t silent_at = flight_at(link, 0)->sent_ns + SILENCE_NS;
        if (silent_at <= now) {
            disconnect(link, "no answer for a second");
            return;
        }
        until = mr_min_u64(until, silent_at);
    }
    if (!flush(link)) {
        disconnect(link, link->redis->errstr);
        return;
    }
    if (wait_for(link, until) && !read_replies(link)) {
        disconnect(link, why_useless(link));
    }
}

/* What was accepted gets a little time to end. */
static void say_farewell(mr_redis_link *link)
{
    link->n_hooks = 0;
    link->give_up_ns = mr_monotonic_ns() + FAREWELL_NS;
    for (;;) {
        take_queue(link);
        const bool busy = link->queued != NULL || link->n_flights > 0;
        if (link->redis == NULL || !busy || mr_monotonic_ns() >= link->give_up_ns) {
            break;
        }
        serve(link);
    }
    fail_all(link);
}

void *mr_redis_thread_main(void *arg)
{
    mr_redis_link *link = arg;
    while (!is_stopping(link)) {
        if (link->redis != NULL) {
            serve(link);
        } else if (mr_monotonic_ns() >= link->connect_due_ns) {
            connect_now(link);
        } else {
            (void)wait_for(link, link->connect_due_ns);
        }
    }
    say_farewell(link);
    return NULL;
}
