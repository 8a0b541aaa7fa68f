/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tokenizer of a real model against Hugging Face's ids. Needs MILLRACE_MODEL, the SmolLM2
 * GGUF; skipped without it.
 */
#include "base/sha256.h"
#include "model/model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "golden.h"

static mr_model *model;
static const mr_encode_options parse = {.parse_special = true};

static int open_model(void **state)
{
    (void)state;
    const char *path = getenv("MILLRACE_MODEL");
    mr_error err = {0};
    if (path != NULL && mr_model_open(path, &model, &err) != MR_OK) {
        fprintf(stderr, "%s\n", err.message);
        return -1;
    }
    return 0;
}

static int close_model(void **state)
{
    (void)state;
    mr_model_close(model);
    return 0;
}

static const mr_tokenizer *tokenizer_or_skip(void)
{
    if (model == NULL) {
        skip();
    }
    const mr_tokenizer *tokenizer = mr_model_tokenizer(model);
    assert_non_null(tokenizer);
    return tokenizer;
}

static void check_row(const mr_tokenizer *tokenizer, const json_t *row)
{
    const mr_bytes text = golden_bytes(row, "text");
    const json_t *expected = json_object_get(row, "ids");
    mr_ids ids = {0};
    mr_buffer back = {0};
    assert_int_equal(mr_tokenizer_encode(tokenizer, text.data, text.size, &parse, &ids, NULL),
                     MR_OK);
    assert_int_equal(ids.count, json_array_size(expected));
    for (size_t i = 0; i < ids.count; i++) {
        assert_int_equal(ids.data[i], json_integer_value(json_array_get(expected, i)));
    }
    assert_int_equal(mr_tokenizer_decode(tokenizer, ids.data, ids.count, true, &back, NULL), MR_OK);
    assert_int_equal(back.size, text.size);
    assert_memory_equal(back.data, text.data, text.size);
    mr_buffer_deinit(&back);
    mr_ids_deinit(&ids);
}

static void test_encode_and_decode_reference(void **state)
{
    (void)state;
    const mr_tokenizer *tokenizer = tokenizer_or_skip();
    FILE *file = fopen(MR_TEST_DATA "/tokenize.jsonl", "rb");
    assert_non_null(file);
    size_t rows = 0;
    json_t *row;
    while ((row = json_loadf(file, JSON_DISABLE_EOF_CHECK | GOLDEN_FLAGS, NULL)) != NULL) {
        check_row(tokenizer, row);
        json_decref(row);
        rows++;
    }
    assert_int_equal(rows, 120);
    fclose(file);
}

