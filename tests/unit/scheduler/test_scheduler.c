/* SPDX-License-Identifier: Apache-2.0 */
/* Batching: what a step has, and what it sends. test_scheduler_ends.c has ends and news,
 * test_scheduler_pressure.c the short pools and slow readers. */
#include "allocations.h"
#include "base/log.h"
#include "rig.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define MS MR_NS_PER_MS

static void expect_shape(const rig *r, uint32_t tokens, uint32_t seqs, uint32_t rows)
{
    assert_int_equal(r->batch->n_tokens, tokens);
    assert_int_equal(r->batch->n_seqs, seqs);
    assert_int_equal(r->batch->n_rows, rows);
}

static void test_scheduler_decodes_first_then_chunks_in_order_of_arrival(void **state)
{
    (void)state;
    rig r;
    const mr_scheduler_options options = rig_options();
    rig_open(&r, &options, 4, 65);
    mr_request *a = rig_add(&r, 3, 6);
    assert_true(rig_step(&r, NULL));
    expect_shape(&r, 3, 1, 1);

    mr_request *b = rig_add(&r, 12, 4);
    mr_request *c = rig_add(&r, 5, 4);
    assert_true(rig_step(&r, NULL)); /* a decodes, b starts: 1 + 7 of 8 tokens, row of a */
    expect_shape(&r, 8, 2, 1);
    assert_int_equal(r.batch->seq_slot[0], 0);
    assert_int_equal(r.batch->seq_start[1], 1);
    assert_int_equal(r.batch->positions[1], 0);

    assert_true(rig_step(&r, NULL)); /* a, the last 5 of b, the first 2 of c */
    expect_shape(&r, 8, 3, 2);
    assert_int_equal(r.batch->seq_start[2], 6);
    assert_int_equal(r.batch->context_len[1], 12);
    assert_int_equal(r.batch->logit_rows[1], 5);

    assert_true(rig_step(&r, NULL)); /* a, b decode, the last 3 of c */
    expect_shape(&r, 5, 3, 3);
    rig_run(&r);
    mr_request *all[] = {a, b, c};
    for (size_t i = 0; i < 3; i++) {
        rig_expect_whole(&r, all[i]);
        assert_true(all[i]->usage.scheduled_ns > 0);
        assert_true(all[i]->usage.first_token_ns > all[i]->usage.scheduled_ns);
        mr_request_unref(all[i]);
    }
    mr_scheduler_stats stats;
    mr_scheduler_stats_get(r.scheduler, &stats);
    assert_int_equal(stats.started, 3);
    assert_int_equal(stats.prompt_tokens, 20);
    assert_int_equal(stats.generated_tokens, 14);
    assert_int_equal(stats.finished[MR_FINISH_LENGTH], 3);
    assert_int_equal(stats.steps, r.batch->step);
    rig_close(&r);
}

static void test_scheduler_token_budget_bounds_the_rows(void **state)
{
    (void)state;
    rig r;
    mr_scheduler_options options = rig_options();
    mr_request *requests[5];
    options.max_batch_size = 8;
    options.max_batch_tokens = 3;
    rig_open(&r, &options, 4, 65);
    for (size_t i = 0; i < 5; i++) {
        requests[i] = rig_add(&r, 2, 5);
    }
    for (uint32_t i = 0; i < 100 && !mr_scheduler_idle(r.scheduler); i++) {
        assert_true(rig_step(&r, NULL));
        assert_true(r.batch->n_seqs <= 3);
    }
    for (size_t i = 0; i < 5; i++) {
        rig_expect_whole(&r, requests[i]);
        mr_request_unref(requests[i]);
    }
    rig_close(&r);
}

static void test_scheduler_idle_engine_waits_for_companions(void **state)
{
    (void)state;
    rig r;
    mr_scheduler_options options = rig_options();
    options.batch_timeout_ns = 50 * MS;
    rig_open(&r, &options, 4, 65);
    const uint64_t first_ns = r.now_ns;
    mr_request *a = rig_add(&r, 2, 3);
    assert_false(rig_step(&r, NULL));
    assert_true(r.wake_ns == first_ns + 50 * MS);
    r.now_ns += 20 * MS;
    mr_request *b = rig_add(&r, 2, 3);
    assert_false(rig_step(&r, NULL));
    assert_true(r.wake_ns == first_ns + 50 * MS); /* from the first arrival */
    r.now_ns = first_ns + 50 * MS;
    assert_true(rig_step(&r, NULL));
    expect_shape(&r, 4, 2, 2);
    mr_request *c = rig_add(&r, 2, 1); /* not idle: joins at once */
    assert_true(rig_step(&r, NULL));
    expect_shape(&r, 4, 3, 3);
    rig_run(&r);
    mr_request_unref(a);
    mr_request_unref(b);
    mr_request_unref(c);
    rig_close(&r);
}

