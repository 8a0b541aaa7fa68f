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
 * Limits come with each take, so that they may change at any time.
 */
#ifndef MILLRACE_CACHE_RATE_LIMITER_H
#define MILLRACE_CACHE_RATE_LIMITER_H

#include "base/clock.h"
#include "base/flag.h"
#include "base/status.h"
#include "cache/redis_link.h"

#include <stdbool.h>
#include <stdint.h>

#define MR_RATE_TENANT_MAX 64  /* bytes of a name, with its end */
#define MR_RATE_LEASE_MAX  192 /* bytes of a lease's id, with its end */

typedef struct mr_rate_limits {
    double requests_per_s;   /* 0: no limit, as in those below */
    uint32_t burst_requests; /* at least 1 where there is a rate */
    uint32_t tokens_per_min;
    uint32_t burst_tokens; /* at least 1 where there is a rate */
    uint32_t max_concurrent;
} mr_rate_limits;

static inline double mr_rate_tokens_per_s(const mr_rate_limits *limits)
{
    return (double)limits->tokens_per_min / 60.0;
}

/* Whether anything is limited at all. */
bool mr_rate_limits_any(const mr_rate_limits *limits);

typedef enum mr_rate_limit {
    MR_RATE_NONE,
    MR_RATE_REQUESTS,
    MR_RATE_TOKENS,
    MR_RATE_CONCURRENT,
    MR_RATE_UNKNOWN, /* Redis is down and `on_failure` is CLOSED */
    MR_RATE_LIMITS,
} mr_rate_limit;

/* Who decided. The last three are decisions made without the Redis that should have made them. */
typedef enum mr_rate_mode {
    MR_RATE_BY_PROCESS, /* there is no Redis */
    MR_RATE_BY_REDIS,
    MR_RATE_OPEN,
    MR_RATE_CLOSED,
    MR_RATE_LOCAL,
    MR_RATE_MODES,
} mr_rate_mode;

typedef struct mr_rate_decision {
    bool granted;
    mr_rate_mode mode;
    mr_rate_limit short_of;  /* if not granted */
    uint32_t retry_after_ms; /* if not granted: when it would be, if nobody else came */
} mr_rate_decision;

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

/* INVALID_ARGUMENT, naming the burst, for a request that no wait would help: it may need `prompt`
 * and `output` tokens. Pure. */
MR_MUST_USE mr_status mr_rate_limits_check(const mr_rate_limits *limits, uint64_t prompt,
                                           uint64_t output, mr_error *err);

/* True: decided, see `decision`. False: on_decided comes exactly once, from the link's thread and
 * maybe before this returns. The tokens have passed mr_rate_limits_check. Any thread, never waits
 * for Redis. */
MR_MUST_USE bool mr_rate_limiter_take(mr_rate_limiter *limiter, mr_rate_ticket *ticket);
/* A granted request has ended and used so many tokens: the rest goes back, the lease ends. Nothing
 * for tickets that hold nothing. Any thread, one at a time for a ticket. */
void mr_rate_limiter_finish(mr_rate_ticket *ticket, uint64_t used_tokens);

void mr_rate_limiter_stats_get(mr_rate_limiter *limiter, mr_rate_stats *out);

/* What a client is told of a refusal: RESOURCE_EXHAUSTED, or UNAVAILABLE for UNKNOWN, with the time
 * after which to try again. Returns the status. */
mr_status mr_rate_refusal(const mr_rate_decision *decision, const mr_rate_limits *limits,
                          mr_error *err);

#endif
