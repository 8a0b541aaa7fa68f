/* SPDX-License-Identifier: Apache-2.0 */
#include "service/text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "../model/tiny_vocab.h"
#include "base/utf8.h"

/* The ids 0 … 255 are the bytes; the two that follow are special and user-defined. */
enum {
    TOKEN_SPECIAL = 256,
    TOKEN_ADDED = 257,
};

static mr_tokenizer *tokenizer;

static int make_tokenizer(void **state)
{
    (void)state;
    static tiny_vocab vocab;
    tiny_vocab_init(&vocab);
    assert_int_equal(tiny_vocab_add(&vocab, "<s>", MR_TOKEN_SPECIAL), TOKEN_SPECIAL);
    assert_int_equal(tiny_vocab_add(&vocab, "<tool>", MR_TOKEN_ADDED), TOKEN_ADDED);
    mr_error err = {0};
    if (mr_tokenizer_create(&vocab.spec, &tokenizer, &err) != MR_OK) {
        fail_msg("%s", err.message);
    }
    return 0;
}

static int drop_tokenizer(void **state)
{
    (void)state;
    mr_tokenizer_destroy(tokenizer);
    return 0;
}

/* Pushes the bytes as tokens, taking after each; every delta is valid UTF-8. The text so far is
 * checked after the last: `last` is passed to its take. */
static void stream_bytes(const char *bytes, size_t count, bool last, const char *expected)
{
    mr_text_stream stream;
    mr_text_stream_init(&stream, tokenizer, false);
    mr_buffer all = {0};
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(mr_text_stream_push(&stream, (uint8_t)bytes[i]), MR_OK);
        mr_buffer delta = {0};
        assert_int_equal(mr_text_stream_take(&stream, UINT64_MAX, last && i + 1 == count, &delta),
                         MR_OK);
        assert_true(mr_utf8_valid(delta.data, delta.size, NULL));
        assert_int_equal(mr_buffer_append(&all, delta.data, delta.size), MR_OK);
        mr_buffer_deinit(&delta);
    }
    assert_int_equal(all.size, strlen(expected));
    assert_memory_equal(all.size == 0 ? (const uint8_t *)"" : all.data, expected, all.size);
    mr_buffer_deinit(&all);
    mr_text_stream_deinit(&stream);
}

static void test_text_S1_split_characters_stay_whole(void **state)
{
    (void)state;
    const char *text = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x8D\x81z"; /* a é € 🍁 z, byte by byte */
    stream_bytes(text, strlen(text), false, text);
    stream_bytes(text, strlen(text), true, text);
    stream_bytes("\xF0\x9F\x8D", 3, false, "");
}

/* SentencePiece's tokens of one byte: a character that is no token comes as its bytes. */
/* A tokenizer of the Llama family: a token a byte, one for a space and one for an "a". */
static mr_tokenizer *create_fallback(void)
{
    static char names[256][8];
    static mr_bytes tokens[258];
    static uint8_t kinds[258];
    static float scores[258];
    for (unsigned byte = 0; byte < 256; byte++) {
        (void)snprintf(names[byte], sizeof(names[byte]), "<0x%02X>", byte);
        tokens[byte] = (mr_bytes){.data = (const uint8_t *)names[byte], .size = 6};
    }
    tokens[256] = (mr_bytes){.data = (const uint8_t *)"\xE2\x96\x81", .size = 3};
    tokens[257] = (mr_bytes){.data = (const uint8_t *)"a", .size = 1};
    static const mr_bytes space = {.data = (const uint8_t *)" ", .size = 1};
    const mr_tokenizer_spec spec = {
        .model = "llama",
        .tokens = tokens,
        .kinds = kinds,
        .n_tokens = 258,
        .scores = scores,
        .byte_fallback = true,
        .normalizer = {{.kind = MR_TEXT_PREPEND, .to = tokens[256]},
                       {.kind = MR_TEXT_REPLACE, .from = space, .to = tokens[256]}},
        .n_normalizer = 2,
        .decode = {{.kind = MR_TEXT_REPLACE, .from = tokens[256], .to = space}},
        .n_decode = 1,
        .decode_strip = 1,
        .bos_id = UINT32_MAX,
        .eos_id = UINT32_MAX,
    };
    mr_tokenizer *fallback = NULL;
    assert_int_equal(mr_tokenizer_create(&spec, &fallback, NULL), MR_OK);
    return fallback;
}

