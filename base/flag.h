/* SPDX-License-Identifier: Apache-2.0 */
/* Flags and counters that cross threads. Atomics live in base only. */
#ifndef MILLRACE_BASE_FLAG_H
#define MILLRACE_BASE_FLAG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct mr_flag {
    atomic_bool value;
} mr_flag;

static inline void mr_flag_set(mr_flag *flag)
{
    atomic_store_explicit(&flag->value, true, memory_order_release);
}
static inline bool mr_flag_get(const mr_flag *flag)
{
    return atomic_load_explicit(&flag->value, memory_order_acquire);
}

/* Reference counter. */
typedef struct mr_refs {
    atomic_uint count;
} mr_refs;

static inline void mr_refs_init(mr_refs *refs, unsigned count)
{
    atomic_init(&refs->count, count);
}
static inline void mr_refs_get(mr_refs *refs)
{
    atomic_fetch_add_explicit(&refs->count, 1, memory_order_relaxed);
}
/* True for the caller that dropped the last reference and must free the object. */
static inline bool mr_refs_put(mr_refs *refs)
{
    return atomic_fetch_sub_explicit(&refs->count, 1, memory_order_acq_rel) == 1;
}

/* Gauge or counter written by one or many threads, read by any. */
typedef struct mr_counter {
    _Atomic uint64_t value;
} mr_counter;

static inline void mr_counter_add(mr_counter *counter, uint64_t n)
{
    atomic_fetch_add_explicit(&counter->value, n, memory_order_relaxed);
}
static inline void mr_counter_set(mr_counter *counter, uint64_t n)
{
    atomic_store_explicit(&counter->value, n, memory_order_relaxed);
}
static inline uint64_t mr_counter_get(const mr_counter *counter)
{
    return atomic_load_explicit(&counter->value, memory_order_relaxed);
}

#endif
