/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/batch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static const mr_batch_limits limits = {
    .max_tokens = 7,
    .max_seqs = 3,
    .max_rows = 4,
    .max_context = 300,
    .block_size = 16,
    .kv_groups = 2,
    .max_bias = 3,
    .max_history = 4,
};

static void add_tokens(mr_batch_storage *s, const int32_t *src, uint32_t position, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t kv[2] = {100 + position + i, 500 + position + i};
        assert_int_equal(mr_batch_add_token(s, src[i], position + i, kv), MR_OK);
    }
}

/* The drawing in batch.h, built and read back. */
static void test_drawing(void **state)
{
    (void)state;
    mr_batch_storage *s = NULL;
    assert_int_equal(mr_batch_storage_create(&limits, &s), MR_OK);
    const int32_t prefill[3] = {17, 98, 4};
    const int32_t decode[1] = {mr_token_src_row(0)};
    const int32_t verify[3] = {55, 71, 12};
    const mr_row_params row = {.temperature = 0.5f, .target = MR_NO_TARGET};
    mr_row_params biased = row;
    biased.bias_count = 2;
    const uint32_t bias_tokens[2] = {9, 3};
    const float bias_values[2] = {1.5f, -2.0f};

    mr_batch_reset(s);
    assert_int_equal(mr_batch_add_seq(s, 2, 35, 0), MR_OK);
    add_tokens(s, prefill, 32, 3);
    assert_int_equal(mr_batch_add_seq(s, 0, 211, 0), MR_OK);
    add_tokens(s, decode, 210, 1);
    assert_int_equal(mr_batch_add_row(s, &row, NULL, NULL), MR_OK);
    assert_int_equal(mr_batch_add_seq(s, 1, 83, 5), MR_OK);
    for (uint32_t i = 0; i < 3; i++) {
        add_tokens(s, verify + i, 80 + i, 1);
        assert_int_equal(mr_batch_add_row(s, &biased, bias_tokens, bias_values),
                         i == 0 ? MR_OK : MR_RESOURCE_EXHAUSTED);
        if (i > 0) {
            assert_int_equal(mr_batch_add_row(s, &row, NULL, NULL), MR_OK);
        }
    }
    const mr_batch *b = mr_batch_get(s);
    const int32_t token_src[7] = {17, 98, 4, -1, 55, 71, 12};
    const uint32_t positions[7] = {32, 33, 34, 210, 80, 81, 82};
    const uint32_t seq_start[4] = {0, 3, 4, 7};
    const uint32_t seq_slot[3] = {2, 0, 1};
    const uint32_t context_len[3] = {35, 211, 83};
    const uint32_t adapter[3] = {0, 0, 5};
    const uint32_t logit_rows[4] = {3, 4, 5, 6};
    const uint32_t kv_slot[14] = {132, 133, 134, 310, 180, 181, 182,
                                  532, 533, 534, 710, 580, 581, 582};
    assert_int_equal(b->step, 1);
    assert_int_equal(b->n_tokens, 7);
    assert_int_equal(b->n_seqs, 3);
    assert_int_equal(b->n_rows, 4);
    assert_int_equal(b->kv_groups, 2);
    assert_memory_equal(b->token_src, token_src, sizeof(token_src));
    assert_memory_equal(b->positions, positions, sizeof(positions));
    assert_memory_equal(b->seq_start, seq_start, sizeof(seq_start));
    assert_memory_equal(b->seq_slot, seq_slot, sizeof(seq_slot));
    assert_memory_equal(b->context_len, context_len, sizeof(context_len));
    assert_memory_equal(b->adapter, adapter, sizeof(adapter));
    assert_memory_equal(b->logit_rows, logit_rows, sizeof(logit_rows));
    assert_memory_equal(b->kv_slot, kv_slot, sizeof(kv_slot));
    assert_int_equal(b->row_params[1].bias_count, 2);
    assert_memory_equal(b->bias_tokens + b->row_params[1].bias_offset, bias_tokens,
                        sizeof(bias_tokens));
    assert_memory_equal(b->bias_values + b->row_params[1].bias_offset, bias_values,
                        sizeof(bias_values));
    mr_batch_storage_destroy(s);
}

