/* SPDX-License-Identifier: Apache-2.0 */
/* The host side of the CUDA backend on a GPU that computes nothing: memory, where weights lie,
 * launches, graphs, and every way to fail. */
#include "fake_gpu.h"
#include "kernels/cuda/internal.h"
#include "kernels/random_weight.h"
#include "tiny_plan.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static mr_cuda_options cuda_options(mr_dtype compute, uint64_t bytes)
{
    return (mr_cuda_options){
        .compute = compute,
        .threads = 1,
        .memory_fraction = 0.9,
        .memory_bytes = bytes,
        .api = fake_api(),
    };
}

static mr_status try_open(mr_dtype compute, uint64_t bytes, mr_backend **out, mr_error *err)
{
    const mr_cuda_options options = cuda_options(compute, bytes);
    return mr_cuda_backend_create(&options, out, err);
}

static mr_backend *open_backend(mr_dtype compute)
{
    mr_backend *backend = NULL;
    mr_error err = {0};
    if (try_open(compute, (uint64_t)64 << 20, &backend, &err) != MR_OK) {
        fail_msg("%s", err.message);
    }
    return backend;
}

static void assert_says(const mr_error *err, const char *what)
{
    if (strstr(err->message, what) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", err->message, what);
    }
}

/* Nothing is left behind. */
static void assert_clean(void)
{
    assert_int_equal(fake.contexts, 0);
    assert_int_equal(fake.host_areas, 0);
    assert_int_equal(fake.graphs, 0);
    assert_int_equal(fake.allocated, 0);
}

static int setup(void **state)
{
    (void)state;
    fake_reset();
    return 0;
}

static mr_exec_options small_options(void)
{
    mr_exec_options options = tiny_options();
    options.kv_dtype = MR_DTYPE_BF16;
    options.keep_logits = false;
    return options;
}

/* ---- opening ---- */

static void test_no_gpu_is_a_plain_answer(void **state)
{
    (void)state;
    mr_backend *backend = NULL;
    mr_error err = {0};
    fake.devices = 0;
    assert_int_equal(try_open(MR_DTYPE_BF16, 0, &backend, &err), MR_FAILED_PRECONDITION);
    assert_says(&err, "no GPU");
    fake.devices = 1;
    fake.fail = "device_count";
    assert_int_equal(try_open(MR_DTYPE_BF16, 0, &backend, &err), MR_FAILED_PRECONDITION);
    assert_says(&err, "an illegal access, says the fake");
    fake.fail = NULL;
    fake.major = 7;
    assert_int_equal(try_open(MR_DTYPE_BF16, 0, &backend, &err), MR_FAILED_PRECONDITION);
    assert_says(&err, "compute capability 7.0");
    assert_clean();
}

static void test_the_share_is_taken_at_once_or_not_at_all(void **state)
{
    (void)state;
    mr_backend *backend = NULL;
    mr_error err = {0};
    fake.total_bytes = (uint64_t)1000 << 20;
    fake.others = (uint64_t)100 << 20;
    assert_int_equal(try_open(MR_DTYPE_BF16, 0, &backend, &err), MR_OK);
    /* 0.9 of 1000 MiB, less what others have: 800 MiB. */
    assert_int_equal(fake.allocated, (uint64_t)800 << 20);
    backend->vt->destroy(backend);
    assert_clean();

    fake.others = (uint64_t)950 << 20;
    assert_int_equal(try_open(MR_DTYPE_BF16, 0, &backend, &err), MR_RESOURCE_EXHAUSTED);
    assert_string_equal(err.field, "gpu_memory_utilization");
    assert_says(&err, "50 are free");
    fake.others = 0;
    fake.fail = "alloc";
    assert_int_equal(try_open(MR_DTYPE_BF16, 0, &backend, &err), MR_RESOURCE_EXHAUSTED);
    assert_clean();
}

/* ---- memory ---- */

static void test_slab_gives_aligned_pieces_and_takes_them_back(void **state)
{
    (void)state;
    mr_cuda_slab slab = {.base = 0x10000, .bytes = 1024};
    mr_cuda_ptr a = 0;
    mr_cuda_ptr b = 0;
    assert_true(mr_cuda_slab_take(&slab, 1, &a));
    const uint64_t mark = slab.used;
    assert_true(mr_cuda_slab_take(&slab, 257, &b));
    assert_int_equal(a, 0x10000);
    assert_int_equal(b, 0x10100);
    assert_int_equal(mr_cuda_slab_left(&slab), 256);
    assert_false(mr_cuda_slab_take(&slab, 257, &a));
    assert_false(mr_cuda_slab_take(&slab, UINT64_MAX, &a));
    const uint64_t end = slab.used;
    assert_true(mr_cuda_slab_take(&slab, 256, &a));
    mr_cuda_slab_reset(&slab, mark, end); /* not on top */
    assert_int_equal(slab.used, 1024);
    mr_cuda_slab_reset(&slab, end, slab.used);
    mr_cuda_slab_reset(&slab, mark, end);
    assert_int_equal(slab.used, 256);
}

static void test_weights_that_do_not_fit_say_what_would(void **state)
{
    (void)state;
    mr_backend *backend = NULL;
    mr_error err = {0};
    tiny_dims dims = tiny_dims_default();
    dims.vocab = 20000; /* 2 · 20000 · 64 floats, 2 · 30,720 of the layers, 5 gains: 10.001 MiB */
    tiny_plan tiny;
    tiny_plan_create(&dims, &tiny);
    assert_int_equal(try_open(MR_DTYPE_F32, (uint64_t)4 << 20, &backend, &err), MR_OK);
    mr_weights *weights = NULL;
    assert_int_equal(backend->vt->upload(backend, tiny.plan, NULL, NULL, &weights, &err),
                     MR_RESOURCE_EXHAUSTED);
    assert_says(&err, "10 MiB are needed, and 4 MiB");
    backend->vt->destroy(backend);
    tiny_plan_destroy(&tiny);
    assert_clean();
}

