/* SPDX-License-Identifier: Apache-2.0 */
#include "model/pretokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "golden.h"

static void check_row(mr_piece_cursor *cursor, mr_bytes text, const json_t *ends)
{
    mr_piece_cursor_start(cursor, text.data, text.size);
    mr_bytes piece = {0};
    size_t at = 0;
    for (size_t i = 0; i < json_array_size(ends); i++) {
        assert_int_equal(mr_piece_cursor_next(cursor, &piece, NULL), MR_OK);
        assert_ptr_equal(piece.data, text.data + at);
        at += piece.size;
        if ((json_int_t)at != json_integer_value(json_array_get(ends, i))) {
            fail_msg("piece %zu of \"%s\" ends at %zu", i, (const char *)text.data, at);
        }
    }
    assert_int_equal(mr_piece_cursor_next(cursor, &piece, NULL), MR_OK);
    assert_int_equal(piece.size, 0);
}

/* tests/data/pieces.json: where Hugging Face cuts. */
static void check_family(const char *name, const char *golden)
{
    mr_pretokenizer *pretokenizer = NULL;
    mr_piece_cursor cursor;
    const mr_tokenizer_family *family = NULL;
    assert_int_equal(mr_tokenizer_family_find(name, &family, NULL), MR_OK);
    assert_int_equal(mr_pretokenizer_create(family->splits, family->n_splits, &pretokenizer, NULL),
                     MR_OK);
    assert_int_equal(mr_piece_cursor_init(&cursor, pretokenizer, NULL), MR_OK);
    json_t *root = golden_load("pieces.json");
    const json_t *rows = json_object_get(root, "rows");
    assert_true(json_array_size(rows) > 200);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        const json_t *ends = json_object_get(json_object_get(row, "ends"), golden);
        assert_true(json_is_array(ends));
        check_row(&cursor, golden_bytes(row, "text"), ends);
    }
    json_decref(root);
    mr_piece_cursor_deinit(&cursor);
    mr_pretokenizer_destroy(pretokenizer);
}

static void test_pieces_gpt2(void **state)
{
    (void)state;
    check_family("gpt-2", "gpt-2");
}

static void test_pieces_smollm(void **state)
{
    (void)state;
    check_family("smollm", "smollm");
}

static void test_pieces_llama3(void **state)
{
    (void)state;
    check_family("llama-bpe", "llama-bpe");
    check_family("llama3", "llama-bpe");
    check_family("llama-v3", "llama-bpe");
}

static void test_whole_tokens_of_families(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        bool whole;
    } rows[] = {{"gpt-2", false}, {"smollm", false}, {"llama-bpe", true}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const mr_tokenizer_family *family = NULL;
        assert_int_equal(mr_tokenizer_family_find(rows[i].name, &family, NULL), MR_OK);
        assert_int_equal(family->whole_tokens, rows[i].whole);
    }
}

static void test_create_K3_unknown_name_refused(void **state)
{
    (void)state;
    static const char *const names[] = {"default", "tekken", "GPT-2", "smollm ", ""};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const mr_tokenizer_family *family = NULL;
        mr_error err = {0};
        assert_int_equal(mr_tokenizer_family_find(names[i], &family, &err), MR_UNIMPLEMENTED);
        assert_null(family);
        assert_non_null(strstr(err.message, names[i]));
    }
}

static mr_pretokenizer *splitter(const char *pattern)
{
    const mr_split_step step = {.kind = MR_SPLIT_PATTERN,
                                .behavior = MR_SPLIT_ISOLATED,
                                .pattern = {(const uint8_t *)pattern, strlen(pattern)}};
    mr_pretokenizer *pretokenizer = NULL;
    assert_int_equal(mr_pretokenizer_create(&step, 1, &pretokenizer, NULL), MR_OK);
    return pretokenizer;
}

/* Pieces of the text until the end or the first error, which it gives. */
static mr_status count_pieces(mr_piece_cursor *cursor, const uint8_t *text, size_t bytes,
                              size_t *pieces, mr_error *err)
{
    mr_bytes piece = {0};
    mr_status status;
    *pieces = 0;
    mr_piece_cursor_start(cursor, text, bytes);
    do {
        status = mr_piece_cursor_next(cursor, &piece, err);
        *pieces += status == MR_OK && piece.size > 0 ? 1 : 0;
    } while (status == MR_OK && piece.size > 0);
    return status;
}

