/* SPDX-License-Identifier: Apache-2.0 */
/* Attention over several splits, and the kernels under it, on every vectorised path. */
#include "kernels/cpu/cpu_backend.h"

#include "fast_tables.h"
#include "tiny_plan.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { CONTEXT = 640, LENGTH = 600, VOCAB = 32 };

static mr_exec_options long_options(uint32_t block_size, mr_dtype kv_dtype)
{
    mr_exec_options options = tiny_options();
    options.max_tokens = LENGTH;
    options.max_rows = LENGTH;
    options.max_seqs = 1;
    options.max_context = CONTEXT;
    options.block_size = block_size;
    options.n_blocks = 1 + CONTEXT / block_size;
    options.kv_dtype = kv_dtype;
    return options;
}

static tiny_dims long_dims(uint32_t window)
{
    tiny_dims dims = tiny_dims_default();
    dims.layers = 1;
    dims.heads = 6;
    dims.kv_heads = 2;
    dims.head_width = 64;
    dims.vocab = VOCAB;
    dims.window = window;
    return dims;
}

/* Logits [LENGTH][VOCAB], fed in steps of `chunk` tokens; after `whole` tokens at once. */
static float *run(const tiny_plan *tiny, const mr_cpu_options *cpu, const mr_exec_options *options,
                  uint32_t whole, uint32_t chunk)
{
    mr_backend *backend = NULL;
    if (mr_cpu_backend_create(cpu, &backend, NULL) != MR_OK) {
        return NULL;
    }
    int32_t tokens[LENGTH];
    uint64_t seed = 3;
    for (uint32_t i = 0; i < LENGTH; i++) {
        tokens[i] = (int32_t)(tiny_random(&seed) % VOCAB);
    }
    float *logits = malloc(sizeof(float) * LENGTH * VOCAB);
    assert_non_null(logits);
    tiny_session session;
    tiny_session_create(tiny, backend, options, &session);
    for (uint32_t start = 0, count; start < LENGTH; start += count) {
        count = start == 0 ? whole : chunk;
        count = LENGTH - start < count ? LENGTH - start : count;
        mr_batch_reset(session.storage);
        tiny_feed(&session, 0, tokens + start, start, count, true);
        mr_step_output out;
        tiny_run(&session, &out);
        memcpy(logits + (size_t)start * VOCAB, out.logits, sizeof(float) * count * VOCAB);
    }
    tiny_session_destroy(&session);
    backend->vt->destroy(backend);
    return logits;
}

static void check_splits(uint32_t window, uint32_t block_size, mr_dtype kv_dtype, float tolerance)
{
    static const mr_cpu_isa isas[] = {MR_CPU_ISA_PORTABLE, MR_CPU_ISA_AVX2, MR_CPU_ISA_AVX512_VNNI,
                                      MR_CPU_ISA_AVX512_BF16, MR_CPU_ISA_AMX};
    const tiny_dims dims = long_dims(window);
    const mr_exec_options options = long_options(block_size, kv_dtype);
    const mr_cpu_options f32 = {.compute = MR_COMPUTE_F32, .threads = 1};
    tiny_plan tiny;
    tiny_plan_create(&dims, &tiny);
    float *expected = run(&tiny, &f32, &options, LENGTH, LENGTH);
    assert_non_null(expected);
    for (size_t i = 0; i < sizeof(isas) / sizeof(isas[0]); i++) {
        const mr_cpu_options two = {.isa = isas[i], .threads = 2};
        const mr_cpu_options one = {.isa = isas[i], .threads = 1};
        float *all = run(&tiny, &two, &options, LENGTH, LENGTH);
        if (all == NULL) {
            continue;
        }
        /* Weights of bf16 are off by 1/512 of themselves at most, as is a sum of them; the
         * largest of the logits are about 20. */
        const bool half = isas[i] == MR_CPU_ISA_AMX && kv_dtype == MR_DTYPE_BF16;
        for (uint32_t j = 0; j < LENGTH * VOCAB; j++) {
            assert_float_equal(all[j], expected[j], half ? 20 * 0x1p-9f : tolerance);
        }
        float *chunks = run(&tiny, &one, &options, 100, 77);
        float *steps = run(&tiny, &two, &options, 500, 1);
        assert_memory_equal(chunks, all, sizeof(float) * LENGTH * VOCAB);
        assert_memory_equal(steps, all, sizeof(float) * LENGTH * VOCAB);
        free(all);
        free(chunks);
        free(steps);
    }
    free(expected);
    tiny_plan_destroy(&tiny);
}

static void test_splits_as_reference(void **state)
{
    (void)state;
    check_splits(0, 16, MR_DTYPE_F32, 2e-5f);
    check_splits(0, 32, MR_DTYPE_BF16, 2e-2f);
    check_splits(0, 10, MR_DTYPE_F16, 2e-3f);
    check_splits(0, 16, MR_DTYPE_I8, 2e-2f);
    check_splits(0, 10, MR_DTYPE_I8, 2e-2f);
}

