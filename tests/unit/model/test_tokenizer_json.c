/* SPDX-License-Identifier: Apache-2.0 */
/* Small files by hand; what real ones give is compared with Hugging Face in tests/e2e. */
#include "model/tokenizer_json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define BYTE_LEVEL "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": true}"

/* A file whose parts are given; the model's tables follow. */
static const char *file_of(const char *parts, const char *model)
{
    static char text[4096];
    (void)snprintf(text, sizeof(text), "{%s, \"model\": {\"type\": \"BPE\", %s}}", parts, model);
    return text;
}

#define VOCAB                                                                                      \
    "\"vocab\": {\"<s>\": 0, \"a\": 1, \"b\": 2, \"ab\": 3, \"\xC4\xA0\": 4, \"</s>\": 6}, "       \
    "\"merges\": [\"a b\"]"
#define BYTES "\"pre_tokenizer\": " BYTE_LEVEL ", \"decoder\": " BYTE_LEVEL

static mr_tokenizer *create(const char *text, const mr_tokenizer_config *config)
{
    mr_tokenizer *made = NULL;
    mr_error err = {0};
    if (mr_tokenizer_json_create(text, strlen(text), config, &made, &err) != MR_OK) {
        fail_msg("%s", err.message);
    }
    return made;
}

static void refused(const char *text, mr_status expected, const char *part)
{
    mr_tokenizer *made = NULL;
    mr_error err = {0};
    assert_int_equal(mr_tokenizer_json_create(text, strlen(text), NULL, &made, &err), expected);
    assert_null(made);
    if (strstr(err.message, part) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", err.message, part);
    }
}

static void check(const mr_tokenizer *tokenizer, const char *text, const uint32_t *ids,
                  size_t count)
{
    const mr_encode_options options = {.parse_special = true, .add_special = true};
    mr_ids got = {0};
    assert_int_equal(mr_tokenizer_encode(tokenizer, text, strlen(text), &options, &got, NULL),
                     MR_OK);
    assert_int_equal(got.count, count);
    assert_memory_equal(got.data, ids, count * sizeof(*ids));
    mr_ids_deinit(&got);
}

#define CHECK(tokenizer, text, ...)                                                                \
    check(tokenizer, text, (const uint32_t[]){__VA_ARGS__},                                        \
          sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t))

static void test_tables(void **state)
{
    (void)state;
    mr_tokenizer *tokenizer = create(file_of(BYTES, VOCAB), NULL);
    assert_int_equal(mr_tokenizer_vocab_size(tokenizer), 7);
    assert_int_equal(mr_tokenizer_kind(tokenizer, 5), MR_TOKEN_UNUSED); /* a hole */
    CHECK(tokenizer, "ab ba", 3, 4, 2, 1);
    mr_tokenizer_destroy(tokenizer);
    tokenizer = create(file_of(BYTES, "\"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2}, "
                                      "\"merges\": [[\"a\", \"b\"]]"),
                       NULL);
    CHECK(tokenizer, "abab", 2, 2);
    mr_tokenizer_destroy(tokenizer);
}

static void test_added_tokens_have_the_vocabularys_id(void **state)
{
    (void)state;
    mr_tokenizer *tokenizer =
        create(file_of(BYTES ", \"added_tokens\": ["
                             "{\"id\": 9, \"content\": \"<s>\", \"special\": true}, "
                             "{\"id\": 8, \"content\": \"<t>\", \"special\": false}]",
                       VOCAB),
               NULL);
    CHECK(tokenizer, "<s><t>a", 0, 8, 1);
    assert_int_equal(mr_tokenizer_kind(tokenizer, 0), MR_TOKEN_SPECIAL);
    assert_int_equal(mr_tokenizer_kind(tokenizer, 8), MR_TOKEN_ADDED);
    mr_tokenizer_destroy(tokenizer);
}

#define ENDS                                                                                       \
    BYTES ", \"added_tokens\": [{\"id\": 0, \"content\": \"<s>\", \"special\": true}, "            \
          "{\"id\": 6, \"content\": \"</s>\", \"special\": true}], \"post_processor\": "           \
          "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"<s>\", "  \
          "\"type_id\": 0}}, {\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}], "                   \
          "\"special_tokens\": {\"<s>\": {\"id\": \"<s>\", \"ids\": [0]}}}"