static void test_text_S1_byte_fallback_gives_whole_characters(void **state)
{
    (void)state;
    mr_tokenizer *fallback = create_fallback();
    static const char text[] = "a \xF0\x9F\x8D\x81\xC3\xA9"; /* a, space, U+1F341, é */
    static const uint32_t expected[] = {256, 257, 256, 0xF0, 0x9F, 0x8D, 0x81, 0xC3, 0xA9};
    const mr_encode_options options = {0};
    mr_ids ids = {0};
    assert_int_equal(mr_tokenizer_encode(fallback, text, strlen(text), &options, &ids, NULL),
                     MR_OK);
    assert_int_equal(ids.count, 9);
    assert_memory_equal(ids.data, expected, sizeof(expected));
    mr_text_stream stream;
    mr_text_stream_init(&stream, fallback, false);
    static const char *const deltas[] = {" ", "a",       " ", "", "", "", "\xF0\x9F\x8D\x81",
                                         "",  "\xC3\xA9"};
    for (size_t i = 0; i < ids.count; i++) {
        mr_buffer delta = {0};
        assert_int_equal(mr_text_stream_push(&stream, ids.data[i]), MR_OK);
        assert_int_equal(mr_text_stream_take(&stream, UINT64_MAX, false, &delta), MR_OK);
        assert_int_equal(delta.size, strlen(deltas[i]));
        if (delta.size > 0) {
            assert_memory_equal(delta.data, deltas[i], delta.size);
        }
        mr_buffer_deinit(&delta);
    }
    /* As a whole text the prefix is gone. */
    mr_buffer whole = {0};
    assert_int_equal(mr_tokenizer_decode(fallback, ids.data, ids.count, false, &whole, NULL),
                     MR_OK);
    assert_int_equal(whole.size, strlen(text));
    assert_memory_equal(whole.data, text, whole.size);
    mr_buffer_deinit(&whole);
    mr_text_stream_deinit(&stream);
    mr_ids_deinit(&ids);
    mr_tokenizer_destroy(fallback);
}

static void test_text_S1_only_invalid_bytes_are_replaced(void **state)
{
    (void)state;
    stream_bytes("a\xFF"
                 "b",
                 3, false,
                 "a\xEF\xBF\xBD"
                 "b");
    stream_bytes("\x80\x80", 2, false, "\xEF\xBF\xBD\xEF\xBF\xBD");
    /* The character breaks off: one replacement for its part, and what follows stays. */
    stream_bytes("\xE2\x82"
                 "c",
                 3, false,
                 "\xEF\xBF\xBD"
                 "c");
}

static void test_text_S3_flush_keeps_the_head(void **state)
{
    (void)state;
    stream_bytes("hi \xE2\x82", 5, false, "hi ");
    stream_bytes("hi \xE2\x82", 5, true, "hi \xEF\xBF\xBD");
}

static void test_text_special_tokens(void **state)
{
    (void)state;
    static const uint32_t ids[] = {'a', TOKEN_SPECIAL, TOKEN_ADDED, 100000};
    for (int keep = 0; keep < 2; keep++) {
        mr_text_stream stream;
        mr_text_stream_init(&stream, tokenizer, keep == 1);
        for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++) {
            assert_int_equal(mr_text_stream_push(&stream, ids[i]), MR_OK);
        }
        mr_buffer out = {0};
        assert_int_equal(mr_text_stream_take(&stream, UINT64_MAX, true, &out), MR_OK);
        const char *expected = keep == 1 ? "a<s><tool>" : "a<tool>";
        assert_int_equal(out.size, strlen(expected));
        assert_memory_equal(out.data, expected, out.size);
        mr_buffer_deinit(&out);
        mr_text_stream_deinit(&stream);
    }
}

