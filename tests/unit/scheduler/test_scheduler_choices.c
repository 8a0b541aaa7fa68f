/* SPDX-License-Identifier: Apache-2.0 */
/* Several choices a request, logprobs of prompts, time limits, and the guard against stalls. */
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

static mr_request *add_choices(rig *r, uint32_t n_prompt, uint32_t max_tokens, uint32_t n)
{
    mr_request_params params = rig_params(max_tokens);
    params.n = n;
    mr_request *request = rig_request(r, n_prompt, &params);
    rig_submit(r, request);
    return request;
}

static void test_choices_begin_in_one_step_and_share_blocks_D2(void **state)
{
    (void)state;
    rig r;
    mr_scheduler_options options = rig_options();
    options.max_batch_tokens = 16;
    rig_open(&r, &options, 4, 65);
    mr_request *request = add_choices(&r, 10, 6, 3);
    assert_true(rig_step(&r, NULL));
    assert_int_equal(r.batch->n_tokens, 10);
    assert_int_equal(r.batch->n_rows, 3);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(r.batch->logit_rows[i], 9);
        assert_int_equal(r.batch->row_params[i].choice, i);
        assert_true(r.batch->row_params[i].key == request->key);
    }
    /* Two full blocks of the prompt for all, and one each for what follows. */
    assert_int_equal(rig_live_blocks(&r), 2 + 3);
    assert_true(rig_step(&r, NULL));
    assert_int_equal(r.batch->n_tokens, 3);
    assert_int_equal(r.batch->n_seqs, 3);
    assert_int_equal(r.exec.n_copies, 2);
    mr_scheduler_stats stats;
    mr_scheduler_stats_get(r.scheduler, &stats);
    assert_int_equal(stats.running, 1); /* requests */
    assert_int_equal(stats.waiting, 0);
    rig_run(&r);
    assert_int_equal(request->usage.prompt_tokens, 10);
    assert_int_equal(request->usage.completion_tokens, 18);
    rig_expect_whole(&r, request);
    mr_scheduler_stats_get(r.scheduler, &stats);
    assert_int_equal(stats.started, 1);
    assert_int_equal(stats.finished[MR_FINISH_LENGTH], 1);
    assert_int_equal(stats.prompt_tokens, 10);
    assert_int_equal(stats.generated_tokens, 18);
    mr_request_unref(request);
    rig_close(&r);
}

static void test_choices_beyond_the_slots_compute_the_prompt_themselves(void **state)
{
    (void)state;
    rig r;
    mr_scheduler_options options = rig_options();
    options.max_batch_size = 3;
    for (uint32_t rows = 0; rows <= 12; rows += 4) {
        options.max_rows = rows;
        rig_open(&r, &options, 4, 65);
        mr_request *request = add_choices(&r, 7, 9, 10);
        rig_run(&r);
        assert_int_equal(request->usage.preemptions, 0);
        rig_expect_whole(&r, request);
        mr_request_unref(request);
        rig_close(&r);
    }
}

static void test_choices_with_penalties_have_their_history(void **state)
{
    (void)state;
    rig r;
    mr_scheduler_options options = rig_options();
    mr_request_params params = rig_params(12);
    params.n = 4;
    params.presence_penalty = 0.5f;
    rig_open(&r, &options, 4, 65);
    mr_request *request = rig_request(&r, 9, &params);
    rig_submit(&r, request);
    rig_run(&r);
    rig_expect_whole(&r, request);
    mr_request_unref(request);
    rig_close(&r);
}

static void test_choices_are_preempted_alone_and_recomputed_M1(void **state)
{
    (void)state;
    for (uint32_t bound = 0; bound <= 2; bound++) {
        rig r;
        mr_scheduler_options options = rig_options();
        options.max_preemptions = bound;
        rig_open(&r, &options, 4, 12);
        mr_request *request = add_choices(&r, 6, 24, 4); /* four times 8 blocks, of 11 */
        mr_request *other = rig_add(&r, 5, 20);
        rig_run(&r);
        assert_true(request->usage.preemptions <= 4 * bound);
        assert_true(bound == 0 || request->usage.preemptions > 0);
        rig_expect_whole(&r, request);
        rig_expect_whole(&r, other);
        mr_request_unref(request);
        mr_request_unref(other);
        rig_close(&r);
    }
}

