/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/random_weight.h"

#include "base/philox.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/cpu/cpu_backend.h"
#include "tiny_codes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static mr_plan_weight weight_of(mr_dtype dtype, uint64_t seed, uint32_t stream, float mean)
{
    return (mr_plan_weight){.dtype = dtype,
                            .random = true,
                            .random_seed = seed,
                            .random_stream = stream,
                            .random_mean = mean};
}

static void fill(const mr_plan_weight *weight, uint64_t first, uint64_t count, void *out)
{
    mr_random_table *table;
    assert_int_equal(mr_random_table_create(weight->dtype, weight->random_mean, &table), MR_OK);
    mr_random_weight_fill(table, weight, first, count, out);
    mr_random_table_destroy(table);
}

/* Published tables of the standard normal distribution. */
static void test_quantiles(void **state)
{
    (void)state;
    static const double known[][2] = {
        {0.5, 0.0},
        {0.75, 0.674489750},
        {0.9, 1.281551566},
        {0.975, 1.959963985},
        {0.995, 2.575829304},
        {0.9995, 3.290526731},
        {0.025, -1.959963985},
        {0.99999, 4.264890794},
        {0.0005, -3.290526731},
    };
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        assert_true(fabs(mr_normal_quantile(known[i][0]) - known[i][1]) < 2e-9);
    }
}

/* As the header says, element by element. */
static void test_elements_are_what_the_header_says(void **state)
{
    (void)state;
    enum { COUNT = 100 };
    const mr_plan_weight weight = weight_of(MR_DTYPE_F32, 0x123456789abcdefu, 11, 1.0f);
    float found[COUNT];
    fill(&weight, 0, COUNT, found);
    for (uint32_t i = 0; i < COUNT; i++) {
        const uint32_t counter[4] = {i / 8, 0, MR_DRAW_WEIGHT, 11};
        const uint32_t key[2] = {0x89abcdefu, 0x1234567u};
        uint32_t words[4];
        mr_philox4x32(counter, key, words);
        const uint32_t bits = words[i % 8 / 2] >> (i % 2 * 16) & 0xffffu;
        const double z = mr_normal_quantile(((bits & 0x7fffu) + 0.5) / 65536 + 0.5);
        const double expected = 1.0 + 0.02 * (bits & 0x8000u ? -z : z);
        assert_true(fabs((double)found[i] - expected) < 1e-7);
    }
}

static void test_parts_are_the_whole(void **state)
{
    (void)state;
    enum { COUNT = 1000 };
    const mr_plan_weight weight = weight_of(MR_DTYPE_BF16, 5, 0, 0.0f);
    uint16_t whole[COUNT];
    uint16_t parts[COUNT];
    fill(&weight, 0, COUNT, whole);
    static const uint32_t ends[] = {0, 1, 7, 8, 9, 40, 41, 999, COUNT};
    for (size_t i = 0; i + 1 < sizeof(ends) / sizeof(ends[0]); i++) {
        fill(&weight, ends[i], ends[i + 1] - ends[i], parts + ends[i]);
    }
    assert_memory_equal(parts, whole, sizeof(whole));
    /* Beyond 2^32 draws the counter's second word counts. */
    uint16_t far[2];
    fill(&weight, ((uint64_t)8 << 32) + 3, 1, &far[0]);
    fill(&weight, 3, 1, &far[1]);
    assert_int_not_equal(far[0], far[1]);
}

static void test_moments_and_types(void **state)
{
    (void)state;
    enum { COUNT = 1 << 18 };
    static const mr_dtype types[] = {MR_DTYPE_F32, MR_DTYPE_F16, MR_DTYPE_BF16};
    void *stored = malloc(COUNT * sizeof(float));
    float *x = malloc(COUNT * sizeof(float));
    assert_true(stored != NULL && x != NULL);
    for (size_t t = 0; t < 3; t++) {
        const mr_plan_weight weight = weight_of(types[t], 1, (uint32_t)t, 0.0f);
        fill(&weight, 0, COUNT, stored);
        mr_dequantize(types[t], stored, x, COUNT);
        double sum = 0.0;
        double squares = 0.0;
        double fourths = 0.0;
        for (size_t i = 0; i < COUNT; i++) {
            const double z = (double)x[i] / 0.02;
            sum += z;
            squares += z * z;
            fourths += z * z * z * z;
        }
        /* Six standard errors: 1, sqrt(2), sqrt(96) over sqrt(COUNT). */
        assert_true(fabs(sum / COUNT) < 6.0 / 512);
        assert_true(fabs(squares / COUNT - 1.0) < 6.0 * 1.42 / 512);
        assert_true(fabs(fourths / COUNT - 3.0) < 6.0 * 9.8 / 512);
    }
    free(stored);
    free(x);
}

static void test_streams_and_seeds_differ(void **state)
{
    (void)state;
    enum { COUNT = 64 };
    const mr_plan_weight weights[] = {
        weight_of(MR_DTYPE_F32, 1, 1, 0.0f),
        weight_of(MR_DTYPE_F32, 1, 2, 0.0f),
        weight_of(MR_DTYPE_F32, 2, 1, 0.0f),
        weight_of(MR_DTYPE_F32, (uint64_t)1 << 32 | 1u, 1, 0.0f),
    };
    float x[4][COUNT];
    for (size_t i = 0; i < 4; i++) {
        fill(&weights[i], 0, COUNT, x[i]);
        for (size_t j = 0; j < i; j++) {
            assert_memory_not_equal(x[i], x[j], sizeof(x[i]));
        }
    }
}

