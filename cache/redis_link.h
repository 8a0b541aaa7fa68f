/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One connection to Redis on a thread of its own.
 *
 *   any thread                          the link's thread
 *   submit ─► queue (bounded) ─► window of pipelined commands ─► Redis
 *                                on_reply for each reply, then on_done, exactly once
 *
 * A command that was accepted ends exactly once: with MR_OK when its last reply came, with
 * MR_DEADLINE_EXCEEDED when its time is up (a reply that still comes is dropped), with
 * MR_UNAVAILABLE when the connection breaks or the link is destroyed. Nothing is sent again: what
 * was on its way may or may not have been done.
 *
 * While Redis does not answer (not connected, or the last three commands ran out of time: the
 * circuit is open), nothing is accepted, so nobody waits for it. The thread tries to connect again
 * with exponential back-off and jitter, or asks with a PING whether Redis is in time again. A
 * connection on which nothing comes back for a second is given up, and so is one to a replica,
 * which takes no writes: after a failover the name leads elsewhere.
 */
#ifndef MILLRACE_CACHE_REDIS_LINK_H
#define MILLRACE_CACHE_REDIS_LINK_H

#include "base/buffer.h"
#include "base/status.h"
#include "cache/redis_script.h"
#include "cache/redis_url.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct redisReply;

typedef struct mr_redis_link mr_redis_link;
typedef struct mr_redis_command mr_redis_command;

/* Owned by who submits it, and the link's from then until on_done is called. */
struct mr_redis_command {
    mr_buffer text; /* owns; what mr_redis_command_add made */
    uint32_t n_replies;
    const mr_redis_script *script; /* of the text, if that is one EVALSHA: loaded when Redis does
                                      not know it, once */
    uint64_t timeout_ns;           /* from submit on */
    /* The link's thread. NULL: no interest. Replies are borrowed for the call and may be errors. */
    void (*on_reply)(mr_redis_command *command, uint32_t index, const struct redisReply *reply);
    /* The link's thread, which is done with the command: it may be freed. */
    void (*on_done)(mr_redis_command *command, mr_status status);

    /* The link's. */
    uint64_t deadline_ns;
    uint32_t replied;
    bool reloaded;
    mr_redis_command *next;
};

/* An argument; text with its length, binary is fine. */
typedef struct mr_redis_arg {
    const char *at;
    size_t bytes;
} mr_redis_arg;

mr_redis_arg mr_redis_text(const char *text);

#define MR_REDIS_MAX_ARGS 64

/* Appends a command of `n` arguments (1 … MR_REDIS_MAX_ARGS) to the text, and counts its reply.
 * RESOURCE_EXHAUSTED when memory is short. Any thread. */
MR_MUST_USE mr_status mr_redis_command_add(mr_redis_command *command, const mr_redis_arg *args,
                                           uint32_t n);
/* The same for EVALSHA; the first `n_keys` of the arguments are keys. Only on an empty command. */
MR_MUST_USE mr_status mr_redis_command_eval(mr_redis_command *command,
                                            const mr_redis_script *script, uint32_t n_keys,
                                            const mr_redis_arg *args, uint32_t n);
/* Frees the text. */
void mr_redis_command_deinit(mr_redis_command *command);

/* Regular work on the link's thread while Redis answers. Gives the time at which to be called next;
 * it is called earlier on a new connection (`fresh`), when the circuit closes, and after
 * mr_redis_link_wake. */
typedef struct mr_redis_hook {
    uint64_t (*tick)(void *ctx, uint64_t now_ns, bool fresh);
    void *ctx;
} mr_redis_hook;

typedef struct mr_redis_link_stats {
    bool connected;
    bool available;  /* connected, and the circuit is closed */
    uint64_t sent;   /* Redis commands */
    uint64_t errors; /* error replies, commands out of time or lost with their connection */
    uint64_t refused;
    uint64_t connects; /* connections made */
} mr_redis_link_stats;

/* Gives a link that does nothing until it is started. The URL is copied. */
MR_MUST_USE mr_status mr_redis_link_create(const mr_redis_url *url, mr_redis_link **out,
                                           mr_error *err);
/* Before start; `ctx` is borrowed until destroy. At most MR_REDIS_MAX_HOOKS. */
void mr_redis_link_hook(mr_redis_link *link, mr_redis_hook hook);
#define MR_REDIS_MAX_HOOKS 4
MR_MUST_USE mr_status mr_redis_link_start(mr_redis_link *link, mr_error *err);
/* Gives what was accepted a fifth of a second to end, then ends it. */
void mr_redis_link_destroy(mr_redis_link *link);

/* False, and nothing was taken, while Redis does not answer or too much waits. Never blocks for
 * Redis. Any thread; on_done may be called before it returns. */
MR_MUST_USE bool mr_redis_link_submit(mr_redis_link *link, mr_redis_command *command);
/* Lets the hooks run soon. Any thread, without blocking. */
void mr_redis_link_wake(mr_redis_link *link);
bool mr_redis_link_available(mr_redis_link *link);
void mr_redis_link_stats_get(mr_redis_link *link, mr_redis_link_stats *out);

#endif
