/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/rate_limits.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void test_rate_limits_check_names_the_burst(void **state)
{
    (void)state;
    const mr_rate_limits limits = {.tokens_per_min = 60, .burst_tokens = 100};
    mr_error err = {0};
    assert_int_equal(mr_rate_limits_check(&limits, 40, 60, &err), MR_OK);
    assert_int_equal(mr_rate_limits_check(&limits, 40, 61, &err), MR_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "burst_tokens is 100"));
    assert_int_equal(mr_rate_limits_check(&limits, UINT64_MAX, 1, &err), MR_INVALID_ARGUMENT);
    const mr_rate_limits none = {0};
    assert_int_equal(mr_rate_limits_check(&none, UINT64_MAX, UINT64_MAX, &err), MR_OK);
}

static void test_rate_refusal_says_when_to_come_back(void **state)
{
    (void)state;
    const mr_rate_limits limits = {.requests_per_s = 2.5, .max_concurrent = 3};
    mr_rate_decision decision = {.short_of = MR_RATE_REQUESTS, .retry_after_ms = 400};
    mr_error err = {0};
    assert_int_equal(mr_rate_refusal(&decision, &limits, &err), MR_RESOURCE_EXHAUSTED);
    assert_int_equal(err.retry_after_ms, 400);
    assert_non_null(strstr(err.message, "2.5 requests a second"));
    decision = (mr_rate_decision){.short_of = MR_RATE_UNKNOWN, .retry_after_ms = 1000};
    assert_int_equal(mr_rate_refusal(&decision, &limits, &err), MR_UNAVAILABLE);
    assert_int_equal(err.retry_after_ms, 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rate_limits_check_names_the_burst),
        cmocka_unit_test(test_rate_refusal_says_when_to_come_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
