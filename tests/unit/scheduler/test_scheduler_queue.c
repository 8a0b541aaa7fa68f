/* SPDX-License-Identifier: Apache-2.0 */
/* The waiting queue when it is full, and when it is long: in virtual time, a step is a millisecond.
 */
#include "base/log.h"
#include "rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define MS MR_NS_PER_MS

static void test_full_queue_tells_when_by_its_pace(void **state)
{
    (void)state;
    rig r;
    mr_scheduler_options options = rig_options();
    mr_request *requests[6];
    mr_request *refused[3];
    options.max_batch_size = 1;
    options.max_queue = 2;
    options.max_seq_length = 512;
    rig_open(&r, &options, 4, 129);
    mr_request *unknown[4];
    for (size_t i = 0; i < 4; i++) {
        unknown[i] = rig_add(&r, 2, 200); /* 200 steps, so 200 ms each */
    }
    assert_int_equal(unknown[3]->error.retry_after_ms, 1000); /* nothing is known yet */
    for (size_t i = 0; i < 6; i++) {
        while (r.scheduler->waiting.count >= 2) {
            assert_true(rig_step(&r, NULL));
        }
        requests[i] = rig_add(&r, 2, 200);
        assert_int_equal(requests[i]->error.status, MR_OK);
    }
    for (size_t i = 0; i < 3; i++) {
        refused[i] = rig_add(&r, 2, 200);
        assert_int_equal(refused[i]->error.status, MR_RESOURCE_EXHAUSTED);
        /* One place in 200 ms; the first requests came together, which is soon forgotten. */
        const uint32_t due_ms = 200 * (uint32_t)(i + 1);
        assert_in_range(refused[i]->error.retry_after_ms, due_ms * 8 / 10, due_ms + 1);
    }
    rig_run(&r);
    for (size_t i = 0; i < 4; i++) {
        mr_request_unref(unknown[i]);
    }
    for (size_t i = 0; i < 6; i++) {
        mr_request_unref(requests[i]);
    }
    for (size_t i = 0; i < 3; i++) {
        rig_expect_end(refused[i], MR_FINISH_ERROR, MR_RESOURCE_EXHAUSTED);
        mr_request_unref(refused[i]);
    }
    rig_close(&r);
}

static void test_full_queue_is_not_one_tenants_M7(void **state)
{
    (void)state;
    rig r;
    mr_scheduler_options options = rig_options();
    mr_request *flood[10];
    mr_request *other[3];
    options.max_batch_size = 1;
    options.max_queue = 5;
    rig_open(&r, &options, 4, 65);
    flood[0] = rig_add_of(&r, 1, 2, 0, 2, 3);
    assert_true(rig_step(&r, NULL)); /* runs */
    for (uint32_t i = 1; i < 6; i++) {
        flood[i] = rig_add_of(&r, 1, 2, i == 5 ? 1 : 0, 2, 3); /* the last one is the most urgent */
    }
    flood[6] = rig_add_of(&r, 1, 2, 0, 2, 3); /* its own queue is full */
    assert_int_equal(flood[6]->error.status, MR_RESOURCE_EXHAUSTED);
    /* Weight 2 holds 5 places, weight 1 none: 5/2 > 1, then 4/2 > 2 is false. */
    other[0] = rig_add_of(&r, 2, 1, 0, 2, 3);
    assert_int_equal(other[0]->error.status, MR_OK);
    assert_int_equal(flood[4]->error.status, MR_RESOURCE_EXHAUSTED);
    assert_true(flood[4]->error.retry_after_ms > 0);
    other[1] = rig_add_of(&r, 2, 1, 0, 2, 3);
    assert_int_equal(other[1]->error.status, MR_RESOURCE_EXHAUSTED);
    /* A third tenant too. */
    other[2] = rig_add_of(&r, 3, 1, 0, 2, 3);
    assert_int_equal(other[2]->error.status, MR_OK);
    assert_int_equal(flood[3]->error.status, MR_RESOURCE_EXHAUSTED);
    rig_run(&r);
    for (size_t i = 0; i < 7; i++) {
        if (i == 3 || i == 4 || i == 6) {
            rig_expect_end(flood[i], MR_FINISH_ERROR, MR_RESOURCE_EXHAUSTED);
        } else {
            rig_expect_whole(&r, flood[i]);
        }
        mr_request_unref(flood[i]);
    }
    mr_scheduler_stats stats;
    mr_scheduler_stats_get(r.scheduler, &stats);
    assert_int_equal(stats.rejected, 4);
    assert_int_equal(stats.started, 10);
    for (size_t i = 0; i < 3; i++) {
        mr_request_unref(other[i]);
    }
    rig_close(&r);
}

