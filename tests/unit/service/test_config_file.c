/* SPDX-License-Identifier: Apache-2.0 */
#include "service/config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "config_steps.h"

static void test_config_file_nested_and_dotted(void **state)
{
    (void)state;
    mr_config config = fresh();
    mr_error err = {0};
    const char *text = "# a comment\n"
                       "max_batch_size: 8\n"
                       "kv_cache_memory: 64MiB\n"
                       "served_model_name: \"a b\"\n"
                       "speculative_decoding:\n"
                       "  enable: false\n"
                       "admin.enable: false\n";
    assert_int_equal(load_text(&config, text, &err), MR_OK);
    assert_int_equal(config.max_batch_size, 8);
    assert_int_equal(config.kv_cache_memory, 64 << 20);
    assert_string_equal(config.served_model_name, "a b");
    assert_int_equal(load_text(&config, "", &err), MR_OK);
    assert_int_equal(load_text(&config, "# nothing\n", &err), MR_OK);
}

static void test_config_file_errors_name_line_and_key(void **state)
{
    (void)state;
    load_refused("threads: 1\nmax_batch_sise: 8\n", MR_INVALID_ARGUMENT, "line 2",
                 "did you mean max_batch_size?");
    load_refused("threads: 1\nattention:\n  sparse: true\n", MR_FAILED_PRECONDITION, "line 3",
                 "attention.sparse");
    load_refused("threads: 1\nthreads: 2\n", MR_INVALID_ARGUMENT, "line 2",
                 "threads is given twice");
    load_refused("threads: [1, 2]\n", MR_INVALID_ARGUMENT, "line 1", "takes one value");
    load_refused("threads: {a: 1}\n", MR_INVALID_ARGUMENT, "line 1", "takes one value");
    load_refused("threads:\n", MR_INVALID_ARGUMENT, "line 1", "whole number");
    load_refused("adapters:\n  - a\n", MR_FAILED_PRECONDITION, "line 2", "LoRA");
    load_refused("colours: [red]\n", MR_INVALID_ARGUMENT, "line 1", "colours");
    load_refused("- threads\n", MR_INVALID_ARGUMENT, "line 1", "mapping");
    load_refused("{[a]: 1}\n", MR_INVALID_ARGUMENT, "line 1", "no name of a setting");
    load_refused("threads: 1\n\tcompute: f32\n", MR_INVALID_ARGUMENT, "line 2", "not YAML");
    load_refused("threads: 1\n---\nthreads: 2\n", MR_INVALID_ARGUMENT, "c.yaml", "more than one");
    load_refused("kv_transfer: {b: {c: {d: {e: {f: {g: {h: {i: {j: 1}}}}}}}}}\n",
                 MR_INVALID_ARGUMENT, "line 1", "nested too deeply");
    load_refused("kv_transfer: &a {b: *a}\n", MR_INVALID_ARGUMENT, "line 1", "nested too deeply");
    load_refused("threads: 1\nkv_cach: {}\n", MR_INVALID_ARGUMENT, "line 2",
                 "unknown configuration key kv_cach");
    load_refused("log: {formats: {}}\n", MR_INVALID_ARGUMENT, "line 1", "did you mean log.format?");
    load_refused("a: &a {b: *a}\n", MR_INVALID_ARGUMENT, "line 1", "unknown");

    mr_config config = fresh();
    mr_error err = {0};
    assert_int_equal(mr_config_load_file(&config, "no/such/file.yaml", &err), MR_NOT_FOUND);
    assert_says(&err, "no/such/file.yaml");
}

/* Six levels of ten aliases each would be a million mappings. */
static void test_config_file_aliases_are_bounded(void **state)
{
    (void)state;
    char text[2048] = "kv_transfer:\n  a0: &a0 {}\n";
    size_t length = strlen(text);
    for (int level = 1; level <= 6; level++) {
        length +=
            (size_t)snprintf(text + length, sizeof(text) - length, "  a%d: &a%d {", level, level);
        for (int i = 0; i < 10; i++) {
            length += (size_t)snprintf(text + length, sizeof(text) - length, "%sk%d: *a%d",
                                       i == 0 ? "" : ", ", i, level - 1);
        }
        length += (size_t)snprintf(text + length, sizeof(text) - length, "}\n");
    }
    load_refused(text, MR_INVALID_ARGUMENT, "kv_transfer", "too long");

    mr_config config = fresh();
    mr_error err = {0};
    assert_int_equal(load_text(&config, "kv_transfer: {}\nlog: {}\nadapters: []\n", &err), MR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config_file_nested_and_dotted),
        cmocka_unit_test(test_config_file_errors_name_line_and_key),
        cmocka_unit_test(test_config_file_aliases_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
