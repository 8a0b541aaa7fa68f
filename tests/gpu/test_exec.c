/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA backend against the scalar reference, on small random models of odd shapes: prompts in
 * chunks of every kind, decoding with and without graphs, neighbours. */
#include "gpu.h"
#include "tiny_schedule.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { VOCAB = 96, MOST_LENGTH = 301, LEAST_LENGTH = 24, FEW_WAYS = 3 };

/* Tokens of a sequence. MILLRACE_TEST_LENGTH makes it shorter, and leaves the first few ways only:
 * for a GPU that is emulated. */
static uint32_t length = MOST_LENGTH;

static tiny_schedule ways[] = {
    {.prefill = MOST_LENGTH, .chunk = MOST_LENGTH},  /* one prompt */
    {.prefill = 20, .chunk = 7},                     /* then decoding, past two splits */
    {.prefill = 280, .chunk = 140, .neighbours = 3}, /* 4 rows of decoding */
    {.prefill = 290, .chunk = 130, .neighbours = 2},
    {.prefill = 285, .chunk = 19, .neighbours = 11},
    {.prefill = 270, .chunk = 27, .neighbours = 36}, /* more rows than the kernel for few takes */
};
static size_t n_ways = sizeof(ways) / sizeof(ways[0]);

static void shorten(uint32_t to)
{
    if (to >= LEAST_LENGTH && to < MOST_LENGTH) {
        ways[0].prefill = to;
        ways[0].chunk = to;
        ways[2].prefill = to - 21;
        ways[2].neighbours = 1;
        n_ways = FEW_WAYS;
        length = to;
    }
}

typedef struct precision {
    mr_dtype compute;
    mr_dtype weights;
    double tolerance;
} precision;

/* Weights of the compute type, so that only what is computed is rounded. */
static const precision precisions[] = {
    {MR_DTYPE_F32, MR_DTYPE_F32, 2e-5},
    {MR_DTYPE_F16, MR_DTYPE_F16, 6e-3},
    {MR_DTYPE_BF16, MR_DTYPE_BF16, 5e-2},
};

/* `options` without a KV type: that of the computation. */
static void check(const tiny_dims *dims, const mr_exec_options *options, const char *what)
{
    for (size_t p = 0; p < sizeof(precisions) / sizeof(precisions[0]); p++) {
        tiny_dims typed = *dims;
        typed.dtype = precisions[p].weights;
        mr_exec_options on_gpu =
            options != NULL ? *options : gpu_wide_options(precisions[p].compute);
        mr_exec_options on_cpu = on_gpu;
        /* One rule for int8 everywhere: only what is computed differs. */
        on_cpu.kv_dtype = on_gpu.kv_dtype == MR_DTYPE_I8 ? MR_DTYPE_I8 : MR_DTYPE_F32;
        tiny_plan tiny;
        tiny_plan_create(&typed, &tiny);
        mr_backend *backend = gpu_backend(precisions[p].compute);
        mr_backend *reference = gpu_reference();
        float *expected = tiny_logits(reference, &tiny, &on_cpu, length, ways[0]);
        for (size_t w = 0; w < n_ways; w++) {
            float *logits = tiny_logits(backend, &tiny, &on_gpu, length, ways[w]);
            const double found = tiny_distance(logits, expected, length, VOCAB);
            double allowed = precisions[p].tolerance;
            if (on_gpu.kv_dtype != MR_DTYPE_F32 && allowed < 2e-2) {
                allowed = on_gpu.kv_dtype == MR_DTYPE_F16 ? 6e-3 : 2e-2;
            }
            if (on_gpu.kv_dtype == MR_DTYPE_F8_E4M3) {
                allowed = 0.12; /* keys and values of three bits and a sign */
            }
            if (!(found <= allowed)) {
                fail_msg("%s, %s, way %zu: relative error %g, at most %g is allowed", what,
                         mr_dtype_info_get(precisions[p].compute)->name, w, found, allowed);
            }
            free(logits);
        }
        free(expected);
        reference->vt->destroy(reference);
        backend->vt->destroy(backend);
        tiny_plan_destroy(&tiny);
    }
}

