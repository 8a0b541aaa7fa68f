/* SPDX-License-Identifier: Apache-2.0 */
#include "tiny_vocab.h"

#include "model/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

static tiny_vocab vocab;

static mr_tokenizer *create(void)
{
    mr_tokenizer *made = NULL;
    mr_error err = {0};
    if (mr_tokenizer_create(&vocab.spec, &made, &err) != MR_OK) {
        fail_msg("%s", err.message);
    }
    return made;
}

static void create_refused(mr_status expected, const char *part)
{
    mr_tokenizer *made = NULL;
    mr_error err = {0};
    assert_int_equal(mr_tokenizer_create(&vocab.spec, &made, &err), expected);
    assert_null(made);
    if (strstr(err.message, part) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", err.message, part);
    }
}

static void check_ids(const mr_tokenizer *tokenizer, const char *text, size_t bytes,
                      const mr_encode_options *options, const uint32_t *ids, size_t count)
{
    mr_ids got = {0};
    assert_int_equal(mr_tokenizer_encode(tokenizer, text, bytes, options, &got, NULL), MR_OK);
    assert_int_equal(got.count, count);
    if (count > 0) {
        assert_memory_equal(got.data, ids, count * sizeof(*ids));
    }
    mr_ids_deinit(&got);
}

static const mr_encode_options parse = {.parse_special = true};
static const mr_encode_options no_parse = {0};

#define CHECK(tokenizer, text, options, ...)                                                       \
    check_ids(tokenizer, text, sizeof(text) - 1, options, (const uint32_t[]){__VA_ARGS__},         \
              sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t))

static void test_merges_by_rank(void **state)
{
    (void)state;
    tiny_vocab_init(&vocab);
    const uint32_t ow = tiny_vocab_join(&vocab, "o", "w");
    const uint32_t lo = tiny_vocab_join(&vocab, "l", "o");
    const uint32_t low = tiny_vocab_join(&vocab, "l", "ow");
    const uint32_t space_low = tiny_vocab_join(&vocab, "\xC4\xA0", "low"); /* U+0120: space */
    mr_tokenizer *tokenizer = create();
    CHECK(tokenizer, "low low", &parse, low, space_low);
    CHECK(tokenizer, "lo w", &parse, lo, ' ', 'w');
    CHECK(tokenizer, "slow lol", &parse, 's', low, ' ', lo, 'l');
    CHECK(tokenizer, "ow\xC3\xA9", &parse, ow, 0xC3, 0xA9);
    mr_tokenizer_destroy(tokenizer);
}

static void test_merges_leftmost_of_equal_rank(void **state)
{
    (void)state;
    tiny_vocab_init(&vocab);
    const uint32_t aa = tiny_vocab_join(&vocab, "a", "a");
    mr_tokenizer *tokenizer = create();
    CHECK(tokenizer, "aaa", &parse, aa, 'a');
    CHECK(tokenizer, "aaaaa", &parse, aa, aa, 'a');
    mr_tokenizer_destroy(tokenizer);
}

/* A pair that is listed twice has the rank of its last line. */
static void test_merges_listed_twice(void **state)
{
    (void)state;
    tiny_vocab_init(&vocab);
    tiny_vocab_join(&vocab, "a", "b");
    const uint32_t bc = tiny_vocab_join(&vocab, "b", "c");
    tiny_vocab_merge(&vocab, "a", "b");
    mr_tokenizer *tokenizer = create();
    CHECK(tokenizer, "abc", &parse, 'a', bc);
    mr_tokenizer_destroy(tokenizer);
}

/* A token that no merges lead to is only taken whole by families that say so. */
static void test_whole_tokens(void **state)
{
    (void)state;
    tiny_vocab_init(&vocab);
    const uint32_t ab = tiny_vocab_join(&vocab, "a", "b");
    const uint32_t abc = tiny_vocab_add(&vocab, "abc", MR_TOKEN_NORMAL);
    mr_tokenizer *tokenizer = create();
    CHECK(tokenizer, "abc", &parse, ab, 'c');
    mr_tokenizer_destroy(tokenizer);
    vocab.spec.pre_tokenizer = "llama-bpe";
    tokenizer = create();
    CHECK(tokenizer, "abc", &parse, abc);
    CHECK(tokenizer, "abca", &parse, ab, 'c', 'a');
    mr_tokenizer_destroy(tokenizer);
}

