/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "scheduler/pace.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define MS MR_NS_PER_MS

static void test_pace_is_that_of_the_queue(void **state)
{
    (void)state;
    mr_pace pace;
    mr_pace_init(&pace);
    assert_int_equal(mr_pace_refuse_ms(&pace), 1000);
    mr_pace_begin(&pace, 1000 * MS);
    mr_pace_moved(&pace, 2, 2000 * MS); /* one in 500 ms */
    assert_int_equal(mr_pace_refuse_ms(&pace), 501);
    assert_int_equal(mr_pace_refuse_ms(&pace), 1001);
    assert_int_equal(mr_pace_refuse_ms(&pace), 1501);
    mr_pace_moved(&pace, 2, 3000 * MS); /* two of the three have had their turn */
    assert_int_equal(mr_pace_refuse_ms(&pace), 1001);
    mr_pace_moved(&pace, 1, 3000 * MS); /* 500 · 7/8 */
    assert_int_equal(mr_pace_refuse_ms(&pace), 876);
    for (uint32_t i = 0; i < 200; i++) {
        (void)mr_pace_refuse_ms(&pace);
    }
    assert_int_equal(mr_pace_refuse_ms(&pace), 60000); /* at most */
    /* What was before an empty queue is forgotten, but for the pace. */
    mr_pace_begin(&pace, 100000 * MS);
    mr_pace_moved(&pace, 1, 100000 * MS);
    for (uint32_t i = 0; i < 100; i++) {
        mr_pace_moved(&pace, 1, 100000 * MS);
    }
    assert_int_equal(mr_pace_refuse_ms(&pace), 100); /* at least */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pace_is_that_of_the_queue),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