/* F5: a pattern whose matching takes 2^40 steps ends as an error. */
static void test_patterns_F5_that_explode_are_stopped(void **state)
{
    (void)state;
    mr_pretokenizer *pretokenizer = splitter("(a+)+$");
    mr_piece_cursor cursor;
    uint8_t text[41];
    memset(text, 'a', sizeof(text) - 1);
    text[sizeof(text) - 1] = '!';
    assert_int_equal(mr_piece_cursor_init(&cursor, pretokenizer, NULL), MR_OK);
    size_t pieces;
    mr_error err = {0};
    assert_int_equal(count_pieces(&cursor, text, sizeof(text), &pieces, &err),
                     MR_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(err.message, "at byte 0"));
    /* Its steps are spent: another text of the same walk, whose places each take only thousands, is
     * not looked at that long again. */
    assert_true(cursor.steps == 0);
    assert_int_equal(count_pieces(&cursor, text + 26, sizeof(text) - 26, &pieces, &err),
                     MR_RESOURCE_EXHAUSTED);
    mr_piece_cursor_deinit(&cursor);
    mr_pretokenizer_destroy(pretokenizer);
}

/* F5: places that take 2^13 steps each, and there are a hundred thousand of them: all together have
 * 2^24 steps and sixteen a byte. */
static void test_patterns_F5_that_are_slow_everywhere_are_stopped(void **state)
{
    (void)state;
    enum { PLACES = 100000, EACH = 13 };
    mr_pretokenizer *pretokenizer = splitter("(?:a|aa)+$|[a!]{13}");
    mr_piece_cursor cursor;
    uint8_t *text = malloc((size_t)PLACES * EACH);
    assert_non_null(text);
    memset(text, 'a', (size_t)PLACES * EACH);
    for (size_t i = EACH - 1; i < (size_t)PLACES * EACH; i += EACH) {
        text[i] = '!';
    }
    assert_int_equal(mr_piece_cursor_init(&cursor, pretokenizer, NULL), MR_OK);
    size_t pieces;
    mr_error err = {0};
    const mr_status status = count_pieces(&cursor, text, (size_t)PLACES * EACH, &pieces, &err);
    assert_int_equal(status, MR_RESOURCE_EXHAUSTED);
    assert_in_range(pieces, 1, PLACES - 1);
    mr_piece_cursor_deinit(&cursor);
    /* A few of them are no trouble. */
    assert_int_equal(mr_piece_cursor_init(&cursor, pretokenizer, NULL), MR_OK);
    assert_int_equal(count_pieces(&cursor, text, (size_t)100 * EACH, &pieces, &err), MR_OK);
    assert_int_equal(pieces, 100);
    mr_piece_cursor_deinit(&cursor);
    free(text);
    mr_pretokenizer_destroy(pretokenizer);
}

/* One match over all of a long text, and one that is looked for through all of it. */
static void test_patterns_that_read_far_are_fine(void **state)
{
    (void)state;
    enum { BYTES = 1 << 22 };
    static const char *patterns[] = {"(?:a|b)+", "a+(?!\\S)|a+", "b", "(?:b|c)a", "[ab]++"};
    uint8_t *text = malloc(BYTES);
    assert_non_null(text);
    memset(text, 'a', BYTES);
    for (size_t i = 0; i < sizeof(patterns) / sizeof(patterns[0]); i++) {
        mr_pretokenizer *pretokenizer = splitter(patterns[i]);
        mr_piece_cursor cursor;
        assert_int_equal(mr_piece_cursor_init(&cursor, pretokenizer, NULL), MR_OK);
        size_t pieces;
        mr_error err = {0};
        assert_int_equal(count_pieces(&cursor, text, BYTES, &pieces, &err), MR_OK);
        assert_int_equal(pieces, 1);
        mr_piece_cursor_deinit(&cursor);
        mr_pretokenizer_destroy(pretokenizer);
    }
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces_gpt2),
        cmocka_unit_test(test_pieces_smollm),
        cmocka_unit_test(test_pieces_llama3),
        cmocka_unit_test(test_whole_tokens_of_families),
        cmocka_unit_test(test_create_K3_unknown_name_refused),
        cmocka_unit_test(test_patterns_F5_that_explode_are_stopped),
        cmocka_unit_test(test_patterns_F5_that_are_slow_everywhere_are_stopped),
        cmocka_unit_test(test_patterns_that_read_far_are_fine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
