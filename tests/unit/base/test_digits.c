/* SPDX-License-Identifier: Apache-2.0 */
#include "base/digits.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

static void test_numbers_are_digits_alone(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t value;
    } good[] = {
        {"0", 0},
        {"7", 7},
        {"0042", 42},
        {"18446744073709551615", UINT64_MAX}, /* 2^64 - 1 */
        {"000000000000000000000000000001", 1},
    };
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        uint64_t value = 99;
        assert_true(mr_digits_u64(good[i].text, strlen(good[i].text), &value));
        assert_true(value == good[i].value);
    }
    static const char *const bad[] = {"",
                                      "-1",
                                      "+1",
                                      " 1",
                                      "1 ",
                                      "1.0",
                                      "1e3",
                                      "0x10",
                                      "18446744073709551616", /* 2^64 */
                                      "99999999999999999999999"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        uint64_t value = 99;
        assert_false(mr_digits_u64(bad[i], strlen(bad[i]), &value));
        assert_int_equal(value, 99);
    }
    uint64_t value = 99;
    assert_true(mr_digits_u64("12,34", 2, &value)); /* what follows is not looked at */
    assert_int_equal(value, 12);
    assert_false(mr_digits_u64("1\0002", 3, &value));
}

static void test_hex_digits_are_of_either_case(void **state)
{
    (void)state;
    static const char lower[] = "0123456789abcdef";
    static const char upper[] = "0123456789ABCDEF";
    for (int i = 0; i < 16; i++) {
        assert_int_equal(mr_digits_hex_value(lower[i]), i);
        assert_int_equal(mr_digits_hex_value(upper[i]), i);
    }
    for (int c = 0; c < 256; c++) {
        const bool is_hex = c != 0 && (strchr(lower, c) != NULL || strchr(upper, c) != NULL);
        assert_int_equal(mr_digits_hex_value((char)c) >= 0, is_hex);
    }
}

static void test_bytes_are_written_as_hex(void **state)
{
    (void)state;
    static const uint8_t bytes[] = {0x00, 0x0f, 0xa5, 0xff};
    char out[2 * sizeof(bytes) + 1];
    mr_digits_hex_write(bytes, sizeof(bytes), out);
    assert_string_equal(out, "000fa5ff");
    mr_digits_hex_write(bytes, 0, out);
    assert_string_equal(out, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers_are_digits_alone),
        cmocka_unit_test(test_hex_digits_are_of_either_case),
        cmocka_unit_test(test_bytes_are_written_as_hex),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
