/* SPDX-License-Identifier: Apache-2.0 */
/* Whole steps on every vectorised path of this machine: against the float32 reference, and against
 * themselves under every way of cutting and mixing the work. */
#include "kernels/cpu/cpu_backend.h"
#include "tiny_schedule.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LENGTH = 41, VOCAB = 96 };

static const mr_cpu_isa isas[] = {MR_CPU_ISA_PORTABLE, MR_CPU_ISA_AVX2, MR_CPU_ISA_AVX512_VNNI,
                                  MR_CPU_ISA_AVX512_BF16, MR_CPU_ISA_AMX};

/* NULL where this machine lacks the instruction set. */
static mr_backend *make_backend(mr_compute compute, mr_cpu_isa isa, uint32_t threads)
{
    mr_backend *backend = NULL;
    mr_error err = {0};
    const mr_cpu_options options = {.compute = compute, .isa = isa, .threads = threads};
    const mr_status status = mr_cpu_backend_create(&options, &backend, &err);
    if (status == MR_FAILED_PRECONDITION && isa != MR_CPU_ISA_PORTABLE) {
        return NULL;
    }
    assert_int_equal(status, MR_OK);
    return backend;
}

/* Paths that multiply in bf16 round activations and the weights of attention to 8 bits: by
 * 1/512 of themselves at most, and a result is what errors of some hundred of them come to. */
static double tolerance_of(mr_cpu_isa isa, const tiny_dims *dims, const mr_exec_options *options,
                           double tolerance)
{
    const bool weights = isa >= MR_CPU_ISA_AVX512_BF16 && dims->dtype == MR_DTYPE_BF16;
    const bool attention = isa == MR_CPU_ISA_AMX && options->kv_dtype == MR_DTYPE_BF16;
    return weights || attention ? fmax(tolerance, 0.015) : tolerance;
}

static void check_against_reference(const tiny_dims *dims, const mr_exec_options *options,
                                    double tolerance, const char *what)
{
    tiny_plan tiny;
    tiny_plan_create(dims, &tiny);
    mr_backend *reference = make_backend(MR_COMPUTE_F32, MR_CPU_ISA_AUTO, 1);
    float *expected =
        tiny_logits(reference, &tiny, options, LENGTH, (tiny_schedule){.chunk = LENGTH});
    for (size_t i = 0; i < sizeof(isas) / sizeof(isas[0]); i++) {
        mr_backend *backend = make_backend(MR_COMPUTE_AUTO, isas[i], 2);
        if (backend == NULL) {
            continue;
        }
        float *logits =
            tiny_logits(backend, &tiny, options, LENGTH, (tiny_schedule){.chunk = LENGTH});
        const double found = tiny_distance(logits, expected, LENGTH, VOCAB);
        const double most = tolerance_of(isas[i], dims, options, tolerance);
        if (!(found <= most)) {
            fail_msg("%s, %s: relative error %g, at most %g is allowed", what,
                     mr_cpu_isa_name(isas[i]), found, most);
        }
        free(logits);
        backend->vt->destroy(backend);
    }
    free(expected);
    reference->vt->destroy(reference);
    tiny_plan_destroy(&tiny);
}

static void test_float_weights_as_reference(void **state)
{
    (void)state;
    static const mr_dtype dtypes[] = {MR_DTYPE_F32, MR_DTYPE_F16, MR_DTYPE_BF16};
    const mr_exec_options options = tiny_options();
    for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++) {
        tiny_dims dims = tiny_dims_default();
        dims.dtype = dtypes[i];
        check_against_reference(&dims, &options, 1e-5, mr_dtype_info_get(dtypes[i])->name);
    }
}

static void test_quantised_weights_near_reference(void **state)
{
    (void)state;
    const mr_exec_options options = tiny_options();
    for (mr_dtype dtype = MR_DTYPE_Q8_0; dtype < MR_DTYPE_COUNT; dtype++) {
        tiny_dims dims = tiny_dims_of(dtype);
        dims.tied = true;
        /* Activations lose about 1/254 of the largest of 32 to rounding. */
        check_against_reference(&dims, &options, 0.03, mr_dtype_info_get(dtype)->name);
        if (dims.head_width < 32) {
            dims.head_width = 32; /* attention quantises its own output */
            check_against_reference(&dims, &options, 0.03, mr_dtype_info_get(dtype)->name);
        }
    }
}