static uint32_t next_random(uint64_t *random_state)
{
    *random_state = *random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*random_state >> 33);
}

/* Merging as its definition has it: the best pair, again and again. */
static size_t merge_slowly(const uint32_t (*pairs)[3], size_t n_pairs, uint32_t *ids, size_t count)
{
    for (size_t rank = 0; rank < n_pairs; rank++) {
        for (size_t i = 0; i + 1 < count; i++) {
            if (ids[i] == pairs[rank][0] && ids[i + 1] == pairs[rank][1]) {
                ids[i] = pairs[rank][2];
                memmove(ids + i + 1, ids + i + 2, (count - i - 2) * sizeof(*ids));
                return merge_slowly(pairs, n_pairs, ids, count - 1);
            }
        }
    }
    return count;
}

#define DRAWN_MERGES 24
#define DRAWN_BYTES  12 /* of the longest token */

/* Adds merges of random symbols over a, b, c to the vocabulary; writes them to `pairs` as ids. */
static void draw_merges(uint64_t *seed, uint32_t (*pairs)[3])
{
    char names[3 + DRAWN_MERGES][DRAWN_BYTES + 1] = {"a", "b", "c"};
    uint32_t ids[3 + DRAWN_MERGES] = {'a', 'b', 'c'};
    uint32_t count = 3;
    while (count < 3 + DRAWN_MERGES) {
        const uint32_t left = next_random(seed) % count;
        const uint32_t right = next_random(seed) % count;
        char joined[2 * DRAWN_BYTES + 1];
        snprintf(joined, sizeof(joined), "%s%s", names[left], names[right]);
        bool usable = strlen(joined) <= DRAWN_BYTES;
        for (uint32_t i = 0; i < count; i++) {
            usable = usable && strcmp(names[i], joined) != 0;
        }
        if (usable) {
            memcpy(names[count], joined, strlen(joined) + 1);
            ids[count] = tiny_vocab_join(&vocab, names[left], names[right]);
            pairs[count - 3][0] = ids[left];
            pairs[count - 3][1] = ids[right];
            pairs[count - 3][2] = ids[count];
            count++;
        }
    }
}

static void test_merges_like_definition(void **state)
{
    (void)state;
    uint64_t seed = 42;
    for (int round = 0; round < 60; round++) {
        uint32_t pairs[DRAWN_MERGES][3];
        tiny_vocab_init(&vocab);
        draw_merges(&seed, pairs);
        mr_tokenizer *tokenizer = create();
        for (size_t bytes = 1; bytes < 200; bytes += 1 + bytes / 8) {
            char text[200];
            uint32_t ids[200];
            for (size_t i = 0; i < bytes; i++) {
                text[i] = (char)('a' + next_random(&seed) % 3);
                ids[i] = (uint32_t)text[i];
            }
            const size_t count =
                merge_slowly((const uint32_t(*)[3])pairs, DRAWN_MERGES, ids, bytes);
            check_ids(tokenizer, text, bytes, &parse, ids, count);
        }
        mr_tokenizer_destroy(tokenizer);
    }
}

static void test_added_K3_matched_before_the_pattern(void **state)
{
    (void)state;
    tiny_vocab_init(&vocab);
    const uint32_t ab = tiny_vocab_join(&vocab, "a", "b");
    const uint32_t spaced = tiny_vocab_add(&vocab, "b 1", MR_TOKEN_ADDED);
    const uint32_t shorter = tiny_vocab_add(&vocab, "<x", MR_TOKEN_ADDED);
    const uint32_t longer = tiny_vocab_add(&vocab, "<x><y>", MR_TOKEN_SPECIAL);
    const uint32_t later = tiny_vocab_add(&vocab, "x><y>z", MR_TOKEN_SPECIAL);
    mr_tokenizer *tokenizer = create();
    CHECK(tokenizer, "ab 12", &parse, 'a', spaced, '2');
    CHECK(tokenizer, "<x><y>z", &parse, longer, 'z');
    CHECK(tokenizer, "<x><y", &parse, shorter, '>', '<', 'y');
    CHECK(tokenizer, "-x><y>zab", &parse, '-', later, ab);
    CHECK(tokenizer, "<x<x", &parse, shorter, shorter);
    CHECK(tokenizer, "<x", &no_parse, '<', 'x');
    mr_tokenizer_destroy(tokenizer);
}

