/* SPDX-License-Identifier: Apache-2.0 */
/* Short pools, full queues, slow readers. */
#include "base/log.h"
#include "rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define MS MR_NS_PER_MS

static uint64_t preemptions(const rig *r)
{
    mr_scheduler_stats stats;
    mr_scheduler_stats_get(r->scheduler, &stats);
    return stats.preemptions;
}

static void test_scheduler_preempts_the_newest_and_recomputes_M5(void **state)
{
    (void)state;
    rig r;
    const mr_scheduler_options options = rig_options();
    rig_open(&r, &options, 4, 7); /* 6 blocks of 4 tokens */
    mr_request *a = rig_add(&r, 3, 13);
    mr_request *b = rig_add(&r, 3, 12);
    for (uint32_t i = 0; i < 10; i++) {
        assert_true(rig_step(&r, NULL));
        assert_int_equal(r.batch->n_seqs, 2);
    }
    /* Both have 13 tokens and 3 full blocks now. */
    assert_true(rig_step(&r, NULL));
    assert_int_equal(r.batch->n_seqs, 1);
    assert_int_equal(r.batch->seq_slot[0], 0);
    assert_int_equal(rig_live_blocks(&r), 4);
    assert_int_equal(preemptions(&r), 1);
    assert_int_equal(a->usage.preemptions, 0);
    assert_int_equal(b->usage.preemptions, 1);
    mr_scheduler_stats stats;
    mr_scheduler_stats_get(r.scheduler, &stats);
    assert_int_equal(stats.preempted_tokens, 12); /* the 13th was not computed yet */
    assert_true(rig_step(&r, NULL));
    assert_true(rig_step(&r, NULL));
    assert_int_equal(mr_ring_count(&a->events), 13); /* a has ended */
    assert_true(rig_step(&r, NULL));
    assert_int_equal(r.batch->n_tokens, 8); /* the 13 tokens of b once more */
    assert_int_equal(r.batch->n_rows, 0);
    assert_true(rig_step(&r, NULL));
    assert_int_equal(r.batch->n_tokens, 5);
    assert_int_equal(r.batch->n_rows, 1);
    rig_run(&r);
    rig_expect_whole(&r, a);
    rig_expect_whole(&r, b);
    mr_request_unref(a);
    mr_request_unref(b);
    rig_close(&r);
}

static void test_scheduler_never_preempts_the_oldest_M1(void **state)
{
    (void)state;
    rig r;
    mr_scheduler_options options = rig_options();
    mr_request *requests[4];
    options.max_preemptions = 1000;
    rig_open(&r, &options, 4, 13);
    for (size_t i = 0; i < 4; i++) {
        requests[i] = rig_add(&r, 4, 40); /* 11 blocks each, of 12 */
    }
    while (!mr_scheduler_idle(r.scheduler)) {
        const mr_sequence *oldest =
            r.scheduler->running.count > 0 ? r.scheduler->running.items[0] : NULL;
        const uint32_t before = oldest == NULL ? 0 : oldest->preemptions;
        assert_true(rig_step(&r, NULL));
        if (oldest != NULL) {
            assert_int_equal(oldest->preemptions, before);
        }
    }
    assert_true(preemptions(&r) > 0);
    assert_int_equal(requests[0]->usage.preemptions, 0);
    for (size_t i = 0; i < 4; i++) {
        rig_expect_whole(&r, requests[i]);
        mr_request_unref(requests[i]);
    }
    rig_close(&r);
}

static void test_scheduler_overcommit_ends_and_bounds_preemptions_M1(void **state)
{
    (void)state;
    for (uint32_t bound = 0; bound <= 3; bound++) {
        rig r;
        mr_scheduler_options options = rig_options();
        mr_request *requests[6];
        options.max_preemptions = bound;
        options.max_batch_size = 6;
        rig_open(&r, &options, 4, 23); /* 22 blocks; 6 requests want 11 each: three times that */
        for (size_t i = 0; i < 6; i++) {
            requests[i] = rig_add(&r, 4 + (uint32_t)i % 2, 40);
        }
        rig_run(&r);
        for (size_t i = 0; i < 6; i++) {
            assert_true(requests[i]->usage.preemptions <= bound);
            rig_expect_whole(&r, requests[i]);
            mr_request_unref(requests[i]);
        }
        rig_close(&r);
    }
}

static void test_scheduler_one_that_outgrows_the_pool_alone_ends_M1(void **state)
{
    (void)state;
    rig r;
    const mr_scheduler_options options = rig_options();
    rig_open(&r, &options, 4, 5); /* 16 tokens */
    mr_request *big = rig_add(&r, 4, 60);
    mr_request *small = rig_add(&r, 4, 4);
    rig_run(&r);
    /* 16 tokens are computed, the 17th is drawn from them. */
    assert_int_equal(big->usage.completion_tokens, 13);
    rig_expect_end(big, MR_FINISH_ERROR, MR_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(big->error.message, "kv_cache_memory"));
    assert_false(big->reader_lost);
    assert_int_equal(small->usage.finish, MR_FINISH_LENGTH);
    rig_expect_whole(&r, small);
    mr_request_unref(big);
    mr_request_unref(small);
    rig_close(&r);
}

