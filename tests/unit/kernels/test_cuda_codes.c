/* SPDX-License-Identifier: Apache-2.0 */
/* F8_E4M3 weights and caches of one byte on the host side of the CUDA backend: what stays in codes,
 * who rounds rows, who applies scales. */
#include "cuda_fixture.h"
#include "kernels/kv_layout.h"
#include "tiny_codes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

typedef struct fixture {
    tiny_plan tiny;
    tiny_codes codes;
    mr_backend *backend;
    tiny_session session;
} fixture;

static void open_fixture(fixture *f, const tiny_dims *dims, mr_dtype compute, mr_dtype kv)
{
    mr_exec_options exec = cuda_exec_options();
    exec.max_seqs = 8;
    exec.n_blocks = 1 + exec.max_seqs * (exec.max_context / exec.block_size);
    exec.kv_dtype = kv;
    tiny_plan_create(dims, &f->tiny);
    tiny_codes_create(&f->tiny, &f->codes);
    f->backend = cuda_open(compute);
    tiny_session_create(&f->tiny, f->backend, &exec, &f->session);
    fake_clear_trace();
}

static void close_fixture(fixture *f)
{
    tiny_session_destroy(&f->session);
    f->backend->vt->destroy(f->backend);
    tiny_plan_destroy(&f->tiny);
    tiny_codes_destroy(&f->codes);
    cuda_assert_clean();
}

static void feed(fixture *f, uint32_t tokens)
{
    static const int32_t prompt[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    mr_step_output out;
    mr_batch_reset(f->session.storage);
    tiny_feed(&f->session, 0, prompt, 0, tokens, true);
    fake_clear_trace();
    tiny_run(&f->session, &out);
}

/* Codes as they are in the checkpoint, and the scales of q, k and v side by side. */
static void test_codes_and_scales_lie_as_products_read_them(void **state)
{
    (void)state;
    const tiny_dims dims = tiny_dims_default();
    fixture f;
    open_fixture(&f, &dims, MR_DTYPE_BF16, MR_DTYPE_BF16);
    const mr_cuda_weights *w = (const mr_cuda_weights *)f.session.weights;
    const tiny_layer *l = &f.tiny.layers[0];
    const mr_weight_id ids[] = {l->q, l->k, l->v}; /* the first that tiny_codes makes */
    uint64_t row = 0;
    for (size_t i = 0; i < 3; i++) {
        const mr_plan_weight *weight = &f.tiny.plan->weights[ids[i]];
        const uint64_t bytes = (uint64_t)weight->n * weight->k;
        assert_true(w->items[ids[i]].coded);
        assert_int_equal(w->items[ids[i]].bytes, bytes);
        assert_memory_equal((const void *)(uintptr_t)mr_cuda_weight_at(w, ids[i]), f.codes.codes[i],
                            bytes);
        assert_int_equal(mr_cuda_weight_scales(w, ids[i]),
                         mr_cuda_weight_scales(w, l->q) + 4 * row);
        assert_memory_equal((const void *)(uintptr_t)mr_cuda_weight_scales(w, ids[i]),
                            f.codes.scales[i], weight->n * 4);
        row += weight->n;
    }
    assert_false(w->items[f.tiny.head].coded);
    assert_false(w->items[f.tiny.embed].coded);
    close_fixture(&f);
}

static void test_who_keeps_codes(void **state)
{
    (void)state;
    tiny_dims dims = tiny_dims_default();
    fixture f;
    /* Another compute capability, float32, and outputs that are no multiple of 16: decoded. */
    fake.major = 8;
    open_fixture(&f, &dims, MR_DTYPE_BF16, MR_DTYPE_BF16);
    assert_false(((const mr_cuda_weights *)f.session.weights)->items[f.tiny.layers[0].q].coded);
    close_fixture(&f);
    fake_reset();
    open_fixture(&f, &dims, MR_DTYPE_F32, MR_DTYPE_F32);
    assert_false(((const mr_cuda_weights *)f.session.weights)->items[f.tiny.layers[0].q].coded);
    close_fixture(&f);
    dims.kv_heads = 1;
    dims.head_width = 8;
    dims.heads = 8;
    open_fixture(&f, &dims, MR_DTYPE_F16, MR_DTYPE_F16);
    const mr_cuda_weights *w = (const mr_cuda_weights *)f.session.weights;
    assert_false(w->items[f.tiny.layers[0].k].coded);
    assert_false(w->items[f.tiny.layers[0].q].coded); /* one product with k */
    assert_true(w->items[f.tiny.layers[0].o].coded);
    close_fixture(&f);
}

/* Few rows meet codes as they are; of many, norms and gated activations round their own, those of
 * attention are rounded between. */
static void test_rows_are_rounded_for_many(void **state)
{
    (void)state;
    static const char *const want[] = {"prepare",         "embed",    "norm",   "linear", "rope_kv",
                                       "attention_split", "quantize", "linear", "norm",   "linear",
                                       "gated",           "linear",   "norm"};
    const tiny_dims dims = tiny_dims_default();
    fixture f;
    open_fixture(&f, &dims, MR_DTYPE_BF16, MR_DTYPE_BF16);
    feed(&f, 4);
    assert_int_equal(fake_count("quantize"), 0);
    assert_int_equal(fake.linears[0].weight_type, MR_DTYPE_F8_E4M3);
    assert_true(fake.linears[0].weight_scale != 0 && fake.linears[0].coded.codes == 0);
    assert_true(fake.linears[2].gated);
    assert_true(fake.norms[0].coded.codes == 0 && fake.norms[1].raw.row == 0);

    feed(&f, 9);
    for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
        assert_string_equal(fake.trace[i], want[i]);
    }
    for (uint32_t i = 0; i < 8; i++) {
        assert_true(fake.linears[i].coded.codes != 0 && fake.linears[i].raw);
    }
    assert_true(fake.norms[0].coded.codes != 0);
    assert_int_equal(fake.norms[0].raw.row, 0); /* nothing is added */
    assert_int_equal(fake.norms[1].raw.row, fake.linears[1].coded.scale);
    assert_int_equal(fake.norms[1].raw.column, fake.linears[1].weight_scale);
    /* The vocabulary's product takes rows as they are, in the compute type. */
    assert_int_equal(fake.norms[4].coded.codes, 0);
    assert_true(fake.norms[4].raw.row != 0);
    assert_int_equal(fake.linears[8].weight_type, MR_DTYPE_BF16);
    assert_false(fake.linears[8].raw);
    close_fixture(&f);
}

