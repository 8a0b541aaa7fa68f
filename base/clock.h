/* SPDX-License-Identifier: Apache-2.0 */
/* A clock is injected wherever time decides anything, so that tests run in virtual time. */
#ifndef MILLRACE_BASE_CLOCK_H
#define MILLRACE_BASE_CLOCK_H

#include <stdint.h>

#define MR_NS_PER_MS 1000000ull
#define MR_NS_PER_S  1000000000ull
#define MR_NEVER     UINT64_MAX /* a time that does not come */

typedef struct mr_clock {
    uint64_t (*now_ns)(void *ctx); /* monotonic; zero is arbitrary; callable from any thread */
    void *ctx;
} mr_clock;

static inline uint64_t mr_clock_now(const mr_clock *clock)
{
    return clock->now_ns(clock->ctx);
}

/* CLOCK_MONOTONIC. */
mr_clock mr_clock_monotonic(void);
/* What it says now, where nothing is decided that a test would want to inject a clock for. */
uint64_t mr_monotonic_ns(void);

/* a + b, or MR_NEVER where that does not fit. */
uint64_t mr_time_add(uint64_t ns, uint64_t delta_ns);

#endif
