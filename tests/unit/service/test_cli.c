/* SPDX-License-Identifier: Apache-2.0 */
#include "service/cli.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define MAX_WORDS 16

typedef struct values {
    bool flag;
    const char *text;
    mr_cli_texts texts;
    uint64_t count;
    bool count_given;
    float number;
    mr_cli_counts counts;
    mr_cli_texts operands;
} values;

/* Parses the words, which NULL ends. */
static mr_cli_outcome parse(values *v, ...)
{
    *v = (values){0};
    const mr_cli_option options[] = {
        {"flag", MR_CLI_FLAG, &v->flag, NULL, NULL, ""},
        {"text", MR_CLI_TEXT, &v->text, NULL, "T", ""},
        {"texts", MR_CLI_TEXTS, &v->texts, NULL, "T", ""},
        {"count", MR_CLI_COUNT, &v->count, &v->count_given, "N", ""},
        {"number", MR_CLI_FLOAT, &v->number, NULL, "X", ""},
        {"counts", MR_CLI_COUNTS, &v->counts, NULL, "N,…", ""},
    };
    const mr_cli_command command = {
        .name = "test",
        .usage = "[OPTION]...",
        .about = "",
        .options = options,
        .n_options = sizeof(options) / sizeof(options[0]),
        .max_operands = 1,
    };
    char *argv[MAX_WORDS] = {"test"};
    int argc = 1;
    va_list words;
    va_start(words, v);
    for (char *word; (word = va_arg(words, char *)) != NULL;) {
        assert_true(argc < MAX_WORDS);
        argv[argc++] = word;
    }
    va_end(words);
    return mr_cli_parse(&command, argc, argv, &v->operands);
}

static void test_cli_values(void **state)
{
    (void)state;
    values v;
    assert_int_equal(parse(&v, "--flag", "--text", "a", "--texts=b", "--texts", "c=d", "--count",
                           "7", "--number=-0.5", "--counts", "512,4096", "word", NULL),
                     MR_CLI_RUN);
    assert_true(v.flag);
    assert_string_equal(v.text, "a");
    assert_int_equal(v.texts.count, 2);
    assert_string_equal(v.texts.items[1], "c=d");
    assert_int_equal(v.count, 7);
    assert_true(v.count_given);
    assert_true(v.number == -0.5f);
    assert_int_equal(v.counts.count, 2);
    assert_int_equal(v.counts.items[1], 4096);
    assert_int_equal(v.operands.count, 1);
    assert_string_equal(v.operands.items[0], "word");
}

static void test_cli_operands_may_look_like_options(void **state)
{
    (void)state;
    values v;
    assert_int_equal(parse(&v, "--", "--flag", NULL), MR_CLI_RUN);
    assert_false(v.flag);
    assert_string_equal(v.operands.items[0], "--flag");
    assert_int_equal(parse(&v, "-", NULL), MR_CLI_RUN);
    assert_string_equal(v.operands.items[0], "-");
    assert_int_equal(parse(&v, "--text", "--flag", NULL), MR_CLI_RUN);
    assert_string_equal(v.text, "--flag");
    assert_int_equal(parse(&v, "--text=", NULL), MR_CLI_RUN);
    assert_string_equal(v.text, "");
}

static void test_cli_refuses(void **state)
{
    (void)state;
    static char *const bad[] = {
        "--fla",         "--flags",    "-f",          "--flag=1",   "--count",
        "--count=",      "--count=-1", "--count=1x",  "--count= 1", "--count=18446744073709551616",
        "--number=",     "--number=x", "--number=1 ", "--counts=",  "--counts=1,",
        "--counts=1,,2", "--counts=0", "--counts=,1", "--",         "--draft-model",
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        values v;
        /* Two operands where "--" is all there is to say. */
        char *more = bad[i][2] == '\0' ? "a" : NULL;
        assert_int_equal(parse(&v, bad[i], more, "b", NULL), MR_CLI_BAD);
    }
}

static void test_cli_help(void **state)
{
    (void)state;
    values v;
    assert_int_equal(parse(&v, "--help", NULL), MR_CLI_HELPED);
}

static void test_cli_config_order(void **state)
{
    (void)state;
    const mr_cli_model model = {.sets = {{"max_batch_size=4", "max_batch_size=5"}, 2}};
    mr_config config;
    mr_error err = {0};
    assert_int_equal(mr_cli_load_config(&model, &config, &err), MR_OK);
    assert_int_equal(config.max_batch_size, 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cli_values),
        cmocka_unit_test(test_cli_operands_may_look_like_options),
        cmocka_unit_test(test_cli_refuses),
        cmocka_unit_test(test_cli_help),
        cmocka_unit_test(test_cli_config_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