static void test_head_widths(void **state)
{
    (void)state;
    static const uint32_t widths[] = {16, 36, 64, 128, 256};
    for (size_t i = 0; i < sizeof(widths) / sizeof(widths[0]); i++) {
        tiny_dims dims = tiny_dims_default();
        dims.head_width = widths[i];
        char what[32];
        (void)snprintf(what, sizeof(what), "D %u", widths[i]);
        check(&dims, NULL, what);
    }
}

/* For two sequences of up to `context` tokens. */
static mr_exec_options long_options(mr_dtype kv, uint32_t context)
{
    mr_exec_options options = gpu_wide_options(kv);
    options.max_tokens = 2048;
    options.max_rows = 2048;
    options.max_seqs = 2;
    options.max_context = context;
    options.n_blocks = 1 + options.max_seqs * (options.max_context / options.block_size);
    return options;
}

/* Prompts of many tiles, in chunks that begin inside of one, for the head widths that have a kernel
 * of their own. */
static void test_long_prompts(void **state)
{
    (void)state;
    enum { LONG = 1100 };
    static const tiny_schedule cuts[] = {
        {.prefill = LONG, .chunk = LONG},
        {.prefill = LONG, .chunk = 450, .neighbours = 1},
        {.prefill = LONG, .chunk = 129},
    };
    static const uint32_t windows[] = {0, 300};
    for (size_t i = 0; i < 2 * sizeof(windows) / sizeof(windows[0]); i++) {
        tiny_dims dims = tiny_dims_default();
        dims.head_width = i % 2 == 0 ? 128 : 64;
        dims.window = windows[i / 2];
        dims.dtype = MR_DTYPE_BF16;
        const mr_exec_options options = long_options(MR_DTYPE_BF16, 1200);
        mr_exec_options on_cpu = options;
        on_cpu.kv_dtype = MR_DTYPE_F32;
        tiny_plan tiny;
        tiny_plan_create(&dims, &tiny);
        mr_backend *backend = gpu_backend(MR_DTYPE_BF16);
        mr_backend *reference = gpu_reference();
        float *expected = tiny_logits(reference, &tiny, &on_cpu, LONG, cuts[0]);
        for (size_t w = 0; w < sizeof(cuts) / sizeof(cuts[0]); w++) {
            float *logits = tiny_logits(backend, &tiny, &options, LONG, cuts[w]);
            const double found = tiny_distance(logits, expected, LONG, VOCAB);
            if (!(found <= 5e-2)) {
                fail_msg("D %u, window %u, cut %zu: relative error %g", dims.head_width,
                         dims.window, w, found);
            }
            free(logits);
        }
        free(expected);
        reference->vt->destroy(reference);
        backend->vt->destroy(backend);
        tiny_plan_destroy(&tiny);
    }
}

static void test_head_groups(void **state)
{
    (void)state;
    static const uint32_t groups[][2] = {{3, 3}, {9, 3}, {4, 1}, {6, 1}, {8, 1}};
    for (size_t i = 0; i < sizeof(groups) / sizeof(groups[0]); i++) {
        tiny_dims dims = tiny_dims_default();
        dims.heads = groups[i][0];
        dims.kv_heads = groups[i][1];
        dims.head_width = 64;
        char what[32];
        (void)snprintf(what, sizeof(what), "%u heads over %u", groups[i][0], groups[i][1]);
        check(&dims, NULL, what);
    }
}