static void test_an_executor_that_does_not_fit_leaves_the_memory(void **state)
{
    (void)state;
    mr_backend *backend = NULL;
    mr_error err = {0};
    const tiny_dims dims = tiny_dims_default();
    tiny_plan tiny;
    tiny_plan_create(&dims, &tiny);
    assert_int_equal(try_open(MR_DTYPE_BF16, (uint64_t)4 << 20, &backend, &err), MR_OK);
    mr_weights *weights = NULL;
    mr_exec *exec = NULL;
    mr_backend_info before;
    mr_backend_info after;
    assert_int_equal(backend->vt->upload(backend, tiny.plan, NULL, NULL, &weights, &err), MR_OK);
    backend->vt->info(backend, &before);
    mr_exec_options options = small_options();
    options.n_blocks = 100000;
    assert_int_equal(backend->vt->compile(backend, tiny.plan, weights, &options, &exec, &err),
                     MR_RESOURCE_EXHAUSTED);
    assert_says(&err, "KV cache");
    backend->vt->info(backend, &after);
    assert_int_equal(before.memory_bytes, after.memory_bytes);
    backend->vt->weights_destroy(backend, weights);
    backend->vt->destroy(backend);
    tiny_plan_destroy(&tiny);
    assert_clean();
}

/* What kv_room promises, compile takes; a block more it does not. */
static void test_kv_room_is_exact(void **state)
{
    (void)state;
    const tiny_dims dims = tiny_dims_default();
    tiny_plan tiny;
    tiny_plan_create(&dims, &tiny);
    mr_backend *backend = open_backend(MR_DTYPE_BF16);
    mr_weights *weights = NULL;
    mr_exec *exec = NULL;
    mr_error err = {0};
    assert_int_equal(backend->vt->upload(backend, tiny.plan, NULL, NULL, &weights, &err), MR_OK);
    mr_exec_options options = small_options();
    uint64_t room = 0;
    assert_int_equal(backend->vt->kv_room(backend, tiny.plan, &options, &room, &err), MR_OK);
    const uint64_t block = mr_kv_block_bytes(&tiny.plan->kv, options.kv_dtype, options.block_size);
    options.n_blocks = (uint32_t)(room / block) + 1;
    assert_int_equal(backend->vt->compile(backend, tiny.plan, weights, &options, &exec, &err),
                     MR_RESOURCE_EXHAUSTED);
    options.n_blocks -= 1;
    assert_int_equal(backend->vt->compile(backend, tiny.plan, weights, &options, &exec, &err),
                     MR_OK);
    mr_exec_memory memory;
    exec->vt->memory(exec, &memory);
    assert_true(memory.kv_bytes >= options.n_blocks * block);
    exec->vt->destroy(exec);
    backend->vt->weights_destroy(backend, weights);
    backend->vt->destroy(backend);
    tiny_plan_destroy(&tiny);
    assert_clean();
}

/* ---- weights ---- */

static float bf16_at(mr_cuda_ptr base, uint64_t index)
{
    uint16_t bits;
    memcpy(&bits, (const uint8_t *)(uintptr_t)base + 2 * index, sizeof(bits));
    return mr_bf16_to_f32(bits);
}

static void test_parts_lie_side_by_side_and_are_converted(void **state)
{
    (void)state;
    tiny_dims dims = tiny_dims_default();
    dims.dtype = MR_DTYPE_Q8_0;
    dims.biases = true;
    dims.tied = true;
    tiny_plan tiny;
    tiny_plan_create(&dims, &tiny);
    mr_backend *backend = open_backend(MR_DTYPE_BF16);
    mr_weights *made = NULL;
    mr_error err = {0};
    assert_int_equal(backend->vt->upload(backend, tiny.plan, NULL, NULL, &made, &err), MR_OK);
    const mr_cuda_weights *w = (const mr_cuda_weights *)made;
    for (uint32_t i = 0; i < tiny.plan->n_ops; i++) {
        if (tiny.plan->ops[i].kind == MR_OP_LINEAR) {
            assert_true(mr_cuda_weights_adjoin(w, &tiny.plan->ops[i].linear));
        }
    }
    const mr_weight_id k = tiny.layers[1].k;
    float want[64];
    mr_dequantize(MR_DTYPE_Q8_0, tiny.data[k], want, 64);
    for (uint32_t i = 0; i < 64; i++) {
        assert_true(bf16_at(mr_cuda_weight_at(w, k), i) == mr_bf16_to_f32(mr_f32_to_bf16(want[i])));
    }
    /* Biases of q, k and v as one vector of float32. */
    uint32_t found = 0;
    for (uint32_t i = 0; i < tiny.plan->n_ops; i++) {
        if (w->biases[i] != MR_CUDA_NONE) {
            const float *bias = (const float *)(uintptr_t)(w->base + w->biases[i]);
            const float *k_bias = tiny.data[tiny.layers[found].k_bias];
            assert_memory_equal(bias + 64, k_bias, 32 * sizeof(float));
            found++;
        }
    }
    assert_int_equal(found, 2);
    backend->vt->weights_destroy(backend, made);
    backend->vt->destroy(backend);
    tiny_plan_destroy(&tiny);
    assert_clean();
}

