/* SPDX-License-Identifier: Apache-2.0 */
/* What redis_link.c (any thread's side) and redis_thread.c (the link's own) share. */
#ifndef MILLRACE_CACHE_REDIS_LINK_INTERNAL_H
#define MILLRACE_CACHE_REDIS_LINK_INTERNAL_H

#include "base/clock.h"
#include "base/flag.h"
#include "cache/redis_link.h"

#include <pthread.h>

/* Commands on their way. Each may have to be sent a second time, behind its script. */
#define MR_REDIS_WINDOW           256u
#define MR_REDIS_MAX_FLIGHT       (4 * MR_REDIS_WINDOW)
#define MR_REDIS_FIRST_BACKOFF_NS (25 * MR_NS_PER_MS)

/* What a reply is waited for. */
typedef struct mr_redis_flight {
    mr_redis_command *command; /* NULL: ended already, or nobody's (a script's loading) */
    uint32_t left;             /* replies */
    uint64_t sent_ns;
} mr_redis_flight;

struct mr_redis_link {
    mr_redis_url url;
    char shown[300]; /* the address, for the log */
    pthread_t thread;
    bool started;
    int wake_fd;
    mr_redis_hook hooks[MR_REDIS_MAX_HOOKS];
    uint64_t hook_due_ns[MR_REDIS_MAX_HOOKS];
    uint32_t n_hooks;

    pthread_mutex_t mutex; /* of these */
    mr_redis_command *first, *last;
    uint32_t waiting;
    bool accepts; /* connected and the circuit closed */
    bool kicked;  /* the hooks shall run */
    bool stopping;

    mr_counter connected, available, sent, errors, refused, connects;

    /* The thread's own. */
    struct redisContext *redis; /* NULL: not connected */
    mr_redis_command *queued;   /* taken from the queue, not sent yet */
    mr_redis_flight flights[MR_REDIS_MAX_FLIGHT];
    uint32_t oldest, n_flights; /* a ring */
    uint32_t late;              /* commands out of time since one was in time */
    uint64_t probe_due_ns;      /* while the circuit is open */
    uint64_t backoff_ns;
    uint64_t connect_due_ns;
    uint64_t give_up_ns; /* no waiting beyond it */
    bool fresh;          /* the hooks have not seen this connection */
    bool unsent;         /* the socket takes no more for now */
    bool demoted;        /* Redis said that it takes no writes */
    mr_redis_command probe;
    bool probing;
};

/* The thread; its argument is the link. */
void *mr_redis_thread_main(void *arg);
/* What a PING of its own ends with. */
void mr_redis_thread_on_probe(mr_redis_command *command, mr_status status);

#endif
