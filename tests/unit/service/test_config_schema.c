/* SPDX-License-Identifier: Apache-2.0 */
#include "service/config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

static json_t *load_schema(void)
{
    mr_buffer text = {0};
    assert_int_equal(mr_config_schema(&text), MR_OK);
    json_t *schema = json_loadb((const char *)text.data, text.size, JSON_REJECT_DUPLICATES, NULL);
    mr_buffer_deinit(&text);
    assert_non_null(schema);
    return schema;
}

/* The schema of a key: `path` is names of properties, separated by slashes. Fails without one. */
static const json_t *at(const json_t *schema, const char *path)
{
    char names[128];
    snprintf(names, sizeof(names), "%s", path);
    char *rest = NULL;
    for (char *name = strtok_r(names, "/", &rest); name != NULL;
         name = strtok_r(NULL, "/", &rest)) {
        schema = json_object_get(json_object_get(schema, "properties"), name);
        if (schema == NULL) {
            fail_msg("%s: no %s", path, name);
        }
    }
    return schema;
}

static void assert_says(const json_t *schema, const char *expected)
{
    json_t *wanted = json_loads(expected, 0, NULL);
    assert_non_null(wanted);
    json_t *copy = json_deep_copy(schema);
    json_object_del(copy, "description");
    if (!json_equal(copy, wanted)) {
        fail_msg("%s, not %s", json_dumps(copy, JSON_COMPACT), expected);
    }
    json_decref(copy);
    json_decref(wanted);
}

/* Bounds as docs/configuration.md has them. */
static void test_config_schema_says_types_and_bounds_N1(void **state)
{
    (void)state;
    json_t *schema = load_schema();
    assert_says(at(schema, "max_batch_size"),
                "{\"type\": \"integer\", \"minimum\": 1, \"maximum\": 4096, \"default\": 32}");
    assert_says(at(schema, "threads"),
                "{\"anyOf\": [{\"type\": \"integer\", \"minimum\": 1, \"maximum\": 1024},"
                "{\"const\": \"auto\"}], \"default\": \"auto\"}");
    assert_says(at(schema, "kv_host_memory"),
                "{\"anyOf\": [{\"type\": \"integer\", \"minimum\": 0}, {\"type\": \"string\","
                "\"pattern\": \"^[0-9]+(B|KiB|MiB|GiB|TiB)?$\"}], \"default\": 0}");
    assert_says(at(schema, "log/level"),
                "{\"enum\": [\"debug\", \"info\", \"warn\", \"error\"], \"default\": \"info\"}");
    json_decref(schema);
}

/* What YAML reads as a truth value, or quoted as text, is the same to the program. */
static void test_config_schema_takes_truth_values_in_both_spellings(void **state)
{
    (void)state;
    json_t *schema = load_schema();
    assert_says(at(schema, "metrics/vllm_names"),
                "{\"enum\": [true, \"true\", false, \"false\"], \"default\": \"true\"}");
    json_decref(schema);
}

/* As in served_model_name: 7, which the program reads as text. */
static void test_config_schema_takes_numbers_for_text(void **state)
{
    (void)state;
    json_t *schema = load_schema();
    assert_says(at(schema, "served_model_name"),
                "{\"type\": [\"string\", \"number\"], \"maxLength\": 127}");
    json_decref(schema);
}

static void test_config_schema_leaves_out_what_is_not_built(void **state)
{
    (void)state;
    json_t *schema = load_schema();
    assert_says(at(schema, "kv_cache_dtype"),
                "{\"enum\": [\"auto\", \"f32\", \"f16\", \"bf16\", \"int8\", \"fp8\"],"
                "\"default\": \"auto\"}");
    const json_t *keys = json_object_get(schema, "properties");
    assert_null(json_object_get(keys, "max_memory"));
    assert_null(json_object_get(keys, "adapters"));
    json_decref(schema);
}

/* Sections, entries of lists and the whole take nothing else. */
static void test_config_schema_is_closed(void **state)
{
    (void)state;
    json_t *schema = load_schema();
    const json_t *entry = json_object_get(at(schema, "tenants"), "items");
    const json_t *objects[] = {schema, at(schema, "redis"), entry};
    for (size_t i = 0; i < sizeof(objects) / sizeof(objects[0]); i++) {
        assert_true(json_is_false(json_object_get(objects[i], "additionalProperties")));
    }
    assert_says(at(entry, "keys"),
                "{\"type\": \"array\", \"maxItems\": 8,"
                "\"items\": {\"type\": \"string\", \"pattern\": \"^[0-9a-fA-F]{64}$\"}}");
    assert_says(at(entry, "identities"),
                "{\"type\": \"array\", \"maxItems\": 8,"
                "\"items\": {\"type\": \"string\", \"minLength\": 1, \"maxLength\": 255}}");
    assert_non_null(json_object_get(at(schema, "admin/callers"), "items"));
    assert_says(at(entry, "requests_per_s"),
                "{\"type\": \"number\", \"minimum\": 0, \"maximum\": 1000000, \"default\": 0}");
    json_decref(schema);
}

/* By that mark the chart keeps them out of its ConfigMap. */
static void test_config_schema_marks_secrets(void **state)
{
    (void)state;
    json_t *schema = load_schema();
    assert_true(json_is_true(json_object_get(at(schema, "cache_salt_secret"), "writeOnly")));
    assert_true(json_is_true(json_object_get(at(schema, "redis/url"), "writeOnly")));
    assert_null(json_object_get(at(schema, "served_model_name"), "writeOnly"));
    json_decref(schema);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config_schema_says_types_and_bounds_N1),
        cmocka_unit_test(test_config_schema_takes_truth_values_in_both_spellings),
        cmocka_unit_test(test_config_schema_takes_numbers_for_text),
        cmocka_unit_test(test_config_schema_leaves_out_what_is_not_built),
        cmocka_unit_test(test_config_schema_is_closed),
        cmocka_unit_test(test_config_schema_marks_secrets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
