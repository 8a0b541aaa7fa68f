/* SPDX-License-Identifier: Apache-2.0 */
/* A plan as launches on the host side of the CUDA backend: operator by operator, layers in one
 * launch, batch_invariant. */
#include "cuda_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* Eight launches a layer: the gated activation is part of the product before it. */
static void test_launches_of_a_decode_step(void **state)
{
    (void)state;
    static const char *const want[] = {
        "prepare", "embed",  "norm", "linear", "rope_kv", "attention_split", "linear", "norm",
        "linear",  "linear", "norm", "linear", "rope_kv", "attention_split", "linear", "norm",
        "linear",  "linear", "norm", "gather", "linear",  "sample"};
    cuda_fixture f;
    cuda_fixture_open_heads(&f, 64);
    cuda_decode(&f, 2, 0);
    cuda_assert_trace(want, sizeof(want) / sizeof(want[0]));
    assert_int_equal(fake.linears[0].n, (4 + 2 * 2) * 64);
    assert_true(fake.linears[2].gated);
    assert_int_equal(fake.linears[2].out_stride, 96);
    assert_int_equal(fake.linears[8].out_type, MR_DTYPE_F32);
    cuda_fixture_close(&f);
}

/* A decode step of few rows is six launches, whatever the layers; larger steps are as before. */
static void test_layers_of_a_decode_step_are_one_launch(void **state)
{
    (void)state;
    static const char *const want[] = {"prepare", "embed",  "decode", "norm",
                                       "gather",  "linear", "sample"};
    cuda_fixture f;
    fake.decode_rows = 2;
    tiny_dims dims = tiny_dims_default();
    dims.head_width = 64;
    cuda_fixture_open(&f, &dims, false);
    cuda_decode(&f, 2, 0);
    cuda_assert_trace(want, 7);
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
    cuda_decode(&f, 3, 1); /* a bucket of 4 */
    assert_int_equal(fake_count("decode"), 0);
    assert_int_equal(fake.n_trace, 22);
    cuda_fixture_close(&f);
}

/* Where there is much of attention, a bucket of few tokens runs operator by operator; it has a
 * graph of either kind. */
static void test_layers_with_long_contexts_run_operator_by_operator(void **state)
{
    (void)state;
    static const bool whole[] = {true, false, true, false};
    cuda_fixture f;
    fake.decode_rows = 4;
    fake.decode_pieces = 7; /* of 2 key/value heads: 3 splits, and not 4 */
    tiny_dims dims = tiny_dims_default();
    dims.head_width = 64;
    cuda_fixture_open(&f, &dims, false);
    for (uint32_t i = 0; i < 6; i++) {
        cuda_decode(&f, i % 2 == 0 ? 3 : 4, i);
        assert_int_equal(fake_count("decode"), i < 4 && whole[i]);
        assert_int_equal(fake_count("attention_split"), i < 4 && !whole[i] ? 2 : 0);
        assert_int_equal(fake.graphs, i < 2 ? 0 : i == 2 ? 1 : 2);
        assert_int_equal(fake.graph_launches, i < 2 ? 0 : i - 1);
    }
    fake.decode_pieces = 0; /* asked once */
    cuda_decode(&f, 3, 6);
    assert_int_equal(fake.n_trace, 0);
    cuda_fixture_close(&f);
}

/* The last layer's second half may have the logit rows only. */
static void test_layers_with_gathered_rows_are_one_launch(void **state)
{
    (void)state;
    static const char *const want[] = {"prepare", "embed", "decode", "norm", "linear", "sample"};
    cuda_fixture f;
    fake.decode_rows = 8;
    tiny_dims dims = tiny_dims_default();
    dims.head_width = 64;
    dims.late = true;
    dims.head_norms = true;
    cuda_fixture_open(&f, &dims, false);
    cuda_decode(&f, 2, 0);
    cuda_assert_trace(want, 6);
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
    tiny_feed(&f.session, 0, cuda_prompt, 1, 3, false);
    fake_clear_trace();
    tiny_run(&f.session, &out);
    assert_int_equal(fake_count("decode"), 0);
    cuda_fixture_close(&f);
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
        cuda_fixture f;
        fake_reset();
        fake.decode_rows = i < 4 ? 8 : 0; /* the last: the module takes none */
        cuda_fixture_open(&f, &dims[i], false);
        cuda_decode(&f, 2, 0);
        assert_int_equal(fake_count("decode"), 0);
        assert_int_equal(fake_count("attention_split"), 2);
        assert_int_equal(fake.maps, 0);
        cuda_fixture_close(&f);
    }
}