static void test_create_K3_unknown_component_refused(void **state)
{
    (void)state;
    tiny_vocab_init(&vocab);
    vocab.spec.pre_tokenizer = "tekken";
    create_refused(MR_UNIMPLEMENTED, "\"tekken\"");
    vocab.spec.pre_tokenizer = "smollm";
    vocab.spec.model = "t5";
    create_refused(MR_UNIMPLEMENTED, "\"t5\"");
}

static void test_added_K6_not_in_plain_spans(void **state)
{
    (void)state;
    tiny_vocab_init(&vocab);
    const uint32_t ab = tiny_vocab_join(&vocab, "a", "b");
    const uint32_t less = tiny_vocab_add(&vocab, "<e", MR_TOKEN_ADDED);
    const uint32_t end = tiny_vocab_add(&vocab, "<e>", MR_TOKEN_SPECIAL);
    mr_tokenizer *tokenizer = create();
    mr_encode_options options = {.parse_special = true};
    const mr_text_span middle[] = {{3, 6}};
    options.plain = middle;
    options.n_plain = 1;
    CHECK(tokenizer, "<e><e><e>", &options, end, '<', 'e', '>', end);
    /* One byte of the match is plain: the longer token is out, the shorter one is not. */
    const mr_text_span tail[] = {{2, 3}};
    options.plain = tail;
    CHECK(tokenizer, "<e>", &options, less, '>');
    /* An empty span holds nothing; spans cut neither pieces nor merges. */
    const mr_text_span cuts[] = {{1, 1}, {2, 2}, {4, 5}};
    options.plain = cuts;
    options.n_plain = 3;
    CHECK(tokenizer, "<e>ab<e>", &options, end, ab, end);
    const mr_text_span all[] = {{0, 3}};
    options.plain = all;
    options.n_plain = 1;
    CHECK(tokenizer, "<e>", &options, '<', 'e', '>');
    mr_tokenizer_destroy(tokenizer);
}

static void test_merges_K6_never_make_control_tokens(void **state)
{
    (void)state;
    tiny_vocab_init(&vocab);
    const uint32_t end = tiny_vocab_join(&vocab, "a", "b");
    vocab.kinds[end] = MR_TOKEN_SPECIAL;
    mr_tokenizer *tokenizer = create();
    CHECK(tokenizer, "ab", &parse, end);
    CHECK(tokenizer, "ab", &no_parse, 'a', 'b');
    mr_tokenizer_destroy(tokenizer);
}

/* Expected ids by hand; the whole of what flags do is compared with Hugging Face in tests/e2e. */
static void test_added_K3_flags(void **state)
{
    (void)state;
    tiny_vocab_init(&vocab);
    const uint32_t left = tiny_vocab_add(&vocab, "<l>", MR_TOKEN_ADDED);
    const uint32_t right = tiny_vocab_add(&vocab, "<r>", MR_TOKEN_SPECIAL);
    const uint32_t word = tiny_vocab_add(&vocab, "ab", MR_TOKEN_ADDED);
    const mr_added_token added[] = {
        {.text = vocab.tokens[left], .id = left, .lstrip = true},
        {.text = vocab.tokens[right], .id = right, .rstrip = true, .normalized = true},
        {.text = vocab.tokens[word], .id = word, .single_word = true},
    };
    vocab.spec.added = added;
    vocab.spec.n_added = 3;
    mr_tokenizer *tokenizer = create();
    CHECK(tokenizer, "a \n<l> b", &parse, 'a', left, ' ', 'b');
    CHECK(tokenizer, "a <r> \tb", &parse, 'a', ' ', right, 'b');
    CHECK(tokenizer, "<r> <l>", &parse, right, left);
    CHECK(tokenizer, "ab", &parse, word);
    CHECK(tokenizer, "-ab-", &parse, '-', word, '-');
    CHECK(tokenizer, "aab", &parse, 'a', 'a', 'b');
    CHECK(tokenizer, "ab\xC3\xA9", &parse, 'a', 'b', 0xC3, 0xA9);
    mr_tokenizer_destroy(tokenizer);
}