static void test_choices_end_together_when_cancelled_C1(void **state)
{
    (void)state;
    rig r;
    mr_scheduler_options options = rig_options();
    options.max_batch_size = 3;
    rig_open(&r, &options, 4, 65);
    for (uint32_t steps = 0; steps < 6; steps++) {
        mr_request *request = add_choices(&r, 10, 20, 5);
        for (uint32_t i = 0; i < steps; i++) {
            assert_true(rig_step(&r, NULL));
        }
        mr_flag_set(&request->cancelled);
        assert_false(rig_step(&r, NULL));
        assert_true(mr_scheduler_idle(r.scheduler));
        assert_int_equal(rig_live_blocks(&r), 0);
        rig_expect_end(request, MR_FINISH_CANCELLED, MR_CANCELLED);
        mr_request_unref(request);
    }
    rig_close(&r);
}

static void test_choices_a_damaged_row_ends_the_request(void **state)
{
    (void)state;
    rig r;
    mr_scheduler_options options = rig_options();
    options.max_batch_tokens = 16;
    rig_open(&r, &options, 4, 65);
    mr_request *request = add_choices(&r, 10, 20, 3);
    mr_request *other = rig_add(&r, 2, 4);
    r.exec.corrupt_at = 13;
    rig_run(&r);
    rig_expect_end(request, MR_FINISH_ERROR, MR_INTERNAL);
    rig_expect_whole(&r, other);
    mr_request_unref(request);
    mr_request_unref(other);
    rig_close(&r);
}

static void test_choices_refused_have_a_last_event_each(void **state)
{
    (void)state;
    rig r;
    const mr_scheduler_options options = rig_options();
    rig_open(&r, &options, 4, 65);
    mr_request *request = add_choices(&r, 64, 1, 5);
    rig_expect_end(request, MR_FINISH_ERROR, MR_INVALID_ARGUMENT);
    mr_scheduler_publish(r.scheduler);
    mr_request_unref(request);
    rig_close(&r);
}

static void test_choices_pause_for_a_slow_reader_S8(void **state)
{
    (void)state;
    rig r;
    mr_scheduler_options options = rig_options();
    mr_request_spec spec = {.params = rig_params(12), .ring_capacity = 1};
    spec.params.n = 3;
    rig_open(&r, &options, 4, 65);
    mr_request *slow = rig_request_of(&r, 3, &spec);
    assert_int_equal(slow->events.capacity, 8); /* two for each choice, as a power of two */
    rig_submit(&r, slow);
    mr_request *other = rig_add(&r, 3, 20);
    for (uint32_t i = 0; i < 18; i++) {
        assert_true(rig_step(&r, NULL)); /* the other notices nothing */
    }
    assert_int_equal(mr_ring_count(&slow->events), 3);
    assert_int_equal(mr_ring_count(&other->events), 18);
    scripted_result expected[3];
    uint32_t n_read[3] = {0};
    for (uint32_t c = 0; c < 3; c++) {
        scripted_output(&r.options, slow, c, &expected[c]);
    }
    for (uint32_t i = 0; i < 36; i++) {
        const rig_event event = rig_read(slow);
        rig_expect_event(&event, &expected[event.choice], n_read[event.choice]++);
        rig_step(&r, NULL);
    }
    rig_run(&r);
    assert_int_equal(mr_ring_count(&slow->events), 0);
    mr_request_unref(slow);
    mr_request_unref(other);
    rig_close(&r);
}

static void test_choices_of_a_reader_that_stays_slow_all_end_S8(void **state)
{
    (void)state;
    rig r;
    const mr_scheduler_options options = rig_options();
    mr_request_spec spec = {.params = rig_params(12), .ring_capacity = 1};
    spec.params.n = 4;
    rig_open(&r, &options, 4, 65);
    mr_request *slow = rig_request_of(&r, 3, &spec);
    rig_submit(&r, slow);
    assert_true(rig_step(&r, NULL));
    assert_false(rig_step(&r, NULL));
    r.now_ns += options.slow_reader_timeout_ns;
    assert_false(rig_step(&r, NULL));
    assert_int_equal(mr_ring_count(&slow->events), 8);
    rig_expect_end(slow, MR_FINISH_ERROR, MR_RESOURCE_EXHAUSTED);
    mr_request_unref(slow);
    rig_close(&r);
}

