/* SPDX-License-Identifier: Apache-2.0 */
#include "service/config.h"
#include "service/unsupported.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "config_steps.h"

/* What `millrace config` prints sets the same again. */
static void test_config_identities_survive_printing(void **state)
{
    (void)state;
    mr_config config = fresh();
    set_ok(&config, "admin.callers=[{name: o, identities: [spiffe://x/o, 'CN=a \"b\" \\']}]");
    mr_buffer text = {0};
    assert_int_equal(mr_config_yaml(&config, &text), MR_OK);
    assert_int_equal(mr_buffer_append(&text, "", 1), MR_OK);
    mr_config again = fresh();
    mr_error err = {0};
    assert_int_equal(load_text(&again, (const char *)text.data, &err), MR_OK);
    const mr_credentials *credentials = &again.admins.items[0].credentials;
    assert_int_equal(credentials->n_identities, 2);
    assert_string_equal(credentials->identities[0], "spiffe://x/o");
    assert_string_equal(credentials->identities[1], "CN=a \"b\" \\");
    mr_buffer_deinit(&text);
}

/* Neither what is logged nor what is printed as a file, and no error. */
static void test_config_shows_no_password(void **state)
{
    (void)state;
    mr_config config = fresh();
    mr_buffer text = {0};
    set_ok(&config, "redis.url=redis://ada:xyzzy@h:7000/1");
    assert_string_equal(config.redis_url, "redis://ada:xyzzy@h:7000/1");
    assert_int_equal(mr_config_format(&config, &text), MR_OK);
    assert_int_equal(mr_config_yaml(&config, &text), MR_OK);
    assert_int_equal(mr_buffer_append(&text, "", 1), MR_OK);
    assert_null(strstr((const char *)text.data, "xyzzy"));
    assert_null(strstr((const char *)text.data, "ada"));
    assert_non_null(strstr((const char *)text.data, "redis.url=redis://***@h:7000/1 "));
    assert_non_null(strstr((const char *)text.data, "\n# not shown: redis.url: "));
    mr_buffer_deinit(&text);
    mr_error err = {0};
    assert_int_equal(mr_config_set(&config, "redis.url=redis://ada:xyzzy@h:port", &err),
                     MR_INVALID_ARGUMENT);
    assert_null(strstr(err.message, "xyzzy"));
    assert_string_equal(err.field, "redis.url");
}

static void test_config_format_Q6_effective_configuration(void **state)
{
    (void)state;
    mr_config config = fresh();
    set_ok(&config, "served_model_name=m");
    assert_int_equal(mr_config_finish(&config, NULL), MR_OK);
    mr_buffer text = {0};
    assert_int_equal(mr_config_format(&config, &text), MR_OK);
    assert_int_equal(mr_buffer_append(&text, "", 1), MR_OK);
    assert_non_null(strstr((char *)text.data, "served_model_name=\"m\""));
    assert_non_null(strstr((char *)text.data, "max_batch_size=32"));
    assert_non_null(strstr((char *)text.data, "enable_prefix_caching=true "));
    mr_buffer_deinit(&text);
}

static void append_line(void *ctx, const char *text)
{
    assert_non_null(strchr(text, '='));
    assert_int_equal(mr_buffer_append(ctx, "\n", 1), MR_OK);
    assert_int_equal(mr_buffer_append(ctx, text, strlen(text)), MR_OK);
}

static void test_config_describe_lists_every_key(void **state)
{
    (void)state;
    static const char *const names[] = {
#define MR_CONFIG_TEXT(name, ...)    name,
#define MR_CONFIG_FLAG(name, ...)    name,
#define MR_CONFIG_SECRET(name, ...)  name,
#define MR_CONFIG_URL(name, ...)     name,
#define MR_CONFIG_NUMBER(name, ...)  name,
#define MR_CONFIG_BYTES(name, ...)   name,
#define MR_CONFIG_DECIMAL(name, ...) name,
#define MR_CONFIG_FIXED(name, ...)   name,
#define MR_CONFIG_LIST(name, ...)    name,
#include "service/config_keys.def"
    };
    mr_buffer lines = {0};
    mr_config_describe(append_line, &lines);
    assert_int_equal(mr_buffer_append(&lines, "", 1), MR_OK);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char begin[80];
        (void)snprintf(begin, sizeof(begin), "\n%s=", names[i]);
        assert_non_null(strstr((char *)lines.data, begin));
    }
    mr_buffer_deinit(&lines);
}