static void test_scheduler_admits_whole_prompts_and_a_block_M3(void **state)
{
    (void)state;
    rig r;
    const mr_scheduler_options options = rig_options();
    rig_open(&r, &options, 4, 6);       /* 5 blocks */
    mr_request *a = rig_add(&r, 7, 2);  /* 2 blocks */
    mr_request *b = rig_add(&r, 12, 2); /* 3 blocks, which are free, but not a fourth */
    assert_true(rig_step(&r, NULL));
    assert_int_equal(r.batch->n_seqs, 1);
    assert_true(rig_step(&r, NULL));
    assert_int_equal(r.batch->n_seqs, 1);
    assert_true(rig_step(&r, NULL)); /* a has ended */
    assert_int_equal(r.batch->n_tokens, 8);
    rig_run(&r);
    rig_expect_whole(&r, a);
    rig_expect_whole(&r, b);
    assert_int_equal(preemptions(&r), 0);
    mr_request_unref(a);
    mr_request_unref(b);
    rig_close(&r);
}

static void test_scheduler_prompt_that_fills_the_pool_is_served_M3(void **state)
{
    (void)state;
    rig r;
    const mr_scheduler_options options = rig_options();
    rig_open(&r, &options, 4, 3); /* 8 tokens: no block more than the prompt's can ever be free */
    mr_request *request = rig_add(&r, 7, 2);
    rig_run(&r);
    rig_expect_whole(&r, request);
    mr_request_unref(request);
    rig_close(&r);
}

static void test_scheduler_refuses_prompts_over_the_limits_M4(void **state)
{
    (void)state;
    rig r;
    const mr_scheduler_options options = rig_options();
    rig_open(&r, &options, 4, 11); /* 40 tokens */
    mr_request *refused[3] = {
        rig_add(&r, 64, 1), /* max_seq_length, and no output */
        rig_add(&r, 40, 1), /* the pool, and no output */
    };
    const mr_request_params params = rig_params(1);
    refused[2] = rig_request(&r, 4, &params);
    refused[2]->prompt[1] = options.vocab_size;
    rig_submit(&r, refused[2]);
    mr_request *served = rig_add(&r, 39, 1);
    rig_run(&r);
    assert_non_null(strstr(refused[0]->error.message, "64"));
    for (size_t i = 0; i < 3; i++) {
        assert_string_equal(refused[i]->error.field, "prompt");
        rig_expect_end(refused[i], MR_FINISH_ERROR, MR_INVALID_ARGUMENT);
        mr_request_unref(refused[i]);
    }
    rig_expect_whole(&r, served);
    mr_request_unref(served);
    rig_close(&r);
}

static void test_scheduler_full_queue_refuses_with_a_retry_time(void **state)
{
    (void)state;
    rig r;
    mr_scheduler_options options = rig_options();
    mr_request *requests[20];
    options.max_batch_size = 1;
    options.max_queue = 2;
    rig_open(&r, &options, 4, 65);
    for (size_t i = 0; i < 20; i++) { /* many more refusals than news are held */
        requests[i] = rig_add(&r, 2, 3);
    }
    rig_run(&r);
    for (size_t i = 0; i < 20; i++) {
        if (i < 3) {
            rig_expect_whole(&r, requests[i]);
        } else {
            assert_true(requests[i]->error.retry_after_ms > 0);
            rig_expect_end(requests[i], MR_FINISH_ERROR, MR_RESOURCE_EXHAUSTED);
        }
        mr_request_unref(requests[i]);
    }
    assert_int_equal(r.published, 17 + 3 * 3);
    rig_close(&r);
}

/* Adds a request whose ring has two entries: one token, and the reserve. */
static mr_request *add_with_small_ring(rig *r, uint32_t max_tokens)
{
    static const uint32_t prompt[] = {5, 6, 7};
    mr_request *request = NULL;
    const mr_request_spec spec = {
        .id = "slow",
        .prompt = prompt,
        .n_prompt = 3,
        .params = rig_params(max_tokens),
        .arrived_ns = r->now_ns,
        .deadline_ns = MR_NEVER,
        .sink = &r->sink,
        .ring_capacity = 2,
    };
    assert_int_equal(mr_request_create(&spec, &request, NULL), MR_OK);
    rig_submit(r, request);
    return request;
}