/* Weights that are made of nothing, and weights of int8 codes with a scale an output. */
static void test_random_weights_and_codes_are_made_while_loading(void **state)
{
    (void)state;
    const tiny_dims dims = tiny_dims_default();
    tiny_plan tiny;
    tiny_plan_create(&dims, &tiny);
    mr_plan_weight *q = &tiny.plan->weights[tiny.layers[0].q];
    q->random = true;
    q->random_seed = 5;
    q->random_stream = 3;
    q->data = NULL;
    float made[64 * 64];
    mr_random_table *table = NULL;
    assert_int_equal(mr_random_table_create(MR_DTYPE_F32, 0.0f, &table), MR_OK);
    mr_random_weight_fill(table, q, 0, 64 * 64, made);
    mr_random_table_destroy(table);

    static uint8_t codes[32 * 64];
    float scales[32];
    for (uint32_t i = 0; i < 32 * 64; i++) {
        codes[i] = (uint8_t)(i * 7);
    }
    for (uint32_t n = 0; n < 32; n++) {
        scales[n] = 0.5f + (float)n;
    }
    const mr_weight_codes from = {
        .codes = {.data = codes,
                  .bytes = sizeof(codes),
                  .form = MR_CODES_INT8,
                  .bits = 8,
                  .next = 1,
                  .line = 64},
        .scales = (const uint8_t *)scales,
        .scale_bytes = sizeof(scales),
        .scale_dtype = MR_DTYPE_F32,
        .scale_row = 1,
        .scale_group = 1,
        .scale_rows = 1,
        .group = 64,
        .centred = true,
    };
    const mr_plan_weight weight = {.name = "codes", .n = 32, .k = 64};
    mr_weight_id k = 0;
    assert_int_equal(mr_plan_add_codes(tiny.plan, &weight, &from, &k), MR_OK);
    tiny.data = realloc(tiny.data, (k + 1u) * sizeof(*tiny.data));
    assert_non_null(tiny.data);
    tiny.data[k] = NULL;
    for (uint32_t i = 0; i < tiny.plan->n_ops; i++) {
        mr_op *op = &tiny.plan->ops[i];
        if (op->kind == MR_OP_LINEAR && op->linear.weight[1] == tiny.layers[1].k &&
            op->linear.parts == 3) {
            op->linear.weight[1] = k;
        }
    }
    mr_backend *backend = open_backend(MR_DTYPE_BF16);
    mr_weights *weights = NULL;
    mr_error err = {0};
    if (backend->vt->upload(backend, tiny.plan, NULL, NULL, &weights, &err) != MR_OK) {
        fail_msg("%s", err.message);
    }
    const mr_cuda_weights *w = (const mr_cuda_weights *)weights;
    for (uint32_t i = 0; i < 64 * 64; i++) {
        assert_true(bf16_at(mr_cuda_weight_at(w, tiny.layers[0].q), i) ==
                    mr_bf16_to_f32(mr_f32_to_bf16(made[i])));
    }
    for (uint32_t i = 0; i < 32 * 64; i++) {
        const float want = scales[i / 64] * (float)(int8_t)codes[i];
        assert_true(bf16_at(mr_cuda_weight_at(w, k), i) == mr_bf16_to_f32(mr_f32_to_bf16(want)));
    }
    backend->vt->weights_destroy(backend, weights);
    backend->vt->destroy(backend);
    tiny_plan_destroy(&tiny);
    assert_clean();
}

static void test_a_failing_copy_ends_loading(void **state)
{
    (void)state;
    static const char *const calls[] = {"to_device", "record", "await", "synchronize",
                                        "alloc_host"};
    const tiny_dims dims = tiny_dims_default();
    tiny_plan tiny;
    tiny_plan_create(&dims, &tiny);
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        fake_reset();
        mr_backend *backend = open_backend(MR_DTYPE_BF16);
        mr_weights *weights = NULL;
        mr_error err = {0};
        fake.fail = calls[i];
        fake.fail_at = 1;
        const mr_status status =
            backend->vt->upload(backend, tiny.plan, NULL, NULL, &weights, &err);
        assert_int_equal(status, i == 4 ? MR_RESOURCE_EXHAUSTED : MR_INTERNAL);
        backend->vt->destroy(backend);
        assert_clean();
    }
    tiny_plan_destroy(&tiny);
}

/* ---- steps ---- */

typedef struct fixture {
    tiny_plan tiny;
    mr_backend *backend;
    tiny_session session;
} fixture;

static void open_session_with(fixture *f, uint32_t head_width, bool batch_invariant)
{
    tiny_dims dims = tiny_dims_default();
    dims.head_width = head_width;
    mr_exec_options options = small_options();
    mr_cuda_options cuda = cuda_options(MR_DTYPE_BF16, (uint64_t)64 << 20);
    cuda.batch_invariant = batch_invariant;
    tiny_plan_create(&dims, &f->tiny);
    assert_int_equal(mr_cuda_backend_create(&cuda, &f->backend, NULL), MR_OK);
    tiny_session_create(&f->tiny, f->backend, &options, &f->session);
    fake_clear_trace();
}

static void open_session(fixture *f, uint32_t head_width)
{
    open_session_with(f, head_width, false);
}

static void close_session(fixture *f)
{
    tiny_session_destroy(&f->session);
    f->backend->vt->destroy(f->backend);
    tiny_plan_destroy(&f->tiny);
    assert_clean();
}

static const int32_t prompt[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9};

/* A step of `slots` decoding sequences at `position`. */
static void decode(fixture *f, uint32_t slots, uint32_t position)
{
    mr_step_output out;
    mr_batch_reset(f->session.storage);
    for (uint32_t slot = 0; slot < slots; slot++) {
        tiny_feed(&f->session, slot, prompt, position, 1, false);
    }
    fake_clear_trace();
    tiny_run(&f->session, &out);
    assert_int_equal(out.n_rows, slots);
}