static void test_choices_request_in_a_reused_slot_is_as_on_a_fresh_server_C7(void **state)
{
    (void)state;
    rig r;
    mr_scheduler_options options = rig_options();
    rig_open(&r, &options, 4, 65);
    for (uint32_t steps = 1; steps < 8; steps++) {
        mr_request *cancelled = add_choices(&r, 13, 20, 4);
        for (uint32_t i = 0; i < steps; i++) {
            assert_true(rig_step(&r, NULL));
        }
        mr_flag_set(&cancelled->cancelled);
        mr_request *next = add_choices(&r, 11, 15, 3);
        rig_run(&r);
        rig_expect_whole(&r, next);
        mr_request_unref(cancelled);
        mr_request_unref(next);
    }
    rig_close(&r);
}

/* ---- bias, logprobs, limits ---- */

static void test_choices_rows_carry_bias_and_bans_T6(void **state)
{
    (void)state;
    rig r;
    mr_scheduler_options options = rig_options();
    const uint32_t bias_tokens[] = {20, 21};
    const float bias_values[] = {1.5f, -INFINITY};
    const uint32_t stops[] = {30};
    mr_request_spec spec = {
        .params = rig_params(5),
        .bias_tokens = bias_tokens,
        .bias_values = bias_values,
        .n_bias = 2,
        .stop_tokens = stops,
        .n_stop_tokens = 1,
    };
    spec.params.min_tokens = 1;
    spec.params.n = 2;
    rig_open(&r, &options, 4, 65);
    mr_request *request = rig_request_of(&r, 3, &spec);
    rig_submit(&r, request);
    assert_true(rig_step(&r, NULL));
    const uint32_t banned[] = {20, 21, 30}; /* end tokens are ignored, so they are not banned */
    for (uint32_t i = 0; i < 2; i++) {
        const mr_row_params *row = &r.batch->row_params[i];
        assert_int_equal(row->bias_count, 3);
        assert_memory_equal(r.batch->bias_tokens + row->bias_offset, banned, sizeof(banned));
        assert_true(r.batch->bias_values[row->bias_offset] == 1.5f);
        assert_true(r.batch->bias_values[row->bias_offset + 2] == -INFINITY);
    }
    assert_true(rig_step(&r, NULL));
    assert_int_equal(r.batch->row_params[0].bias_count, 2);
    assert_memory_equal(r.batch->bias_tokens + r.batch->row_params[0].bias_offset, banned, 8);
    rig_run(&r);
    mr_request_unref(request);
    rig_close(&r);
}

static void test_choices_refuses_ids_beyond_the_vocabulary(void **state)
{
    (void)state;
    rig r;
    const mr_scheduler_options options = rig_options();
    const uint32_t id = options.vocab_size;
    const float value = 1.0f;
    static const char *const strings[] = {"a"};
    rig_open(&r, &options, 4, 65);
    const char *const fields[] = {"logit_bias", "stop_token_ids", "stop"};
    for (uint32_t i = 0; i < 3; i++) {
        mr_request_spec spec = {.params = rig_params(5), .bias_tokens = &id, .stop_tokens = &id};
        spec.bias_values = &value;
        spec.n_bias = i == 0;
        spec.n_stop_tokens = i == 1;
        spec.stop = i == 2 ? rig_stop(strings, 1) : NULL; /* and the model has no tokenizer */
        mr_request *request = rig_request_of(&r, 3, &spec);
        rig_submit(&r, request);
        assert_string_equal(request->error.field, fields[i]);
        rig_expect_end(request, MR_FINISH_ERROR,
                       i == 2 ? MR_FAILED_PRECONDITION : MR_INVALID_ARGUMENT);
        mr_scheduler_publish(r.scheduler);
        mr_request_unref(request);
    }
    rig_close(&r);
}

