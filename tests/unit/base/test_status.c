/* SPDX-License-Identifier: Apache-2.0 */
#include "base/status.h"

#include "base/utf8.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void test_fail_fills_record_and_clears_field(void **state)
{
    (void)state;
    mr_error err = {.retry_after_ms = 7};
    assert_int_equal(
        mr_fail_field(&err, MR_INVALID_ARGUMENT, "sampling.top_p", "top_p is %d; give 0..1", 3),
        MR_INVALID_ARGUMENT);
    assert_int_equal(err.status, MR_INVALID_ARGUMENT);
    assert_string_equal(err.field, "sampling.top_p");
    assert_string_equal(err.message, "top_p is 3; give 0..1");
    assert_int_equal(err.retry_after_ms, 0);

    assert_int_equal(mr_fail(&err, MR_NOT_FOUND, "no such model"), MR_NOT_FOUND);
    assert_string_equal(err.field, "");
    assert_string_equal(err.message, "no such model");
}

static void test_null_record_is_allowed(void **state)
{
    (void)state;
    assert_int_equal(mr_fail(NULL, MR_ABORTED, "x"), MR_ABORTED);
    assert_int_equal(mr_fail_field(NULL, MR_DATA_LOSS, "f", "x"), MR_DATA_LOSS);
    assert_int_equal(mr_fail_context(NULL, "x"), MR_INTERNAL);
}

static void test_long_message_is_cut_at_a_character(void **state)
{
    (void)state;
    /* One to four leading bytes shift the two-byte letters over every possible cut. */
    for (int shift = 0; shift < 4; shift++) {
        char text[1200];
        memset(text, 'a', 4);
        for (int i = shift; i + 1 < 1199; i += 2) {
            memcpy(text + i, "\xC3\xA9", 2);
        }
        text[shift + (1199 - shift) / 2 * 2] = '\0';
        mr_error err;
        mr_fail(&err, MR_INTERNAL, "%s", text);
        const size_t length = strlen(err.message);
        assert_in_range(length, MR_ERROR_MESSAGE_MAX - 3, MR_ERROR_MESSAGE_MAX - 1);
        assert_string_equal(err.message + length - 3, "...");
        assert_true(mr_utf8_valid(err.message, length, NULL));
    }
}

static void test_message_that_just_fits_is_kept(void **state)
{
    (void)state;
    char text[MR_ERROR_MESSAGE_MAX + 1];
    memset(text, 'x', sizeof(text));
    text[MR_ERROR_MESSAGE_MAX - 1] = '\0';
    mr_error err;
    mr_fail(&err, MR_INTERNAL, "%s", text);
    assert_string_equal(err.message, text);
    text[MR_ERROR_MESSAGE_MAX - 1] = 'x';
    text[MR_ERROR_MESSAGE_MAX] = '\0';
    mr_fail(&err, MR_INTERNAL, "%s", text);
    assert_int_equal(strlen(err.message), MR_ERROR_MESSAGE_MAX - 1);
    assert_string_equal(err.message + MR_ERROR_MESSAGE_MAX - 5, "x...");
}

static void test_arguments_may_point_into_the_record(void **state)
{
    (void)state;
    mr_error err;
    mr_fail_field(&err, MR_OUT_OF_RANGE, "a.b", "low");
    mr_fail_field(&err, MR_INTERNAL, err.field, "[%s] in %s", err.message, err.field);
    assert_string_equal(err.message, "[low] in a.b");
    assert_string_equal(err.field, "a.b");
}

static void test_context_goes_before_the_message(void **state)
{
    (void)state;
    mr_error err;
    mr_fail_field(&err, MR_INVALID_ARGUMENT, "rope", "bad number");
    assert_int_equal(mr_fail_context(&err, "%s, line %d", "config.json", 12), MR_INVALID_ARGUMENT);
    assert_string_equal(err.message, "config.json, line 12: bad number");
    assert_string_equal(err.field, "rope");
    for (int i = 0; i < 100; i++) {
        mr_fail_context(&err, "a longer prefix, number %d", i);
    }
    assert_int_equal(strlen(err.message), MR_ERROR_MESSAGE_MAX - 1);
    assert_ptr_equal(strstr(err.message, "a longer prefix, number 99: "), err.message);
}

static void test_names_are_those_of_grpc(void **state)
{
    (void)state;
    static const char *const names[] = {"OK",
                                        "CANCELLED",
                                        "UNKNOWN",
                                        "INVALID_ARGUMENT",
                                        "DEADLINE_EXCEEDED",
                                        "NOT_FOUND",
                                        "ALREADY_EXISTS",
                                        "PERMISSION_DENIED",
                                        "RESOURCE_EXHAUSTED",
                                        "FAILED_PRECONDITION",
                                        "ABORTED",
                                        "OUT_OF_RANGE",
                                        "UNIMPLEMENTED",
                                        "INTERNAL",
                                        "UNAVAILABLE",
                                        "DATA_LOSS",
                                        "UNAUTHENTICATED"};
    for (int i = 0; i <= 16; i++) {
        assert_string_equal(mr_status_name((mr_status)i), names[i]);
    }
    assert_string_equal(mr_status_name((mr_status)17), "UNKNOWN");
}

static mr_status try_twice(mr_status first, int *reached)
{
    MR_TRY(first);
    (*reached)++;
    return MR_OK;
}

static void test_try_returns_early(void **state)
{
    (void)state;
    int reached = 0;
    assert_int_equal(try_twice(MR_ABORTED, &reached), MR_ABORTED);
    assert_int_equal(reached, 0);
    assert_int_equal(try_twice(MR_OK, &reached), MR_OK);
    assert_int_equal(reached, 1);
}

static void test_check_stops_the_process(void **state)
{
    (void)state;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);
        MR_CHECK(child != 0);
        _exit(0);
    }
    int how;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_false(WIFEXITED(how) && WEXITSTATUS(how) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fail_fills_record_and_clears_field),
        cmocka_unit_test(test_null_record_is_allowed),
        cmocka_unit_test(test_long_message_is_cut_at_a_character),
        cmocka_unit_test(test_message_that_just_fits_is_kept),
        cmocka_unit_test(test_arguments_may_point_into_the_record),
        cmocka_unit_test(test_context_goes_before_the_message),
        cmocka_unit_test(test_names_are_those_of_grpc),
        cmocka_unit_test(test_try_returns_early),
        cmocka_unit_test(test_check_stops_the_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
