/* SPDX-License-Identifier: Apache-2.0 */
#include "base/utf8.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#define R "\xEF\xBF\xBD" /* U+FFFD */

static void assert_lossy(const char *text, const char *want)
{
    mr_buffer out = {0};
    assert_int_equal(mr_utf8_append_lossy(&out, text, strlen(text)), MR_OK);
    assert_int_equal(out.size, strlen(want));
    assert_memory_equal(out.data, want, out.size);
    mr_buffer_deinit(&out);
}

/* Tables 3-8 to 3-11 of the Unicode Standard 15.0. */
static void test_lossy_unicode_tables(void **state)
{
    (void)state;
    assert_lossy("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41", R R R R R R R R "A");
    assert_lossy("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41", R R R R R R R R "A");
    assert_lossy("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42", R R R R R "A" R R "B");
    assert_lossy("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", R R R R "A");
}

static void test_lossy_keeps_valid_text_and_closes_the_end(void **state)
{
    (void)state;
    assert_lossy("", "");
    assert_lossy("na\xC3\xAFve \xE6\xB0\xB4 \xF0\x9F\x98\x80", "na\xC3\xAFve \xE6\xB0\xB4 "
                                                               "\xF0\x9F\x98\x80");
    assert_lossy("x\xF0\x9F\x98", "x" R);
    assert_lossy("x\xE6\xB0", "x" R);
    assert_lossy("\xC3", R);
}

/* Writes code point `c` (up to 0x1FFFFF) in the form of `length` bytes, overlong or not. */
static void encode(uint32_t c, int length, uint8_t out[4])
{
    static const uint8_t lead[] = {0, 0, 0xC0, 0xE0, 0xF0};
    for (int i = length - 1; i > 0; i--) {
        out[i] = (uint8_t)(0x80 | (c & 0x3F));
        c >>= 6;
    }
    out[0] = (uint8_t)(lead[length] | c);
}

static void test_valid_for_every_code_point_and_form(void **state)
{
    (void)state;
    static const uint32_t limit[] = {0, 0x80, 0x800, 0x10000, 0x200000};
    for (int length = 1; length <= 4; length++) {
        for (uint32_t c = 0; c < limit[length]; c++) {
            uint8_t text[4];
            encode(c, length, text);
            const bool shortest = c >= limit[length - 1];
            const bool scalar = c <= 0x10FFFF && !(c >= 0xD800 && c <= 0xDFFF);
            if (mr_utf8_valid(text, (size_t)length, NULL) != (shortest && scalar)) {
                fail_msg("U+%X in %d bytes", (unsigned)c, length);
            }
        }
    }
}

static void test_valid_names_the_offset(void **state)
{
    (void)state;
    size_t bad = 99;
    assert_true(mr_utf8_valid("", 0, &bad));
    assert_int_equal(bad, 0);
    assert_true(mr_utf8_valid("a\0b", 3, &bad));
    assert_int_equal(bad, 3);
    assert_false(mr_utf8_valid("a\xC3\xA9\xE2\x28\xA1", 6, &bad));
    assert_int_equal(bad, 3);
    assert_false(mr_utf8_valid("ab\xFE", 3, &bad));
    assert_int_equal(bad, 2);
    assert_false(mr_utf8_valid("ab\xE6\xB0", 4, &bad));
    assert_int_equal(bad, 2);
}

static void test_pending(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t pending;
    } cases[] = {
        {"", 0},
        {"a", 0},
        {"\xC3\xA9", 0},
        {"a\xC3", 1},
        {"\xE6", 1},
        {"\xE6\xB0", 2},
        {"\xE6\xB0\xB4", 0},
        {"\xF0\x9F\x98", 3},
        {"\xF0\x9F\x98\x80", 0},
        {"a\xF4", 1},
        {"\xE0\x80", 0},     /* overlong: nothing completes it */
        {"\xED\xA0", 0},     /* surrogate */
        {"\xF4\x90", 0},     /* above U+10FFFF */
        {"\xF0\x8F\x80", 0}, /* overlong */
        {"\xC0", 0},
        {"\xFF", 0},
        {"\x80\x80\x80", 0},
        {"\x80\x80\x80\x80", 0},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        assert_int_equal(mr_utf8_pending(cases[i].text, strlen(cases[i].text)), cases[i].pending);
    }
}

/* However a text is cut into pieces, holding back what is pending gives the same result. */
static void test_pieces_give_the_same_as_the_whole(void **state)
{
    (void)state;
    static const char text[] = "a\xF0\x9F\x98\x80\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\xC3\xA9z\xED\xA0";
    const size_t bytes = sizeof(text) - 1;
    mr_buffer whole = {0};
    assert_int_equal(mr_utf8_append_lossy(&whole, text, bytes), MR_OK);
    for (size_t piece = 1; piece < bytes; piece++) {
        mr_buffer out = {0};
        size_t done = 0;
        for (size_t have = piece; done < bytes; have += piece) {
            have = have < bytes ? have : bytes;
            const size_t held = have < bytes ? mr_utf8_pending(text + done, have - done) : 0;
            assert_int_equal(mr_utf8_append_lossy(&out, text + done, have - done - held), MR_OK);
            done = have - held;
        }
        assert_int_equal(out.size, whole.size);
        assert_memory_equal(out.data, whole.data, whole.size);
        mr_buffer_deinit(&out);
    }
    mr_buffer_deinit(&whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lossy_unicode_tables),
        cmocka_unit_test(test_lossy_keeps_valid_text_and_closes_the_end),
        cmocka_unit_test(test_valid_for_every_code_point_and_form),
        cmocka_unit_test(test_valid_names_the_offset),
        cmocka_unit_test(test_pending),
        cmocka_unit_test(test_pieces_give_the_same_as_the_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