/* Eight launches a layer: the gated activation is part of the product before it. */
static void test_launches_of_a_decode_step(void **state)
{
    (void)state;
    static const char *const want[] = {
        "prepare", "embed",  "norm", "linear", "rope_kv", "attention_split", "linear", "norm",
        "linear",  "linear", "norm", "linear", "rope_kv", "attention_split", "linear", "norm",
        "linear",  "linear", "norm", "gather", "linear",  "sample"};
    fixture f;
    open_session(&f, 64);
    decode(&f, 2, 0);
    assert_int_equal(fake.n_trace, sizeof(want) / sizeof(want[0]));
    for (uint32_t i = 0; i < fake.n_trace; i++) {
        assert_string_equal(fake.trace[i], want[i]);
    }
    assert_int_equal(fake.linears[0].n, (4 + 2 * 2) * 64);
    assert_true(fake.linears[2].gated);
    assert_int_equal(fake.linears[2].out_stride, 96);
    assert_int_equal(fake.linears[8].out_type, MR_DTYPE_F32);
    close_session(&f);
}

/* ---- layers in one launch ---- */

static void open_dims(fixture *f, const tiny_dims *dims)
{
    mr_exec_options options = small_options();
    tiny_plan_create(dims, &f->tiny);
    f->backend = open_backend(MR_DTYPE_BF16);
    tiny_session_create(&f->tiny, f->backend, &options, &f->session);
    fake_clear_trace();
}

static void assert_trace(const char *const *want, uint32_t count)
{
    assert_int_equal(fake.n_trace, count);
    for (uint32_t i = 0; i < count; i++) {
        assert_string_equal(fake.trace[i], want[i]);
    }
}

/* A decode step of few rows is six launches, whatever the layers; larger steps are as before. */
static void test_layers_of_a_decode_step_are_one_launch(void **state)
{
    (void)state;
    static const char *const want[] = {"prepare", "embed",  "decode", "norm",
                                       "gather",  "linear", "sample"};
    fixture f;
    fake.decode_rows = 2;
    tiny_dims dims = tiny_dims_default();
    dims.head_width = 64;
    open_dims(&f, &dims);
    decode(&f, 2, 0);
    assert_trace(want, 7);
    assert_int_equal(fake.maps, 2);
    assert_int_equal(fake.decoded.n_layers, 2);
    assert_int_equal(fake.decoded.rows, 2);
    assert_int_equal(fake.decoded.width, 64);
    assert_int_equal(fake.decoded.heads, 4);
    assert_int_equal(fake.decoded.kv_heads, 2);
    assert_int_equal(fake.decoded.head_width, 64);
    assert_int_equal(fake.decoded.ffn, 96);
    assert_int_equal(fake.decoded.pairs, 32);
    assert_int_equal(fake.decoded.logit_rows, 0);
    assert_true(fake.decoded.scale == 0.125f);
    /* What the module made of the layers is where the kernel looks for it. */
    const mr_cuda_decode_layer *layers =
        (const mr_cuda_decode_layer *)(uintptr_t)fake.decoded.layers;
    assert_int_equal(layers[0].maps[0][0], 1);
    assert_int_equal(layers[1].maps[0][0], 2);
    assert_int_equal(layers[1].keys - layers[0].keys, 2 * (layers[0].values - layers[0].keys));
    assert_int_equal(layers[0].q_gain, 0);
    const uint32_t *sync = (const uint32_t *)(uintptr_t)fake.decoded.sync;
    for (uint32_t i = 0; i < MR_CUDA_DECODE_SYNC; i++) {
        assert_int_equal(sync[i], 0);
    }
    decode(&f, 3, 1); /* a bucket of 4 */
    assert_int_equal(fake_count("decode"), 0);
    assert_int_equal(fake.n_trace, 22);
    close_session(&f);
}

/* The last layer's second half may have the logit rows only. */
static void test_layers_with_gathered_rows_are_one_launch(void **state)
{
    (void)state;
    static const char *const want[] = {"prepare", "embed", "decode", "norm", "linear", "sample"};
    fixture f;
    fake.decode_rows = 8;
    tiny_dims dims = tiny_dims_default();
    dims.head_width = 64;
    dims.late = true;
    dims.head_norms = true;
    open_dims(&f, &dims);
    decode(&f, 2, 0);
    assert_trace(want, 6);
    assert_true(fake.decoded.logit_rows != 0);
    assert_true(fake.decoded.last_stream != fake.decoded.stream);
    assert_true(fake.decoded.head_epsilon == 1e-6f);
    assert_true(fake.decoded.epsilon == 1e-5f);
    const mr_cuda_decode_layer *layers =
        (const mr_cuda_decode_layer *)(uintptr_t)fake.decoded.layers;
    assert_true(layers[1].q_gain != 0 && layers[1].k_gain != layers[1].q_gain);
    /* A prompt is not for it. */
    mr_step_output out;
    mr_batch_reset(f.session.storage);
    tiny_feed(&f.session, 0, prompt, 1, 3, false);
    fake_clear_trace();
    tiny_run(&f.session, &out);
    assert_int_equal(fake_count("decode"), 0);
    close_session(&f);
}

/* Layers that are not alike, or do more than the kernel does, run operator by operator. */
static void test_other_layers_run_operator_by_operator(void **state)
{
    (void)state;
    tiny_dims dims[5];
    for (size_t i = 0; i < 5; i++) {
        dims[i] = tiny_dims_default();
        dims[i].head_width = 64;
    }
    dims[0].biases = true;
    dims[1].norm = MR_NORM_LAYER;
    dims[2].window = 9;
    dims[3].window = 9;
    dims[3].every_other = true;
    for (size_t i = 0; i < 5; i++) {
        fixture f;
        fake_reset();
        fake.decode_rows = i < 4 ? 8 : 0; /* the last: the module takes none */
        open_dims(&f, &dims[i]);
        decode(&f, 2, 0);
        assert_int_equal(fake_count("decode"), 0);
        assert_int_equal(fake_count("attention_split"), 2);
        assert_int_equal(fake.maps, 0);
        close_session(&f);
    }
}

