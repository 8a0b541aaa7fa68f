/* SPDX-License-Identifier: Apache-2.0 */
/* How fast a queue moves: when somebody who was refused should come again. */
#ifndef MILLRACE_SCHEDULER_PACE_H
#define MILLRACE_SCHEDULER_PACE_H

#include <stdint.h>

typedef struct mr_pace {
    uint64_t last_ns;     /* when it was measured last; 0: never */
    uint64_t interval_ns; /* from one that leaves the queue to the next, smoothed; 0: not known */
    uint32_t refused;     /* whose turn has not come yet */
} mr_pace;

void mr_pace_init(mr_pace *pace);
/* The queue was empty until now: what was before says nothing about its pace. */
void mr_pace_begin(mr_pace *pace, uint64_t now_ns);
/* `count`, at least 1, have left it. */
void mr_pace_moved(mr_pace *pace, uint32_t count, uint64_t now_ns);
/* Somebody is refused; when to come again. Those that are refused together are told one place
 * after the other, so that they do not come back together. */
uint32_t mr_pace_refuse_ms(mr_pace *pace);

#endif
