/* SPDX-License-Identifier: Apache-2.0 */
/* How requests end from outside, by cancel, deadline, failure and the end of all, and who is told;
 * in virtual time, a step is a millisecond. */
#include "base/log.h"
#include "rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define MS MR_NS_PER_MS

static void test_scheduler_cancel_between_prefill_chunks_C2(void **state)
{
    (void)state;
    rig r;
    const mr_scheduler_options options = rig_options();
    rig_open(&r, &options, 4, 65);
    mr_request *running = rig_add(&r, 40, 4);
    mr_request *queued = rig_add(&r, 40, 4);
    assert_true(rig_step(&r, NULL));
    assert_int_equal(rig_live_blocks(&r), 10);
    mr_flag_set(&queued->cancelled);
    mr_flag_set(&running->cancelled);
    assert_false(mr_scheduler_plan(r.scheduler, r.now_ns, r.storages[0], &r.wake_ns));
    assert_int_equal(rig_live_blocks(&r), 0); /* as soon as plan() returns */
    assert_true(r.wake_ns == MR_NEVER);
    mr_scheduler_publish(r.scheduler);
    rig_expect_end(running, MR_FINISH_CANCELLED, MR_CANCELLED);
    rig_expect_end(queued, MR_FINISH_CANCELLED, MR_CANCELLED);
    assert_int_equal(queued->usage.scheduled_ns, 0);
    mr_request_unref(running);
    mr_request_unref(queued);
    rig_close(&r);
}

static void test_scheduler_request_after_a_cancel_is_as_on_a_fresh_server_C7(void **state)
{
    (void)state;
    rig r;
    const mr_scheduler_options options = rig_options();
    mr_request_params params = rig_params(30);
    params.repetition_penalty = 1.5f;
    rig_open(&r, &options, 4, 65);
    for (uint32_t steps = 1; steps < 12; steps++) {
        mr_request *cancelled = rig_request(&r, 30, &params);
        rig_submit(&r, cancelled);
        for (uint32_t i = 0; i < steps; i++) {
            assert_true(rig_step(&r, NULL));
        }
        mr_flag_set(&cancelled->cancelled);
        mr_request *next = rig_request(&r, 20, &params);
        rig_submit(&r, next);
        rig_run(&r);
        assert_int_equal(next->usage.completion_tokens, 30);
        rig_expect_whole(&r, next);
        mr_request_unref(cancelled);
        mr_request_unref(next);
    }
    rig_close(&r);
}

static void test_scheduler_deadline_holds_while_queued_and_running(void **state)
{
    (void)state;
    rig r;
    mr_scheduler_options options = rig_options();
    const mr_request_params params = rig_params(40);
    options.max_batch_size = 1;
    rig_open(&r, &options, 4, 65);
    mr_request *running = rig_request(&r, 2, &params);
    mr_request *queued = rig_request(&r, 2, &params);
    running->deadline_ns = r.now_ns + 20 * MS;
    queued->deadline_ns = r.now_ns + 10 * MS;
    rig_submit(&r, running);
    rig_submit(&r, queued);
    for (uint32_t i = 0; i < 10; i++) {
        assert_true(rig_step(&r, NULL)); /* a millisecond each */
    }
    assert_int_equal(mr_ring_count(&queued->events), 0);
    assert_true(rig_step(&r, NULL));
    rig_expect_end(queued, MR_FINISH_TIME_LIMIT, MR_DEADLINE_EXCEEDED);
    r.now_ns = running->deadline_ns;
    assert_false(rig_step(&r, NULL));
    rig_expect_end(running, MR_FINISH_TIME_LIMIT, MR_DEADLINE_EXCEEDED);
    assert_int_equal(running->usage.completion_tokens, 11);
    mr_request_unref(running);
    mr_request_unref(queued);
    rig_close(&r);
}

static void test_scheduler_wakes_for_a_deadline_inside_the_window(void **state)
{
    (void)state;
    rig r;
    mr_scheduler_options options = rig_options();
    const mr_request_params params = rig_params(4);
    options.batch_timeout_ns = 50 * MS;
    rig_open(&r, &options, 4, 65);
    mr_request *request = rig_request(&r, 2, &params);
    request->deadline_ns = r.now_ns + 30 * MS;
    rig_submit(&r, request);
    assert_false(rig_step(&r, NULL));
    assert_true(r.wake_ns == request->deadline_ns);
    r.now_ns = r.wake_ns;
    assert_false(rig_step(&r, NULL));
    rig_expect_end(request, MR_FINISH_TIME_LIMIT, MR_DEADLINE_EXCEEDED);
    mr_request_unref(request);
    rig_close(&r);
}