static void test_splits_with_window(void **state)
{
    (void)state;
    check_splits(100, 16, MR_DTYPE_F32, 2e-5f);
    check_splits(300, 16, MR_DTYPE_BF16, 2e-2f);
    check_splits(33, 16, MR_DTYPE_I8, 2e-2f);
}

/* exp, through softmax of a range of scores, within 4 units in the last place. */
static void test_softmax_values(void **state)
{
    (void)state;
    fast_table tables[FAST_TABLES_MAX];
    const uint32_t count = fast_tables(tables);
    for (uint32_t t = 0; t < count; t++) {
        float scores[256];
        float before[256];
        for (uint32_t i = 0; i < 256; i++) {
            before[i] = scores[i] = 10.0f - 0.7f * (float)i;
        }
        mr_fast_softmax row = {
            .scores = scores, .first = 16, .covered = 240, .begin = 21, .end = 230, .scale = 0.5f};
        tables[t].kernels->softmax(&row);
        assert_float_equal(row.max, before[21] * 0.5f, 0);
        double sum = 0;
        for (uint32_t i = 16; i < 240; i++) {
            const double exact = exp((double)(before[i] * 0.5f - row.max));
            if (i < 21 || i >= 230) {
                assert_true(scores[i] == 0.0f);
                continue;
            }
            assert_true(fabs((double)scores[i] - exact) <= 4 * 0x1p-24 * exact + 1e-37);
            sum += exact;
        }
        assert_true(fabs((double)row.sum - sum) <= 1e-5 * sum);
        assert_float_equal(scores[15], before[15], 0);
        assert_float_equal(scores[240], before[240], 0);
    }
}