static void test_variants(void **state)
{
    (void)state;
    tiny_dims dims = tiny_dims_default();
    dims.pairing = MR_ROPE_HALVES;
    dims.head_width = 64;
    dims.tied = true;
    check(&dims, NULL, "rope by halves, tied");
    dims = tiny_dims_default();
    dims.norm = MR_NORM_LAYER;
    dims.biases = true;
    dims.width = 50;
    dims.ffn = 37;
    check(&dims, NULL, "layer norm, biases, odd widths");
    dims = tiny_dims_default();
    dims.biases = true;
    check(&dims, NULL, "biases");
    dims = tiny_dims_default();
    dims.window = 150;
    dims.soft_cap = 2.0f;
    dims.embed_scale = 8.0f;
    dims.head_width = 64;
    check(&dims, NULL, "window, soft cap, embedding scale");
    dims.window = 9;
    check(&dims, NULL, "small window");
    static const mr_activation activations[] = {MR_ACT_GELU_TANH, MR_ACT_GELU, MR_ACT_RELU};
    for (size_t i = 0; i < sizeof(activations) / sizeof(activations[0]); i++) {
        dims = tiny_dims_default();
        dims.activation = activations[i];
        check(&dims, NULL, "activation");
    }
}

static void test_kv_types_and_blocks(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {1, 5, 8, 64};
    static const mr_dtype types[] = {MR_DTYPE_F32, MR_DTYPE_F16, MR_DTYPE_BF16, MR_DTYPE_F8_E4M3,
                                     MR_DTYPE_I8};
    tiny_dims dims = tiny_dims_default();
    dims.head_width = 64;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        for (size_t k = 0; k < sizeof(types) / sizeof(types[0]); k++) {
            mr_exec_options options = gpu_wide_options(types[k]);
            options.block_size = sizes[i];
            options.n_blocks = 1 + options.max_seqs * (options.max_context / sizes[i]);
            char what[48];
            (void)snprintf(what, sizeof(what), "%s blocks of %u", mr_dtype_info_get(types[k])->name,
                           sizes[i]);
            check(&dims, &options, what);
        }
    }
}

/* Every stored type is dequantised as the reference does it. */
static void test_stored_types(void **state)
{
    (void)state;
    for (mr_dtype dtype = MR_DTYPE_F32; dtype < MR_DTYPE_COUNT; dtype++) {
        tiny_dims dims = tiny_dims_of(dtype);
        const mr_exec_options options = gpu_wide_options(MR_DTYPE_F32);
        tiny_plan tiny;
        tiny_plan_create(&dims, &tiny);
        mr_backend *backend = gpu_backend(MR_DTYPE_F32);
        mr_backend *reference = gpu_reference();
        float *expected = tiny_logits(reference, &tiny, &options, length, ways[0]);
        float *logits = tiny_logits(backend, &tiny, &options, length, ways[0]);
        const double found = tiny_distance(logits, expected, length, VOCAB);
        if (!(found <= 2e-5)) {
            fail_msg("%s: relative error %g", mr_dtype_info_get(dtype)->name, found);
        }
        free(expected);
        free(logits);
        reference->vt->destroy(reference);
        backend->vt->destroy(backend);
        tiny_plan_destroy(&tiny);
    }
}

/* The same steps give the same bits, whether launched one by one, captured or replayed. */
static void test_two_runs_are_bit_equal_D4(void **state)
{
    (void)state;
    tiny_dims dims = tiny_dims_default();
    dims.head_width = 64;
    dims.dtype = MR_DTYPE_BF16;
    const mr_exec_options options = gpu_wide_options(MR_DTYPE_BF16);
    tiny_plan tiny;
    tiny_plan_create(&dims, &tiny);
    mr_backend *backend = gpu_backend(MR_DTYPE_BF16);
    for (size_t w = 0; w < n_ways; w++) {
        float *first = tiny_logits(backend, &tiny, &options, length, ways[w]);
        float *second = tiny_logits(backend, &tiny, &options, length, ways[w]);
        assert_memory_equal(first, second, (size_t)length * VOCAB * sizeof(float));
        free(first);
        free(second);
    }
    backend->vt->destroy(backend);
    tiny_plan_destroy(&tiny);
}