static void test_scheduler_window_closes_when_full(void **state)
{
    (void)state;
    rig r;
    mr_scheduler_options options = rig_options();
    mr_request *requests[6];
    options.batch_timeout_ns = 50 * MS;
    rig_open(&r, &options, 4, 65);
    for (size_t i = 0; i < 4; i++) {
        assert_false(rig_step(&r, NULL));
        requests[i] = rig_add(&r, 1, 1);
    }
    assert_true(rig_step(&r, NULL)); /* max_batch_size */
    expect_shape(&r, 4, 4, 4);
    requests[4] = rig_add(&r, 7, 1);
    assert_false(rig_step(&r, NULL));
    requests[5] = rig_add(&r, 1, 1);
    assert_true(rig_step(&r, NULL)); /* max_batch_tokens */
    expect_shape(&r, 8, 2, 2);
    for (size_t i = 0; i < 6; i++) {
        mr_request_unref(requests[i]);
    }
    rig_close(&r);
}

static void test_scheduler_prefill_interval_spaces_prefills(void **state)
{
    (void)state;
    rig r;
    mr_scheduler_options options = rig_options();
    options.prefill_interval = 3;
    rig_open(&r, &options, 4, 65);
    mr_request *a = rig_add(&r, 2, 20);
    assert_true(rig_step(&r, NULL)); /* step 1: prefill, for nothing decodes */
    mr_request *b = rig_add(&r, 12, 1);
    const uint32_t expected[] = {1, 1, 8, 1, 1, 6}; /* tokens of steps 2 to 7 */
    for (size_t i = 0; i < 6; i++) {
        assert_true(rig_step(&r, NULL));
        assert_int_equal(r.batch->n_tokens, expected[i]);
    }
    rig_run(&r);
    rig_expect_whole(&r, a);
    rig_expect_whole(&r, b);
    mr_request_unref(a);
    mr_request_unref(b);
    rig_close(&r);
}

static void test_scheduler_ends_at_any_eos_of_the_union_T5(void **state)
{
    (void)state;
    rig r;
    const mr_scheduler_options options = rig_options();
    mr_request_params params = rig_params(5);
    params.ignore_eos = false;
    rig_open(&r, &options, 4, 65);
    const uint32_t ends[] = {RIG_EOS_A, RIG_EOS_B};
    for (size_t i = 0; i < 2; i++) {
        mr_request *request = rig_request(&r, 2, &params);
        rig_submit(&r, request);
        assert_true(rig_step(&r, (const uint32_t[]){500}));
        assert_true(rig_step(&r, &ends[i]));
        assert_true(mr_scheduler_idle(r.scheduler));
        rig_event event = rig_read(request);
        assert_int_equal(event.token, 500);
        assert_int_equal(event.matched_token, MR_NO_TOKEN);
        assert_true(event.text_bytes == UINT64_MAX);
        event = rig_read(request);
        assert_int_equal(event.token, ends[i]);
        assert_int_equal(event.finish, MR_FINISH_STOP);
        assert_int_equal(event.matched_token, ends[i]);
        assert_int_equal(request->usage.completion_tokens, 2);
        mr_request_unref(request);
    }
    rig_close(&r);
}

static void test_scheduler_ignore_eos_ignores_every_eos_T6(void **state)
{
    (void)state;
    rig r;
    const mr_scheduler_options options = rig_options();
    rig_open(&r, &options, 4, 65);
    mr_request *request = rig_add(&r, 2, 3);
    assert_true(rig_step(&r, (const uint32_t[]){RIG_EOS_A}));
    assert_int_equal(r.batch->row_params[0].bias_count, 0);
    assert_true(rig_step(&r, (const uint32_t[]){RIG_EOS_B}));
    assert_true(rig_step(&r, (const uint32_t[]){RIG_EOS_A}));
    assert_true(mr_scheduler_idle(r.scheduler));
    rig_read(request);
    rig_read(request);
    assert_int_equal(rig_read(request).finish, MR_FINISH_LENGTH);
    mr_request_unref(request);
    rig_close(&r);
}

