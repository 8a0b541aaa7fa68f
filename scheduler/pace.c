/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler/pace.h"

#include "base/clock.h"

#define LEAST_MS   100u
#define MOST_MS    60000u
#define UNKNOWN_MS 1000u
#define SMOOTHING  8u /* the share of a new measurement is one in so many */

void mr_pace_init(mr_pace *pace)
{
    *pace = (mr_pace){0};
}

void mr_pace_begin(mr_pace *pace, uint64_t now_ns)
{
    pace->last_ns = now_ns;
    pace->refused = 0;
}

void mr_pace_moved(mr_pace *pace, uint32_t count, uint64_t now_ns)
{
    const uint64_t sample_ns = now_ns > pace->last_ns ? (now_ns - pace->last_ns) / count : 0;
    pace->last_ns = now_ns;
    pace->refused -= pace->refused < count ? pace->refused : count;
    if (pace->interval_ns == 0) {
        pace->interval_ns = sample_ns;
    } else {
        pace->interval_ns -= pace->interval_ns / SMOOTHING;
        pace->interval_ns += sample_ns / SMOOTHING;
    }
}

uint32_t mr_pace_refuse_ms(mr_pace *pace)
{
    pace->refused += pace->refused < UINT32_MAX;
    const uint64_t each_ns = pace->interval_ns;
    if (each_ns == 0) {
        return UNKNOWN_MS;
    }
    if (each_ns > MOST_MS * MR_NS_PER_MS / pace->refused) {
        return MOST_MS;
    }
    const uint64_t ms = each_ns * pace->refused / MR_NS_PER_MS + 1;
    return ms < LEAST_MS ? LEAST_MS : ms < MOST_MS ? (uint32_t)ms : MOST_MS;
}
