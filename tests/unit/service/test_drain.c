/* SPDX-License-Identifier: Apache-2.0 */
/* The phases of a drain, in virtual time. */
#include "service/drain.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define MS    MR_NS_PER_MS
#define START (7000 * MS)

static const mr_drain_plan leave = {
    .pre_stop_ns = 2000 * MS, .timeout_ns = 30000 * MS, .leaves = true};
static const mr_drain_plan asked = {.pre_stop_ns = 2000 * MS, .timeout_ns = 30000 * MS};

static mr_drain begun(const mr_drain_plan *plan)
{
    mr_drain drain = {0};
    mr_drain_start(&drain, plan, START);
    return drain;
}

/* At `ms` after START the phase is this one, and the next look is due at `wake_ms` after it. */
static void expect(mr_drain *drain, uint64_t ms, bool idle, mr_drain_phase phase, uint64_t wake_ms)
{
    uint64_t wake_ns;
    assert_int_equal(mr_drain_step(drain, START + ms * MS, idle, &wake_ns), phase);
    assert_true(wake_ns == (wake_ms == MR_NEVER ? MR_NEVER : START + wake_ms * MS));
}

static void test_a_server_in_service_waits_for_nothing(void **state)
{
    (void)state;
    mr_drain drain = {0};
    expect(&drain, 0, true, MR_DRAIN_SERVING, MR_NEVER);
    expect(&drain, 1000000, true, MR_DRAIN_SERVING, MR_NEVER);
}

static void test_phases_of_a_drain_with_streams_that_never_end_H3(void **state)
{
    (void)state;
    mr_drain drain = begun(&leave);
    expect(&drain, 0, false, MR_DRAIN_PRE_STOP, 2000);
    expect(&drain, 1999, false, MR_DRAIN_PRE_STOP, 2000);
    expect(&drain, 2000, false, MR_DRAIN_REFUSING, 2250);
    assert_false(mr_drain_lingered(&drain, START + 2249 * MS));
    assert_true(mr_drain_lingered(&drain, START + 2250 * MS));
    expect(&drain, 2250, false, MR_DRAIN_REFUSING, 32000);
    expect(&drain, 31999, false, MR_DRAIN_REFUSING, 32000);
    expect(&drain, 32000, false, MR_DRAIN_ENDING, 34000);
    expect(&drain, 34000, false, MR_DRAIN_DROPPING, 34250);
    assert_false(mr_drain_hurries(&drain, START + 34249 * MS));
    assert_true(mr_drain_hurries(&drain, START + 34250 * MS));
    expect(&drain, 34250, false, MR_DRAIN_DROPPING, 35000);
    expect(&drain, 35000, false, MR_DRAIN_DONE, MR_NEVER);
}

static void test_the_window_stays_open_when_nothing_runs_H3(void **state)
{
    (void)state;
    mr_drain drain = begun(&leave);
    expect(&drain, 0, true, MR_DRAIN_PRE_STOP, 2000);
    expect(&drain, 2000, true, MR_DRAIN_REFUSING, 2250);
    expect(&drain, 2250, true, MR_DRAIN_DONE, MR_NEVER);
}

static void test_it_is_done_when_the_last_stream_ends_H3(void **state)
{
    (void)state;
    mr_drain drain = begun(&leave);
    expect(&drain, 5000, false, MR_DRAIN_REFUSING, 32000);
    expect(&drain, 9123, true, MR_DRAIN_DONE, MR_NEVER);
    drain = begun(&leave); /* and also when streams have just been told to end */
    expect(&drain, 32000, false, MR_DRAIN_ENDING, 34000);
    expect(&drain, 32001, true, MR_DRAIN_DONE, MR_NEVER);
}

static void test_no_times_at_all(void **state)
{
    (void)state;
    const mr_drain_plan plan = {.leaves = true};
    mr_drain drain = begun(&plan);
    expect(&drain, 0, true, MR_DRAIN_ENDING, 250);
    expect(&drain, 250, true, MR_DRAIN_DONE, MR_NEVER);
}

