/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static uint64_t fixed_now(void *ctx)
{
    return *(const uint64_t *)ctx;
}

static void test_injected_clock_is_asked(void **state)
{
    (void)state;
    uint64_t now = 17;
    const mr_clock clock = {.now_ns = fixed_now, .ctx = &now};
    assert_int_equal(mr_clock_now(&clock), 17);
    now = 18;
    assert_int_equal(mr_clock_now(&clock), 18);
}

static void test_monotonic_does_not_go_back(void **state)
{
    (void)state;
    const mr_clock clock = mr_clock_monotonic();
    uint64_t last = mr_clock_now(&clock);
    for (int i = 0; i < 1000; i++) {
        const uint64_t now = mr_clock_now(&clock);
        assert_true(now >= last);
        last = now;
    }
}

static void test_time_add_saturates(void **state)
{
    (void)state;
    assert_int_equal(mr_time_add(3, 4), 7);
    assert_true(mr_time_add(MR_NEVER, 1) == MR_NEVER);
    assert_true(mr_time_add(5, MR_NEVER) == MR_NEVER);
    assert_true(mr_time_add(MR_NEVER - 5, 4) == MR_NEVER - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_injected_clock_is_asked),
        cmocka_unit_test(test_monotonic_does_not_go_back),
        cmocka_unit_test(test_time_add_saturates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