static void test_layers_that_fail_are_named(void **state)
{
    (void)state;
    mr_error err = {0};
    fixture f;
    fake.decode_rows = 8;
    tiny_dims dims = tiny_dims_default();
    dims.head_width = 64;
    open_dims(&f, &dims);
    fake.fail = "decode";
    fake.fail_at = 1;
    mr_batch_reset(f.session.storage);
    tiny_feed(&f.session, 0, prompt, 0, 1, false);
    assert_int_equal(
        f.session.exec->vt->submit(f.session.exec, mr_batch_get(f.session.storage), &err),
        MR_INTERNAL);
    assert_says(&err, "layers");
    close_session(&f);
}

static void test_prompts_go_to_tiles_where_heads_allow(void **state)
{
    (void)state;
    static const uint32_t widths[] = {64, 16};
    for (size_t i = 0; i < 2; i++) {
        fixture f;
        mr_step_output out;
        fake_reset();
        open_session(&f, widths[i]);
        mr_batch_reset(f.session.storage);
        tiny_feed(&f.session, 0, prompt, 0, 9, false); /* a prompt */
        tiny_feed(&f.session, 1, prompt, 0, 3, false); /* a few tokens */
        tiny_run(&f.session, &out);
        const uint32_t layers = 2;
        assert_int_equal(fake_count("attention_tiles"), i == 0 ? layers : 0);
        assert_int_equal(fake_count("attention_split"), layers);
        /* The items of the split: 3 tokens of one split each, or all 12. */
        assert_int_equal(fake.attentions[0].count, i == 0 ? 3 : 12);
        assert_int_equal(fake.attentions[0].n_tiles, i == 0 ? 1 : 0);
        close_session(&f);
    }
}

/* One way for all row counts: no product takes the activation over, no prompt goes to tiles. */
static void test_batch_invariant_has_one_way_D4(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {1, 9};
    fixture f;
    mr_step_output out;
    mr_backend_info info;
    open_session_with(&f, 64, true);
    f.backend->vt->info(f.backend, &info);
    assert_string_equal(info.numerics, "cuda-sm90/bf16/2/invariant");
    for (uint32_t i = 0; i < 2; i++) {
        mr_batch_reset(f.session.storage);
        tiny_feed(&f.session, 0, prompt, 0, lengths[i], false);
        fake_clear_trace();
        tiny_run(&f.session, &out);
        assert_int_equal(fake_count("attention_tiles"), 0);
        assert_int_equal(fake_count("attention_split"), 2);
        assert_int_equal(fake_count("gated"), 2);
        assert_int_equal(fake.n_linears, 9);
        for (uint32_t l = 0; l < fake.n_linears; l++) {
            assert_true(fake.linears[l].invariant && !fake.linears[l].gated);
        }
    }
    close_session(&f);
}

/* A bucket's first step is launched, its second captured, the others replayed. */
static void test_graphs_of_decode_steps(void **state)
{
    (void)state;
    fixture f;
    open_session(&f, 64);
    decode(&f, 3, 0);
    assert_int_equal(fake.n_trace, 22);
    assert_int_equal(fake.linears[0].rows, 4); /* the bucket's */
    assert_int_equal(fake.graphs, 0);
    decode(&f, 3, 1);
    assert_int_equal(fake.graphs, 1);
    assert_int_equal(fake.graph_launches, 1);
    decode(&f, 4, 2); /* the same bucket */
    assert_int_equal(fake.n_trace, 0);
    assert_int_equal(fake.graph_launches, 2);
    decode(&f, 2, 3); /* another */
    assert_int_equal(fake.n_trace, 22);
    assert_int_equal(fake.graph_launches, 2);
    close_session(&f);
}

/* The area that a step copies: padding rows write into the null block. */
static void test_padding_of_a_bucket(void **state)
{
    (void)state;
    fixture f;
    open_session(&f, 64);
    decode(&f, 3, 5);
    const mr_cuda_exec *exec = (const mr_cuda_exec *)f.session.exec;
    mr_cuda_step_header header;
    memcpy(&header, (const void *)(uintptr_t)exec->stage, sizeof(header));
    assert_int_equal(header.n_tokens, 3);
    assert_int_equal(header.n_rows, 3);
    assert_int_equal(header.n_items, 3);
    const mr_cuda_counts counts = {.tokens = 4,
                                   .rows = 4,
                                   .items = 3,
                                   .block_deltas = 72,
                                   .history_deltas = 4,
                                   .history_tokens = 80,
                                   .bias = 1024};
    mr_cuda_stage stage;
    mr_cuda_stage_lay_out(&counts, 1, &stage);
    const uint32_t *kv_slot = (const uint32_t *)(uintptr_t)(exec->stage + stage.kv_slot);
    assert_true(kv_slot[2] / f.session.options.block_size != MR_NULL_BLOCK);
    assert_int_equal(kv_slot[3], 0);
    const mr_cuda_item *items = (const mr_cuda_item *)(uintptr_t)(exec->stage + stage.items);
    assert_int_equal(items[2].token, 2);
    assert_int_equal(items[2].split, 0);
    close_session(&f);
}

