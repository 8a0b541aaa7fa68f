/* SPDX-License-Identifier: Apache-2.0 */
/* Steps planned before the tokens of the step before them are known (scheduler/ahead.c), for
 * executors that take two at a time. Random worlds of it are test_scheduler_random.c's. */
#include "rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void open_ahead(rig *r, uint32_t n_blocks)
{
    const mr_scheduler_options options = rig_options();
    rig_open(r, &options, 4, n_blocks);
    r->ahead = true;
}

/* Three of different lengths: their last steps are known beforehand, and no row is lost. */
static void test_plain_decoding_is_planned_ahead(void **state)
{
    (void)state;
    rig r;
    open_ahead(&r, 65);
    mr_request *requests[3];
    for (uint32_t i = 0; i < 3; i++) {
        requests[i] = rig_add(&r, 2, 10 + 3 * i);
    }
    rig_run(&r);
    for (uint32_t i = 0; i < 3; i++) {
        rig_expect_whole(&r, requests[i]);
        mr_request_unref(requests[i]);
    }
    /* Prompts of 2 fit the first step; 15 more, all ahead. */
    assert_int_equal(r.n_ahead, 15);
    assert_int_equal(r.scheduler->n_dropped, 0);
    rig_close(&r);
}

/* What the script draws after ten tokens is made its stop token: known only when the step behind is
 * under way. The row there is dropped, and the other sequence does not notice. */
static void test_a_row_of_one_that_stopped_is_dropped(void **state)
{
    (void)state;
    rig r;
    open_ahead(&r, 65);
    mr_request *other = rig_add(&r, 3, 30);
    scripted_result expected;
    mr_request *probe = rig_request(
        &r, 2,
        &(mr_request_params){
            .top_p = 1, .repetition_penalty = 1, .max_tokens = 20, .n = 1, .ignore_eos = true});
    scripted_output(&r.options, probe, 0, &expected);
    mr_request_unref(probe);
    mr_request_spec spec = {
        .params = rig_params(20), .stop_tokens = &expected.tokens[9], .n_stop_tokens = 1};
    mr_request *stops = rig_request_of(&r, 2, &spec);
    rig_submit(&r, stops);
    rig_run(&r);
    assert_int_equal(r.scheduler->n_dropped, 1);
    assert_int_equal(stops->usage.finish, MR_FINISH_STOP);
    rig_expect_whole(&r, stops);
    rig_expect_whole(&r, other);
    mr_request_unref(stops);
    mr_request_unref(other);
    rig_close(&r);
}

/* A cancel ends the row ahead of it too: no later than two steps after. */
static void test_a_cancelled_one_ends_behind_the_steps_under_way_C1(void **state)
{
    (void)state;
    rig r;
    open_ahead(&r, 65);
    mr_request *request = rig_add(&r, 2, 50);
    for (uint32_t i = 0; i < 5; i++) {
        assert_true(rig_step(&r, NULL));
    }
    assert_true(r.in_flight);
    mr_flag_set(&request->cancelled);
    assert_true(rig_step(&r, NULL)); /* the one under way; none follows it */
    assert_false(r.in_flight);
    assert_false(rig_step(&r, NULL));
    rig_expect_end(request, MR_FINISH_CANCELLED, MR_CANCELLED);
    assert_int_equal(rig_live_blocks(&r), 0);
    mr_request_unref(request);
    rig_close(&r);
}

/* Who arrives is let in behind the step under way. */
static void test_an_arrival_waits_for_one_step(void **state)
{
    (void)state;
    rig r;
    open_ahead(&r, 65);
    mr_request *first = rig_add(&r, 2, 20);
    for (uint32_t i = 0; i < 3; i++) {
        assert_true(rig_step(&r, NULL));
    }
    assert_true(r.in_flight);
    mr_request *second = rig_add(&r, 2, 4);
    assert_true(rig_step(&r, NULL));
    assert_false(r.in_flight);
    assert_true(rig_step(&r, NULL));
    assert_int_equal(second->usage.scheduled_ns, r.now_ns - MR_NS_PER_MS);
    rig_run(&r);
    rig_expect_whole(&r, first);
    rig_expect_whole(&r, second);
    mr_request_unref(first);
    mr_request_unref(second);
    rig_close(&r);
}

/* Penalties need the tokens themselves, choices fork, and a pool without a free block preempts. */
static void test_what_else_is_wanted_is_not_planned_ahead(void **state)
{
    (void)state;
    rig r;
    open_ahead(&r, 65);
    mr_request_params params = rig_params(10);
    params.presence_penalty = 0.5f;
    mr_request *request = rig_request(&r, 2, &params);
    rig_submit(&r, request);
    rig_run(&r);
    rig_expect_whole(&r, request);
    assert_int_equal(r.n_ahead, 0);
    mr_request_unref(request);
    rig_close(&r);

    open_ahead(&r, 4); /* three blocks of 4 tokens */
    request = rig_add(&r, 2, 30);
    rig_run(&r);
    rig_expect_end(request, MR_FINISH_ERROR, MR_RESOURCE_EXHAUSTED);
    assert_int_equal(r.scheduler->n_dropped, 0);
    mr_request_unref(request);
    rig_close(&r);
}

/* The device fails with two steps under way: everything ends, nothing is applied any more. */
static void test_a_failure_drops_what_was_planned(void **state)
{
    (void)state;
    rig r;
    mr_error err = {0};
    open_ahead(&r, 65);
    mr_request *request = rig_add(&r, 2, 20);
    for (uint32_t i = 0; i < 3; i++) {
        assert_true(rig_step(&r, NULL));
    }
    assert_true(r.in_flight);
    (void)mr_fail(&err, MR_INTERNAL, "a cable is loose");
    mr_scheduler_fail(r.scheduler, &err, r.now_ns);
    mr_scheduler_publish(r.scheduler);
    assert_int_equal(r.scheduler->n_planned + r.scheduler->n_ahead, 0);
    rig_expect_end(request, MR_FINISH_ERROR, MR_INTERNAL);
    mr_request_unref(request);
    r.in_flight = false;
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain_decoding_is_planned_ahead),
        cmocka_unit_test(test_a_row_of_one_that_stopped_is_dropped),
        cmocka_unit_test(test_a_cancelled_one_ends_behind_the_steps_under_way_C1),
        cmocka_unit_test(test_an_arrival_waits_for_one_step),
        cmocka_unit_test(test_what_else_is_wanted_is_not_planned_ahead),
        cmocka_unit_test(test_a_failure_drops_what_was_planned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