static void test_scheduler_min_tokens_bans_eos_until_then(void **state)
{
    (void)state;
    rig r;
    const mr_scheduler_options options = rig_options();
    mr_request_params params = rig_params(9);
    params.ignore_eos = false;
    params.min_tokens = 2;
    rig_open(&r, &options, 4, 65);
    mr_request *request = rig_request(&r, 2, &params);
    rig_submit(&r, request);
    for (uint32_t i = 0; i < 2; i++) {
        assert_true(rig_step(&r, (const uint32_t[]){RIG_EOS_A})); /* a model that ignores bias */
        const mr_row_params *row = &r.batch->row_params[0];
        assert_int_equal(row->bias_count, 2);
        assert_int_equal(r.batch->bias_tokens[row->bias_offset], RIG_EOS_A);
        assert_int_equal(r.batch->bias_tokens[row->bias_offset + 1], RIG_EOS_B);
        assert_true(r.batch->bias_values[row->bias_offset] == -INFINITY);
        assert_true(r.batch->bias_values[row->bias_offset + 1] == -INFINITY);
        assert_int_equal(rig_read(request).finish, MR_FINISH_NONE);
    }
    assert_true(rig_step(&r, (const uint32_t[]){RIG_EOS_A}));
    assert_int_equal(r.batch->row_params[0].bias_count, 0);
    assert_int_equal(rig_read(request).finish, MR_FINISH_STOP);
    mr_request_unref(request);
    rig_close(&r);
}

static void test_scheduler_max_seq_length_ends_with_length(void **state)
{
    (void)state;
    rig r;
    const mr_scheduler_options options = rig_options();
    rig_open(&r, &options, 4, 65);
    mr_request *request = rig_add(&r, 60, 100);
    rig_run(&r);
    assert_int_equal(request->usage.completion_tokens, 4);
    rig_expect_whole(&r, request);
    mr_request_unref(request);
    rig_close(&r);
}

static void test_scheduler_rows_carry_the_parameters(void **state)
{
    (void)state;
    rig r;
    const mr_scheduler_options options = rig_options();
    const mr_request_params params = {
        .temperature = 0.5f,
        .top_p = 0.75f,
        .min_p = 0.125f,
        .top_k = 40,
        .repetition_penalty = 1.25f,
        .presence_penalty = 0.5f,
        .frequency_penalty = 0.25f,
        .max_tokens = 2,
        .logprobs = true,
        .top_logprobs = 2,
        .logprobs_processed = true,
    };
    rig_open(&r, &options, 4, 65);
    mr_request *request = rig_request(&r, 3, &params);
    rig_submit(&r, request);
    assert_true(rig_step(&r, NULL));
    const mr_row_params *row = &r.batch->row_params[0];
    assert_true(row->temperature == 0.5f && row->top_p == 0.75f && row->min_p == 0.125f);
    assert_true(row->repetition_penalty == 1.25f && row->presence_penalty == 0.5f &&
                row->frequency_penalty == 0.25f);
    assert_int_equal(row->top_k, 40);
    assert_true(row->key == request->key);
    assert_int_equal(row->position, 3);
    assert_int_equal(row->choice, 0);
    assert_int_equal(row->target, MR_NO_TARGET);
    assert_int_equal(row->history_len, 3);
    assert_int_equal(row->prompt_len, 3);
    assert_int_equal(row->n_top, 2);
    assert_true(row->want_logprob && row->processed);

    const mr_token_event *event = mr_ring_peek(&request->events, 0);
    assert_non_null(event);
    assert_true(event->logprob == -0.5f * (float)event->token);
    assert_int_equal(event->n_top, 2);
    assert_int_equal(event->top[1].token, event->token + 1);
    assert_true(event->top[1].logprob == -1.0f);
    assert_true(rig_step(&r, NULL));
    assert_int_equal(r.batch->row_params[0].position, 4);
    assert_int_equal(r.batch->row_params[0].history_len, 4);
    assert_int_equal(r.batch->row_params[0].prompt_len, 3);
    mr_request_unref(request);
    rig_close(&r);
}

static void test_scheduler_sends_history_for_penalties_only(void **state)
{
    (void)state;
    rig r;
    const mr_scheduler_options options = rig_options();
    mr_request_params params = rig_params(3);
    rig_open(&r, &options, 4, 65);
    mr_request *plain = rig_add(&r, 3, 1);
    assert_true(rig_step(&r, NULL));
    assert_int_equal(r.batch->n_history_deltas, 0);
    params.presence_penalty = 0.5f;
    mr_request *request = rig_request(&r, 11, &params); /* in the slot that has become free */
    rig_submit(&r, request);
    const uint32_t starts[] = {0, 8, 11, 12};
    const uint32_t counts[] = {8, 3, 1, 1};
    for (size_t i = 0; i < 4; i++) {
        assert_true(rig_step(&r, NULL));
        assert_int_equal(r.batch->n_history_deltas, 1);
        assert_int_equal(r.batch->history_deltas[0].slot, 0);
        assert_int_equal(r.batch->history_deltas[0].start, starts[i]);
        assert_int_equal(r.batch->history_deltas[0].count, counts[i]);
    }
    rig_expect_whole(&r, request);
    mr_request_unref(plain);
    mr_request_unref(request);
    rig_close(&r);
}

