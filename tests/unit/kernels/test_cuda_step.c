/* SPDX-License-Identifier: Apache-2.0 */
/* Steps on the host side of the CUDA backend: graphs, buckets, steps under way, every way to fail.
 */
#include "cuda_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

/* A bucket's first step is launched, its second captured, the others replayed. */
static void test_graphs_of_decode_steps(void **state)
{
    (void)state;
    cuda_fixture f;
    cuda_fixture_open_heads(&f, 64);
    cuda_decode(&f, 3, 0);
    assert_int_equal(fake.n_trace, 22);
    assert_int_equal(fake.linears[0].rows, 4); /* the bucket's */
    assert_int_equal(fake.graphs, 0);
    cuda_decode(&f, 3, 1);
    assert_int_equal(fake.graphs, 1);
    assert_int_equal(fake.graph_launches, 1);
    cuda_decode(&f, 4, 2); /* the same bucket */
    assert_int_equal(fake.n_trace, 0);
    assert_int_equal(fake.graph_launches, 2);
    cuda_decode(&f, 2, 3); /* another */
    assert_int_equal(fake.n_trace, 22);
    assert_int_equal(fake.graph_launches, 2);
    cuda_fixture_close(&f);
}

/* Where the arrays of a decode step lie: there is room for what steps of its bucket may have. */
static mr_cuda_stage stage_of(uint32_t bucket, uint32_t items)
{
    const mr_cuda_counts counts = {.tokens = bucket,
                                   .rows = bucket,
                                   .items = items,
                                   .block_deltas = 2 * bucket + 64,
                                   .history_deltas = bucket,
                                   .history_tokens = 4 * bucket + 64,
                                   .bias = 1024};
    mr_cuda_stage stage;
    mr_cuda_stage_lay_out(&counts, 1, &stage);
    return stage;
}

/* What the last step copied to the GPU. */
static const void *staged(const cuda_fixture *f, uint64_t offset)
{
    return (const void *)(uintptr_t)(((const mr_cuda_exec *)f->session.exec)->stage + offset);
}

static mr_cuda_step_header staged_header(const cuda_fixture *f)
{
    mr_cuda_step_header header;
    memcpy(&header, staged(f, 0), sizeof(header));
    return header;
}

/* The area that a step copies: padding rows write into the null block. */
static void test_padding_of_a_bucket(void **state)
{
    (void)state;
    cuda_fixture f;
    cuda_fixture_open_heads(&f, 64);
    cuda_decode(&f, 3, 5);
    const mr_cuda_step_header header = staged_header(&f);
    assert_int_equal(header.n_tokens, 3);
    assert_int_equal(header.n_rows, 3);
    assert_int_equal(header.n_items, 3);
    const mr_cuda_stage stage = stage_of(4, 3);
    const uint32_t *kv_slot = staged(&f, stage.kv_slot);
    assert_true(kv_slot[2] / f.session.options.block_size != MR_NULL_BLOCK);
    assert_int_equal(kv_slot[3], 0);
    const mr_cuda_item *items = staged(&f, stage.items);
    assert_int_equal(items[2].token, 2);
    assert_int_equal(items[2].split, 0);
    cuda_fixture_close(&f);
}