static void test_the_last_of_two_deltas_wins(void **state)
{
    (void)state;
    fixture f;
    mr_step_output out;
    open_session(&f, 64);
    mr_batch_reset(f.session.storage);
    const mr_block_delta first = {.slot = 0, .index = 3, .block = 5};
    const mr_block_delta second = {.slot = 0, .index = 3, .block = 6};
    assert_int_equal(mr_batch_add_block(f.session.storage, &first), MR_OK);
    assert_int_equal(mr_batch_add_block(f.session.storage, &second), MR_OK);
    tiny_feed(&f.session, 1, prompt, 1, 1, false);
    tiny_run(&f.session, &out);
    const mr_cuda_exec *exec = (const mr_cuda_exec *)f.session.exec;
    mr_cuda_step_header header;
    memcpy(&header, (const void *)(uintptr_t)exec->stage, sizeof(header));
    assert_int_equal(header.n_block_deltas, 1);
    close_session(&f);
}

static void test_buckets_are_the_next_larger(void **state)
{
    (void)state;
    static const uint32_t pairs[][2] = {{1, 1},     {2, 2},     {3, 4},   {5, 8},    {9, 16},
                                        {17, 24},   {33, 40},   {65, 80}, {97, 112}, {129, 160},
                                        {225, 256}, {256, 256}, {257, 0}};
    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
        assert_int_equal(mr_cuda_bucket(pairs[i][0]), pairs[i][1]);
    }
    for (uint32_t n = 1; n <= 256; n++) {
        assert_true(mr_cuda_bucket_index(mr_cuda_bucket(n)) < MR_CUDA_BUCKETS);
    }
}

/* Whatever fails in a step is final, names itself, and every later step fails at once. */
static void test_a_failure_is_sticky(void **state)
{
    (void)state;
    static const char *const calls[] = {
        "to_device", "prepare", "linear", "attention_split", "to_host",     "sample",
        "record",    "await",   "norm",   "capture_end",     "graph_launch"};
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        fixture f;
        fake_reset();
        open_session(&f, 64);
        mr_exec *exec = f.session.exec;
        mr_error err = {0};
        mr_step_output out;
        fake.fail = calls[i];
        fake.fail_at = 1;
        mr_status status = MR_OK;
        /* The third step of a bucket is a replay. */
        for (uint32_t step = 0; status == MR_OK && step < 3; step++) {
            mr_batch_reset(f.session.storage);
            tiny_feed(&f.session, 0, prompt, step, 1, false);
            status = mr_exec_run(exec, mr_batch_get(f.session.storage), &out, &err);
        }
        assert_int_equal(status, MR_INTERNAL);
        assert_says(&err, "the GPU failed");
        assert_says(&err, "an illegal access, says the fake (700)");
        fake.fail = NULL;
        fake_clear_trace();
        mr_batch_reset(f.session.storage);
        tiny_feed(&f.session, 0, prompt, 5, 1, false);
        assert_int_equal(exec->vt->submit(exec, mr_batch_get(f.session.storage), &err),
                         MR_INTERNAL);
        assert_int_equal(fake.n_trace, 0);
        close_session(&f);
    }
}

/* The second may take its tokens from rows of the first, which the host has not seen. */
static void test_two_steps_may_be_under_way(void **state)
{
    (void)state;
    fixture f;
    mr_error err = {0};
    mr_step_output out;
    open_session(&f, 64);
    mr_exec *exec = f.session.exec;
    mr_batch_reset(f.session.storage);
    tiny_feed(&f.session, 0, prompt, 0, 3, true);
    const mr_batch first = *mr_batch_get(f.session.storage);
    assert_int_equal(exec->vt->submit(exec, &first, &err), MR_OK);
    mr_batch_reset(f.session.storage);
    const int32_t beyond = mr_token_src_row(3);
    tiny_feed(&f.session, 0, &beyond, 3, 1, false);
    assert_int_equal(exec->vt->submit(exec, mr_batch_get(f.session.storage), &err),
                     MR_INVALID_ARGUMENT);
    mr_batch_reset(f.session.storage);
    const int32_t drawn = mr_token_src_row(2);
    tiny_feed(&f.session, 0, &drawn, 3, 1, false);
    assert_int_equal(exec->vt->submit(exec, mr_batch_get(f.session.storage), &err), MR_OK);
    assert_int_equal(exec->vt->submit(exec, mr_batch_get(f.session.storage), &err),
                     MR_FAILED_PRECONDITION);
    assert_int_equal(exec->vt->wait(exec, &out, &err), MR_OK);
    assert_int_equal(out.step, 1);
    assert_int_equal(out.n_rows, 3);
    const uint32_t *tokens = out.tokens;
    assert_int_equal(exec->vt->wait(exec, &out, &err), MR_OK);
    assert_int_equal(out.step, 3);
    assert_int_equal(out.n_rows, 1);
    assert_ptr_not_equal(out.tokens, tokens);
    assert_int_equal(exec->vt->wait(exec, &out, &err), MR_FAILED_PRECONDITION);
    close_session(&f);
}

static void test_a_batch_out_of_bounds_harms_nothing(void **state)
{
    (void)state;
    fixture f;
    open_session(&f, 64);
    mr_exec *exec = f.session.exec;
    mr_batch_reset(f.session.storage);
    tiny_feed(&f.session, 0, prompt, 0, 1, false);
    mr_batch batch = *mr_batch_get(f.session.storage);
    const int32_t beyond[1] = {96};
    batch.token_src = beyond;
    mr_error err = {0};
    assert_int_equal(exec->vt->submit(exec, &batch, &err), MR_INVALID_ARGUMENT);
    assert_int_equal(fake.n_trace, 0);
    decode(&f, 1, 0);
    close_session(&f);
}