/* Shapes whose layers one launch runs in decode steps of few rows. */
static const struct layers_case {
    const char *what;
    uint32_t width, heads, kv_heads, head_width, ffn;
    bool late, head_norms, halves;
    float soft_cap;
} layers_cases[] = {
    {"small", 64, 4, 2, 64, 128, false, false, false, 0.0f},
    {"rows gathered", 64, 4, 2, 64, 192, true, false, true, 0.0f},
    {"one head a group, norms of heads", 192, 3, 3, 64, 320, true, true, true, 0.0f},
    {"16 heads a group, soft cap", 128, 16, 1, 64, 64, true, false, false, 2.0f},
    {"D 128", 576, 6, 2, 128, 1088, true, true, false, 0.0f},
    {"wide norm, fewer tiles than inputs ask for", 1088, 8, 8, 128, 64, true, false, true, 0.0f},
};

static tiny_dims layers_dims(const struct layers_case *c, mr_dtype dtype)
{
    tiny_dims dims = tiny_dims_default();
    dims.layers = 3;
    dims.width = c->width;
    dims.heads = c->heads;
    dims.kv_heads = c->kv_heads;
    dims.head_width = c->head_width;
    dims.ffn = c->ffn;
    dims.late = c->late;
    dims.head_norms = c->head_norms;
    dims.pairing = c->halves ? MR_ROPE_HALVES : MR_ROPE_INTERLEAVED;
    dims.soft_cap = c->soft_cap;
    dims.dtype = dtype;
    return dims;
}

static void test_layers_in_one_launch(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(layers_cases) / sizeof(layers_cases[0]); i++) {
        const tiny_dims dims = layers_dims(&layers_cases[i], MR_DTYPE_F32);
        check(&dims, NULL, layers_cases[i].what);
    }
}

/* Decoding behind a prompt of 34 splits: in one launch blocks have several of them each, and more
 * are joined than a warp has lanes; with a neighbour it is too much for that. Float32 on the GPU,
 * which does neither, is held to the reference elsewhere. */
static void test_decoding_at_long_contexts(void **state)
{
    (void)state;
    enum { LONG = 8700, DECODED = 12 };
    const tiny_dims dims = layers_dims(&layers_cases[5], MR_DTYPE_BF16);
    mr_exec_options options = long_options(MR_DTYPE_F32, 8704);
    tiny_plan tiny;
    tiny_plan_create(&dims, &tiny);
    mr_backend *reference = gpu_backend(MR_DTYPE_F32);
    const tiny_schedule whole = {.prefill = LONG, .chunk = 2048};
    float *expected = tiny_logits(reference, &tiny, &options, LONG, whole);
    reference->vt->destroy(reference);
    mr_backend *backend = gpu_backend(MR_DTYPE_BF16);
    options.kv_dtype = MR_DTYPE_BF16;
    for (uint32_t neighbours = 0; neighbours < 2; neighbours++) {
        const tiny_schedule how = {
            .prefill = LONG - DECODED, .chunk = 680, .neighbours = neighbours};
        float *logits = tiny_logits(backend, &tiny, &options, LONG, how);
        const double found = tiny_distance(logits, expected, LONG, VOCAB);
        if (!(found <= 5e-2)) {
            fail_msg("among %u neighbours: relative error %g", neighbours, found);
        }
        free(logits);
    }
    free(expected);
    backend->vt->destroy(backend);
    tiny_plan_destroy(&tiny);
}

/* In decode steps of few rows, a row has the same bits whatever stands beside it. */
static void test_few_neighbours_do_not_matter_D4(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(layers_cases) / sizeof(layers_cases[0]); i++) {
        const tiny_dims dims = layers_dims(&layers_cases[i], MR_DTYPE_BF16);
        const mr_exec_options options = gpu_wide_options(MR_DTYPE_BF16);
        tiny_plan tiny;
        tiny_plan_create(&dims, &tiny);
        mr_backend *backend = gpu_backend(MR_DTYPE_BF16);
        const tiny_schedule alone = {.prefill = 1, .chunk = 1};
        float *expected = tiny_logits(backend, &tiny, &options, length, alone);
        for (uint32_t neighbours = 1; neighbours < 8; neighbours += 2) {
            const tiny_schedule among = {.prefill = 1, .chunk = 1, .neighbours = neighbours};
            float *logits = tiny_logits(backend, &tiny, &options, length, among);
            if (memcmp(logits, expected, (size_t)length * VOCAB * sizeof(float)) != 0) {
                fail_msg("%s: other bits among %u neighbours", layers_cases[i].what, neighbours);
            }
            free(logits);
        }
        free(expected);
        backend->vt->destroy(backend);
        tiny_plan_destroy(&tiny);
    }
}

