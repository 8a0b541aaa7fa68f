/* SPDX-License-Identifier: Apache-2.0 */
/* Each way a batch can break the limits of the CPU executor that gets it. */
#include "kernels/cpu/cpu_backend.h"

#include "tiny_plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const int32_t prompt[2] = {5, 6};

typedef struct fixture {
    tiny_plan tiny;
    mr_backend *backend;
    tiny_session session;
} fixture;

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof(*f));
    assert_non_null(f);
    const tiny_dims dims = tiny_dims_default();
    tiny_plan_create(&dims, &f->tiny);
    const mr_cpu_options options = {.compute = MR_COMPUTE_F32, .threads = 1};
    assert_int_equal(mr_cpu_backend_create(&options, &f->backend, NULL), MR_OK);
    const mr_exec_options limits = tiny_options();
    tiny_session_create(&f->tiny, f->backend, &limits, &f->session);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    tiny_session_destroy(&f->session);
    f->backend->vt->destroy(f->backend);
    tiny_plan_destroy(&f->tiny);
    free(f);
    return 0;
}

typedef void (*spoil_fn)(mr_batch *batch);

static int32_t one_token[2];
static uint32_t numbers[2];
static mr_row_params one_row;
static mr_block_delta one_delta;
static mr_history_delta one_history;

#define SPOIL(name, ...)                                                                           \
    static void name(mr_batch *b)                                                                  \
    {                                                                                              \
        (void)b;                                                                                   \
        __VA_ARGS__;                                                                               \
    }

SPOIL(no_tokens, b->n_tokens = 0)
SPOIL(many_tokens, b->n_tokens = 65)
SPOIL(many_seqs, b->n_seqs = 5)
SPOIL(many_rows, b->n_rows = 65)
SPOIL(missing, b->positions = NULL)
SPOIL(token_id, one_token[0] = 96; b->token_src = one_token)
SPOIL(token_row, one_token[0] = -3; b->token_src = one_token)
SPOIL(position, numbers[0] = 2; b->positions = numbers)
SPOIL(start, numbers[1] = 1; b->seq_start = numbers)
SPOIL(slot, numbers[0] = 4; b->seq_slot = numbers)
SPOIL(context, numbers[0] = 81; b->context_len = numbers)
SPOIL(kv_groups, b->kv_groups = 2)
SPOIL(kv_slot, numbers[0] = 41 * 8; b->kv_slot = numbers)
SPOIL(logit_row, numbers[0] = 2; b->logit_rows = numbers)
SPOIL(target, one_row.target = 96; b->row_params = &one_row)
SPOIL(n_top, one_row.n_top = MR_MAX_TOP + 1; b->row_params = &one_row)
SPOIL(history_len, one_row.history_len = 81; b->row_params = &one_row)
SPOIL(prompt_len, one_row.prompt_len = 1; b->row_params = &one_row)
SPOIL(bias, one_row.bias_count = 1; numbers[0] = 96; b->bias_tokens = numbers;
      b->row_params = &one_row)
SPOIL(delta_slot, one_delta.slot = 4)
SPOIL(delta_group, one_delta.group = 1)
SPOIL(delta_index, one_delta.index = 10)
SPOIL(delta_block, one_delta.block = 41)
SPOIL(history_slot, one_history.slot = 4)
SPOIL(history_end, one_history.start = 80)
SPOIL(history_token, numbers[0] = 96; b->history_tokens = numbers)

static const struct {
    spoil_fn spoil;
    const char *message;
} spoilers[] = {
    {no_tokens, "0 tokens"},
    {many_tokens, "65 tokens"},
    {many_seqs, "5 sequences"},
    {many_rows, "65 rows"},
    {missing, "array is missing"},
    {token_id, "token_src[0] is 96"},
    {token_row, "token_src[0] names row 2"},
    {position, "positions[0] is 2"},
    {start, "seq_start runs from 0 to 1, not from 0 to 2"},
    {slot, "seq_slot[0] is 4"},
    {context, "context_len[0] is 81"},
    {kv_groups, "kv_slot is of 2 KV groups; the plan has 1"},
    {kv_slot, "kv_slot[0] is 328"},
    {logit_row, "logit_rows[0] is 2"},
    {target, "row_params[0].target is 96"},
    {n_top, "n_top is 33"},
    {history_len, "history of 81"},
    {prompt_len, "prompt of 1"},
    {bias, "bias for token 96"},
    {delta_slot, "block_deltas[0]: slot 4"},
    {delta_group, "group 1"},
    {delta_index, "index 10"},
    {delta_block, "block 41"},
    {history_slot, "history_deltas[0]: slot 4"},
    {history_end, "1 tokens from 80 on"},
    {history_token, "token 96 is no token"},
};

static void test_batches_out_of_bounds(void **state)
{
    fixture *f = *state;
    mr_exec *exec = f->session.exec;
    const uint32_t history_token = 3;
    for (size_t i = 0; i < sizeof(spoilers) / sizeof(spoilers[0]); i++) {
        mr_batch_reset(f->session.storage);
        tiny_feed(&f->session, 0, prompt, 0, 2, false);
        memset(numbers, 0, sizeof(numbers));
        memset(one_token, 0, sizeof(one_token));
        one_row = tiny_greedy();
        one_delta = (mr_block_delta){.block = 1};
        one_history = (mr_history_delta){.count = 1};
        mr_batch batch = *mr_batch_get(f->session.storage);
        batch.block_deltas = &one_delta;
        batch.n_block_deltas = 1;
        batch.history_deltas = &one_history;
        batch.n_history_deltas = 1;
        batch.history_tokens = &history_token;
        spoilers[i].spoil(&batch);
        mr_error err = {0};
        assert_int_equal(exec->vt->submit(exec, &batch, &err), MR_INVALID_ARGUMENT);
        if (strstr(err.message, spoilers[i].message) == NULL) {
            fail_msg("\"%s\" does not say \"%s\"", err.message, spoilers[i].message);
        }
    }
    /* None of it harmed the executor. */
    mr_step_output out;
    mr_batch_reset(f->session.storage);
    tiny_feed(&f->session, 0, prompt, 0, 2, false);
    tiny_run(&f->session, &out);
}

static void test_masks_and_adapters_are_refused(void **state)
{
    fixture *f = *state;
    mr_exec *exec = f->session.exec;
    mr_batch_reset(f->session.storage);
    tiny_feed(&f->session, 0, prompt, 0, 2, false);
    const uint32_t one = 1;
    mr_batch batch = *mr_batch_get(f->session.storage);
    batch.mask_ref = &one;
    assert_int_equal(exec->vt->submit(exec, &batch, NULL), MR_UNIMPLEMENTED);
    batch.mask_ref = NULL;
    batch.adapter = &one;
    assert_int_equal(exec->vt->submit(exec, &batch, NULL), MR_UNIMPLEMENTED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_batches_out_of_bounds, setup, teardown),
        cmocka_unit_test_setup_teardown(test_masks_and_adapters_are_refused, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
