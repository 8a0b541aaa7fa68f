/* SPDX-License-Identifier: Apache-2.0 */
#include "model/text_steps.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static mr_text_step form(mr_text_step_kind kind)
{
    return (mr_text_step){.kind = kind};
}

static mr_text_step replacing(const char *from, const char *to)
{
    return (mr_text_step){
        .kind = MR_TEXT_REPLACE, .from = mr_bytes_of(from), .to = mr_bytes_of(to)};
}

static void run(mr_text_work *work, const mr_text_step *items, uint32_t count, bool starts)
{
    mr_text_steps steps;
    assert_int_equal(mr_text_steps_init(&steps, items, count, NULL), MR_OK);
    assert_int_equal(mr_text_steps_run(&steps, starts, work), MR_OK);
    mr_text_steps_deinit(&steps);
}

static void check(const char *text, mr_text_step step, bool starts, const char *expected)
{
    mr_text_work work = {0};
    assert_int_equal(mr_text_work_set(&work, (const uint8_t *)text, strlen(text)), MR_OK);
    run(&work, &step, 1, starts);
    if (work.text.size != strlen(expected) ||
        (work.text.size > 0 && memcmp(work.text.data, expected, work.text.size) != 0)) {
        fail_msg("\"%s\" became \"%.*s\", not \"%s\"", text, (int)work.text.size,
                 (const char *)work.text.data, expected);
    }
    mr_text_work_deinit(&work);
}

static void test_prefixes(void **state)
{
    (void)state;
    mr_text_step step = {.kind = MR_TEXT_PREPEND, .to = mr_bytes_of("_")};
    check("a", step, false, "_a");
    check("_a", step, false, "__a");
    check("", step, false, "");
    step.kind = MR_TEXT_PREPEND_MISSING;
    check("a", step, false, "_a");
    check("_a", step, false, "_a");
    step.kind = MR_TEXT_PREPEND_START;
    check("a", step, true, "_a");
    check("_a", step, true, "_a");
    check("a", step, false, "a");
}

static void test_replace(void **state)
{
    (void)state;
    check("a b  c", replacing(" ", "\xE2\x96\x81"), false,
          "a\xE2\x96\x81"
          "b\xE2\x96\x81\xE2\x96\x81"
          "c");
    check("aaa", replacing("aa", "b"), false, "ba");
    check("abc", replacing("d", "e"), false, "abc");
    check("aXbX", replacing("X", ""), false, "ab");
}