static void test_ends_K1_one_bos_whoever_says_it(void **state)
{
    (void)state;
    const char *text = file_of(ENDS, VOCAB);
    mr_tokenizer *tokenizer = create(text, NULL);
    CHECK(tokenizer, "a", 0, 1);
    CHECK(tokenizer, "<s>a", 0, 1);
    mr_tokenizer_destroy(tokenizer);
    mr_tokenizer_config config = {.add_bos = MR_NO};
    tokenizer = create(text, &config);
    CHECK(tokenizer, "a", 1);
    mr_tokenizer_destroy(tokenizer);
    config = (mr_tokenizer_config){.add_eos = MR_YES,
                                   .eos_token = {.data = (const uint8_t *)"</s>", .size = 4}};
    tokenizer = create(text, &config);
    CHECK(tokenizer, "a", 0, 1, 6);
    mr_tokenizer_destroy(tokenizer);
    config.eos_token.size = 3;
    mr_error err = {0};
    assert_int_equal(mr_tokenizer_json_create(text, strlen(text), &config, &tokenizer, &err),
                     MR_DATA_LOSS);
    assert_non_null(strstr(err.message, "EOS"));
}

static void test_create_F5_damaged_tables_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        const char *part;
    } rows[] = {
        {"\"vocab\": {\"a\": 0, \"b\": 0}, \"merges\": []", "two tokens have the id"},
        {"\"vocab\": {\"a\": 0, \"a\": 1}, \"merges\": []", "twice"},
        {"\"vocab\": {\"a\": -1}, \"merges\": []", "\"a\" has no usable id"},
        {"\"vocab\": {\"a\": 4294967295}, \"merges\": []", "no usable id"},
        {"\"vocab\": {\"a\": 1000000}, \"merges\": []", "no usable id"}, /* the file is shorter */
        {"\"vocab\": {\"a\": \"0\"}, \"merges\": []", "no usable id"},
        {"\"vocab\": {\"a\": {}}, \"merges\": []", "no usable id"},
        {"\"vocab\": {}, \"merges\": []", "vocabulary of 0 tokens"},
        {"\"vocab\": {\"a\": 0}, \"vocab\": {\"b\": 1}, \"merges\": []", "not one table"},
        {"\"vocab\": [\"a\"], \"merges\": []", "is a list"},
        {"\"vocab\": {\"a\": 0}, \"merges\": [\"a b\"]", "merge 0"},
        {"\"vocab\": {\"a\": 0}, \"merges\": [\"ab\"]", "element 0"},
        {"\"vocab\": {\"a\": 0}, \"merges\": [\"a b c\"]", "element 0"},
        {"\"vocab\": {\"a\": 0}, \"merges\": [[]]", "pair"},
        {"\"vocab\": {\"a\": 0}, \"merges\": [[\"a\"]]", "pair"},
        {"\"vocab\": {\"a\": 0}, \"merges\": [[\"a\", \"b\", \"c\"]]", "pair"},
        {"\"vocab\": {\"a\": 0}, \"merges\": [[\"a\", [\"b\"]]]", "pair"},
        {"\"vocab\": {\"a\": 0}, \"merges\": [1]", "neither"},
        {"\"vocab\": {\"a\": 0}, \"merges\": {}", "not one table"},
        {"\"vocab\": {\"a\": 0}, \"unk_token\": \"u\", \"merges\": []", "unknown token \"u\""},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        refused(file_of(BYTES, rows[i].model), MR_DATA_LOSS, rows[i].part);
    }
    refused("[]", MR_DATA_LOSS, "not an object");
    refused("{}", MR_DATA_LOSS, "no model");
    refused("{\"model\"", MR_DATA_LOSS, "");
    refused(file_of(BYTES ", \"added_tokens\": [{\"id\": 1}]", VOCAB), MR_DATA_LOSS, "content");
    refused(file_of(BYTES ", \"added_tokens\": [{\"id\": 1, \"content\": \"b2\"}]", VOCAB),
            MR_DATA_LOSS, "two tokens have the id");
}

static void test_create_K3_unknown_component_is_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *parts;
        const char *model;
        const char *part;
    } rows[] = {
        {"\"normalizer\": {\"type\": \"Lowercase\"}, " BYTES, VOCAB, "normalizer \"Lowercase\""},
        {"\"normalizer\": {\"type\": \"Replace\", \"pattern\": {\"Regex\": \"a\"}, "
         "\"content\": \"b\"}, " BYTES,
         VOCAB, "\"Replace\" of a pattern"},
        {"\"pre_tokenizer\": {\"type\": \"Whitespace\"}", VOCAB, "pre-tokenizer \"Whitespace\""},
        {"\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"\\\\w\"}, "
         "\"behavior\": \"Isolated\", \"invert\": false}",
         VOCAB, "an escape at byte 0"},
        {"\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [" BYTE_LEVEL
         ", " BYTE_LEVEL "]}",
         VOCAB, "\"ByteLevel\" before another"},
        {"\"decoder\": {\"type\": \"CTC\"}", VOCAB, "decoder \"CTC\""},
        {"\"pre_tokenizer\": " BYTE_LEVEL ", \"decoder\": {\"type\": \"ByteFallback\"}", VOCAB,
         "another kind than its pre-tokenizer"},
        {"\"post_processor\": {\"type\": \"RobertaProcessing\"}, " BYTES, VOCAB,
         "post-processor \"RobertaProcessing\""},
        {BYTES, "\"dropout\": 0.1, " VOCAB, "dropout"},
        {BYTES, "\"end_of_word_suffix\": \"</w>\", " VOCAB, "end_of_word_suffix"},
        {BYTES, "\"byte_fallback\": true, " VOCAB, "byte_fallback"},
        {BYTES ", \"added_tokens\": [{\"id\": 1, \"content\": \"a\", \"other\": 1}]", VOCAB,
         "\"other\""},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        refused(file_of(rows[i].parts, rows[i].model), MR_UNIMPLEMENTED, rows[i].part);
    }
    refused("{\"model\": {\"type\": \"Unigram\", \"vocab\": [[\"a\", 0.5]]}}", MR_UNIMPLEMENTED,
            "model \"Unigram\"");
}