static void test_layers_that_fail_are_named(void **state)
{
    (void)state;
    mr_error err = {0};
    cuda_fixture f;
    fake.decode_rows = 8;
    tiny_dims dims = tiny_dims_default();
    dims.head_width = 64;
    cuda_fixture_open(&f, &dims, false);
    fake.fail = "decode";
    fake.fail_at = 1;
    mr_batch_reset(f.session.storage);
    tiny_feed(&f.session, 0, cuda_prompt, 0, 1, false);
    assert_int_equal(
        f.session.exec->vt->submit(f.session.exec, mr_batch_get(f.session.storage), &err),
        MR_INTERNAL);
    cuda_assert_says(&err, "layers");
    cuda_fixture_close(&f);
}

static void test_prompts_go_to_tiles_where_heads_allow(void **state)
{
    (void)state;
    static const uint32_t widths[] = {64, 16};
    for (size_t i = 0; i < 2; i++) {
        cuda_fixture f;
        mr_step_output out;
        fake_reset();
        cuda_fixture_open_heads(&f, widths[i]);
        mr_batch_reset(f.session.storage);
        tiny_feed(&f.session, 0, cuda_prompt, 0, 9, false); /* a prompt */
        tiny_feed(&f.session, 1, cuda_prompt, 0, 3, false); /* a few tokens */
        tiny_run(&f.session, &out);
        const uint32_t layers = 2;
        assert_int_equal(fake_count("attention_tiles"), i == 0 ? layers : 0);
        assert_int_equal(fake_count("attention_split"), layers);
        /* The items of the split: 3 tokens of one split each, or all 12. */
        assert_int_equal(fake.attentions[0].count, i == 0 ? 3 : 12);
        assert_int_equal(fake.attentions[0].n_tiles, i == 0 ? 1 : 0);
        cuda_fixture_close(&f);
    }
}

/* One way for all row counts: no product takes the activation over, no prompt goes to tiles. */
static void test_batch_invariant_has_one_way_D4(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {1, 9};
    cuda_fixture f;
    mr_step_output out;
    mr_backend_info info;
    tiny_dims dims = tiny_dims_default();
    dims.head_width = 64;
    cuda_fixture_open(&f, &dims, true);
    f.backend->vt->info(f.backend, &info);
    assert_string_equal(info.numerics, "cuda-sm90/bf16/2/invariant");
    for (uint32_t i = 0; i < 2; i++) {
        mr_batch_reset(f.session.storage);
        tiny_feed(&f.session, 0, cuda_prompt, 0, lengths[i], false);
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
    cuda_fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_launches_of_a_decode_step, cuda_setup),
        cmocka_unit_test_setup(test_layers_of_a_decode_step_are_one_launch, cuda_setup),
        cmocka_unit_test_setup(test_layers_with_long_contexts_run_operator_by_operator, cuda_setup),
        cmocka_unit_test_setup(test_layers_with_gathered_rows_are_one_launch, cuda_setup),
        cmocka_unit_test_setup(test_other_layers_run_operator_by_operator, cuda_setup),
        cmocka_unit_test_setup(test_layers_that_fail_are_named, cuda_setup),
        cmocka_unit_test_setup(test_prompts_go_to_tiles_where_heads_allow, cuda_setup),
        cmocka_unit_test_setup(test_batch_invariant_has_one_way_D4, cuda_setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