/* Rows of Unicode's NormalizationTest.txt (15.0), and sequences of them between other text. */
static void test_forms(void **state)
{
    (void)state;
    static const struct {
        const char *source;
        const char *nfc;
        const char *nfd;
        const char *nfkc;
        const char *nfkd;
    } rows[] = {
        {"\u1E0A", "\u1E0A", "D\u0307", "\u1E0A", "D\u0307"},
        {"\u1E0C\u0307", "\u1E0C\u0307", "D\u0323\u0307", "\u1E0C\u0307", "D\u0323\u0307"},
        {"D\u0307\u0323", "\u1E0C\u0307", "D\u0323\u0307", "\u1E0C\u0307", "D\u0323\u0307"},
        {"\u212B", "\u00C5", "A\u030A", "\u00C5", "A\u030A"},
        {"\uFB01", "\uFB01", "\uFB01", "fi", "fi"},
        {"\u0344", "\u0308\u0301", "\u0308\u0301", "\u0308\u0301", "\u0308\u0301"},
        {"\uAC00", "\uAC00", "\u1100\u1161", "\uAC00", "\u1100\u1161"},
        {"\u1100\uAC00\u11A8", "\u1100\uAC01", "\u1100\u1100\u1161\u11A8", "\u1100\uAC01",
         "\u1100\u1100\u1161\u11A8"},
        {"\u0958", "\u0915\u093C", "\u0915\u093C", "\u0915\u093C", "\u0915\u093C"},
        {"a\u0315\u0300\u05AE\u0300b", "\u00E0\u05AE\u0300\u0315b", "a\u05AE\u0300\u0300\u0315b",
         "\u00E0\u05AE\u0300\u0315b", "a\u05AE\u0300\u0300\u0315b"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        check(rows[i].source, form(MR_TEXT_NFC), false, rows[i].nfc);
        check(rows[i].source, form(MR_TEXT_NFD), false, rows[i].nfd);
        check(rows[i].source, form(MR_TEXT_NFKC), false, rows[i].nfkc);
        check(rows[i].source, form(MR_TEXT_NFKD), false, rows[i].nfkd);
        char longer[128];
        char expected[128];
        snprintf(longer, sizeof(longer), "x \u4F60%s\u4F60 y%s", rows[i].source, rows[i].source);
        snprintf(expected, sizeof(expected), "x \u4F60%s\u4F60 y%s", rows[i].nfc, rows[i].nfc);
        if (rows[i].nfc[0] != '\xCC') { /* a mark at the beginning would join the y */
            check(longer, form(MR_TEXT_NFC), false, expected);
        }
    }
}

/* Marks in the wrong order, many times more than sorting by insertion could take. */
static void test_forms_long_run_of_marks(void **state)
{
    (void)state;
    enum { PAIRS = 200000 };
    static const uint8_t pair[4] = {0xcc, 0x81, 0xcc, 0x96}; /* U+0301, U+0316 */
    uint8_t *text = malloc(1 + 4 * PAIRS);
    assert_non_null(text);
    text[0] = 'q';
    for (size_t i = 0; i < PAIRS; i++) {
        memcpy(text + 1 + 4 * i, pair, sizeof(pair)); /* of classes 230 and 220 */
    }
    mr_text_work work = {0};
    assert_int_equal(mr_text_work_set(&work, text, 1 + 4 * PAIRS), MR_OK);
    const mr_text_step step = form(MR_TEXT_NFC);
    run(&work, &step, 1, false);
    assert_int_equal(work.text.size, 1 + 4 * PAIRS);
    for (size_t i = 0; i < 2 * PAIRS; i++) {
        assert_memory_equal(work.text.data + 1 + 2 * i, i < PAIRS ? "\u0316" : "\u0301", 2);
    }
    mr_text_work_deinit(&work);
    free(text);
}

static void test_marks_follow_the_text(void **state)
{
    (void)state;
    const mr_text_step items[] = {{.kind = MR_TEXT_PREPEND, .to = mr_bytes_of("__")},
                                  replacing("b", "xyz"),
                                  form(MR_TEXT_NFC)};
    mr_text_work work = {.marked = true};
    assert_int_equal(mr_text_work_set(&work, (const uint8_t *)"abce\u0301", 6), MR_OK);
    work.marks.data[1] = 1; /* the b, and the accent, which the e takes along */
    work.marks.data[4] = 1;
    run(&work, items, 3, false);
    assert_int_equal(work.text.size, 9);
    assert_memory_equal(work.text.data, "__axyzc\u00E9", 9);
    assert_int_equal(work.marks.size, 9);
    assert_memory_equal(work.marks.data, "\0\0\0\1\1\1\0\1\1", 9);
    mr_text_work_deinit(&work);
}

static void test_init_refuses(void **state)
{
    (void)state;
    mr_text_steps steps;
    mr_error err = {0};
    const mr_text_step empty = replacing("", "a");
    assert_int_equal(mr_text_steps_init(&steps, &empty, 1, &err), MR_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "empty"));
    const mr_text_step broken = replacing("\xFF", "a");
    assert_int_equal(mr_text_steps_init(&steps, &broken, 1, &err), MR_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "UTF-8"));
    mr_text_step many[MR_MAX_TEXT_STEPS + 1] = {{.kind = MR_TEXT_NFC}};
    assert_int_equal(mr_text_steps_init(&steps, many, MR_MAX_TEXT_STEPS + 1, &err),
                     MR_INVALID_ARGUMENT);
}

/* F5: eight replacements by a hundred letters would make 10^16 of one. */
static void test_growth_F5_is_bounded(void **state)
{
    (void)state;
    char hundred[101] = "";
    memset(hundred, 'a', 100);
    mr_text_step items[MR_MAX_TEXT_STEPS];
    for (size_t i = 0; i < MR_MAX_TEXT_STEPS; i++) {
        items[i] = replacing("a", hundred);
    }
    mr_text_steps steps;
    mr_text_work work = {0};
    assert_int_equal(mr_text_steps_init(&steps, items, MR_MAX_TEXT_STEPS, NULL), MR_OK);
    assert_int_equal(mr_text_work_set(&work, (const uint8_t *)"aaaa", 4), MR_OK);
    assert_int_equal(mr_text_steps_run(&steps, true, &work), MR_INVALID_ARGUMENT);
    assert_true(work.text.size <= 4 * MR_TEXT_GROWTH + MR_TEXT_GROWTH_FREE);
    assert_true(work.other_text.size <= 4 * MR_TEXT_GROWTH + MR_TEXT_GROWTH_FREE);
    mr_text_steps_deinit(&steps);

    /* The character with the longest decomposition, whose blanks are then marked. */
    static const char longest[] = "\xEF\xB7\xBA";
    const mr_text_step real[] = {form(MR_TEXT_NFKD), replacing(" ", "\xE2\x96\x81")};
    uint8_t text[3 * 4096];
    for (size_t i = 0; i < sizeof(text); i++) {
        text[i] = (uint8_t)longest[i % 3];
    }
    assert_int_equal(mr_text_work_set(&work, text, sizeof(text)), MR_OK);
    run(&work, real, 2, true);
    assert_int_equal(work.text.size, 4096 * (33 + 3 * 2)); /* 15 letters, 3 blanks */
    mr_text_work_deinit(&work);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prefixes),
        cmocka_unit_test(test_replace),
        cmocka_unit_test(test_forms),
        cmocka_unit_test(test_forms_long_run_of_marks),
        cmocka_unit_test(test_marks_follow_the_text),
        cmocka_unit_test(test_init_refuses),
        cmocka_unit_test(test_growth_F5_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