/* A token of blanks that takes the blanks behind it matches again in what it took: each blank is
 * looked at once all the same. */
static void test_added_K3_blanks_that_take_blanks(void **state)
{
    (void)state;
    enum { BLANKS = 1 << 20 };
    tiny_vocab_init(&vocab);
    const uint32_t two = tiny_vocab_add(&vocab, "  ", MR_TOKEN_ADDED);
    const mr_added_token added[] = {{.text = vocab.tokens[two], .id = two, .rstrip = true}};
    vocab.spec.added = added;
    vocab.spec.n_added = 1;
    mr_tokenizer *tokenizer = create();
    char *text = malloc(BLANKS);
    assert_non_null(text);
    memset(text, ' ', BLANKS);
    mr_ids ids = {0};
    assert_int_equal(mr_tokenizer_encode(tokenizer, text, BLANKS, &parse, &ids, NULL), MR_OK);
    assert_int_equal(ids.count, BLANKS / 2);
    assert_int_equal(ids.data[BLANKS / 2 - 1], two);
    mr_ids_deinit(&ids);
    free(text);
    mr_tokenizer_destroy(tokenizer);
}

static void test_special_K1_one_bos(void **state)
{
    (void)state;
    tiny_vocab_init(&vocab);
    const uint32_t bos = tiny_vocab_add(&vocab, "<s>", MR_TOKEN_SPECIAL);
    const uint32_t eos = tiny_vocab_add(&vocab, "</s>", MR_TOKEN_SPECIAL);
    vocab.spec.add_bos = true;
    vocab.spec.bos_id = bos;
    vocab.spec.eos_id = eos;
    mr_tokenizer *tokenizer = create();
    const mr_encode_options both = {.add_special = true, .parse_special = true};
    CHECK(tokenizer, "a", &both, bos, 'a');
    CHECK(tokenizer, "", &both, bos);
    CHECK(tokenizer, "<s>a", &both, bos, 'a');
    CHECK(tokenizer, "a", &parse, 'a');
    assert_int_equal(mr_tokenizer_bos(tokenizer), bos);
    mr_tokenizer_destroy(tokenizer);
    vocab.spec.add_bos = false;
    vocab.spec.add_eos = true;
    tokenizer = create();
    CHECK(tokenizer, "a", &both, 'a', eos);
    assert_true(mr_tokenizer_bos(tokenizer) == UINT32_MAX);
    mr_tokenizer_destroy(tokenizer);
}

static void test_encode_odd_texts(void **state)
{
    (void)state;
    tiny_vocab_init(&vocab);
    vocab.kinds[0x01] = MR_TOKEN_UNUSED; /* the vocabulary lacks the byte 0x01 */
    tiny_vocab_merge(&vocab, "!", "!");
    const uint32_t two = tiny_vocab_add(&vocab, "!!", MR_TOKEN_NORMAL);
    mr_tokenizer *tokenizer = create();
    CHECK(tokenizer, "a\0b\0", &parse, 'a', 0, 'b', 0);
    CHECK(tokenizer, "!\x01!", &parse, two);
    check_ids(tokenizer, "", 0, &parse, NULL, 0);
    check_ids(tokenizer, NULL, 0, &parse, NULL, 0);
    mr_tokenizer_destroy(tokenizer);
}

static void encode_refused(const mr_tokenizer *tokenizer, const char *text, size_t bytes,
                           const mr_encode_options *options, const char *part)
{
    mr_error err = {0};
    mr_ids ids = {0};
    assert_int_equal(mr_ids_push(&ids, 7), MR_OK);
    assert_int_equal(mr_tokenizer_encode(tokenizer, text, bytes, options, &ids, &err),
                     MR_INVALID_ARGUMENT);
    assert_int_equal(ids.count, 1);
    assert_non_null(strstr(err.message, part));
    mr_ids_deinit(&ids);
}