static void test_variants_as_reference(void **state)
{
    (void)state;
    const mr_exec_options options = tiny_options();
    tiny_dims dims = tiny_dims_default();
    dims.pairing = MR_ROPE_HALVES;
    dims.head_width = 36;
    check_against_reference(&dims, &options, 1e-5, "rope by halves, D 36");
    dims = tiny_dims_default();
    dims.norm = MR_NORM_LAYER;
    dims.biases = true;
    dims.width = 50;
    dims.ffn = 37;
    check_against_reference(&dims, &options, 1e-5, "layer norm, biases, odd widths");
    dims = tiny_dims_default();
    dims.window = 9;
    dims.soft_cap = 2.0f;
    dims.embed_scale = 8.0f;
    check_against_reference(&dims, &options, 1e-5, "window, soft cap, embedding scale");
    dims = tiny_dims_default();
    dims.heads = 6;
    dims.kv_heads = 1;
    check_against_reference(&dims, &options, 1e-5, "one KV head");
    dims = tiny_dims_default();
    dims.layers = 3;
    dims.window = 5;
    dims.every_other = true;
    check_against_reference(&dims, &options, 1e-5, "a window of every other layer");
    static const mr_activation activations[] = {MR_ACT_SILU, MR_ACT_GELU_TANH, MR_ACT_GELU,
                                                MR_ACT_RELU};
    for (size_t i = 0; i < sizeof(activations) / sizeof(activations[0]); i++) {
        dims = tiny_dims_default();
        dims.activation = activations[i];
        check_against_reference(&dims, &options, 1e-5, "activation");
    }
}

static void test_kv_types_and_blocks(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {1, 5, 8, 16, 40};
    const tiny_dims dims = tiny_dims_default();
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        mr_exec_options options = tiny_options();
        options.block_size = sizes[i];
        options.n_blocks = 1 + options.max_seqs * (options.max_context / sizes[i]);
        check_against_reference(&dims, &options, 1e-5, "f32 blocks");
        /* Rounding may fall to the other side where the float32 value is a hair off. */
        options.kv_dtype = MR_DTYPE_F16;
        check_against_reference(&dims, &options, 1e-3, "f16 blocks");
        options.kv_dtype = MR_DTYPE_BF16;
        check_against_reference(&dims, &options, 5e-3, "bf16 blocks");
        options.kv_dtype = MR_DTYPE_I8;
        check_against_reference(&dims, &options, 5e-3, "int8 blocks");
    }
}

/* Where the layers of a group have their K/V makes no difference: each group has tables and slots
 * of its own. */
static void test_kv_groups_have_tables_of_their_own(void **state)
{
    (void)state;
    static const mr_compute computes[] = {MR_COMPUTE_F32, MR_COMPUTE_AUTO};
    const mr_exec_options options = tiny_options();
    const tiny_schedule how = {.chunk = 7, .neighbours = 2};
    tiny_dims dims = tiny_dims_default();
    dims.layers = 3;
    dims.window = 9;
    dims.every_other = true;
    tiny_plan tiny;
    tiny_plan_create(&dims, &tiny);
    for (size_t c = 0; c < 2; c++) {
        for (size_t i = 0; i < sizeof(isas) / sizeof(isas[0]); i++) {
            mr_backend *backend = make_backend(computes[c], isas[i], 2);
            if (backend == NULL) {
                continue;
            }
            float *one = tiny_logits(backend, &tiny, &options, LENGTH, how);
            tiny.plan->kv.groups = 2;
            tiny.plan->kv.group_of[1] = 1;
            float *two = tiny_logits(backend, &tiny, &options, LENGTH, how);
            tiny.plan->kv.groups = 1;
            tiny.plan->kv.group_of[1] = 0;
            assert_memory_equal(one, two, LENGTH * VOCAB * sizeof(float));
            free(one);
            free(two);
            backend->vt->destroy(backend);
        }
    }
    tiny_plan_destroy(&tiny);
}

/* Chunks, neighbours and threads change no bit. */
static void test_exec_batch_invariance(void **state)
{
    (void)state;
    static const tiny_schedule ways[] = {{.chunk = LENGTH},
                                         {.chunk = 1},
                                         {.chunk = 7},
                                         {.chunk = 1, .neighbours = 3},
                                         {.chunk = 13, .neighbours = 2}};
    /* One of each layout. */
    static const mr_dtype dtypes[] = {MR_DTYPE_BF16, MR_DTYPE_Q8_0, MR_DTYPE_Q4_0, MR_DTYPE_Q4_1,
                                      MR_DTYPE_Q5_1, MR_DTYPE_Q2_K, MR_DTYPE_Q3_K, MR_DTYPE_Q6_K};
    static const mr_dtype kv_dtypes[] = {MR_DTYPE_BF16, MR_DTYPE_I8, MR_DTYPE_F16, MR_DTYPE_F32};
    mr_exec_options options = tiny_options();
    for (size_t d = 0; d < sizeof(dtypes) / sizeof(dtypes[0]); d++) {
        tiny_dims dims = tiny_dims_of(dtypes[d]);
        dims.window = d == 0 ? 20 : 0;
        options.kv_dtype = kv_dtypes[d % 4];
        const uint32_t stride = dims.width > 64 ? 2 : 1; /* the large ones take longer */
        tiny_plan tiny;
        tiny_plan_create(&dims, &tiny);
        for (size_t i = 0; i < sizeof(isas) / sizeof(isas[0]); i++) {
            float *expected = NULL;
            for (uint32_t threads = 1; threads <= 3; threads += stride) {
                mr_backend *backend = make_backend(MR_COMPUTE_AUTO, isas[i], threads);
                for (size_t w = 0; backend != NULL && w < sizeof(ways) / sizeof(ways[0]);
                     w += stride) {
                    float *logits = tiny_logits(backend, &tiny, &options, LENGTH, ways[w]);
                    if (expected == NULL) {
                        expected = logits;
                        continue;
                    }
                    assert_memory_equal(logits, expected, LENGTH * VOCAB * sizeof(float));
                    free(logits);
                }
                if (backend != NULL) {
                    backend->vt->destroy(backend);
                }
            }
            free(expected);
        }
        tiny_plan_destroy(&tiny);
    }
}