/* Two groups and fewer tokens than fit: the groups lie close together. */
static void test_groups_are_packed(void **state)
{
    (void)state;
    mr_batch_storage *s = NULL;
    assert_int_equal(mr_batch_storage_create(&limits, &s), MR_OK);
    mr_batch_reset(s);
    assert_int_equal(mr_batch_add_seq(s, 0, 2, 0), MR_OK);
    add_tokens(s, (const int32_t[2]){1, 2}, 0, 2);
    const uint32_t kv_slot[4] = {100, 101, 500, 501};
    assert_memory_equal(mr_batch_get(s)->kv_slot, kv_slot, sizeof(kv_slot));
    assert_null(mr_batch_get(s)->adapter);
    assert_null(mr_batch_get(s)->mask_ref);
    mr_batch_storage_destroy(s);
}

static void test_limits(void **state)
{
    (void)state;
    mr_batch_storage *s = NULL;
    assert_int_equal(mr_batch_storage_create(&limits, &s), MR_OK);
    const uint32_t kv[2] = {1, 1};
    const uint32_t history[3] = {1, 2, 3};
    const mr_row_params row = {.target = MR_NO_TARGET};
    mr_batch_reset(s);
    assert_int_equal(mr_batch_add_token(s, 1, 0, kv), MR_INVALID_ARGUMENT);
    assert_int_equal(mr_batch_add_row(s, &row, NULL, NULL), MR_INVALID_ARGUMENT);
    assert_int_equal(mr_batch_add_seq(s, 3, 1, 0), MR_INVALID_ARGUMENT);
    assert_int_equal(mr_batch_add_seq(s, 0, 301, 0), MR_INVALID_ARGUMENT);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(mr_batch_add_seq(s, i, 1, 0), MR_OK);
    }
    assert_int_equal(mr_batch_add_seq(s, 0, 1, 0), MR_RESOURCE_EXHAUSTED);
    assert_int_equal(mr_batch_add_token(s, 1, 300, kv), MR_INVALID_ARGUMENT);
    for (uint32_t i = 0; i < 7; i++) {
        assert_int_equal(mr_batch_add_token(s, 1, i, kv), MR_OK);
    }
    assert_int_equal(mr_batch_add_token(s, 1, 7, kv), MR_RESOURCE_EXHAUSTED);
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(mr_batch_add_row(s, &row, NULL, NULL), MR_OK);
    }
    assert_int_equal(mr_batch_add_row(s, &row, NULL, NULL), MR_RESOURCE_EXHAUSTED);
    assert_int_equal(mr_batch_add_history(s, 1, 10, history, 3), MR_OK);
    assert_int_equal(mr_batch_add_history(s, 1, 13, history, 2), MR_RESOURCE_EXHAUSTED);
    assert_int_equal(mr_batch_add_history(s, 2, 0, history, 1), MR_OK);
    const mr_batch *b = mr_batch_get(s);
    assert_int_equal(b->n_history_deltas, 2);
    assert_int_equal(b->history_deltas[1].offset, 3);
    assert_memory_equal(b->history_tokens, history, sizeof(history));
    /* 2 groups · 3 slots · 19 blocks of 16 for 300 tokens */
    const mr_block_delta delta = {.slot = 2, .group = 1, .index = 18, .block = 5};
    for (uint32_t i = 0; i < 114; i++) {
        assert_int_equal(mr_batch_add_block(s, &delta), MR_OK);
    }
    assert_int_equal(mr_batch_add_block(s, &delta), MR_RESOURCE_EXHAUSTED);

    mr_batch_reset(s);
    assert_int_equal(b->step, 2);
    assert_int_equal(b->n_tokens + b->n_seqs + b->n_rows + b->n_block_deltas + b->n_history_deltas,
                     0);
    mr_batch_limits none = limits;
    none.block_size = 0;
    mr_batch_storage *other = NULL;
    assert_int_equal(mr_batch_storage_create(&none, &other), MR_INVALID_ARGUMENT);
    mr_batch_storage_destroy(s);
}