static void test_a_second_signal_ends_each_phase_H3(void **state)
{
    (void)state;
    static const uint64_t at_ms[] = {500, 2100, 10000, 33000};
    /* Statuses get three seconds, or what is left of the time that they would have had. */
    static const uint64_t done_ms[] = {3500, 5100, 13000, 35000};
    for (size_t i = 0; i < sizeof(at_ms) / sizeof(at_ms[0]); i++) {
        mr_drain drain = begun(&leave);
        uint64_t wake_ns;
        (void)mr_drain_step(&drain, START + at_ms[i] * MS, false, &wake_ns);
        mr_drain_force(&drain, START + at_ms[i] * MS);
        assert_int_equal(mr_drain_step(&drain, START + at_ms[i] * MS, false, &wake_ns),
                         MR_DRAIN_DROPPING);
        expect(&drain, done_ms[i] - 751, false, MR_DRAIN_DROPPING, done_ms[i] - 750);
        assert_false(mr_drain_hurries(&drain, START + (done_ms[i] - 751) * MS));
        assert_true(mr_drain_hurries(&drain, START + (done_ms[i] - 750) * MS));
        expect(&drain, done_ms[i], false, MR_DRAIN_DONE, MR_NEVER);
    }
    mr_drain drain = begun(&leave); /* those who call are told, before connections close */
    mr_drain_force(&drain, START + 500 * MS);
    expect(&drain, 500, true, MR_DRAIN_DROPPING, 750);
    expect(&drain, 750, true, MR_DRAIN_DONE, MR_NEVER);
    mr_drain_force(&drain, START + 900 * MS);
    expect(&drain, 900, true, MR_DRAIN_DONE, MR_NEVER);
}

static void test_another_ask_makes_it_shorter_and_never_longer(void **state)
{
    (void)state;
    mr_drain drain = begun(&asked);
    const mr_drain_plan shorter = {.pre_stop_ns = 9000 * MS, .timeout_ns = 5000 * MS};
    mr_drain_start(&drain, &shorter, START + 1000 * MS);
    expect(&drain, 1000, false, MR_DRAIN_PRE_STOP, 2000); /* no second window */
    expect(&drain, 3000, false, MR_DRAIN_REFUSING, 7000);
    mr_drain_start(&drain, &leave, START + 3000 * MS);
    assert_true(drain.leaves);
    expect(&drain, 3001, false, MR_DRAIN_REFUSING, 7000);
    expect(&drain, 7000, false, MR_DRAIN_ENDING, 9000);
    mr_drain_start(&drain, &asked, START + 7500 * MS);
    assert_true(drain.leaves);
    expect(&drain, 7500, false, MR_DRAIN_ENDING, 9000);
}

static void test_a_drained_server_leaves_without_another_window(void **state)
{
    (void)state;
    mr_drain drain = begun(&asked);
    expect(&drain, 2250, true, MR_DRAIN_DONE, MR_NEVER);
    mr_drain_start(&drain, &asked, START + 3000 * MS);
    expect(&drain, 3000, false, MR_DRAIN_DONE, MR_NEVER);
    mr_drain_start(&drain, &leave, START + 60000 * MS);
    expect(&drain, 60000, false, MR_DRAIN_REFUSING, 90000);
    assert_true(mr_drain_lingered(&drain, START + 60000 * MS));
    expect(&drain, 60001, true, MR_DRAIN_DONE, MR_NEVER);
}

static void test_times_that_do_not_fit_never_come(void **state)
{
    (void)state;
    const mr_drain_plan plan = {.pre_stop_ns = MR_NEVER, .timeout_ns = MR_NEVER};
    mr_drain drain = begun(&plan);
    expect(&drain, 1000000, true, MR_DRAIN_PRE_STOP, MR_NEVER);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_server_in_service_waits_for_nothing),
        cmocka_unit_test(test_phases_of_a_drain_with_streams_that_never_end_H3),
        cmocka_unit_test(test_the_window_stays_open_when_nothing_runs_H3),
        cmocka_unit_test(test_it_is_done_when_the_last_stream_ends_H3),
        cmocka_unit_test(test_no_times_at_all),
        cmocka_unit_test(test_a_second_signal_ends_each_phase_H3),
        cmocka_unit_test(test_another_ask_makes_it_shorter_and_never_longer),
        cmocka_unit_test(test_a_drained_server_leaves_without_another_window),
        cmocka_unit_test(test_times_that_do_not_fit_never_come),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
