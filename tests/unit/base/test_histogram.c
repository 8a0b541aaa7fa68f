/* SPDX-License-Identifier: Apache-2.0 */
#include "base/histogram.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define THREADS 4
#define EACH    10000

static const double bounds[] = {0.5, 1.0, 8.0};

static uint64_t count(const mr_histogram *histogram, uint32_t index)
{
    return mr_counter_get(&histogram->counts[index]);
}

/* A bound belongs to what is below it, as Prometheus' "le" says. */
static void test_histogram_buckets(void **state)
{
    (void)state;
    mr_histogram histogram;
    mr_histogram_init(&histogram, bounds, 3);
    assert_true(mr_histogram_sum(&histogram) == 0.0);
    mr_histogram_observe(&histogram, 0.0, 1);
    mr_histogram_observe(&histogram, 0.5, 2);
    mr_histogram_observe(&histogram, 0.75, 1);
    mr_histogram_observe(&histogram, 8.0, 3);
    mr_histogram_observe(&histogram, 9.0, 1);
    assert_int_equal(count(&histogram, 0), 3);
    assert_int_equal(count(&histogram, 1), 1);
    assert_int_equal(count(&histogram, 2), 3);
    assert_int_equal(count(&histogram, 3), 1);
    assert_true(mr_histogram_sum(&histogram) == 1.0 + 0.75 + 24.0 + 9.0);
}

static void *observe(void *arg)
{
    for (int i = 0; i < EACH; i++) {
        mr_histogram_observe(arg, 0.25, 1);
    }
    return NULL;
}

static void test_histogram_of_many_threads(void **state)
{
    (void)state;
    mr_histogram histogram;
    mr_histogram_init(&histogram, bounds, 3);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, observe, &histogram), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    assert_int_equal(count(&histogram, 0), THREADS * EACH);
    assert_true(mr_histogram_sum(&histogram) == 0.25 * THREADS * EACH);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_histogram_buckets),
        cmocka_unit_test(test_histogram_of_many_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
