/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/ceiling.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/pages.h"
#include "kernels/cpu/fast_kernels.h"

#include <string.h>

enum {
    ROUNDS = 5,
    LEAST_BYTES = 64 << 20, /* read a round: a small buffer is read several times */
    BURST = 1 << 20,        /* rounds of the integer burst */
    CHAINS = 8,             /* independent sums, so that no addition waits for another */
};

typedef struct probe {
    mr_thread_pool *pool;
    const uint64_t *buffer;
    uint64_t words;
    uint64_t passes;
    uint64_t (*burst)(uint32_t rounds, uint32_t *sink);
    uint64_t operations; /* of one thread's burst */
} probe;

/* Results that nobody needs go here, so that the work is not optimised away. */
static void keep(uint64_t value)
{
    __asm__ volatile("" : : "r"(value) : "memory");
}

static void fill_share(void *ctx, uint32_t thread, uint32_t threads)
{
    const probe *p = ctx;
    uint64_t begin;
    uint64_t end;
    mr_share(p->words, CHAINS, thread, threads, &begin, &end);
    memset((void *)(uintptr_t)(p->buffer + begin), 0x5a, (end - begin) * sizeof(*p->buffer));
}

static void read_share(void *ctx, uint32_t thread, uint32_t threads)
{
    const probe *p = ctx;
    uint64_t begin;
    uint64_t end;
    mr_share(p->words, CHAINS, thread, threads, &begin, &end);
    uint64_t sums[CHAINS] = {0};
    for (uint64_t pass = 0; pass < p->passes; pass++) {
        for (uint64_t i = begin; i + CHAINS <= end; i += CHAINS) {
            for (int c = 0; c < CHAINS; c++) {
                sums[c] ^= p->buffer[i + (uint64_t)c];
            }
        }
        keep(sums[0]);
    }
    for (int c = 0; c < CHAINS; c++) {
        keep(sums[c]);
    }
}

static void burst_share(void *ctx, uint32_t thread, uint32_t threads)
{
    probe *p = ctx;
    (void)threads;
    uint32_t sink;
    const uint64_t operations = p->burst(BURST, &sink);
    keep(sink);
    if (thread == 0) {
        p->operations = operations;
    }
}

/* `amount` of anything over the shortest of a few runs, a second. */
static double best_rate(probe *p, mr_pool_fn fn)
{
    const mr_clock clock = mr_clock_monotonic();
    uint64_t shortest = UINT64_MAX;
    for (int round = 0; round < ROUNDS; round++) {
        const uint64_t begin = mr_clock_now(&clock);
        mr_thread_pool_run(p->pool, fn, p);
        const uint64_t ns = mr_clock_now(&clock) - begin;
        shortest = ns < shortest ? ns : shortest;
    }
    return 1e9 / (double)(shortest > 0 ? shortest : 1);
}

static mr_status read_rate(probe *p, uint64_t bytes, double *bytes_per_s, mr_error *err)
{
    p->words = bytes / sizeof(uint64_t);
    uint64_t *buffer = mr_pages_alloc(p->words * sizeof(uint64_t));
    if (buffer == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED,
                       "no memory to measure the read bandwidth over %llu MiB",
                       (unsigned long long)(bytes >> 20));
    }
    p->buffer = buffer;
    p->passes = 1 + LEAST_BYTES / bytes;
    mr_thread_pool_run(p->pool, fill_share, p);
    *bytes_per_s = best_rate(p, read_share) * (double)(p->words * sizeof(uint64_t) * p->passes);
    mr_pages_free(buffer, p->words * sizeof(uint64_t));
    return MR_OK;
}

mr_status mr_cpu_ceilings(mr_thread_pool *pool, const mr_cpu_path *path, uint64_t bytes,
                          mr_ceilings *out, mr_error *err)
{
    probe p = {.pool = pool, .burst = path->kernels != NULL ? path->kernels->burst : NULL};
    *out = (mr_ceilings){0};
    MR_TRY(read_rate(&p, bytes < CHAINS * sizeof(uint64_t) ? CHAINS * sizeof(uint64_t) : bytes,
                     &out->read_bytes_per_s, err));
    if (p.burst != NULL) {
        out->int8_per_s = best_rate(&p, burst_share);
        out->int8_per_s *= (double)p.operations * mr_thread_pool_size(pool);
    }
    return MR_OK;
}
