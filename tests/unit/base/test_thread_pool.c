/* SPDX-License-Identifier: Apache-2.0 */
#include "base/thread_pool.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MAX_THREADS 5
#define PHASES      200

typedef struct job {
    mr_thread_pool *pool;
    uint32_t ran[MAX_THREADS]; /* each thread writes its own */
    uint32_t threads;
} job;

static void count_run(void *ctx, uint32_t index, uint32_t threads)
{
    job *self = ctx;
    self->ran[index]++;
    if (index == 0) {
        self->threads = threads;
    }
}

static mr_thread_pool *make_pool(uint32_t threads)
{
    mr_thread_pool *pool;
    mr_error err;
    assert_int_equal(mr_thread_pool_create(threads, &pool, &err), MR_OK);
    assert_int_equal(mr_thread_pool_size(pool), threads);
    return pool;
}

static void test_every_index_runs_once_a_job(void **state)
{
    (void)state;
    for (uint32_t threads = 1; threads <= MAX_THREADS; threads++) {
        mr_thread_pool *pool = make_pool(threads);
        job all = {.pool = pool};
        for (uint32_t run = 1; run <= 1000; run++) {
            mr_thread_pool_run(pool, count_run, &all);
            for (uint32_t i = 0; i < MAX_THREADS; i++) {
                assert_int_equal(all.ran[i], i < threads ? run : 0);
            }
        }
        assert_int_equal(all.threads, threads);
        mr_thread_pool_destroy(pool);
    }
}

static void test_sleeping_workers_wake(void **state)
{
    (void)state;
    mr_thread_pool *pool = make_pool(3);
    job all = {.pool = pool};
    for (uint32_t run = 1; run <= 20; run++) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        mr_thread_pool_run(pool, count_run, &all);
        assert_int_equal(all.ran[2], run);
    }
    mr_thread_pool_destroy(pool);
}

/* The state letter of every other thread of this process is S (asleep), by /proc. */
static bool others_sleep(void)
{
    bool asleep = true;
    DIR *tasks = opendir("/proc/self/task");
    assert_non_null(tasks);
    for (struct dirent *entry = readdir(tasks); entry != NULL; entry = readdir(tasks)) {
        const long id = strtol(entry->d_name, NULL, 10);
        if (id == 0 || id == (long)getpid()) {
            continue;
        }
        char path[64];
        char line[256] = "";
        snprintf(path, sizeof(path), "/proc/self/task/%ld/stat", id);
        FILE *file = fopen(path, "r");
        if (file == NULL) {
            continue; /* it ended meanwhile */
        }
        (void)fgets(line, sizeof(line), file);
        fclose(file);
        const char *after_name = strrchr(line, ')');
        assert_non_null(after_name);
        asleep = asleep && after_name[2] == 'S';
    }
    closedir(tasks);
    return asleep;
}

/* An idle pool costs nothing, though its workers spin at first: they must be found asleep. */
static void test_idle_workers_sleep(void **state)
{
    (void)state;
    mr_thread_pool *pool = make_pool(3);
    job all = {.pool = pool};
    for (uint32_t run = 1; run <= 3; run++) {
        mr_thread_pool_run(pool, count_run, &all);
        while (!others_sleep()) { /* for ever where they spin; the test's time limit ends it */
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        }
    }
    assert_int_equal(all.ran[2], 3);
    mr_thread_pool_destroy(pool);
}

typedef struct relay {
    mr_thread_pool *pool;
    uint32_t cell[2][MAX_THREADS]; /* written in one phase, read by the neighbour in the next */
} relay;

static void pass_on(void *ctx, uint32_t index, uint32_t threads)
{
    relay *self = ctx;
    for (uint32_t phase = 0; phase < PHASES; phase++) {
        const uint32_t *from = self->cell[phase % 2];
        self->cell[(phase + 1) % 2][index] = from[(index + 1) % threads] + 1;
        mr_thread_pool_barrier(self->pool);
    }
}

static void test_barrier_separates_phases(void **state)
{
    (void)state;
    for (uint32_t threads = 1; threads <= MAX_THREADS; threads++) {
        relay all = {.pool = make_pool(threads)};
        for (int run = 1; run <= 3; run++) {
            mr_thread_pool_run(all.pool, pass_on, &all);
            for (uint32_t i = 0; i < threads; i++) {
                assert_int_equal(all.cell[0][i], PHASES * run);
            }
        }
        mr_thread_pool_destroy(all.pool);
    }
}

static void test_pool_without_jobs_and_bad_sizes(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++) {
        mr_thread_pool_destroy(make_pool(4));
    }
    mr_thread_pool_destroy(NULL);
    mr_thread_pool *pool;
    mr_error err;
    assert_int_equal(mr_thread_pool_create(0, &pool, &err), MR_INVALID_ARGUMENT);
    assert_string_equal(err.field, "threads");
    assert_int_equal(mr_thread_pool_create(1u << 30, &pool, NULL), MR_INVALID_ARGUMENT);
    assert_null(pool);
}

static void test_share_examples(void **state)
{
    (void)state;
    static const struct {
        uint64_t n, grain;
        uint32_t index, threads;
        uint64_t begin, end;
    } cases[] = {
        {10, 1, 0, 3, 0, 4},    {10, 1, 1, 3, 4, 7},
        {10, 1, 2, 3, 7, 10},   {10, 4, 0, 2, 0, 8},
        {10, 4, 1, 2, 8, 10},   {3, 16, 0, 4, 0, 3},
        {3, 16, 3, 4, 3, 3},    {0, 8, 1, 2, 0, 0},
        {64, 16, 3, 4, 48, 64}, {UINT64_MAX, 1ull << 63, 1, 2, 1ull << 63, UINT64_MAX},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        uint64_t begin;
        uint64_t end;
        mr_share(cases[i].n, cases[i].grain, cases[i].index, cases[i].threads, &begin, &end);
        assert_true(begin == cases[i].begin && end == cases[i].end);
    }
}

static void test_shares_cover_without_overlap(void **state)
{
    (void)state;
    for (uint64_t n = 0; n < 100; n++) {
        for (uint64_t grain = 1; grain < 20; grain += 3) {
            for (uint32_t threads = 1; threads < 9; threads++) {
                uint64_t next = 0;
                for (uint32_t i = 0; i < threads; i++) {
                    uint64_t begin;
                    uint64_t end;
                    mr_share(n, grain, i, threads, &begin, &end);
                    assert_true(begin == next && end >= begin && (end % grain == 0 || end == n));
                    next = end;
                }
                assert_true(next == n);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_index_runs_once_a_job),
        cmocka_unit_test(test_sleeping_workers_wake),
        cmocka_unit_test(test_idle_workers_sleep),
        cmocka_unit_test(test_barrier_separates_phases),
        cmocka_unit_test(test_pool_without_jobs_and_bad_sizes),
        cmocka_unit_test(test_share_examples),
        cmocka_unit_test(test_shares_cover_without_overlap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