/* Layers in one launch: their codes and the scales of each product. */
static void test_layers_with_codes_are_one_launch(void **state)
{
    (void)state;
    tiny_dims dims = tiny_dims_default();
    dims.head_width = 64;
    fixture f;
    fake.decode_rows = 8;
    open_fixture(&f, &dims, MR_DTYPE_BF16, MR_DTYPE_BF16);
    feed(&f, 1);
    assert_int_equal(fake_count("decode"), 1);
    assert_int_equal(fake_count("linear"), 1); /* the vocabulary's */
    assert_int_equal(fake.decoded.weight_type, MR_DTYPE_F8_E4M3);
    const mr_cuda_weights *w = (const mr_cuda_weights *)f.session.weights;
    const mr_cuda_decode_layer *layers =
        (const mr_cuda_decode_layer *)(uintptr_t)fake.decoded.layers;
    for (uint32_t i = 0; i < 2; i++) {
        const tiny_layer *l = &f.tiny.layers[i];
        const mr_weight_id ids[] = {l->q, l->o, l->gate, l->down};
        const mr_cuda_ptr weights[] = {layers[i].qkv, layers[i].out, layers[i].gate_up,
                                       layers[i].down};
        for (uint32_t j = 0; j < 4; j++) {
            assert_int_equal(layers[i].scales[j], mr_cuda_weight_scales(w, ids[j]));
            assert_int_equal(weights[j], mr_cuda_weight_at(w, ids[j]));
        }
    }
    /* Of eight rows the separate product would leave the scales to the norm behind it. */
    static const int32_t token[1] = {1};
    mr_step_output out;
    mr_batch_reset(f.session.storage);
    for (uint32_t slot = 0; slot < 8; slot++) {
        tiny_feed(&f.session, slot, token, 1, 1, true);
    }
    fake_clear_trace();
    tiny_run(&f.session, &out);
    assert_int_equal(fake_count("decode"), 1);
    assert_int_equal(fake_count("norm"), 1);
    assert_int_equal(fake.norms[0].raw.row, 0);
    close_fixture(&f);
}

/* Where somebody else would read the product, it has its scales: biases, float16. */
static void test_products_with_biases_are_not_raw(void **state)
{
    (void)state;
    tiny_dims dims = tiny_dims_default();
    dims.biases = true;
    fixture f;
    open_fixture(&f, &dims, MR_DTYPE_BF16, MR_DTYPE_BF16);
    feed(&f, 9);
    assert_true(fake.linears[0].bias != 0 && !fake.linears[0].raw); /* q, k, v */
    assert_true(fake.linears[1].raw);
    assert_int_equal(fake.norms[0].coded.codes, 0); /* a norm with a bias */
    assert_int_equal(fake_count("quantize"), 6);    /* q k v, o, gate up; of two layers */
    close_fixture(&f);
    open_fixture(&f, &dims, MR_DTYPE_F16, MR_DTYPE_F16);
    feed(&f, 9);
    assert_false(fake.linears[1].raw);
    close_fixture(&f);
}