static void test_block_copies_go_one_by_one(void **state)
{
    (void)state;
    fixture f;
    open_session(&f, 64);
    mr_exec *exec = f.session.exec;
    const mr_block_copy copies[] = {{1, 2}, {2, 3}};
    assert_int_equal(exec->vt->copy_blocks(exec, copies, 2, NULL), MR_OK);
    assert_int_equal(fake_count("block_move"), 2);
    const mr_block_copy null = {1, MR_NULL_BLOCK};
    assert_int_equal(exec->vt->copy_blocks(exec, &null, 1, NULL), MR_INVALID_ARGUMENT);
    close_session(&f);
}

/* ---- transfers ---- */

static mr_status transfer(fixture *f, mr_transfer_direction direction, uint32_t block,
                          uint8_t *host, uint64_t *ticket, mr_error *err)
{
    const mr_transfer one = {.direction = direction, .count = 1, .blocks = &block, .host = &host};
    return f->session.exec->vt->transfer_start(f->session.exec, &one, ticket, err);
}

/* Plane by plane there and back, without waiting; over when the device says so, in order. */
static void test_transfers_go_beside_the_steps(void **state)
{
    (void)state;
    fixture f;
    mr_error err = {0};
    open_session(&f, 64);
    mr_exec *exec = f.session.exec;
    const mr_cuda_exec *cuda = (const mr_cuda_exec *)exec;
    const uint64_t bytes =
        mr_kv_block_bytes(&f.tiny.plan->kv, MR_DTYPE_BF16, f.session.options.block_size);
    uint8_t *host = exec->vt->host_alloc(exec, bytes);
    assert_non_null(host);
    const uint64_t plane = cuda->sizes.kv_block_bytes;
    for (uint64_t i = 0; i < bytes / plane; i++) {
        uint8_t *from = (uint8_t *)(uintptr_t)(cuda->kv + i * cuda->sizes.kv_plane_bytes);
        memset(from + 3 * plane, (int)(i + 1), plane); /* block 3 */
        memset(from + 5 * plane, 0, plane);
    }
    uint64_t out = 0;
    uint64_t in = 0;
    assert_int_equal(transfer(&f, MR_TRANSFER_OUT, 3, host, &out, &err), MR_OK);
    assert_int_equal(transfer(&f, MR_TRANSFER_IN, 5, host, &in, &err), MR_OK);
    decode(&f, 1, 0);
    assert_int_equal(exec->vt->transfer_poll(exec, out), MR_TRANSFER_RUNS);
    assert_false(exec->vt->transfer_cancel(exec, out));
    fake.transferred = 1;
    assert_int_equal(exec->vt->transfer_poll(exec, in), MR_TRANSFER_RUNS);
    assert_int_equal(exec->vt->transfer_poll(exec, out), MR_TRANSFER_DONE);
    fake.transferred = 2;
    assert_true(exec->vt->transfer_cancel(exec, in));
    for (uint64_t i = 0; i < bytes / plane; i++) {
        const uint8_t *to = (uint8_t *)(uintptr_t)(cuda->kv + i * cuda->sizes.kv_plane_bytes);
        assert_int_equal(host[i * plane], i + 1);
        assert_int_equal(to[5 * plane + plane - 1], i + 1);
    }
    exec->vt->host_free(exec, host, bytes);
    close_session(&f);
}

static void test_transfers_that_cannot_be(void **state)
{
    (void)state;
    fixture f;
    mr_error err = {0};
    open_session(&f, 64);
    mr_exec *exec = f.session.exec;
    uint8_t *host = exec->vt->host_alloc(exec, (uint64_t)1 << 20);
    uint64_t ticket = 0;
    assert_int_equal(transfer(&f, MR_TRANSFER_OUT, MR_NULL_BLOCK, host, &ticket, &err),
                     MR_INVALID_ARGUMENT);
    assert_int_equal(transfer(&f, MR_TRANSFER_OUT, f.session.options.n_blocks, host, &ticket, &err),
                     MR_INVALID_ARGUMENT);
    for (uint32_t i = 0; i < MR_CUDA_TRANSFERS; i++) {
        assert_int_equal(transfer(&f, MR_TRANSFER_OUT, 1, host, &ticket, &err), MR_OK);
    }
    assert_int_equal(transfer(&f, MR_TRANSFER_OUT, 1, host, &ticket, &err), MR_RESOURCE_EXHAUSTED);
    fake.transferred = 1;
    assert_int_equal(transfer(&f, MR_TRANSFER_OUT, 1, host, &ticket, &err), MR_OK);
    assert_int_equal(ticket, MR_CUDA_TRANSFERS + 1);
    fake.fail = "alloc_host";
    assert_null(exec->vt->host_alloc(exec, 1));
    exec->vt->host_free(exec, host, (uint64_t)1 << 20);
    close_session(&f);
}

/* A transfer that fails is the device's failure: no step runs after it. */
static void test_a_failing_transfer_is_sticky(void **state)
{
    (void)state;
    static const char *const calls[] = {"transfer_begin", "transfer_block", "transfer_end",
                                        "transfer_is_over"};
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        fixture f;
        mr_error err = {0};
        fake_reset();
        open_session(&f, 64);
        mr_exec *exec = f.session.exec;
        uint8_t *host = exec->vt->host_alloc(exec, (uint64_t)1 << 20);
        uint64_t ticket = 0;
        fake.fail = calls[i];
        fake.fail_at = 1;
        const mr_status status = transfer(&f, MR_TRANSFER_OUT, 1, host, &ticket, &err);
        assert_int_equal(status, i < 3 ? MR_INTERNAL : MR_OK);
        if (status == MR_OK) {
            assert_int_equal(exec->vt->transfer_poll(exec, ticket), MR_TRANSFER_FAILED);
        }
        fake.fail = NULL;
        mr_batch_reset(f.session.storage);
        tiny_feed(&f.session, 0, prompt, 0, 1, false);
        assert_int_equal(exec->vt->submit(exec, mr_batch_get(f.session.storage), &err),
                         MR_INTERNAL);
        exec->vt->host_free(exec, host, (uint64_t)1 << 20);
        close_session(&f);
    }
}