/* By rounding that is not the table's. */
static void test_codes_are_the_nearest(void **state)
{
    (void)state;
    const mr_weight_codes codes = {.codes = {.form = MR_CODES_E4M3, .bits = 8}, .group = 64};
    mr_random_table *table = NULL;
    assert_int_equal(mr_random_codes_table_create(&codes, &table), MR_OK);
    const uint8_t *found = mr_random_table_elements(table);
    for (uint32_t b = 0; b < MR_RANDOM_PATTERNS / 2; b++) {
        const double z = mr_normal_quantile((b + 0.5) / 65536 + 0.5) * 448 / 5;
        assert_int_equal(found[b], tiny_e4m3((float)z));
        assert_int_equal(found[MR_RANDOM_PATTERNS / 2 + b], found[b] | 0x80);
    }
    mr_random_table_destroy(table);
}

/* Between gains and matrices tables stay; of a third kind the older one goes. */
static void test_tables_are_made_once(void **state)
{
    (void)state;
    const mr_plan_weight matrix = weight_of(MR_DTYPE_BF16, 1, 1, 0.0f);
    const mr_plan_weight other = weight_of(MR_DTYPE_BF16, 9, 2, 0.0f);
    const mr_plan_weight gain = weight_of(MR_DTYPE_BF16, 1, 3, 1.0f);
    const mr_plan_weight wide = weight_of(MR_DTYPE_F32, 1, 4, 0.0f);
    mr_random_tables tables = {0};
    const mr_random_table *found[5];
    const mr_plan_weight *const asked[5] = {&matrix, &gain, &other, &wide, &gain};
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(mr_random_tables_find(&tables, asked[i], &found[i]), MR_OK);
    }
    assert_ptr_equal(found[2], found[0]);
    assert_ptr_not_equal(found[1], found[0]);
    assert_ptr_equal(found[4], found[1]);
    float first = 0.0f;
    mr_random_weight_fill(found[3], &wide, 0, 1, &first);
    float alone = 0.0f;
    fill(&wide, 0, 1, &alone);
    assert_true(first == alone);
    mr_random_tables_deinit(&tables);
}

/* The logits of a plan whose matrices are made of nothing. */
static void run_made(tiny_plan *tiny, mr_compute compute, uint32_t threads, float *logits,
                     size_t count)
{
    mr_backend *backend;
    mr_error err = {0};
    const mr_cpu_options cpu = {.compute = compute, .threads = threads};
    assert_int_equal(mr_cpu_backend_create(&cpu, &backend, &err), MR_OK);
    const mr_exec_options options = tiny_options();
    tiny_session session;
    tiny_session_create(tiny, backend, &options, &session);
    static const int32_t tokens[] = {3, 1, 4, 1, 5};
    mr_batch_reset(session.storage);
    tiny_feed(&session, 0, tokens, 0, 5, true);
    mr_step_output out;
    tiny_run(&session, &out);
    memcpy(logits, out.logits, count * sizeof(*logits));
    tiny_session_destroy(&session);
    backend->vt->destroy(backend);
}

/* What the backend makes is what it would have been given, with any number of threads. */
static void test_backends_make_what_the_header_says(void **state)
{
    (void)state;
    tiny_dims dims = tiny_dims_default();
    tiny_plan tiny;
    tiny_plan_create(&dims, &tiny);
    const size_t count = 5 * (size_t)tiny.plan->vocab_size;
    float *logits[4];
    for (uint32_t i = 0; i < tiny.plan->n_weights; i++) {
        mr_plan_weight *w = &tiny.plan->weights[i];
        const mr_plan_weight made = weight_of(w->dtype, 77, i, w->n == 1 ? 1.0f : 0.0f);
        assert_int_equal(w->dtype, MR_DTYPE_F32);
        fill(&made, 0, (uint64_t)w->n * w->k, tiny.data[i]);
    }
    for (size_t i = 0; i < 4; i++) {
        logits[i] = malloc(count * sizeof(float));
        assert_non_null(logits[i]);
    }
    run_made(&tiny, MR_COMPUTE_F32, 1, logits[0], count);
    run_made(&tiny, MR_COMPUTE_AUTO, 1, logits[1], count);
    for (uint32_t i = 0; i < tiny.plan->n_weights; i++) {
        mr_plan_weight *w = &tiny.plan->weights[i];
        w->random = true;
        w->random_seed = 77;
        w->random_stream = i;
        w->random_mean = w->n == 1 ? 1.0f : 0.0f;
        w->data = NULL;
    }
    run_made(&tiny, MR_COMPUTE_F32, 3, logits[2], count);
    run_made(&tiny, MR_COMPUTE_AUTO, 3, logits[3], count);
    assert_memory_equal(logits[0], logits[2], count * sizeof(float));
    assert_memory_equal(logits[1], logits[3], count * sizeof(float));
    for (size_t i = 0; i < 4; i++) {
        free(logits[i]);
    }
    tiny_plan_destroy(&tiny);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quantiles),
        cmocka_unit_test(test_elements_are_what_the_header_says),
        cmocka_unit_test(test_parts_are_the_whole),
        cmocka_unit_test(test_moments_and_types),
        cmocka_unit_test(test_streams_and_seeds_differ),
        cmocka_unit_test(test_codes_are_the_nearest),
        cmocka_unit_test(test_tables_are_made_once),
        cmocka_unit_test(test_backends_make_what_the_header_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