static void test_scheduler_pauses_for_a_slow_reader_and_goes_on(void **state)
{
    (void)state;
    rig r;
    const mr_scheduler_options options = rig_options();
    rig_open(&r, &options, 4, 65);
    mr_request *slow = add_with_small_ring(&r, 3);
    mr_request *other = rig_add(&r, 3, 6);
    assert_true(rig_step(&r, NULL));
    assert_int_equal(r.batch->n_seqs, 2);
    for (uint32_t i = 0; i < 3; i++) {
        assert_true(rig_step(&r, NULL)); /* the other notices nothing */
        assert_int_equal(r.batch->n_seqs, 1);
    }
    scripted_result expected;
    scripted_output(&r.options, slow, 0, &expected);
    for (uint32_t i = 0; i < 3; i++) {
        const rig_event event = rig_read(slow);
        assert_int_equal(event.token, expected.tokens[i]);
        assert_int_equal(event.finish, i == 2 ? MR_FINISH_LENGTH : MR_FINISH_NONE);
        rig_step(&r, NULL);
    }
    rig_run(&r);
    rig_expect_whole(&r, other);
    mr_request_unref(slow);
    mr_request_unref(other);
    rig_close(&r);
}

static void test_scheduler_ends_a_reader_that_stays_slow(void **state)
{
    (void)state;
    rig r;
    const mr_scheduler_options options = rig_options();
    rig_open(&r, &options, 4, 65);
    mr_request *slow = add_with_small_ring(&r, 30);
    assert_true(rig_step(&r, NULL));
    const uint64_t paused_ns = r.now_ns;
    assert_false(rig_step(&r, NULL));
    /* Nobody announces that entries were taken: it looks again soon, and at the limit. */
    assert_true(r.wake_ns > r.now_ns && r.wake_ns <= r.now_ns + 10 * MS);
    r.now_ns = paused_ns + options.slow_reader_timeout_ns - 1;
    assert_false(rig_step(&r, NULL));
    assert_true(r.wake_ns == paused_ns + options.slow_reader_timeout_ns);
    assert_int_equal(rig_live_blocks(&r), 1);
    r.now_ns = r.wake_ns;
    assert_false(rig_step(&r, NULL));
    assert_true(mr_scheduler_idle(r.scheduler));
    assert_non_null(strstr(slow->error.message, "slow reader"));
    assert_true(slow->reader_lost);
    assert_int_equal(slow->usage.finish, MR_FINISH_ERROR);
    assert_int_equal(mr_ring_count(&slow->events), 2); /* the last event has its place */
    rig_expect_end(slow, MR_FINISH_ERROR, MR_RESOURCE_EXHAUSTED);
    mr_request_unref(slow);
    rig_close(&r);
}

static void test_scheduler_paused_sequence_yields_its_blocks_first(void **state)
{
    (void)state;
    rig r;
    const mr_scheduler_options options = rig_options();
    rig_open(&r, &options, 4, 4); /* 3 blocks */
    mr_request *slow = add_with_small_ring(&r, 8);
    mr_request *other = rig_add(&r, 2, 10);
    for (uint32_t i = 0; i < 10; i++) {
        assert_true(rig_step(&r, NULL));
    }
    rig_expect_whole(&r, other);
    assert_int_equal(other->usage.preemptions, 0);
    assert_int_equal(slow->usage.preemptions, 1);
    assert_false(rig_step(&r, NULL)); /* waits, not admitted before its reader has read */
    assert_int_equal(rig_live_blocks(&r), 0);
    scripted_result expected;
    scripted_output(&r.options, slow, 0, &expected);
    for (uint32_t i = 0; i < 8; i++) {
        assert_int_equal(rig_read(slow).token, expected.tokens[i]);
        rig_step(&r, NULL);
    }
    mr_request_unref(slow);
    mr_request_unref(other);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scheduler_preempts_the_newest_and_recomputes_M5),
        cmocka_unit_test(test_scheduler_never_preempts_the_oldest_M1),
        cmocka_unit_test(test_scheduler_overcommit_ends_and_bounds_preemptions_M1),
        cmocka_unit_test(test_scheduler_one_that_outgrows_the_pool_alone_ends_M1),
        cmocka_unit_test(test_scheduler_admits_whole_prompts_and_a_block_M3),
        cmocka_unit_test(test_scheduler_prompt_that_fills_the_pool_is_served_M3),
        cmocka_unit_test(test_scheduler_refuses_prompts_over_the_limits_M4),
        cmocka_unit_test(test_scheduler_full_queue_refuses_with_a_retry_time),
        cmocka_unit_test(test_scheduler_pauses_for_a_slow_reader_and_goes_on),
        cmocka_unit_test(test_scheduler_ends_a_reader_that_stays_slow),
        cmocka_unit_test(test_scheduler_paused_sequence_yields_its_blocks_first),
    };
    mr_log_set_level(MR_LOG_WARN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