static void expect_scores(const rig *r, const mr_request *request)
{
    assert_int_equal(request->n_prompt_scored, request->n_prompt);
    for (uint32_t i = 1; i < request->n_prompt; i++) {
        float d[1000];
        scripted_distribution(request->prompt, i, r->options.vocab_size, NULL, 0, d);
        const mr_alternative *top = request->prompt_top + i * request->params.top_logprobs;
        assert_true(request->prompt_logprobs[i].logprob == d[request->prompt[i]]);
        assert_int_equal(request->prompt_logprobs[i].n_top, 2);
        assert_true(top[0].logprob >= top[1].logprob && d[top[1].token] == top[1].logprob);
    }
}

static void test_choices_prompt_logprobs_over_chunks_and_few_rows(void **state)
{
    (void)state;
    for (uint32_t rows = 4; rows <= 40; rows += 6) {
        rig r;
        mr_scheduler_options options = rig_options();
        options.max_batch_tokens = 13;
        options.max_rows = rows;
        mr_request_params params = rig_params(4);
        params.prompt_logprobs = true;
        params.logprobs = true;
        params.top_logprobs = 2;
        params.n = 2;
        rig_open(&r, &options, 4, 65);
        r.exec.real_top = true;
        mr_request *neighbour = rig_add(&r, 2, 20);
        mr_request *request = rig_request(&r, 30, &params);
        mr_request *one = rig_request(&r, 1, &params);
        rig_submit(&r, request);
        rig_submit(&r, one);
        while (mr_ring_count(&request->events) == 0) {
            assert_true(rig_step(&r, NULL));
        }
        expect_scores(&r, request); /* with the first event */
        rig_run(&r);
        assert_int_equal(one->n_prompt_scored, 1);
        mr_request *const all[] = {neighbour, request, one};
        for (size_t i = 0; i < 3; i++) {
            rig_expect_whole(&r, all[i]);
            mr_request_unref(all[i]);
        }
        rig_close(&r);
    }
}

static void test_choices_prompt_logprobs_survive_a_preemption(void **state)
{
    (void)state;
    rig r;
    mr_scheduler_options options = rig_options();
    mr_request_params params = rig_params(4);
    params.prompt_logprobs = true;
    params.top_logprobs = 2;
    options.max_batch_tokens = 3;
    rig_open(&r, &options, 4, 10); /* 9 blocks */
    r.exec.real_top = true;
    mr_request *older = rig_add(&r, 3, 30); /* 8 of them in the end */
    assert_true(rig_step(&r, NULL));
    mr_request *request = rig_request(&r, 24, &params);
    rig_submit(&r, request);
    rig_run(&r);
    rig_expect_whole(&r, older);
    rig_expect_whole(&r, request);
    expect_scores(&r, request);
    assert_true(request->usage.preemptions > 0);
    mr_request_unref(older);
    mr_request_unref(request);
    rig_close(&r);
}

static void test_choices_cumulative_logprob_is_the_sum(void **state)
{
    (void)state;
    rig r;
    mr_scheduler_options options = rig_options();
    mr_request_params params = rig_params(9);
    params.logprobs = true;
    params.n = 2;
    rig_open(&r, &options, 4, 65);
    mr_request *request = rig_request(&r, 3, &params);
    rig_submit(&r, request);
    rig_run(&r);
    double sums[2] = {0, 0};
    for (uint32_t i = 0; i < 18; i++) {
        const rig_event event = rig_read(request);
        assert_true(event.logprob == -0.5f * (float)event.token);
        sums[event.choice] += (double)event.logprob;
        assert_true(event.cumulative == sums[event.choice]);
    }
    mr_request_unref(request);
    rig_close(&r);
}

static void test_choices_time_limit_keeps_what_was_produced(void **state)
{
    (void)state;
    rig r;
    mr_scheduler_options options = rig_options();
    mr_request_params params = rig_params(40);
    params.time_limit_ns = 10 * MS;
    params.n = 2;
    rig_open(&r, &options, 4, 65);
    mr_request *request = rig_request(&r, 3, &params);
    rig_submit(&r, request);
    for (uint32_t i = 0; i < 10; i++) {
        assert_true(rig_step(&r, NULL)); /* a millisecond each */
    }
    assert_false(rig_step(&r, NULL));
    assert_int_equal(request->usage.completion_tokens, 20);
    rig_expect_end(request, MR_FINISH_TIME_LIMIT, MR_OK);
    mr_request_unref(request);
    rig_close(&r);
}

