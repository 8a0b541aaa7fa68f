/* SPDX-License-Identifier: Apache-2.0 */
/* What may be limited of a tenant, what is decided by that, and how it is told. Pure: any thread.
 */
#ifndef MILLRACE_CACHE_RATE_LIMITS_H
#define MILLRACE_CACHE_RATE_LIMITS_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

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

/* INVALID_ARGUMENT, naming the burst, for a request that no wait would help: it may need `prompt`
 * and `output` tokens. */
MR_MUST_USE mr_status mr_rate_limits_check(const mr_rate_limits *limits, uint64_t prompt,
                                           uint64_t output, mr_error *err);

/* What a client is told of a refusal: RESOURCE_EXHAUSTED, or UNAVAILABLE for UNKNOWN, with the time
 * after which to try again. Returns the status. */
mr_status mr_rate_refusal(const mr_rate_decision *decision, const mr_rate_limits *limits,
                          mr_error *err);

#endif