static void test_config_reads_every_form(void **state)
{
    (void)state;
    static const char text[] =
        "{\"add_bos_token\": true, \"add_eos_token\": null, \"bos_token\": \"<s>\", "
        "\"eos_token\": {\"content\": \"</s>\"}, \"added_tokens_decoder\": {\"0\": {\"a\": [1]}}, "
        "\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"x\"}, "
        "{\"name\": \"default\", \"template\": \"y\"}]}";
    mr_tokenizer_config config;
    assert_int_equal(mr_tokenizer_config_parse(text, strlen(text), &config, NULL), MR_OK);
    assert_int_equal(config.add_bos, MR_YES);
    assert_int_equal(config.add_eos, MR_UNSAID);
    assert_true(mr_bytes_is(config.bos_token, "<s>"));
    assert_true(mr_bytes_is(config.eos_token, "</s>"));
    assert_true(mr_bytes_is(config.chat_template, "y"));
    assert_null(json_object_get(config.tree.root, "added_tokens_decoder"));
    mr_tokenizer_config_deinit(&config);
    static const char *const bad[] = {"[]", "{\"add_bos_token\": 1}", "{\"bos_token\": 1}",
                                      "{\"chat_template\": 1}", "{\"a\": 1, \"a\": 2}"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        mr_error err = {0};
        assert_int_equal(mr_tokenizer_config_parse(bad[i], strlen(bad[i]), &config, &err),
                         MR_DATA_LOSS);
        assert_true(err.message[0] != '\0');
    }
}

/* What a file may ask for is bounded by its size (F5). */
static void test_files_that_explode_F5_are_refused(void **state)
{
    (void)state;
    static char text[4096];
    static char content[600];
    memset(content, 'a', sizeof(content) - 1);
    (void)snprintf(text, sizeof(text),
                   "{%s, \"added_tokens\": [{\"id\": 7, \"content\": \"%s\", \"special\": true}], "
                   "\"model\": {\"type\": \"BPE\", %s}}",
                   BYTES, content, VOCAB);
    refused(text, MR_UNIMPLEMENTED, "more than 512 bytes");
    content[512] = '\0';
    (void)snprintf(text, sizeof(text),
                   "{%s, \"added_tokens\": [{\"id\": 7, \"content\": \"%s\", \"special\": true}], "
                   "\"model\": {\"type\": \"BPE\", %s}}",
                   BYTES, content, VOCAB);
    mr_tokenizer *tokenizer = create(text, NULL);
    CHECK(tokenizer, content, 7);
    mr_tokenizer_destroy(tokenizer);

    content[400] = '\0';
    static char step[800];
    (void)snprintf(step, sizeof(step),
                   "{\"type\": \"Replace\", \"pattern\": {\"String\": \"a\"}, \"content\": \"%s\"}",
                   content);
    (void)snprintf(text, sizeof(text), "\"decoder\": %s", step);
    static char file[8192];
    (void)snprintf(file, sizeof(file),
                   "{%s, \"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, "
                   "\"merges\": []}}",
                   text);
    refused(file, MR_DATA_LOSS, "times as much of a token");

    (void)snprintf(file, sizeof(file),
                   "{\"normalizer\": %s, \"model\": {\"type\": \"BPE\", "
                   "\"vocab\": {\"a\": 0}, \"merges\": []}}",
                   step);
    tokenizer = create(file, NULL);
    mr_ids got = {0};
    mr_error err = {0};
    const mr_encode_options options = {.parse_special = true};
    assert_int_equal(mr_tokenizer_encode(tokenizer, "a", 1, &options, &got, &err),
                     MR_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "normalizer"));
    mr_ids_deinit(&got);
    mr_tokenizer_destroy(tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tables),
        cmocka_unit_test(test_added_tokens_have_the_vocabularys_id),
        cmocka_unit_test(test_ends_K1_one_bos_whoever_says_it),
        cmocka_unit_test(test_create_F5_damaged_tables_are_refused),
        cmocka_unit_test(test_create_K3_unknown_component_is_refused_by_name),
        cmocka_unit_test(test_config_reads_every_form),
        cmocka_unit_test(test_files_that_explode_F5_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