/* A NaN in the weights ends as a corrupt row, not as a token. */
static void test_nan_is_seen(void **state)
{
    (void)state;
    tiny_dims dims = tiny_dims_default();
    dims.dtype = MR_DTYPE_Q8_0;
    tiny_plan tiny;
    tiny_plan_create(&dims, &tiny);
    float *gain = tiny.data[tiny.layers[0].ffn_gain];
    gain[3] = NAN;
    const mr_exec_options options = tiny_options();
    for (size_t i = 0; i < sizeof(isas) / sizeof(isas[0]); i++) {
        mr_backend *backend = make_backend(MR_COMPUTE_AUTO, isas[i], 2);
        if (backend == NULL) {
            continue;
        }
        tiny_session session;
        tiny_session_create(&tiny, backend, &options, &session);
        const int32_t tokens[3] = {1, 2, 3};
        mr_batch_reset(session.storage);
        tiny_feed(&session, 0, tokens, 0, 3, false);
        mr_step_output out;
        tiny_run(&session, &out);
        assert_true(out.corrupt[0] != 0);
        tiny_session_destroy(&session);
        backend->vt->destroy(backend);
    }
    tiny_plan_destroy(&tiny);
}

/* Paths that this machine lacks are refused by name, and run in the emulated variant of this test;
 * the others are in every test here. */
static void test_path_is_there_or_refused(void **state)
{
    const mr_cpu_isa isa = *(const mr_cpu_isa *)*state;
    mr_backend *backend = NULL;
    mr_error err = {0};
    const mr_cpu_options options = {.compute = MR_COMPUTE_AUTO, .isa = isa, .threads = 1};
    if (mr_cpu_backend_create(&options, &backend, &err) != MR_OK) {
        assert_int_equal(err.status, MR_FAILED_PRECONDITION);
        assert_non_null(strstr(err.message, mr_cpu_isa_name(isa)));
        return;
    }
    mr_backend_info info;
    backend->vt->info(backend, &info);
    assert_string_equal(info.name + strlen("cpu-"), mr_cpu_isa_name(isa));
    backend->vt->destroy(backend);
}

static void test_paths_have_names(void **state)
{
    (void)state;
    static const char *const names[] = {"cpu-portable", "cpu-avx2", "cpu-avx512vnni",
                                        "cpu-avx512bf16", "cpu-amx"};
    for (size_t i = 0; i < sizeof(isas) / sizeof(isas[0]); i++) {
        mr_backend *backend = make_backend(MR_COMPUTE_AUTO, isas[i], 1);
        if (backend == NULL) {
            continue;
        }
        mr_backend_info info;
        backend->vt->info(backend, &info);
        assert_string_equal(info.name, names[i]);
        assert_memory_equal(info.numerics, names[i], strlen(names[i]));
        backend->vt->destroy(backend);
    }
}

#define PATH_IS_TESTED(name, isa)                                                                  \
    {                                                                                              \
        "test_path_is_there_or_refused: " name, test_path_is_there_or_refused, NULL, NULL,         \
            &(mr_cpu_isa)                                                                          \
        {                                                                                          \
            isa                                                                                    \
        }                                                                                          \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_float_weights_as_reference),
        cmocka_unit_test(test_quantised_weights_near_reference),
        cmocka_unit_test(test_variants_as_reference),
        cmocka_unit_test(test_kv_types_and_blocks),
        cmocka_unit_test(test_kv_groups_have_tables_of_their_own),
        cmocka_unit_test(test_exec_batch_invariance),
        cmocka_unit_test(test_nan_is_seen),
        cmocka_unit_test(test_paths_have_names),
        PATH_IS_TESTED("avx2", MR_CPU_ISA_AVX2),
        PATH_IS_TESTED("avx512vnni", MR_CPU_ISA_AVX512_VNNI),
        PATH_IS_TESTED("avx512bf16", MR_CPU_ISA_AVX512_BF16),
        PATH_IS_TESTED("amx", MR_CPU_ISA_AMX),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