static void test_text_without_tokenizer_is_empty(void **state)
{
    (void)state;
    mr_text_stream stream;
    mr_text_stream_init(&stream, NULL, true);
    assert_int_equal(mr_text_stream_push(&stream, 'a'), MR_OK);
    mr_buffer out = {0};
    assert_int_equal(mr_text_stream_take(&stream, UINT64_MAX, true, &out), MR_OK);
    assert_int_equal(out.size, 0);
    mr_text_stream_deinit(&stream);
}

/* T1: what may become a stop string is held back, and what is one is dropped. */
static void test_text_T1_limit(void **state)
{
    (void)state;
    static const struct {
        uint64_t limit;
        const char *shown;
    } steps[] = {{1, "a"}, {1, "a"}, {3, "a\xC3\xA9"}, {3, "a\xC3\xA9"}};
    const char *text = "a\xC3\xA9!"; /* one byte a token */
    mr_text_stream stream;
    mr_text_stream_init(&stream, tokenizer, false);
    mr_buffer out = {0};
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(mr_text_stream_push(&stream, (uint8_t)text[i]), MR_OK);
        assert_int_equal(mr_text_stream_take(&stream, steps[i].limit, i == 3, &out), MR_OK);
        assert_int_equal(out.size, strlen(steps[i].shown));
        assert_memory_equal(out.data, steps[i].shown, out.size);
    }
    assert_int_equal(mr_text_stream_take(&stream, UINT64_MAX, true, &out), MR_OK);
    assert_int_equal(out.size, 3);
    mr_buffer_deinit(&out);
    mr_text_stream_deinit(&stream);
}

/* T3: the token that ended it is no text; a special one is shown where those are kept. */
static void test_text_T3_matched_token(void **state)
{
    (void)state;
    static const struct {
        uint32_t token;
        bool matched;
        bool keep;
        const char *shown;
    } cases[] = {
        {'a', false, false, "a"},         {'a', true, false, ""},
        {TOKEN_SPECIAL, true, false, ""}, {TOKEN_SPECIAL, true, true, "<s>"},
        {TOKEN_ADDED, true, true, ""},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        mr_text_stream stream;
        mr_text_stream_init(&stream, tokenizer, cases[i].keep);
        const mr_token_event event = {.token = cases[i].token,
                                      .matched_token =
                                          cases[i].matched ? cases[i].token : MR_NO_TOKEN};
        mr_buffer out = {0};
        assert_int_equal(mr_text_stream_add(&stream, &event), MR_OK);
        assert_int_equal(mr_text_stream_take(&stream, UINT64_MAX, true, &out), MR_OK);
        assert_int_equal(out.size, strlen(cases[i].shown));
        assert_memory_equal(out.size == 0 ? (const uint8_t *)"" : out.data, cases[i].shown,
                            out.size);
        mr_buffer_deinit(&out);
        mr_text_stream_deinit(&stream);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text_S1_split_characters_stay_whole),
        cmocka_unit_test(test_text_S1_byte_fallback_gives_whole_characters),
        cmocka_unit_test(test_text_S1_only_invalid_bytes_are_replaced),
        cmocka_unit_test(test_text_S3_flush_keeps_the_head),
        cmocka_unit_test(test_text_special_tokens),
        cmocka_unit_test(test_text_without_tokenizer_is_empty),
        cmocka_unit_test(test_text_T1_limit),
        cmocka_unit_test(test_text_T3_matched_token),
    };
    return cmocka_run_group_tests(tests, make_tokenizer, drop_tokenizer);
}
