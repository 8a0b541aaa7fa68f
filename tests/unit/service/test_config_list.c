/* SPDX-License-Identifier: Apache-2.0 */
#include "service/config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "config_steps.h"

static void test_config_tenants(void **state)
{
    (void)state;
    mr_config config = fresh();
    mr_error err = {0};
    assert_int_equal(config.tenants.count, 0);
    const char *text = "tenants:\n"
                       "- name: a\n"
                       "  keys:\n"
                       "  - " DIGEST_A "\n"
                       "  - \"" DIGEST_C "\"\n"
                       "  weight: 3\n"
                       "- {name: B, keys: [" DIGEST_B "], priority_max: 1000}\n";
    assert_int_equal(load_text(&config, text, &err), MR_OK);
    assert_int_equal(config.tenants.count, 2);
    const mr_tenant *a = &config.tenants.items[0];
    assert_string_equal(a->name, "a");
    assert_int_equal(a->credentials.n_keys, 2);
    assert_int_equal(a->credentials.keys[0][0], 0xba);
    assert_int_equal(a->credentials.keys[0][31], 0xad);
    assert_int_equal(a->credentials.keys[1][31], 0xaa);
    assert_int_equal(a->weight, 3);
    assert_int_equal(a->priority_max, 0);
    assert_int_equal(config.tenants.items[1].weight, 1);
    assert_int_equal(config.tenants.items[1].priority_max, 1000);

    /* A later source replaces the list; JSON is a form of it. */
    set_ok(&config, "tenants=[{\"name\": \"c\", \"keys\": [\"" DIGEST_B "\"]}]");
    assert_int_equal(config.tenants.count, 1);
    assert_string_equal(config.tenants.items[0].name, "c");
    assert_int_equal(config.tenants.items[0].credentials.n_keys, 1);
    setenv("MILLRACE_TENANTS", "[{name: d, keys: [" DIGEST_C "]}]", 1);
    config = fresh();
    unsetenv("MILLRACE_TENANTS");
    assert_string_equal(config.tenants.items[0].name, "d");
    set_ok(&config, "tenants=[]");
    assert_int_equal(config.tenants.count, 0);
}

static void test_config_tenants_refused(void **state)
{
    (void)state;
    static const struct {
        const char *list;
        const char *says;
    } cases[] = {
        {"", "empty"},
        {"a", "must be a list"},
        {"{name: a}", "must be a list"},
        {"[a]", "tenants[0]"},
        {"[{name: a", "no list in YAML"},
        {"[{nmae: a}]", "did you mean name?"},
        {"[{colour: a}]", "no field colour"},
        {"[{name: a, name: b}]", "given twice"},
        {"[{name: [a]}]", "one value"},
        {"[{name: a}]", "has no keys"},
        {"[{keys: [" DIGEST_A "]}]", "name must have"},
        {"[{name: a b, keys: [" DIGEST_A "]}]", "name must have"},
        {"[{name: other, keys: [" DIGEST_A "]}]", "another name"},
        {"[{name: a, keys: " DIGEST_A "}]", "must be a list"},
        {"[{name: a, keys: [[" DIGEST_A "]]}]", "list of digests"},
        {"[{name: a, keys: [secret]}]", "64 hex digits"},
        {"[{name: a, keys: [g" DIGEST_A "]}]", "64 hex digits"},
        {"[{name: a, keys: [" DIGEST_A ", " DIGEST_A "]}]", "listed twice"},
        {"[{name: a, keys: [" DIGEST_A "]}, {name: b, keys: [" DIGEST_A "]}]", "in common"},
        {"[{name: a, keys: [" DIGEST_A "]}, {name: a, keys: [" DIGEST_B "]}]", "two tenants"},
        {"[{name: a, keys: [" DIGEST_A "], weight: 0}]", "tenants[0]: tenants[].weight"},
        {"[{name: a, keys: [" DIGEST_A "], weight: 1001}]", "1 to 1000"},
        {"[{name: a, keys: [" DIGEST_A "], priority_max: -1}]", "0 to 1000"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[512];
        snprintf(text, sizeof(text), "tenants=%s", cases[i].list);
        set_refused(text, MR_INVALID_ARGUMENT, cases[i].says);
    }
    /* What stands where a digest should may be the key: it is not repeated. */
    mr_config config = fresh();
    mr_error err = {0};
    assert_int_equal(mr_config_set(&config, "tenants=[{name: a, keys: [hunter2]}]", &err),
                     MR_INVALID_ARGUMENT);
    assert_null(strstr(err.message, "hunter2"));
    load_refused("threads: 1\ntenants:\n- name: a\n  wieght: 3\n", MR_INVALID_ARGUMENT, "line 3",
                 "did you mean weight?");
    load_refused("tenants: []\ntenants: []\n", MR_INVALID_ARGUMENT, "line 2", "given twice");
}

static void test_config_tenants_are_bounded(void **state)
{
    (void)state;
    mr_config config = fresh();
    mr_error err = {0};
    mr_buffer text = {0};
    assert_int_equal(mr_buffer_printf(&text, "tenants=["), MR_OK);
    for (int i = 0; i < 257; i++) {
        assert_int_equal(
            mr_buffer_printf(&text, "{name: t%d, keys: [%064d]}%s", i, i, i < 255 ? "," : ""),
            MR_OK);
        if (i == 255) {
            const size_t kept = text.size;
            assert_int_equal(mr_buffer_append(&text, "]", 2), MR_OK);
            set_ok(&config, (char *)text.data);
            assert_int_equal(config.tenants.count, 256);
            text.size = kept;
            assert_int_equal(mr_buffer_append(&text, ",", 1), MR_OK);
        }
    }
    assert_int_equal(mr_buffer_append(&text, "]", 2), MR_OK);
    assert_int_equal(mr_config_set(&config, (char *)text.data, &err), MR_INVALID_ARGUMENT);
    assert_says(&err, "more than 256");
    mr_buffer_deinit(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config_tenants),
        cmocka_unit_test(test_config_tenants_refused),
        cmocka_unit_test(test_config_tenants_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