/* splitmix64, as in tests/tools/make_k2_golden.py, which says how the strings are drawn. */
static uint64_t next_random(uint64_t *random_state)
{
    uint64_t z = *random_state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static void append_code_point(mr_buffer *out, uint32_t code)
{
    uint8_t text[4] = {(uint8_t)code};
    size_t bytes = 1;
    if (code >= 0x10000) {
        text[0] = (uint8_t)(0xF0 | code >> 18);
        bytes = 4;
    } else if (code >= 0x800) {
        text[0] = (uint8_t)(0xE0 | code >> 12);
        bytes = 3;
    } else if (code >= 0x80) {
        text[0] = (uint8_t)(0xC0 | code >> 6);
        bytes = 2;
    }
    for (size_t i = 1; i < bytes; i++) {
        text[i] = (uint8_t)(0x80 | (code >> 6 * (bytes - 1 - i) & 0x3F));
    }
    assert_int_equal(mr_buffer_append(out, text, bytes), MR_OK);
}

static const json_t *draw_entry(uint64_t *random_state, const json_t *list)
{
    return json_array_get(list, (size_t)(next_random(random_state) % json_array_size(list)));
}

static void append_part(mr_buffer *out, const json_t *root, uint64_t *random_state)
{
    const uint64_t kind = next_random(random_state) % 8;
    if (kind == 0) {
        const uint32_t code = (uint32_t)(next_random(random_state) % 0x110000);
        append_code_point(out, code >= 0xD800 && code < 0xE000 ? 0xFFFD : code);
        return;
    }
    const json_t *entry =
        draw_entry(random_state, json_object_get(root, kind <= 2 ? "added" : "fragments"));
    size_t bytes = json_string_length(entry);
    if (kind == 2) {
        bytes = 1 + (size_t)(next_random(random_state) % (bytes - 1));
    }
    assert_int_equal(mr_buffer_append(out, json_string_value(entry), bytes), MR_OK);
}

/* Appends the number of ids and the ids of the next string, as little-endian u32 (the byte order
 * of every machine this runs on). */
static void append_ids(mr_buffer *out, const mr_tokenizer *tokenizer, const json_t *root,
                       uint64_t *random_state)
{
    mr_buffer text = {0};
    mr_ids ids = {0};
    const uint64_t parts = 1 + next_random(random_state) % 16;
    for (uint64_t i = 0; i < parts; i++) {
        append_part(&text, root, random_state);
    }
    assert_int_equal(mr_tokenizer_encode(tokenizer, text.data, text.size, &parse, &ids, NULL),
                     MR_OK);
    const uint32_t count = (uint32_t)ids.count;
    assert_int_equal(mr_buffer_append(out, &count, sizeof(count)), MR_OK);
    assert_int_equal(mr_buffer_append(out, ids.data, ids.count * sizeof(*ids.data)), MR_OK);
    mr_ids_deinit(&ids);
    mr_buffer_deinit(&text);
}

static void test_encode_K2_random_strings_with_added_tokens(void **state)
{
    (void)state;
    const mr_tokenizer *tokenizer = tokenizer_or_skip();
    json_t *root = golden_load("k2_smollm2.json");
    const json_t *digests = json_object_get(root, "digests");
    const json_int_t group = json_integer_value(json_object_get(root, "group"));
    assert_int_equal((json_int_t)json_array_size(digests) * group, 10000);
    uint64_t random_state = (uint64_t)json_integer_value(json_object_get(root, "seed"));
    for (size_t g = 0; g < json_array_size(digests); g++) {
        mr_buffer ids = {0};
        for (json_int_t i = 0; i < group; i++) {
            append_ids(&ids, tokenizer, root, &random_state);
        }
        uint8_t digest[MR_SHA256_BYTES];
        char hex[2 * MR_SHA256_BYTES + 1];
        mr_sha256(ids.data, ids.size, digest);
        mr_sha256_hex(digest, hex);
        assert_string_equal(hex, json_string_value(json_array_get(digests, g)));
        mr_buffer_deinit(&ids);
    }
    json_decref(root);
}

/* Every control token of the vocabulary, written by a user, stays text and comes back as text. */
static void test_encode_K6_every_special_token_in_user_text(void **state)
{
    (void)state;
    const mr_tokenizer *tokenizer = tokenizer_or_skip();
    size_t seen = 0;
    for (uint32_t id = 0; id < mr_tokenizer_vocab_size(tokenizer); id++) {
        if (mr_tokenizer_kind(tokenizer, id) != MR_TOKEN_SPECIAL) {
            continue;
        }
        const mr_bytes text = mr_tokenizer_token_bytes(tokenizer, id);
        const mr_text_span all = {0, text.size};
        const mr_encode_options user = {.parse_special = true, .plain = &all, .n_plain = 1};
        mr_ids ids = {0};
        mr_buffer back = {0};
        assert_int_equal(mr_tokenizer_encode(tokenizer, text.data, text.size, &user, &ids, NULL),
                         MR_OK);
        for (size_t i = 0; i < ids.count; i++) {
            assert_int_equal(mr_tokenizer_kind(tokenizer, ids.data[i]), MR_TOKEN_NORMAL);
        }
        assert_int_equal(mr_tokenizer_decode(tokenizer, ids.data, ids.count, false, &back, NULL),
                         MR_OK);
        assert_int_equal(back.size, text.size);
        assert_memory_equal(back.data, text.data, text.size);
        mr_buffer_deinit(&back);
        mr_ids_deinit(&ids);
        seen++;
    }
    assert_int_equal(seen, 17);
}

static void test_chat_template_known(void **state)
{
    (void)state;
    (void)tokenizer_or_skip();
    assert_true(mr_chat_template_known(mr_model_chat(model)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_encode_and_decode_reference),
        cmocka_unit_test(test_encode_K2_random_strings_with_added_tokens),
        cmocka_unit_test(test_encode_K6_every_special_token_in_user_text),
        cmocka_unit_test(test_chat_template_known),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