static void test_scheduler_publishes_once_a_sink(void **state)
{
    (void)state;
    rig r;
    rig other = {0};
    const mr_scheduler_options options = rig_options();
    mr_request *requests[4];
    rig_open(&r, &options, 4, 65);
    other.sink.publish = r.sink.publish;
    const mr_request_params params = rig_params(2);
    for (size_t i = 0; i < 4; i++) {
        requests[i] = rig_request(&r, 2, &params);
        requests[i]->sink = i % 2 == 0 ? &r.sink : &other.sink;
        rig_submit(&r, requests[i]);
    }
    assert_true(rig_step(&r, NULL));
    assert_int_equal(r.publishes, 1);
    assert_int_equal(r.published, 2);
    assert_int_equal(other.publishes, 1);
    assert_int_equal(other.published, 2);
    mr_scheduler_publish(r.scheduler); /* no news */
    assert_int_equal(r.publishes, 1);
    assert_true(rig_step(&r, NULL));
    assert_int_equal(r.published, 4);
    for (size_t i = 0; i < 4; i++) {
        rig_expect_whole(&r, requests[i]);
        mr_request_unref(requests[i]); /* the last reference: the scheduler dropped its own */
    }
    rig_close(&r);
}

static void test_scheduler_corrupt_row_ends_its_request_only(void **state)
{
    (void)state;
    rig r;
    const mr_scheduler_options options = rig_options();
    rig_open(&r, &options, 4, 65);
    mr_request *a = rig_add(&r, 5, 6);
    mr_request *b = rig_add(&r, 1, 3); /* ends before position 7 */
    r.exec.corrupt_at = 7;
    rig_run(&r);
    assert_int_equal(a->usage.completion_tokens, 2);
    rig_expect_end(a, MR_FINISH_ERROR, MR_INTERNAL);
    rig_expect_whole(&r, b);
    mr_request_unref(a);
    mr_request_unref(b);
    rig_close(&r);
}

static void test_scheduler_fail_ends_everything(void **state)
{
    (void)state;
    rig r;
    mr_scheduler_options options = rig_options();
    mr_error err = {0};
    options.max_batch_size = 1;
    rig_open(&r, &options, 4, 65);
    mr_request *running = rig_add(&r, 2, 5);
    mr_request *queued = rig_add(&r, 2, 5);
    assert_true(rig_step(&r, NULL));
    assert_true(mr_scheduler_plan(r.scheduler, r.now_ns, r.storages[0], &r.wake_ns));
    mr_fail(&err, MR_INTERNAL, "a cable is loose");
    mr_scheduler_fail(r.scheduler, &err, r.now_ns);
    mr_scheduler_publish(r.scheduler);
    rig_expect_end(running, MR_FINISH_ERROR, MR_INTERNAL);
    assert_string_equal(running->error.message, "a cable is loose");
    rig_expect_end(queued, MR_FINISH_ERROR, MR_UNAVAILABLE);
    mr_request_unref(running);
    mr_request_unref(queued);
    rig_close(&r);
}

static void test_scheduler_destroy_cancels_what_is_left(void **state)
{
    (void)state;
    rig r;
    mr_scheduler_options options = rig_options();
    options.max_batch_size = 1;
    rig_open(&r, &options, 4, 65);
    mr_request *running = rig_add(&r, 2, 5);
    mr_request *queued = rig_add(&r, 2, 5);
    assert_true(rig_step(&r, NULL));
    mr_scheduler_destroy(r.scheduler);
    r.scheduler = NULL;
    assert_int_equal(rig_live_blocks(&r), 0);
    rig_expect_end(running, MR_FINISH_CANCELLED, MR_CANCELLED);
    rig_expect_end(queued, MR_FINISH_CANCELLED, MR_CANCELLED);
    mr_request_unref(running);
    mr_request_unref(queued);
    assert_int_equal(mr_scheduler_create(&options, r.pool, &r.scheduler, NULL), MR_OK);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scheduler_cancel_between_prefill_chunks_C2),
        cmocka_unit_test(test_scheduler_request_after_a_cancel_is_as_on_a_fresh_server_C7),
        cmocka_unit_test(test_scheduler_deadline_holds_while_queued_and_running),
        cmocka_unit_test(test_scheduler_wakes_for_a_deadline_inside_the_window),
        cmocka_unit_test(test_scheduler_publishes_once_a_sink),
        cmocka_unit_test(test_scheduler_corrupt_row_ends_its_request_only),
        cmocka_unit_test(test_scheduler_fail_ends_everything),
        cmocka_unit_test(test_scheduler_destroy_cancels_what_is_left),
    };
    mr_log_set_level(MR_LOG_WARN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
