/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"

#include <time.h>

static uint64_t monotonic_ns(void *ctx)
{
    (void)ctx;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * MR_NS_PER_S + (uint64_t)now.tv_nsec;
}

mr_clock mr_clock_monotonic(void)
{
    return (mr_clock){.now_ns = monotonic_ns};
}

uint64_t mr_monotonic_ns(void)
{
    const mr_clock clock = mr_clock_monotonic();
    return mr_clock_now(&clock);
}

uint64_t mr_time_add(uint64_t ns, uint64_t delta_ns)
{
    return delta_ns > MR_NEVER - ns ? MR_NEVER : ns + delta_ns;
}