static void test_choices_time_limit_holds_while_queued(void **state)
{
    (void)state;
    rig r;
    mr_scheduler_options options = rig_options();
    mr_request_params params = rig_params(40);
    params.time_limit_ns = 10 * MS;
    options.batch_timeout_ns = 50 * MS;
    rig_open(&r, &options, 4, 65);
    mr_request *request = rig_request(&r, 3, &params);
    rig_submit(&r, request);
    assert_false(rig_step(&r, NULL));
    assert_true(r.wake_ns == request->arrived_ns + 10 * MS);
    r.now_ns = r.wake_ns;
    assert_false(rig_step(&r, NULL));
    rig_expect_end(request, MR_FINISH_TIME_LIMIT, MR_OK);
    mr_request_unref(request);
    rig_close(&r);
}

/* No way leads there, so the blocks are stolen. */
static void test_choices_nothing_to_plan_twice_ends_the_newest_M2(void **state)
{
    (void)state;
    rig r;
    mr_scheduler_options options = rig_options();
    uint32_t stolen[64];
    options.max_preemptions = 1;
    rig_open(&r, &options, 4, 65);
    mr_request *a = rig_add(&r, 3, 20);
    mr_request *b = rig_add(&r, 3, 20);
    assert_true(rig_step(&r, NULL));
    a->group->sequences[0].preemptions = 1; /* neither may be preempted, and both want a block */
    b->group->sequences[0].preemptions = 1;
    const uint32_t n = mr_block_pool_available(r.pool);
    assert_int_equal(mr_block_pool_alloc(r.pool, n, stolen), MR_OK);
    assert_true(rig_step(&r, NULL));
    assert_false(rig_step(&r, NULL));
    assert_true(r.wake_ns == r.now_ns); /* look again, do not sleep */
    assert_int_equal(mr_ring_count(&b->events), 2);
    assert_false(rig_step(&r, NULL));
    rig_expect_end(b, MR_FINISH_ERROR, MR_INTERNAL);
    for (uint32_t i = 0; i < n; i++) {
        mr_block_pool_unref(r.pool, stolen[i]);
    }
    rig_run(&r);
    rig_expect_whole(&r, a);
    mr_request_unref(a);
    mr_request_unref(b);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_choices_begin_in_one_step_and_share_blocks_D2),
        cmocka_unit_test(test_choices_beyond_the_slots_compute_the_prompt_themselves),
        cmocka_unit_test(test_choices_with_penalties_have_their_history),
        cmocka_unit_test(test_choices_are_preempted_alone_and_recomputed_M1),
        cmocka_unit_test(test_choices_end_together_when_cancelled_C1),
        cmocka_unit_test(test_choices_a_damaged_row_ends_the_request),
        cmocka_unit_test(test_choices_refused_have_a_last_event_each),
        cmocka_unit_test(test_choices_pause_for_a_slow_reader_S8),
        cmocka_unit_test(test_choices_of_a_reader_that_stays_slow_all_end_S8),
        cmocka_unit_test(test_choices_request_in_a_reused_slot_is_as_on_a_fresh_server_C7),
        cmocka_unit_test(test_choices_rows_carry_bias_and_bans_T6),
        cmocka_unit_test(test_choices_refuses_ids_beyond_the_vocabulary),
        cmocka_unit_test(test_choices_prompt_logprobs_over_chunks_and_few_rows),
        cmocka_unit_test(test_choices_prompt_logprobs_survive_a_preemption),
        cmocka_unit_test(test_choices_cumulative_logprob_is_the_sum),
        cmocka_unit_test(test_choices_time_limit_keeps_what_was_produced),
        cmocka_unit_test(test_choices_time_limit_holds_while_queued),
        cmocka_unit_test(test_choices_nothing_to_plan_twice_ends_the_newest_M2),
    };
    mr_log_set_level((mr_log_level)(MR_LOG_ERROR + 1));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