static double activated(mr_activation activation, double x)
{
    switch (activation) {
    case MR_ACT_SILU:
        return x / (1 + exp(-x));
    case MR_ACT_GELU_TANH:
        return 0.5 * x * (1 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
    case MR_ACT_GELU:
        return 0.5 * x * (1 + erf(x / 1.41421356237309504880));
    case MR_ACT_RELU:
        break;
    }
    return x > 0 ? x : 0;
}

static void test_gated_values(void **state)
{
    (void)state;
    enum { COUNT = 403 };
    fast_table tables[FAST_TABLES_MAX];
    const uint32_t count = fast_tables(tables);
    for (uint32_t t = 0; t < count; t++) {
        for (int kind = MR_ACT_SILU; kind <= MR_ACT_RELU; kind++) {
            float gate[COUNT];
            float up[COUNT];
            float out[COUNT];
            for (uint32_t i = 0; i < COUNT; i++) {
                gate[i] = -101.0f + 0.5f * (float)i;
                up[i] = i % 2 == 0 ? 1.0f : -0.5f;
            }
            tables[t].kernels->gated((mr_activation)kind, gate, up, out, COUNT);
            for (uint32_t i = 0; i < COUNT; i++) {
                const double exact = activated((mr_activation)kind, (double)gate[i]);
                const double error = (double)out[i] - exact * (double)up[i];
                assert_true(fabs(error) <= 1e-6 * fabs(exact) + 1e-6);
            }
        }
    }
}

/* Every kind of number, the ones that round to even and a NaN among them, in odd lengths. */
static void test_narrow_and_widen(void **state)
{
    (void)state;
    enum { COUNT = 277 };
    static const mr_dtype dtypes[] = {MR_DTYPE_F32, MR_DTYPE_F16, MR_DTYPE_BF16};
    fast_table tables[FAST_TABLES_MAX];
    const uint32_t count = fast_tables(tables);
    float x[COUNT];
    uint64_t seed = 9;
    for (uint32_t i = 0; i < COUNT; i++) {
        const uint32_t bits = (uint32_t)tiny_random(&seed);
        memcpy(&x[i], &bits, sizeof(bits));
        x[i] = i % 3 == 0 ? tiny_uniform(&seed, -9.0f, 9.0f) : x[i];
    }
    x[0] = NAN;
    x[1] = -INFINITY;
    x[2] = 1.00390625f; /* half way between two bf16 */
    x[3] = FLT_MAX;
    for (uint32_t t = 0; t < count; t++) {
        for (size_t d = 0; d < sizeof(dtypes) / sizeof(dtypes[0]); d++) {
            uint32_t store[COUNT];
            float back[COUNT + 1] = {0};
            back[COUNT] = 1.5f;
            tables[t].kernels->narrow(dtypes[d], x, store, COUNT);
            tables[t].kernels->widen(&(mr_fast_widen){
                .dtype = dtypes[d], .from = store, .to = back, .rows = 1, .cols = COUNT});
            for (uint32_t i = 0; i < COUNT; i++) {
                float exact = x[i];
                if (dtypes[d] == MR_DTYPE_F16) {
                    exact = mr_f16_to_f32(mr_f32_to_f16(x[i]));
                } else if (dtypes[d] == MR_DTYPE_BF16) {
                    exact = mr_bf16_to_f32(mr_f32_to_bf16(x[i]));
                }
                assert_true(isnan(exact) ? isnan(back[i]) : back[i] == exact);
            }
            assert_float_equal(back[COUNT], 1.5f, 0);
        }
    }
}

/* Codes and scale as the rule of kv_layout.h has them, and back with scales of rows and columns. */
static void test_int8_of_every_width(void **state)
{
    (void)state;
    enum { MOST = 130, ROWS = 3 };
    fast_table tables[FAST_TABLES_MAX];
    const uint32_t count = fast_tables(tables);
    uint64_t seed = 11;
    for (uint32_t width = 1; width <= MOST; width++) {
        float x[MOST];
        int8_t expected[MOST];
        for (uint32_t i = 0; i < width; i++) {
            x[i] = tiny_uniform(&seed, -3.0f, 3.0f) * (width % 7 == 0 ? 1e-36f : 1.0f);
        }
        const float scale = mr_kv_quantize(x, expected, width);
        for (uint32_t t = 0; t < count; t++) {
            int8_t codes[ROWS * MOST];
            float scales[MOST];
            float back[ROWS * MOST + 1];
            for (uint32_t r = 0; r < ROWS; r++) {
                scales[r] = tables[t].kernels->quantize_kv(x, codes + r * width, width);
                assert_true(scales[r] == scale);
                assert_memory_equal(codes + r * width, expected, width);
                scales[r] = scale * (float)(r + 1);
            }
            mr_fast_widen job = {.dtype = MR_DTYPE_I8,
                                 .from = codes,
                                 .from_stride = width,
                                 .scales = scales,
                                 .scales_of_rows = true,
                                 .to = back,
                                 .to_stride = width,
                                 .rows = ROWS,
                                 .cols = width};
            back[ROWS * width] = 1.5f;
            tables[t].kernels->widen(&job);
            for (uint32_t i = 0; i < ROWS * width; i++) {
                assert_true(back[i] == (float)codes[i] * scales[i / width]);
            }
            for (uint32_t i = 0; i < width; i++) {
                scales[i] = 0.25f * (float)(i + 1);
            }
            job.scales_of_rows = false;
            tables[t].kernels->widen(&job);
            for (uint32_t i = 0; i < ROWS * width; i++) {
                assert_true(back[i] == (float)codes[i] * scales[i % width]);
            }
            assert_true(back[ROWS * width] == 1.5f);
        }
    }
}

/* What is not finite stays so: the rows that see it are corrupt, and no others. */
static void test_int8_of_what_is_not_finite(void **state)
{
    (void)state;
    fast_table tables[FAST_TABLES_MAX];
    const uint32_t count = fast_tables(tables);
    for (uint32_t i = 0; i < 40; i++) {
        float x[40] = {1.0f, 2.0f};
        int8_t codes[40];
        x[i] = i % 2 == 0 ? NAN : -INFINITY;
        assert_false(isfinite(mr_kv_quantize(x, codes, 40)));
        for (uint32_t t = 0; t < count; t++) {
            assert_false(isfinite(tables[t].kernels->quantize_kv(x, codes, 40)));
        }
    }
}

static void test_rotate_values(void **state)
{
    (void)state;
    static const uint32_t dims[] = {2, 16, 20, 64, 72};
    fast_table tables[FAST_TABLES_MAX];
    const uint32_t count = fast_tables(tables);
    for (uint32_t t = 0; t < count; t++) {
        for (size_t d = 0; d < 2 * sizeof(dims) / sizeof(dims[0]); d++) {
            const uint32_t n = dims[d / 2];
            const bool halves = d % 2 == 1;
            float x[72];
            float before[72];
            float c[36];
            float s[36];
            uint64_t seed = d;
            for (uint32_t i = 0; i < 72; i++) {
                before[i] = x[i] = tiny_uniform(&seed, -2.0f, 2.0f);
                const uint32_t pair = i / 2;
                c[pair] = cosf((float)pair);
                s[pair] = sinf((float)pair);
            }
            tables[t].kernels->rotate(halves ? MR_ROPE_HALVES : MR_ROPE_INTERLEAVED, x, c, s, n);
            for (uint32_t i = 0; i < n / 2; i++) {
                const uint32_t a = halves ? i : 2 * i;
                const uint32_t b = halves ? i + n / 2 : 2 * i + 1;
                assert_float_equal(x[a], before[a] * c[i] - before[b] * s[i], 1e-6f);
                assert_float_equal(x[b], before[a] * s[i] + before[b] * c[i], 1e-6f);
            }
            for (uint32_t i = n; i < 72; i++) {
                assert_float_equal(x[i], before[i], 0);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_splits_as_reference),
        cmocka_unit_test(test_splits_with_window),
        cmocka_unit_test(test_softmax_values),
        cmocka_unit_test(test_gated_values),
        cmocka_unit_test(test_narrow_and_widen),
        cmocka_unit_test(test_rotate_values),
        cmocka_unit_test(test_int8_of_every_width),
        cmocka_unit_test(test_int8_of_what_is_not_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