/* Rows that follow each other may share a list; it is stored once. */
static void test_rows_share_a_bias_list(void **state)
{
    (void)state;
    mr_batch_storage *s = NULL;
    assert_int_equal(mr_batch_storage_create(&limits, &s), MR_OK);
    const int32_t token = 5;
    const uint32_t tokens[3] = {9, 3, 4};
    const float values[3] = {1.5f, -2.0f, 0.5f};
    mr_row_params row = {.target = MR_NO_TARGET, .bias_count = 3};
    mr_batch_reset(s);
    assert_int_equal(mr_batch_add_seq(s, 0, 1, 0), MR_OK);
    add_tokens(s, &token, 0, 1);
    assert_int_equal(mr_batch_add_row(s, &row, NULL, NULL), MR_INVALID_ARGUMENT); /* with whom? */
    assert_int_equal(mr_batch_add_row(s, &row, tokens, values), MR_OK);
    assert_int_equal(mr_batch_add_row(s, &row, NULL, NULL), MR_OK);
    assert_int_equal(mr_batch_add_row(s, &row, NULL, NULL), MR_OK);
    row.bias_count = 2;
    assert_int_equal(mr_batch_add_row(s, &row, NULL, NULL), MR_INVALID_ARGUMENT);
    const mr_batch *b = mr_batch_get(s);
    assert_int_equal(b->n_rows, 3);
    for (uint32_t r = 0; r < 3; r++) {
        assert_int_equal(b->logit_rows[r], 0);
        assert_int_equal(b->row_params[r].bias_offset, 0);
        assert_memory_equal(b->bias_tokens + b->row_params[r].bias_offset, tokens, sizeof(tokens));
    }
    mr_batch_storage_destroy(s);
}

/* A span is what its tokens are, one by one. */
static void test_span_is_tokens_in_a_row(void **state)
{
    (void)state;
    mr_batch_limits one_group = limits;
    one_group.kv_groups = 1;
    mr_batch_storage *s = NULL;
    const uint32_t tokens[8] = {17, 98, 4, 0, 55, 71, 12, 3};
    assert_int_equal(mr_batch_storage_create(&one_group, &s), MR_OK);
    mr_batch_reset(s);
    assert_int_equal(mr_batch_add_span(s, tokens, 1, 0, 16), MR_INVALID_ARGUMENT); /* no sequence */
    assert_int_equal(mr_batch_add_seq(s, 1, 34, 0), MR_OK);
    assert_int_equal(mr_batch_add_span(s, tokens, 3, 29, 61), MR_OK);
    assert_int_equal(mr_batch_add_span(s, tokens + 3, 2, 32, 160), MR_OK);
    assert_int_equal(mr_batch_add_seq(s, 0, 300, 0), MR_OK);
    assert_int_equal(mr_batch_add_span(s, tokens, 2, 299, 16), MR_INVALID_ARGUMENT);
    assert_int_equal(mr_batch_add_span(s, tokens, 1, 300, 16), MR_INVALID_ARGUMENT);
    assert_int_equal(mr_batch_add_span(s, tokens, 3, 200, 16), MR_RESOURCE_EXHAUSTED);
    assert_int_equal(mr_batch_add_span(s, tokens + 6, 2, 298, 42), MR_OK);
    const mr_batch *b = mr_batch_get(s);
    static const uint32_t starts[3] = {0, 5, 7};
    static const uint32_t positions[7] = {29, 30, 31, 32, 33, 298, 299};
    static const uint32_t places[7] = {61, 62, 63, 160, 161, 42, 43};
    static const int32_t sources[7] = {17, 98, 4, 0, 55, 12, 3};
    assert_int_equal(b->n_tokens, 7);
    assert_memory_equal(b->seq_start, starts, sizeof(starts));
    assert_memory_equal(b->positions, positions, sizeof(positions));
    assert_memory_equal(b->kv_slot, places, sizeof(places));
    assert_memory_equal(b->token_src, sources, sizeof(sources));
    mr_batch_storage_destroy(s);
    assert_int_equal(mr_batch_storage_create(&limits, &s), MR_OK); /* two groups */
    mr_batch_reset(s);
    assert_int_equal(mr_batch_add_seq(s, 1, 34, 0), MR_OK);
    assert_int_equal(mr_batch_add_span(s, tokens, 1, 0, 16), MR_INVALID_ARGUMENT);
    mr_batch_storage_destroy(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_drawing),
        cmocka_unit_test(test_span_is_tokens_in_a_row),
        cmocka_unit_test(test_rows_share_a_bias_list),
        cmocka_unit_test(test_groups_are_packed),
        cmocka_unit_test(test_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