/* What there is no kernel for is refused by name. */
static void test_unknown_shapes_are_refused(void **state)
{
    (void)state;
    tiny_dims dims = tiny_dims_default();
    dims.head_width = 272;
    tiny_plan tiny;
    tiny_plan_create(&dims, &tiny);
    mr_backend *backend = open_backend(MR_DTYPE_BF16);
    mr_weights *weights = NULL;
    mr_exec *exec = NULL;
    mr_error err = {0};
    assert_int_equal(backend->vt->upload(backend, tiny.plan, NULL, NULL, &weights, &err), MR_OK);
    mr_exec_options options = small_options();
    assert_int_equal(backend->vt->compile(backend, tiny.plan, weights, &options, &exec, &err),
                     MR_UNIMPLEMENTED);
    assert_says(&err, "attention");
    assert_says(&err, "256");
    options.kv_dtype = MR_DTYPE_U8;
    assert_int_equal(backend->vt->compile(backend, tiny.plan, weights, &options, &exec, &err),
                     MR_UNIMPLEMENTED);
    assert_string_equal(err.field, "kv_cache_dtype");
    backend->vt->weights_destroy(backend, weights);
    backend->vt->destroy(backend);
    tiny_plan_destroy(&tiny);
    assert_clean();
}

/* The GPU would read rows behind the table of learned positions. */
static void test_more_positions_than_were_learned_are_refused(void **state)
{
    (void)state;
    const tiny_dims dims = tiny_dims_default();
    tiny_plan tiny;
    tiny_plan_create(&dims, &tiny);
    mr_backend *backend = open_backend(MR_DTYPE_BF16);
    mr_weights *weights = NULL;
    mr_exec *exec = NULL;
    mr_error err = {0};
    mr_op_embed *embed = &tiny.plan->ops[0].embed;
    assert_int_equal(tiny.plan->ops[0].kind, MR_OP_EMBED);
    embed->learned_positions = true;
    embed->positions = embed->table;
    embed->offset = dims.vocab - 10;
    assert_int_equal(backend->vt->upload(backend, tiny.plan, NULL, NULL, &weights, &err), MR_OK);
    mr_exec_options options = small_options();
    options.max_context = 11;
    uint64_t room = 0;
    assert_int_equal(backend->vt->kv_room(backend, tiny.plan, &options, &room, &err),
                     MR_INVALID_ARGUMENT);
    assert_int_equal(backend->vt->compile(backend, tiny.plan, weights, &options, &exec, &err),
                     MR_INVALID_ARGUMENT);
    assert_string_equal(err.field, "max_seq_length");
    options.max_context = 10;
    assert_int_equal(backend->vt->kv_room(backend, tiny.plan, &options, &room, &err), MR_OK);
    backend->vt->weights_destroy(backend, weights);
    backend->vt->destroy(backend);
    tiny_plan_destroy(&tiny);
    assert_clean();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_no_gpu_is_a_plain_answer, setup),
        cmocka_unit_test_setup(test_the_share_is_taken_at_once_or_not_at_all, setup),
        cmocka_unit_test_setup(test_slab_gives_aligned_pieces_and_takes_them_back, setup),
        cmocka_unit_test_setup(test_weights_that_do_not_fit_say_what_would, setup),
        cmocka_unit_test_setup(test_an_executor_that_does_not_fit_leaves_the_memory, setup),
        cmocka_unit_test_setup(test_kv_room_is_exact, setup),
        cmocka_unit_test_setup(test_parts_lie_side_by_side_and_are_converted, setup),
        cmocka_unit_test_setup(test_random_weights_and_codes_are_made_while_loading, setup),
        cmocka_unit_test_setup(test_a_failing_copy_ends_loading, setup),
        cmocka_unit_test_setup(test_launches_of_a_decode_step, setup),
        cmocka_unit_test_setup(test_layers_of_a_decode_step_are_one_launch, setup),
        cmocka_unit_test_setup(test_layers_with_gathered_rows_are_one_launch, setup),
        cmocka_unit_test_setup(test_other_layers_run_operator_by_operator, setup),
        cmocka_unit_test_setup(test_layers_that_fail_are_named, setup),
        cmocka_unit_test_setup(test_prompts_go_to_tiles_where_heads_allow, setup),
        cmocka_unit_test_setup(test_batch_invariant_has_one_way_D4, setup),
        cmocka_unit_test_setup(test_graphs_of_decode_steps, setup),
        cmocka_unit_test_setup(test_padding_of_a_bucket, setup),
        cmocka_unit_test_setup(test_the_last_of_two_deltas_wins, setup),
        cmocka_unit_test_setup(test_buckets_are_the_next_larger, setup),
        cmocka_unit_test_setup(test_a_failure_is_sticky, setup),
        cmocka_unit_test_setup(test_two_steps_may_be_under_way, setup),
        cmocka_unit_test_setup(test_a_batch_out_of_bounds_harms_nothing, setup),
        cmocka_unit_test_setup(test_block_copies_go_one_by_one, setup),
        cmocka_unit_test_setup(test_transfers_go_beside_the_steps, setup),
        cmocka_unit_test_setup(test_transfers_that_cannot_be, setup),
        cmocka_unit_test_setup(test_a_failing_transfer_is_sticky, setup),
        cmocka_unit_test_setup(test_unknown_shapes_are_refused, setup),
        cmocka_unit_test_setup(test_more_positions_than_were_learned_are_refused, setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
