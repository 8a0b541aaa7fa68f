/* SPDX-License-Identifier: Apache-2.0 */
#include "service/load.h"

#include "base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

static void add_ms(mr_load_samples *samples, uint32_t ms)
{
    assert_int_equal(mr_load_samples_add(samples, ms * MR_NS_PER_MS, 1), MR_OK);
}

static void assert_ms(double got, double want)
{
    assert_true(fabs(got - want) < 1e-9);
}

static void test_percentiles_are_nearest_ranks(void **state)
{
    (void)state;
    mr_load_samples samples = {0};
    for (uint32_t i = 0; i < 100; i++) {
        add_ms(&samples, 1 + (i * 37) % 100); /* 1 … 100 in some order */
    }
    const mr_load_summary hundred = mr_load_samples_sum_up(&samples);
    assert_int_equal(hundred.count, 100);
    assert_ms(hundred.p50, 50);
    assert_ms(hundred.p90, 90);
    assert_ms(hundred.p99, 99);
    assert_ms(hundred.mean, 50.5);
    assert_ms(hundred.max, 100);
    mr_load_samples_deinit(&samples);
}

static void test_percentiles_of_few(void **state)
{
    (void)state;
    mr_load_samples samples = {0};
    assert_int_equal(mr_load_samples_sum_up(&samples).count, 0);
    add_ms(&samples, 30);
    mr_load_summary summary = mr_load_samples_sum_up(&samples);
    assert_ms(summary.p50, 30);
    assert_ms(summary.p99, 30);
    add_ms(&samples, 10);
    add_ms(&samples, 20);
    summary = mr_load_samples_sum_up(&samples);
    assert_ms(summary.p50, 20); /* rank ⌈1.5⌉ */
    assert_ms(summary.p90, 30); /* rank ⌈2.7⌉ */
    assert_ms(summary.p99, 30);
    mr_load_samples_deinit(&samples);
}

static void test_samples_count_as_often_as_told(void **state)
{
    (void)state;
    mr_load_samples samples = {0};
    assert_int_equal(mr_load_samples_add(&samples, 1500000, 3), MR_OK);
    assert_int_equal(mr_load_samples_add(&samples, UINT64_MAX, 1), MR_OK);
    assert_int_equal(mr_load_samples_add(&samples, 1, 0), MR_OK);
    const mr_load_summary summary = mr_load_samples_sum_up(&samples);
    assert_int_equal(summary.count, 4);
    assert_ms(summary.p50, 1.5);
    assert_ms(summary.max, UINT32_MAX / 1e3);
    mr_load_samples_deinit(&samples);
}

/* Values of a Philox4x32-10 written in Python, checked against the paper's vectors. */
static void test_arrivals_follow_the_seed(void **state)
{
    (void)state;
    static const double wanted_ns[] = {0.0, 150824902.6, 221169197.1, 403218635.0};
    mr_load_arrivals arrivals;
    mr_load_arrivals_init(&arrivals, 7, 2.0);
    for (size_t i = 0; i < 4; i++) {
        assert_true(fabs((double)mr_load_arrivals_next(&arrivals) - wanted_ns[i]) < 2.0);
    }
}

/* Gaps of mean 1 / rate, of which a share 1/e is longer than the mean. */
static void test_arrivals_are_poisson(void **state)
{
    (void)state;
    enum { COUNT = 20000 };
    mr_load_arrivals arrivals;
    mr_load_arrivals_init(&arrivals, 1, 1000.0);
    uint64_t before = mr_load_arrivals_next(&arrivals);
    uint32_t longer = 0;
    for (int i = 0; i < COUNT; i++) {
        const uint64_t at = mr_load_arrivals_next(&arrivals);
        assert_true(at >= before);
        longer += at - before > MR_NS_PER_MS ? 1 : 0;
        before = at;
    }
    assert_true(fabs((double)before / COUNT / 1e6 - 1.0) < 0.03);
    assert_true(fabs((double)longer / COUNT - exp(-1.0)) < 0.02);
}

static void test_prompts_stay_in_the_vocabulary(void **state)
{
    (void)state;
    static const uint32_t first[] = {10428, 3912, 8562};
    static const uint32_t sixth[] = {9623, 47185, 28199};
    uint32_t ids[64];
    mr_load_prompt(7, 0, 49152, ids, 3);
    assert_memory_equal(ids, first, sizeof(first));
    mr_load_prompt(7, 5, 49152, ids, 3);
    assert_memory_equal(ids, sixth, sizeof(sixth));
    mr_load_prompt(7, 0, 3, ids, 64);
    for (size_t i = 0; i < 64; i++) {
        assert_in_range(ids[i], 0, 2);
    }
}

/* By the Python Philox again. */
static void test_lengths_follow_the_seed(void **state)
{
    (void)state;
    static const mr_load_lengths wanted[] = {{361, 125}, {194, 151}, {460, 145}};
    const mr_load_range prompt = {64, 512};
    const mr_load_range output = {16, 256};
    for (uint32_t i = 0; i < 3; i++) {
        const mr_load_lengths lengths = mr_load_lengths_of(7, i, prompt, output);
        assert_int_equal(lengths.prompt, wanted[i].prompt);
        assert_int_equal(lengths.output, wanted[i].output);
    }
}

static void test_lengths_are_even_and_reach_both_ends(void **state)
{
    (void)state;
    enum { COUNT = 6000 };
    const mr_load_range all = {1, UINT32_MAX};
    const mr_load_range six = {5, 10};
    const mr_load_range one = {3, 3};
    uint32_t seen[6] = {0};
    for (uint32_t i = 0; i < COUNT; i++) {
        const mr_load_lengths lengths = mr_load_lengths_of(1, i, six, one);
        assert_in_range(lengths.prompt, 5, 10);
        assert_int_equal(lengths.output, 3);
        seen[lengths.prompt - 5]++;
        assert_true(mr_load_lengths_of(1, i, all, all).output >= 1);
    }
    for (uint32_t i = 0; i < 6; i++) {
        assert_in_range(seen[i], 850, 1150); /* 5 standard deviations */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_percentiles_are_nearest_ranks),
        cmocka_unit_test(test_percentiles_of_few),
        cmocka_unit_test(test_samples_count_as_often_as_told),
        cmocka_unit_test(test_arrivals_follow_the_seed),
        cmocka_unit_test(test_arrivals_are_poisson),
        cmocka_unit_test(test_prompts_stay_in_the_vocabulary),
        cmocka_unit_test(test_lengths_follow_the_seed),
        cmocka_unit_test(test_lengths_are_even_and_reach_both_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