static void test_the_last_of_two_deltas_wins(void **state)
{
    (void)state;
    cuda_fixture f;
    mr_step_output out;
    cuda_fixture_open_heads(&f, 64);
    mr_batch_reset(f.session.storage);
    const mr_block_delta first = {.slot = 0, .index = 3, .block = 5};
    const mr_block_delta second = {.slot = 0, .index = 3, .block = 6};
    assert_int_equal(mr_batch_add_block(f.session.storage, &first), MR_OK);
    assert_int_equal(mr_batch_add_block(f.session.storage, &second), MR_OK);
    tiny_feed(&f.session, 1, cuda_prompt, 1, 1, false);
    tiny_run(&f.session, &out);
    assert_int_equal(staged_header(&f).n_block_deltas, 1);
    const mr_cuda_stage stage = stage_of(1, 1);
    const mr_cuda_block_entry *entry = staged(&f, stage.block_deltas);
    assert_int_equal(entry->index, 3); /* of slot 0 */
    assert_int_equal(entry->block, 6);
    cuda_fixture_close(&f);
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
        cuda_fixture f;
        fake_reset();
        cuda_fixture_open_heads(&f, 64);
        mr_exec *exec = f.session.exec;
        mr_error err = {0};
        mr_step_output out;
        fake.fail = calls[i];
        fake.fail_at = 1;
        mr_status status = MR_OK;
        /* The third step of a bucket is a replay. */
        for (uint32_t step = 0; status == MR_OK && step < 3; step++) {
            mr_batch_reset(f.session.storage);
            tiny_feed(&f.session, 0, cuda_prompt, step, 1, false);
            status = mr_exec_run(exec, mr_batch_get(f.session.storage), &out, &err);
        }
        assert_int_equal(status, MR_INTERNAL);
        cuda_assert_says(&err, "the GPU failed");
        cuda_assert_says(&err, "an illegal access, says the fake (700)");
        fake.fail = NULL;
        fake_clear_trace();
        mr_batch_reset(f.session.storage);
        tiny_feed(&f.session, 0, cuda_prompt, 5, 1, false);
        assert_int_equal(exec->vt->submit(exec, mr_batch_get(f.session.storage), &err),
                         MR_INTERNAL);
        assert_int_equal(fake.n_trace, 0);
        cuda_fixture_close(&f);
    }
}

/* The second may take its tokens from rows of the first, which the host has not seen. */
static void test_two_steps_may_be_under_way(void **state)
{
    (void)state;
    cuda_fixture f;
    mr_error err = {0};
    mr_step_output out;
    cuda_fixture_open_heads(&f, 64);
    mr_exec *exec = f.session.exec;
    mr_batch_reset(f.session.storage);
    tiny_feed(&f.session, 0, cuda_prompt, 0, 3, true);
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
    cuda_fixture_close(&f);
}

static void test_a_batch_out_of_bounds_harms_nothing(void **state)
{
    (void)state;
    cuda_fixture f;
    cuda_fixture_open_heads(&f, 64);
    mr_exec *exec = f.session.exec;
    mr_batch_reset(f.session.storage);
    tiny_feed(&f.session, 0, cuda_prompt, 0, 1, false);
    mr_batch batch = *mr_batch_get(f.session.storage);
    const int32_t beyond[1] = {96};
    batch.token_src = beyond;
    mr_error err = {0};
    assert_int_equal(exec->vt->submit(exec, &batch, &err), MR_INVALID_ARGUMENT);
    assert_int_equal(fake.n_trace, 0);
    cuda_decode(&f, 1, 0);
    cuda_fixture_close(&f);
}

static void test_block_copies_go_one_by_one(void **state)
{
    (void)state;
    cuda_fixture f;
    cuda_fixture_open_heads(&f, 64);
    mr_exec *exec = f.session.exec;
    const mr_block_copy copies[] = {{1, 2}, {2, 3}};
    assert_int_equal(exec->vt->copy_blocks(exec, copies, 2, NULL), MR_OK);
    assert_int_equal(fake_count("block_move"), 2);
    const mr_block_copy null = {1, MR_NULL_BLOCK};
    assert_int_equal(exec->vt->copy_blocks(exec, &null, 1, NULL), MR_INVALID_ARGUMENT);
    cuda_fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_graphs_of_decode_steps, cuda_setup),
        cmocka_unit_test_setup(test_padding_of_a_bucket, cuda_setup),
        cmocka_unit_test_setup(test_the_last_of_two_deltas_wins, cuda_setup),
        cmocka_unit_test_setup(test_buckets_are_the_next_larger, cuda_setup),
        cmocka_unit_test_setup(test_a_failure_is_sticky, cuda_setup),
        cmocka_unit_test_setup(test_two_steps_may_be_under_way, cuda_setup),
        cmocka_unit_test_setup(test_a_batch_out_of_bounds_harms_nothing, cuda_setup),
        cmocka_unit_test_setup(test_block_copies_go_one_by_one, cuda_setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
