/* SPDX-License-Identifier: Apache-2.0 */
#include "base/event.h"

#include "base/clock.h"
#include "base/status.h"

#include <errno.h>
#include <time.h>

void mr_event_init(mr_event *event)
{
    pthread_condattr_t attr;
    MR_CHECK(pthread_condattr_init(&attr) == 0);
    MR_CHECK(pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) == 0);
    MR_CHECK(pthread_cond_init(&event->cond, &attr) == 0);
    MR_CHECK(pthread_mutex_init(&event->mutex, NULL) == 0);
    pthread_condattr_destroy(&attr);
    event->set = false;
}

void mr_event_deinit(mr_event *event)
{
    pthread_cond_destroy(&event->cond);
    pthread_mutex_destroy(&event->mutex);
}

void mr_event_set(mr_event *event)
{
    pthread_mutex_lock(&event->mutex);
    event->set = true;
    /* Signalled under the lock: the waiter may destroy the event as soon as it has returned. */
    pthread_cond_signal(&event->cond);
    pthread_mutex_unlock(&event->mutex);
}

bool mr_event_wait(mr_event *event, uint64_t until_ns)
{
    const struct timespec until = {
        .tv_sec = (time_t)(until_ns / MR_NS_PER_S),
        .tv_nsec = (long)(until_ns % MR_NS_PER_S),
    };
    pthread_mutex_lock(&event->mutex);
    int rc = 0;
    while (!event->set && rc != ETIMEDOUT) {
        rc = until_ns == MR_NEVER ? pthread_cond_wait(&event->cond, &event->mutex)
                                  : pthread_cond_timedwait(&event->cond, &event->mutex, &until);
    }
    const bool was_set = event->set;
    event->set = false;
    pthread_mutex_unlock(&event->mutex);
    return was_set;
}