/* A copied block serves another slot: two sequences with one history agree bit by bit. */
static void test_block_copies(void **state)
{
    (void)state;
    tiny_dims dims = tiny_dims_default();
    const mr_exec_options options = gpu_wide_options(MR_DTYPE_F32);
    tiny_plan tiny;
    tiny_plan_create(&dims, &tiny);
    mr_backend *backend = gpu_backend(MR_DTYPE_F32);
    tiny_session session;
    tiny_session_create(&tiny, backend, &options, &session);
    int32_t tokens[17];
    tiny_tokens(&tiny, 3, tokens, 17);
    mr_step_output out;
    mr_batch_reset(session.storage);
    tiny_feed(&session, 0, tokens, 0, 16, false);
    tiny_run(&session, &out);
    /* Slots own their blocks in descending order. */
    const uint32_t per_slot = options.max_context / options.block_size;
    const mr_block_copy copy = {.from = per_slot, .to = 2 * per_slot};
    assert_int_equal(session.exec->vt->copy_blocks(session.exec, &copy, 1, NULL), MR_OK);
    mr_batch_reset(session.storage);
    assert_int_equal(
        mr_batch_add_block(session.storage, &(mr_block_delta){.slot = 1, .block = copy.to}), MR_OK);
    tiny_feed(&session, 0, tokens + 16, 16, 1, false);
    tiny_feed(&session, 1, tokens + 16, 16, 1, false);
    tiny_run(&session, &out);
    assert_memory_equal(out.logits, out.logits + VOCAB, VOCAB * sizeof(float));
    tiny_session_destroy(&session);
    backend->vt->destroy(backend);
    tiny_plan_destroy(&tiny);
}

/* A NaN in the weights ends as a corrupt row, not as a token. */
static void test_nan_is_seen(void **state)
{
    (void)state;
    tiny_dims dims = tiny_dims_default();
    tiny_plan tiny;
    tiny_plan_create(&dims, &tiny);
    float *gain = tiny.data[tiny.layers[0].ffn_gain];
    gain[3] = NAN;
    const mr_exec_options options = gpu_wide_options(MR_DTYPE_BF16);
    mr_backend *backend = gpu_backend(MR_DTYPE_BF16);
    tiny_session session;
    tiny_session_create(&tiny, backend, &options, &session);
    const int32_t tokens[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    mr_batch_reset(session.storage);
    tiny_feed(&session, 0, tokens, 0, 9, false);
    mr_step_output out;
    tiny_run(&session, &out);
    assert_true(out.corrupt[0] != 0);
    tiny_session_destroy(&session);
    backend->vt->destroy(backend);
    tiny_plan_destroy(&tiny);
}

/* An argument names the cases to run, with * and ?; none: all. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_head_widths),
        cmocka_unit_test(test_long_prompts),
        cmocka_unit_test(test_head_groups),
        cmocka_unit_test(test_variants),
        cmocka_unit_test(test_kv_types_and_blocks),
        cmocka_unit_test(test_stored_types),
        cmocka_unit_test(test_two_runs_are_bit_equal_D4),
        cmocka_unit_test(test_layers_in_one_launch),
        cmocka_unit_test(test_decoding_at_long_contexts),
        cmocka_unit_test(test_few_neighbours_do_not_matter_D4),
        cmocka_unit_test(test_block_copies),
        cmocka_unit_test(test_nan_is_seen),
    };
    const char *shorter = getenv("MILLRACE_TEST_LENGTH");
    if (shorter != NULL) {
        shorten((uint32_t)strtoul(shorter, NULL, 10));
    }
    cmocka_set_test_filter(argc > 1 ? argv[1] : NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
