/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fork-join pool for compute. One caller at a time runs a function on all threads (itself
 * included, as index 0) and returns when all are done. Workers spin briefly between jobs, then
 * sleep, so that back-to-back operators of one step cost little and an idle server costs nothing.
 */
#ifndef MILLRACE_BASE_THREAD_POOL_H
#define MILLRACE_BASE_THREAD_POOL_H

#include "base/status.h"

#include <stdint.h>

typedef struct mr_thread_pool mr_thread_pool;

typedef void (*mr_pool_fn)(void *ctx, uint32_t index, uint32_t threads);

/* `threads` counts the caller: 1 makes no thread. Gives the pool. */
MR_MUST_USE mr_status mr_thread_pool_create(uint32_t threads, mr_thread_pool **out, mr_error *err);
void mr_thread_pool_destroy(mr_thread_pool *pool);
uint32_t mr_thread_pool_size(const mr_thread_pool *pool);

/* Runs fn(ctx, i, size) for every i < size. */
void mr_thread_pool_run(mr_thread_pool *pool, mr_pool_fn fn, void *ctx);

/* Inside a job: waits until all threads of the job are here. Every thread must call it equally
 * often. */
void mr_thread_pool_barrier(mr_thread_pool *pool);

/* The even share of n items for `index` of `threads`, in units of `grain` items:
 * [*begin, *end), the shares cover 0..n without overlap. */
void mr_share(uint64_t n, uint64_t grain, uint32_t index, uint32_t threads, uint64_t *begin,
              uint64_t *end);

#endif