/* The checkpoint's own scale of inputs; the largest of what shares them. */
static void test_scales_of_the_checkpoint_are_taken(void **state)
{
    (void)state;
    const tiny_dims dims = tiny_dims_default();
    fixture f;
    open_fixture(&f, &dims, MR_DTYPE_BF16, MR_DTYPE_F8_E4M3);
    const tiny_layer *l = &f.tiny.layers[0];
    const mr_weight_id ids[] = {l->q, l->k, l->v};
    const float scales[] = {0.25f, 0.5f, 0.125f};
    for (size_t i = 0; i < 3; i++) {
        ((mr_weight_codes *)(uintptr_t)f.tiny.plan->weights[ids[i]].codes)->input_scale = scales[i];
    }
    float keys[] = {2.0f, 3.0f};
    float values[] = {4.0f, 5.0f};
    f.tiny.plan->kv.key_scales = keys;
    f.tiny.plan->kv.value_scales = values;
    feed(&f, 9);
    assert_true(fake.norms[0].coded.fixed == 0.5f);
    assert_true(fake.linears[0].coded.fixed == 0.5f);
    assert_true(fake.linears[1].coded.fixed == 0.0f);
    assert_int_equal(fake.attentions[1].kv.type, MR_DTYPE_F8_E4M3);
    assert_true(fake.attentions[1].kv.key_scale == 3.0f);
    assert_true(fake.attentions[1].kv.value_scale == 5.0f);
    f.tiny.plan->kv.key_scales = NULL;
    f.tiny.plan->kv.value_scales = NULL;
    feed(&f, 9);
    assert_true(fake.attentions[1].kv.key_scale == 1.0f);
    close_fixture(&f);
}

/* Planes of caches: one byte an element; int8 has four more a token and head. */
static void test_planes_of_one_byte(void **state)
{
    (void)state;
    const tiny_dims dims = tiny_dims_default();
    fixture f;
    open_fixture(&f, &dims, MR_DTYPE_BF16, MR_DTYPE_F8_E4M3);
    const uint32_t tokens = f.session.options.n_blocks * f.session.options.block_size;
    feed(&f, 2);
    const uint64_t fp8 = fake.attentions[0].kv.values - fake.attentions[0].kv.keys;
    assert_int_equal(fp8, (uint64_t)tokens * 2 * 16); /* G, D */
    close_fixture(&f);
    open_fixture(&f, &dims, MR_DTYPE_BF16, MR_DTYPE_I8);
    feed(&f, 2);
    const uint64_t int8 = fake.attentions[0].kv.values - fake.attentions[0].kv.keys;
    assert_int_equal(int8, (uint64_t)tokens * 2 * (16 + 4));
    close_fixture(&f);
}

/* Rows are read 16 bytes at a time. Those of an int8 piece lie behind its scales, 4 bytes a token:
 * at multiples of 16 only where a block has a multiple of 4 tokens. */
static void test_tiles_take_pieces_that_are_aligned(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {1, 4, 5, 8, 16, 18, 64};
    tiny_dims dims = tiny_dims_default();
    dims.head_width = 64;
    fixture f;
    open_fixture(&f, &dims, MR_DTYPE_BF16, MR_DTYPE_BF16);
    const mr_cuda_backend *backend = (const mr_cuda_backend *)f.backend;
    mr_exec_options options = tiny_options();
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        options.block_size = sizes[i];
        options.kv_dtype = MR_DTYPE_I8;
        assert_int_equal(mr_cuda_takes_tiles(backend, f.tiny.plan, &options), sizes[i] % 4 == 0);
        options.kv_dtype = MR_DTYPE_F8_E4M3;
        assert_true(mr_cuda_takes_tiles(backend, f.tiny.plan, &options));
        options.kv_dtype = MR_DTYPE_F32;
        assert_false(mr_cuda_takes_tiles(backend, f.tiny.plan, &options));
    }
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_codes_and_scales_lie_as_products_read_them, cuda_setup),
        cmocka_unit_test_setup(test_who_keeps_codes, cuda_setup),
        cmocka_unit_test_setup(test_rows_are_rounded_for_many, cuda_setup),
        cmocka_unit_test_setup(test_layers_with_codes_are_one_launch, cuda_setup),
        cmocka_unit_test_setup(test_products_with_biases_are_not_raw, cuda_setup),
        cmocka_unit_test_setup(test_scales_of_the_checkpoint_are_taken, cuda_setup),
        cmocka_unit_test_setup(test_planes_of_one_byte, cuda_setup),
        cmocka_unit_test_setup(test_tiles_take_pieces_that_are_aligned, cuda_setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