static void test_scheduler_steps_do_not_allocate(void **state)
{
    (void)state;
    rig r;
    mr_scheduler_options options = rig_options();
    mr_request *requests[8];
    options.max_batch_tokens = 16;
    rig_open(&r, &options, 4, 20); /* short: preemptions too */
    mr_request_params params = rig_params(40);
    params.frequency_penalty = 0.5f;
    params.min_tokens = 30;
    for (size_t i = 0; i < 8; i++) {
        requests[i] = rig_request(&r, 5, &params);
    }
    const uint32_t before = allocations;
    for (size_t i = 0; i < 8; i++) {
        rig_submit(&r, requests[i]);
    }
    rig_run(&r);
    assert_int_equal(allocations, before);
    mr_scheduler_stats stats;
    mr_scheduler_stats_get(r.scheduler, &stats);
    assert_true(stats.preemptions > 0);
    for (size_t i = 0; i < 8; i++) {
        rig_expect_whole(&r, requests[i]);
        mr_request_unref(requests[i]);
    }
    rig_close(&r);
}

static void test_scheduler_steps_of_choices_and_searches_do_not_allocate(void **state)
{
    (void)state;
    rig r;
    mr_scheduler_options options = rig_options();
    mr_request *requests[8];
    options.max_batch_tokens = 16;
    options.max_batch_size = 8;
    rig_open(&r, &options, 4, 30);
    r.exec.real_top = true;
    for (uint32_t i = 0; i < 8; i++) {
        mr_request_params params = rig_params(20);
        params.frequency_penalty = 0.5f;
        params.prompt_logprobs = true;
        params.n = i % 3 + 1;
        params.beam_width = i % 4 == 3 ? 4 : 1;
        requests[i] = rig_request(&r, 5 + i, &params);
    }
    for (uint32_t i = 0; i < 8; i++) {
        rig_submit(&r, requests[i]); /* makes room for all choices */
    }
    const uint32_t before = allocations;
    rig_run(&r);
    assert_int_equal(allocations, before);
    assert_true(r.exec.n_copies > 0);
    for (uint32_t i = 0; i < 8; i++) {
        assert_int_equal(requests[i]->error.status, MR_OK);
        mr_request_unref(requests[i]);
    }
    rig_close(&r);
}

static void test_scheduler_refuses_bad_options(void **state)
{
    (void)state;
    mr_block_pool *pool = NULL;
    mr_scheduler *scheduler = NULL;
    mr_error err = {0};
    mr_scheduler_options options = rig_options();
    assert_int_equal(mr_block_pool_create(8, 4, &pool), MR_OK);
    options.prefill_interval = 0;
    assert_int_equal(mr_scheduler_create(&options, pool, &scheduler, &err), MR_INVALID_ARGUMENT);
    assert_string_equal(err.field, "prefill_interval");
    assert_null(scheduler);
    mr_block_pool_destroy(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scheduler_decodes_first_then_chunks_in_order_of_arrival),
        cmocka_unit_test(test_scheduler_token_budget_bounds_the_rows),
        cmocka_unit_test(test_scheduler_idle_engine_waits_for_companions),
        cmocka_unit_test(test_scheduler_window_closes_when_full),
        cmocka_unit_test(test_scheduler_prefill_interval_spaces_prefills),
        cmocka_unit_test(test_scheduler_ends_at_any_eos_of_the_union_T5),
        cmocka_unit_test(test_scheduler_ignore_eos_ignores_every_eos_T6),
        cmocka_unit_test(test_scheduler_min_tokens_bans_eos_until_then),
        cmocka_unit_test(test_scheduler_max_seq_length_ends_with_length),
        cmocka_unit_test(test_scheduler_rows_carry_the_parameters),
        cmocka_unit_test(test_scheduler_sends_history_for_penalties_only),
        cmocka_unit_test(test_scheduler_steps_do_not_allocate),
        cmocka_unit_test(test_scheduler_steps_of_choices_and_searches_do_not_allocate),
        cmocka_unit_test(test_scheduler_refuses_bad_options),
    };
    mr_log_set_level(MR_LOG_WARN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
