/* SPDX-License-Identifier: Apache-2.0 */
#include "service/reload.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "config_steps.h"

static bool suffices_after(const char *assignment)
{
    const mr_config before = fresh();
    mr_config now = before;
    set_ok(&now, assignment);
    return mr_reload_suffices(&now, &before);
}

/* What operators are told a reload takes up: docs/operations.md. */
static void test_reload_suffices_for_callers_and_logs(void **state)
{
    (void)state;
    assert_true(suffices_after("tenants=[{name: a, keys: [" DIGEST_A "], weight: 3}]"));
    assert_true(suffices_after("admin.callers=[{name: o, keys: [" DIGEST_B "]}]"));
    assert_true(suffices_after("log.level=debug"));
    assert_true(suffices_after("log.format=json"));
    /* The same value again is no change. */
    assert_true(suffices_after("max_batch_size=32"));
}

static void test_reload_does_not_suffice_for_what_the_engine_was_made_with(void **state)
{
    (void)state;
    assert_false(suffices_after("max_batch_size=33"));
    assert_false(suffices_after("threads=3"));
    assert_false(suffices_after("admin.enable=true"));
    assert_false(suffices_after("redis.url=redis://h:7000/1"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reload_suffices_for_callers_and_logs),
        cmocka_unit_test(test_reload_does_not_suffice_for_what_the_engine_was_made_with),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
