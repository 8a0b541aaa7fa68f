/* SPDX-License-Identifier: Apache-2.0 */
#include "model/pattern.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void check(const char *pattern, const char *expected)
{
    mr_buffer out = {0};
    mr_error err = {0};
    if (mr_pattern_translate(mr_bytes_of(pattern), &out, &err) != MR_OK) {
        fail_msg("%s: %s", pattern, err.message);
    }
    assert_int_equal(out.size, strlen(expected));
    assert_memory_equal(out.data, expected, out.size);
    mr_buffer_deinit(&out);
}

static void test_translate_what_both_read_alike(void **state)
{
    (void)state;
    static const char *const same[] = {
        "abc",
        "a|b",
        "(a)(?:b)(?i:c)(?!d)(?=e)(?<!f)(?<=g)(?>h)",
        "a{1,3}b{2}c{4,}?",
        "[a-z\\]\\-^]+?x*+",
        " ?[^\r\n]\\.\\n",
        "[\u4E00-\u9FA5]",
    };
    for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++) {
        check(same[i], same[i]);
    }
}

static void test_translate_classes(void **state)
{
    (void)state;
    check("^a.b$", "(?m:^)a.b(?m:$)");
    check("\\p{Z}", "[\\p{Z}]");
    check("\\P{Lt}+", "[^\\p{Lt}]+");
    check("[^a\\p{Lt}\\p{Z}]", "[^a\\p{Lt}\\p{Z}]");
}

static void test_translate_K3_refuses_what_it_does_not_know(void **state)
{
    (void)state;
    static const char *const refused[] = {
        "\\p{Greek}",  "\\p{^L}", "\\w",  "\\b",   "\\h",   "[a&&b]",
        "[[:alpha:]]", "[a",      "[]a]", "a{,2}", "a{x}",  "a{1,2}+",
        "(?<n>a)",     "(?i)a",   "(*X)", "\\x41", "[\\S]",
    };
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        mr_buffer out = {0};
        mr_error err = {0};
        if (mr_pattern_translate(mr_bytes_of(refused[i]), &out, &err) != MR_UNIMPLEMENTED) {
            fail_msg("%s was taken", refused[i]);
        }
        assert_non_null(strstr(err.message, "byte"));
        mr_buffer_deinit(&out);
    }
}

static void test_quote(void **state)
{
    (void)state;
    mr_buffer out = {0};
    assert_int_equal(mr_pattern_quote((mr_bytes){(const uint8_t *)"a.\0(\u2581", 7}, &out), MR_OK);
    assert_int_equal(out.size, 12);
    assert_memory_equal(out.data, "a\\.\\x00\\(\u2581", 12);
    mr_buffer_deinit(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_translate_what_both_read_alike),
        cmocka_unit_test(test_translate_classes),
        cmocka_unit_test(test_translate_K3_refuses_what_it_does_not_know),
        cmocka_unit_test(test_quote),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