static void test_config_shows_no_secret(void **state)
{
    (void)state;
    mr_config config = fresh();
    mr_buffer text = {0};
    set_ok(&config, "cache_salt_secret=swordfish");
    assert_string_equal(config.cache_salt_secret, "swordfish");
    assert_int_equal(mr_config_yaml(&config, &text), MR_OK);
    assert_int_equal(mr_config_finish(&config, NULL), MR_OK);
    assert_int_equal(mr_config_format(&config, &text), MR_OK);
    assert_int_equal(mr_buffer_append(&text, "", 1), MR_OK);
    assert_null(strstr((char *)text.data, "swordfish"));
    assert_non_null(strstr((char *)text.data, "# not shown: cache_salt_secret: \"***\"\n"));
    assert_non_null(strstr((char *)text.data, "cache_salt_secret=***"));
    mr_buffer_deinit(&text);
}

static void test_config_yaml_sets_the_same_again(void **state)
{
    (void)state;
    mr_config config = fresh();
    set_ok(&config, "served_model_name=a \"b\" \\c");
    set_ok(&config, "kv_cache_memory=3MiB");
    set_ok(&config, "batch_timeout_ms=5");
    set_ok(&config, "prefill_interval=2");
    set_ok(&config, "log.level=debug");
    set_ok(&config, "batch_invariant=true");
    set_ok(&config, "tenants=[{name: a, keys: [" DIGEST_A ", " DIGEST_B "], weight: 7}, "
                    "{name: \"b.c-d_9\", keys: [" DIGEST_C "], priority_max: 4}]");
    mr_buffer text = {0};
    assert_int_equal(mr_config_yaml(&config, &text), MR_OK);
    assert_int_equal(mr_buffer_append(&text, "", 1), MR_OK);
    assert_non_null(strstr((char *)text.data, "kv_cache_memory: 3145728\n"));
    assert_non_null(strstr((char *)text.data, "# max_batch_size: 32\n"));
    mr_config again = fresh();
    mr_error err = {0};
    assert_int_equal(load_text(&again, (char *)text.data, &err), MR_OK);
    assert_memory_equal(&again, &config, sizeof(config));
    mr_buffer_deinit(&text);
}

/* Neither a terminal nor a line of YAML sees a control character or break of Unicode. */
static void test_config_yaml_escapes_control_characters(void **state)
{
    (void)state;
    mr_config config = fresh();
    set_ok(&config, "served_model_name=a\n\t\x1b[1m\x7f \xc2\x85\xc2\x9b \xe2\x80\xa8"
                    "\xe2\x80\xa9 \xc3\xa9\xe2\x80\xa7");
    mr_buffer text = {0};
    assert_int_equal(mr_config_yaml(&config, &text), MR_OK);
    assert_int_equal(mr_buffer_append(&text, "", 1), MR_OK);
    assert_non_null(strstr((char *)text.data,
                           "served_model_name: \"a\\u000A\\u0009\\u001B[1m\\u007F \\u0085\\u009B "
                           "\\u2028\\u2029 \xc3\xa9\xe2\x80\xa7\"\n"));
    mr_config again = fresh();
    mr_error err = {0};
    if (load_text(&again, (char *)text.data, &err) != MR_OK) {
        fail_msg("%s", err.message);
    }
    assert_string_equal(again.served_model_name, config.served_model_name);
    mr_buffer_deinit(&text);
}

/* Every key, with its name in the environment, and every key that is refused. */
static void test_config_markdown_names_all(void **state)
{
    (void)state;
    mr_buffer text = {0};
    assert_int_equal(mr_config_markdown(&text), MR_OK);
    assert_int_equal(mr_buffer_append(&text, "", 1), MR_OK);
    const char *page = (char *)text.data;
    assert_non_null(strstr(page, "| `max_batch_size` | number | `32` | 1 to 4096 |"));
    assert_non_null(strstr(page, "`MILLRACE_SPECULATIVE_DECODING_ENABLE`"));
    size_t count;
    const mr_unsupported *rows = mr_unsupported_table(&count);
    for (size_t i = 0; i < count; i++) {
        if (rows[i].surface == MR_SURFACE_CONFIG) {
            char row[128];
            snprintf(row, sizeof(row), "| `%s` |", rows[i].name);
            assert_non_null(strstr(page, row));
        }
    }
    mr_buffer_deinit(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config_identities_survive_printing),
        cmocka_unit_test(test_config_shows_no_password),
        cmocka_unit_test(test_config_format_Q6_effective_configuration),
        cmocka_unit_test(test_config_describe_lists_every_key),
        cmocka_unit_test(test_config_shows_no_secret),
        cmocka_unit_test(test_config_yaml_sets_the_same_again),
        cmocka_unit_test(test_config_yaml_escapes_control_characters),
        cmocka_unit_test(test_config_markdown_names_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
