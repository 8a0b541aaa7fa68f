/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Three words that threads wait on, each with a count of sleepers, so that waking costs a system
 * call only when somebody sleeps:
 *
 *   job      the caller bumps it to start a job; workers wait for it
 *   done     the last worker of a job bumps it; the caller waits for it
 *   barrier  the last thread to arrive bumps it; the others wait for it
 *
 * A waiter spins for some tens of microseconds and then sleeps in the kernel (futex).
 */
#include "base/thread_pool.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/cpu.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAX_THREADS  1024u
#define SPIN_NS      30000u
#define SPINS_A_LOOK 32 /* pauses between two looks at the clock */

typedef struct gate {
    atomic_uint word;
    atomic_uint sleepers;
    uint8_t pad[64 - 2 * sizeof(atomic_uint)];
} gate;

typedef struct worker {
    mr_thread_pool *pool; /* borrows */
    pthread_t thread;
    uint32_t index;
} worker;

struct mr_thread_pool {
    gate job;
    gate done;
    gate barrier;
    atomic_uint pending; /* workers still in the job */
    uint8_t pad_pending[64 - sizeof(atomic_uint)];
    atomic_uint arrived; /* threads at the barrier */
    uint8_t pad_arrived[64 - sizeof(atomic_uint)];
    /* Written before the job gate opens, read after. */
    mr_pool_fn fn;
    void *ctx;
    bool stop;
    uint32_t threads; /* the caller included */
    uint32_t started; /* workers whose thread exists */
    uint64_t spin_ns; /* 0 where more threads than CPUs would spin in each other's way */
    worker *workers;  /* owns, [threads - 1] */
};

static void cpu_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static bool spin_while(gate *at, unsigned old, uint64_t spin_ns)
{
    const mr_clock clock = mr_clock_monotonic();
    const uint64_t until = mr_clock_now(&clock) + spin_ns;
    do {
        for (int i = 0; i < SPINS_A_LOOK; i++) {
            if (atomic_load_explicit(&at->word, memory_order_acquire) != old) {
                return false;
            }
            cpu_pause();
        }
    } while (mr_clock_now(&clock) < until);
    return true;
}

/* Returns when the word is not `old` any more, with everything visible that came before. */
static void gate_wait(gate *at, unsigned old, uint64_t spin_ns)
{
    if (!spin_while(at, old, spin_ns)) {
        return;
    }
    /* Sequentially consistent on both sides (here: announce, then look; there: change, then look
     * for sleepers), so that one of the two always sees the other. */
    atomic_fetch_add(&at->sleepers, 1);
    while (atomic_load(&at->word) == old) {
        /* EINTR and EAGAIN are looked at by the loop. */
        syscall(SYS_futex, &at->word, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);
    }
    atomic_fetch_sub(&at->sleepers, 1);
}

static void gate_open(gate *at)
{
    atomic_fetch_add(&at->word, 1);
    if (atomic_load(&at->sleepers) > 0) {
        syscall(SYS_futex, &at->word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
    }
}

static void *worker_main(void *arg)
{
    const worker *self = arg;
    mr_thread_pool *pool = self->pool;
    for (unsigned seen = 0;; seen++) {
        gate_wait(&pool->job, seen, pool->spin_ns);
        if (pool->stop) {
            return NULL;
        }
        pool->fn(pool->ctx, self->index, pool->threads);
        if (atomic_fetch_sub_explicit(&pool->pending, 1, memory_order_acq_rel) == 1) {
            gate_open(&pool->done);
        }
    }
}

static mr_status start_workers(mr_thread_pool *pool, mr_error *err)
{
    /* Signals are for the threads of the program, which expect them. */
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    int rc = 0;
    while (pool->started < pool->threads - 1) {
        worker *next = &pool->workers[pool->started];
        *next = (worker){.pool = pool, .index = pool->started + 1};
        rc = pthread_create(&next->thread, NULL, worker_main, next);
        if (rc != 0) {
            break;
        }
        pthread_setname_np(next->thread, "mr-compute");
        pool->started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED,
                       "cannot start compute thread %u of %u; use fewer threads or raise the "
                       "process limit (ulimit -u, pids.max)",
                       pool->started + 1, pool->threads);
    }
    return MR_OK;
}

mr_status mr_thread_pool_create(uint32_t threads, mr_thread_pool **out, mr_error *err)
{
    *out = NULL;
    if (threads == 0 || threads > MAX_THREADS) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, "threads",
                             "threads is %u; give a number from 1 to %u", threads, MAX_THREADS);
    }
    mr_thread_pool *pool = mr_alloc_aligned(sizeof(*pool));
    worker *workers = mr_calloc(threads, sizeof(*workers));
    if (pool == NULL || workers == NULL) {
        free(pool);
        free(workers);
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "no memory for a pool of %u threads", threads);
    }
    pool->threads = threads;
    pool->workers = workers;
    pool->spin_ns = threads <= mr_cpu_count() ? SPIN_NS : 0;
    const mr_status status = start_workers(pool, err);
    if (status != MR_OK) {
        mr_thread_pool_destroy(pool);
        return status;
    }
    *out = pool;
    return MR_OK;
}

void mr_thread_pool_destroy(mr_thread_pool *pool)
{
    if (pool == NULL) {
        return;
    }
    pool->stop = true;
    gate_open(&pool->job);
    for (uint32_t i = 0; i < pool->started; i++) {
        pthread_join(pool->workers[i].thread, NULL);
    }
    free(pool->workers);
    free(pool);
}

uint32_t mr_thread_pool_size(const mr_thread_pool *pool)
{
    return pool->threads;
}

void mr_thread_pool_run(mr_thread_pool *pool, mr_pool_fn fn, void *ctx)
{
    if (pool->threads == 1) {
        fn(ctx, 0, 1);
        return;
    }
    const unsigned done = atomic_load_explicit(&pool->done.word, memory_order_relaxed);
    pool->fn = fn;
    pool->ctx = ctx;
    atomic_store_explicit(&pool->pending, pool->threads - 1, memory_order_relaxed);
    gate_open(&pool->job);
    fn(ctx, 0, pool->threads);
    gate_wait(&pool->done, done, pool->spin_ns);
}

void mr_thread_pool_barrier(mr_thread_pool *pool)
{
    if (pool->threads == 1) {
        return;
    }
    /* Read before arriving: afterwards the last thread may open the gate at any moment. */
    const unsigned old = atomic_load_explicit(&pool->barrier.word, memory_order_relaxed);
    const unsigned before = atomic_fetch_add_explicit(&pool->arrived, 1, memory_order_acq_rel);
    if (before + 1 == pool->threads) {
        atomic_store_explicit(&pool->arrived, 0, memory_order_relaxed);
        gate_open(&pool->barrier);
    } else {
        gate_wait(&pool->barrier, old, pool->spin_ns);
    }
}

void mr_share(uint64_t n, uint64_t grain, uint32_t index, uint32_t threads, uint64_t *begin,
              uint64_t *end)
{
    const uint64_t units = n / grain + (n % grain > 0);
    const uint64_t each = units / threads;
    const uint64_t extra = units % threads; /* the first `extra` shares have one unit more */
    const uint64_t first = index * each + (index < extra ? index : extra);
    const uint64_t last = first + each + (index < extra);
    *begin = first < units ? first * grain : n;
    *end = last < units ? last * grain : n;
}