static void test_encode_refuses(void **state)
{
    (void)state;
    tiny_vocab_init(&vocab);
    mr_tokenizer *tokenizer = create();
    encode_refused(tokenizer, "ab\xFF", 3, &parse, "byte 2");
    encode_refused(tokenizer, "\xED\xA0\x80", 3, &parse, "byte 0");
    encode_refused(tokenizer, "abc\xE2\x82", 5, &parse, "byte 3");
    const mr_text_span crossing[] = {{0, 2}, {1, 3}};
    const mr_text_span outside[] = {{1, 4}};
    const mr_text_span reversed[] = {{2, 1}};
    mr_encode_options options = {.plain = crossing, .n_plain = 2};
    encode_refused(tokenizer, "abc", 3, &options, "span 1");
    options = (mr_encode_options){.plain = outside, .n_plain = 1};
    encode_refused(tokenizer, "abc", 3, &options, "span 0");
    options = (mr_encode_options){.plain = reversed, .n_plain = 1};
    encode_refused(tokenizer, "abc", 3, &options, "span 0");
    mr_tokenizer_destroy(tokenizer);
}

static void test_create_refuses(void **state)
{
    (void)state;
    tiny_vocab_init(&vocab);
    tiny_vocab_add(&vocab, "a", MR_TOKEN_NORMAL);
    create_refused(MR_INVALID_ARGUMENT, "tokens 97 and 256");
    tiny_vocab_init(&vocab);
    tiny_vocab_join(&vocab, "a", "b");
    tiny_vocab_merge(&vocab, "ab", "c");
    create_refused(MR_INVALID_ARGUMENT, "merge 1 (\"ab c\")");
    tiny_vocab_init(&vocab);
    tiny_vocab_merge(&vocab, "", "a");
    create_refused(MR_INVALID_ARGUMENT, "merge 0");
    tiny_vocab_init(&vocab);
    tiny_vocab_add(&vocab, "x\xC3", MR_TOKEN_ADDED);
    create_refused(MR_INVALID_ARGUMENT, "token 256 is not UTF-8 at byte 1");
    tiny_vocab_init(&vocab);
    vocab.kinds[9] = MR_TOKEN_UNUSED + 1;
    create_refused(MR_INVALID_ARGUMENT, "token 9");
    tiny_vocab_init(&vocab);
    vocab.spec.bos_id = 256;
    create_refused(MR_INVALID_ARGUMENT, "BOS token 256");
    tiny_vocab_init(&vocab);
    vocab.spec.add_eos = true;
    create_refused(MR_INVALID_ARGUMENT, "EOS");
    tiny_vocab_init(&vocab);
    memset(vocab.kinds, MR_TOKEN_UNUSED, 256);
    create_refused(MR_INVALID_ARGUMENT, "byte-level");
    vocab.spec.n_tokens = 0;
    create_refused(MR_INVALID_ARGUMENT, "0 tokens");
}

static void check_text_of(const mr_tokenizer *tokenizer, const uint32_t *ids, size_t count,
                          bool keep_special, const char *text)
{
    mr_buffer got = {0};
    assert_int_equal(mr_tokenizer_decode(tokenizer, ids, count, keep_special, &got, NULL), MR_OK);
    assert_int_equal(got.size, strlen(text));
    assert_memory_equal(got.data, text, got.size);
    mr_buffer_deinit(&got);
}

