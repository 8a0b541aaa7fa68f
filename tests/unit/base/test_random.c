/* SPDX-License-Identifier: Apache-2.0 */
#include "base/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

/* More than the 256 bytes that the system gives in one piece whatever happens. */
static void test_every_byte_is_drawn(void **state)
{
    (void)state;
    uint8_t seen[1000] = {0}; /* bits that were set in some draw */
    mr_error err = {0};
    for (int draw = 0; draw < 64; draw++) {
        uint8_t bytes[sizeof(seen) + 1];
        memset(bytes, 0, sizeof(bytes));
        assert_int_equal(mr_random_fill(bytes, sizeof(seen), "a test", &err), MR_OK);
        assert_int_equal(bytes[sizeof(seen)], 0);
        for (size_t i = 0; i < sizeof(seen); i++) {
            seen[i] |= bytes[i];
        }
    }
    /* A bit stays 0 in 64 draws with 2^-64. */
    for (size_t i = 0; i < sizeof(seen); i++) {
        assert_int_equal(seen[i], 0xff);
    }
    assert_int_equal(mr_random_fill(NULL, 0, "nothing", &err), MR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_byte_is_drawn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
