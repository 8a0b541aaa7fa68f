/* SPDX-License-Identifier: Apache-2.0 */
/* Repeated events: a few lines, then a count. */
#include "base/log.h"
#include "base/log_internal.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define KINDS     16
#define WINDOW_NS (10 * MR_NS_PER_S)
#define BURST     5u

/* Events of the same level, module and message. */
typedef struct kind {
    char module[24];
    char msg[168]; /* kinds that differ only behind this are one */
    mr_log_level level;
    uint64_t end_ns; /* of the window */
    uint32_t seen;   /* in the window; 0: a free place */
    uint32_t folded;
} kind;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static kind kinds[KINDS];
static atomic_bool owing; /* some kind has folded > 0 */
static mr_clock test_clock;

void mr_log_set_clock(const mr_clock *clock)
{
    test_clock = clock != NULL ? *clock : (mr_clock){NULL, NULL};
}

static uint64_t now_ns(void)
{
    const mr_clock clock = test_clock.now_ns != NULL ? test_clock : mr_clock_monotonic();
    return mr_clock_now(&clock);
}

static void MR_PRINTF(4, 5)
    write_line(mr_log_level level, const char *module, const char *msg, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    mr_log_write(level, module, msg, fmt, args);
    va_end(args);
}

/* Ends a kind's window. Under the mutex. */
static void settle(kind *k)
{
    if (k->folded > 0 && mr_log_wanted(k->level)) {
        char msg[sizeof(k->msg) + 40];
        snprintf(msg, sizeof(msg), "%s, repeated %u times", k->msg, k->folded);
        write_line(k->level, k->module, msg, "repeated=%u", k->folded);
    }
    *k = (kind){.seen = 0};
}

/* Under the mutex. */
static void settle_until(uint64_t ns)
{
    bool left = false;
    for (size_t i = 0; i < KINDS; i++) {
        if (kinds[i].seen > 0 && kinds[i].end_ns <= ns) {
            settle(&kinds[i]);
        }
        left = left || kinds[i].folded > 0;
    }
    atomic_store_explicit(&owing, left, memory_order_relaxed);
}

void mr_log_fold_tick(void)
{
    if (atomic_load_explicit(&owing, memory_order_relaxed)) {
        pthread_mutex_lock(&mutex);
        settle_until(now_ns());
        pthread_mutex_unlock(&mutex);
    }
}

void mr_log_flush(void)
{
    pthread_mutex_lock(&mutex);
    settle_until(MR_NEVER);
    pthread_mutex_unlock(&mutex);
}

/* The kind of the event; a new one takes a free place, or that of the window that ends first. Under
 * the mutex. */
static kind *find(mr_log_level level, const char *module, const char *msg)
{
    kind *place = &kinds[0];
    for (size_t i = 0; i < KINDS; i++) {
        kind *k = &kinds[i];
        if (k->seen > 0 && k->level == level &&
            strncmp(k->module, module, sizeof(k->module) - 1) == 0 &&
            strncmp(k->msg, msg, sizeof(k->msg) - 1) == 0) {
            return k;
        }
        if (place->seen > 0 && (k->seen == 0 || k->end_ns < place->end_ns)) {
            place = k;
        }
    }
    settle(place);
    snprintf(place->module, sizeof(place->module), "%s", module);
    snprintf(place->msg, sizeof(place->msg), "%s", msg);
    place->level = level;
    place->end_ns = mr_time_add(now_ns(), WINDOW_NS);
    return place;
}

void mr_log_folded(mr_log_level level, const char *module, const char *msg, const char *fmt, ...)
{
    if (!mr_log_wanted(level)) {
        return;
    }
    pthread_mutex_lock(&mutex);
    settle_until(now_ns());
    kind *k = find(level, module, msg);
    k->seen++;
    const bool fold = k->seen > BURST;
    if (fold) {
        k->folded++;
        atomic_store_explicit(&owing, true, memory_order_relaxed);
    }
    pthread_mutex_unlock(&mutex);
    if (fold) {
        return;
    }
    va_list args;
    va_start(args, fmt);
    mr_log_write(level, module, msg, fmt, args);
    va_end(args);
}
