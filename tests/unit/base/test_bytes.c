/* SPDX-License-Identifier: Apache-2.0 */
#include "base/bytes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void test_comparison_takes_every_byte(void **state)
{
    (void)state;
    const mr_bytes with_nul = {.data = (const uint8_t *)"ab\0c", .size = 4};
    const mr_bytes none = {0};
    assert_true(mr_bytes_is(mr_bytes_of("ab"), "ab"));
    assert_false(mr_bytes_is(mr_bytes_of("ab"), "abc"));
    assert_false(mr_bytes_is(mr_bytes_of("abc"), "ab"));
    assert_false(mr_bytes_is(mr_bytes_of("ab"), "aB"));
    assert_false(mr_bytes_is(with_nul, "ab")); /* the text ends there, the bytes do not */
    assert_true(mr_bytes_equal(with_nul, with_nul));
    assert_true(mr_bytes_is(none, ""));
    assert_true(mr_bytes_equal(none, mr_bytes_of("")));
    assert_false(mr_bytes_is(none, "a"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comparison_takes_every_byte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