#define LONG_QUEUE 600u

/* A queue that is looked at in parts: nobody is forgotten. */
static void test_long_queue_sees_cancels_within_eight_steps_C1(void **state)
{
    (void)state;
    static mr_request *requests[LONG_QUEUE];
    rig r;
    mr_scheduler_options options = rig_options();
    options.max_batch_size = 1;
    options.max_queue = LONG_QUEUE;
    rig_open(&r, &options, 4, 65);
    mr_request *running = rig_add(&r, 2, 50);
    assert_true(rig_step(&r, NULL));
    for (size_t i = 0; i < LONG_QUEUE; i++) {
        requests[i] = rig_add(&r, 2, 3);
    }
    assert_true(rig_step(&r, NULL));
    for (size_t i = 0; i < LONG_QUEUE; i++) {
        mr_flag_set(&requests[i]->cancelled);
    }
    for (size_t i = 0; i < 8; i++) {
        assert_true(rig_step(&r, NULL));
    }
    assert_int_equal(r.scheduler->n_groups, 1);
    assert_int_equal(r.scheduler->waiting.count, 0);
    for (size_t i = 0; i < LONG_QUEUE; i++) {
        rig_expect_end(requests[i], MR_FINISH_CANCELLED, MR_CANCELLED);
        mr_request_unref(requests[i]);
    }
    rig_run(&r);
    rig_expect_whole(&r, running);
    mr_request_unref(running);
    rig_close(&r);
}

static void test_long_queue_wakes_for_its_first_deadline(void **state)
{
    (void)state;
    static mr_request *requests[LONG_QUEUE];
    rig r;
    mr_scheduler_options options = rig_options();
    options.max_batch_size = 1;
    options.max_queue = LONG_QUEUE;
    options.slow_reader_timeout_ns = 1000 * MS;
    rig_open(&r, &options, 4, 65);
    mr_request_spec spec = {.params = rig_params(20), .ring_capacity = 2};
    mr_request *paused = rig_request_of(&r, 2, &spec);
    rig_submit(&r, paused);
    assert_true(rig_step(&r, NULL));
    for (size_t i = 0; i < LONG_QUEUE; i++) {
        /* The earliest one stands where a look at a part of the queue does not come. */
        spec = (mr_request_spec){.params = rig_params(2),
                                 .deadline_ns = r.now_ns + (i == 500 ? 2 : 900) * MS};
        requests[i] = rig_request_of(&r, 2, &spec);
        rig_submit(&r, requests[i]);
    }
    const uint64_t deadline_ns = requests[500]->deadline_ns;
    for (size_t i = 0; i < 3 && r.now_ns < deadline_ns; i++) {
        assert_false(rig_step(&r, NULL));
        assert_true(r.wake_ns <= deadline_ns);
        r.now_ns = r.wake_ns;
    }
    assert_true(r.now_ns == deadline_ns);
    assert_false(rig_step(&r, NULL));
    rig_expect_end(requests[500], MR_FINISH_TIME_LIMIT, MR_DEADLINE_EXCEEDED);
    assert_int_equal(r.scheduler->waiting.count, LONG_QUEUE - 1);
    mr_flag_set(&paused->cancelled);
    rig_run(&r);
    for (size_t i = 0; i < LONG_QUEUE; i++) {
        mr_request_unref(requests[i]);
    }
    mr_request_unref(paused);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_full_queue_tells_when_by_its_pace),
        cmocka_unit_test(test_full_queue_is_not_one_tenants_M7),
        cmocka_unit_test(test_long_queue_sees_cancels_within_eight_steps_C1),
        cmocka_unit_test(test_long_queue_wakes_for_its_first_deadline),
    };
    mr_log_set_level(MR_LOG_WARN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
