/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rate limits of tenants: requests a second, tokens a minute, requests at a time. A request takes
 * one request, the most tokens that it may need, and a lease; all or nothing. When it ends, what
 * it did not use goes back.
 *
 *   take ──► decided at once (no Redis, or Redis is down)
 *      └───► on_decided, from the link's thread, within `timeout_ns`
 *   granted ──► finish, exactly once
 *
 * With Redis all replicas share one state (redis_limits.h); without, each process has its own.
 * While Redis does not answer, `on_failure` says how to decide: OPEN grants, CLOSED refuses, LOCAL
 * asks buckets of this process, from which meanwhile everything was taken that Redis granted here.
 *
 * Limits (rate_limits.h) come with each take, so that they may change at any time.
 */
#ifndef MILLRACE_CACHE_RATE_LIMITER_H
#define MILLRACE_CACHE_RATE_LIMITER_H

#include "base/clock.h"
#include "base/status.h"
#include "cache/rate_limits.h"
#include "cache/redis_link.h"

#include <stdbool.h>
#include <stdint.h>

#define MR_RATE_TENANT_MAX 64  /* bytes of a name, with its end */
#define MR_RATE_LEASE_MAX  192 /* bytes of a lease's id, with its end */

typedef struct mr_rate_limiter mr_rate_limiter;

/* One request's. Zero-initialised is valid; stays where it is, and alive, until it is decided, and
 * if it is granted until finish. */
typedef struct mr_rate_ticket {
    /* The caller's, before take. */
    char tenant[MR_RATE_TENANT_MAX];
    char lease[MR_RATE_LEASE_MAX]; /* unique over all replicas and time */
    mr_rate_limits limits;
    uint64_t tokens; /* the most that may be needed; at least 1 */
    void (*on_decided)(struct mr_rate_ticket *ticket);

    mr_rate_decision decision;

    /* The limiter's. */
    mr_rate_limiter *limiter;
    mr_redis_command command;
    bool answered; /* Redis has decided */
    bool holds;    /* granted, and not finished */
    struct mr_rate_ticket *prev, *next;
} mr_rate_ticket;

typedef struct mr_rate_options {
    mr_clock clock;      /* of the buckets in this process */
    mr_redis_link *link; /* borrows until destroy; not started yet; NULL: no Redis */
    mr_rate_mode on_failure;
    uint64_t timeout_ns; /* how long a decision may take */
} mr_rate_options;

typedef struct mr_rate_stats {
    uint64_t decisions[MR_RATE_MODES];
    uint64_t refusals[MR_RATE_LIMITS]; /* by what was short */
} mr_rate_stats;

MR_MUST_USE mr_status mr_rate_limiter_create(const mr_rate_options *options, mr_rate_limiter **out,
                                             mr_error *err);
/* After the link, and after every ticket's finish. */
void mr_rate_limiter_destroy(mr_rate_limiter *limiter);

/* True: decided, see `decision`. False: on_decided comes exactly once, from the link's thread and
 * maybe before this returns. The tokens have passed mr_rate_limits_check. Any thread, never waits
 * for Redis. */
MR_MUST_USE bool mr_rate_limiter_take(mr_rate_limiter *limiter, mr_rate_ticket *ticket);
/* A granted request has ended and used so many tokens: the rest goes back, the lease ends. Nothing
 * for tickets that hold nothing. Any thread, one at a time for a ticket. */
void mr_rate_limiter_finish(mr_rate_ticket *ticket, uint64_t used_tokens);

void mr_rate_limiter_stats_get(mr_rate_limiter *limiter, mr_rate_stats *out);

#endif