static void test_decode(void **state)
{
    (void)state;
    tiny_vocab_init(&vocab);
    const uint32_t word = tiny_vocab_join(&vocab, "\xC4\xA0", "a");
    const uint32_t control = tiny_vocab_add(&vocab, "<e>", MR_TOKEN_SPECIAL);
    const uint32_t shown = tiny_vocab_add(&vocab, "caf\xC3\xA9 1", MR_TOKEN_ADDED);
    const uint32_t literal = tiny_vocab_add(&vocab, "\xE4\xBD\xA0", MR_TOKEN_NORMAL);
    const uint32_t unused = tiny_vocab_add(&vocab, "[PAD]", MR_TOKEN_UNUSED);
    mr_tokenizer *tokenizer = create();
    const uint32_t ids[] = {word, control, shown, literal, unused, 0xC3};
    check_text_of(tokenizer, ids, 6, true, " a<e>caf\xC3\xA9 1\xE4\xBD\xA0\xC3");
    check_text_of(tokenizer, ids, 6, false, " acaf\xC3\xA9 1\xE4\xBD\xA0\xC3");
    const mr_bytes bytes = mr_tokenizer_token_bytes(tokenizer, word);
    assert_int_equal(bytes.size, 2);
    assert_memory_equal(bytes.data, " a", 2);
    assert_int_equal(mr_tokenizer_kind(tokenizer, control), MR_TOKEN_SPECIAL);
    assert_int_equal(mr_tokenizer_vocab_size(tokenizer), 261);
    mr_buffer out = {0};
    mr_error err = {0};
    const uint32_t bad[] = {'a', 261};
    assert_int_equal(mr_tokenizer_decode(tokenizer, bad, 2, true, &out, &err), MR_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "id 261 at index 1"));
    assert_int_equal(out.size, 0);
    mr_buffer_deinit(&out);
    mr_tokenizer_destroy(tokenizer);
}

/* One megabyte that is one piece, or that all but matches an added token everywhere. */
static void test_encode_hostile_lengths(void **state)
{
    (void)state;
    const size_t bytes = 1u << 20;
    tiny_vocab_init(&vocab);
    tiny_vocab_join(&vocab, "a", "a");
    const uint32_t four = tiny_vocab_join(&vocab, "aa", "aa");
    tiny_vocab_add(&vocab, "<|im_start|>", MR_TOKEN_SPECIAL);
    mr_tokenizer *tokenizer = create();
    static const char *const patterns[] = {"aaaaaaaa",         "        ",     "11111111",
                                           "\n\n\n\n\n\n\n\n", " \n \n \n \n", "<|im_sta",
                                           "''''''''",         "<<<<<<<<"};
    char *text = malloc(bytes + 1);
    assert_non_null(text);
    for (size_t p = 0; p < sizeof(patterns) / sizeof(patterns[0]); p++) {
        for (size_t i = 0; i < bytes; i += 8) {
            memcpy(text + i, patterns[p], 8);
        }
        text[bytes] = 'x';
        mr_ids ids = {0};
        assert_int_equal(mr_tokenizer_encode(tokenizer, text, bytes + 1, &parse, &ids, NULL),
                         MR_OK);
        assert_int_equal(ids.count, p == 0 ? bytes / 4 + 1 : bytes + 1);
        assert_int_equal(ids.data[0], p == 0 ? four : (uint8_t)patterns[p][0]);
        assert_int_equal(ids.data[ids.count - 1], 'x');
        mr_ids_deinit(&ids);
    }
    free(text);
    mr_tokenizer_destroy(tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_merges_by_rank),
        cmocka_unit_test(test_merges_leftmost_of_equal_rank),
        cmocka_unit_test(test_merges_listed_twice),
        cmocka_unit_test(test_whole_tokens),
        cmocka_unit_test(test_merges_like_definition),
        cmocka_unit_test(test_added_K3_matched_before_the_pattern),
        cmocka_unit_test(test_create_K3_unknown_component_refused),
        cmocka_unit_test(test_added_K3_flags),
        cmocka_unit_test(test_added_K3_blanks_that_take_blanks),
        cmocka_unit_test(test_added_K6_not_in_plain_spans),
        cmocka_unit_test(test_merges_K6_never_make_control_tokens),
        cmocka_unit_test(test_special_K1_one_bos),
        cmocka_unit_test(test_encode_odd_texts),
        cmocka_unit_test(test_encode_refuses),
        cmocka_unit_test(test_create_refuses),
        cmocka_unit_test(test_decode),
        cmocka_unit_test(test_encode_hostile_lengths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
