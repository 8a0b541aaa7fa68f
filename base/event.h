/* SPDX-License-Identifier: Apache-2.0 */
/* Auto-reset event for one sleeping thread: sets before the wait are not lost. */
#ifndef MILLRACE_BASE_EVENT_H
#define MILLRACE_BASE_EVENT_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct mr_event {
    pthread_mutex_t mutex;
    pthread_cond_t cond; /* on CLOCK_MONOTONIC */
    bool set;
} mr_event;

void mr_event_init(mr_event *event);
void mr_event_deinit(mr_event *event);
/* Wakes the waiter, or lets its next wait return at once. Any thread. */
void mr_event_set(mr_event *event);
/* Returns true once set (and resets it), false when CLOCK_MONOTONIC passes `until_ns`
 * (MR_NEVER: no limit). */
bool mr_event_wait(mr_event *event, uint64_t until_ns);

#endif
