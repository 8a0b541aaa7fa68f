/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler/stop_internal.h"

#include "scripted.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static mr_stop *stop_of(const char *const *strings, size_t count)
{
    mr_stop_string list[MR_MAX_STOP_STRINGS];
    mr_stop *stop = NULL;
    for (size_t i = 0; i < count; i++) {
        list[i] = (mr_stop_string){.data = strings[i], .bytes = strlen(strings[i])};
    }
    assert_int_equal(mr_stop_create(list, count, &stop, NULL), MR_OK);
    return stop;
}

static mr_stop_match feed(const mr_stop *stop, mr_stop_state *state, const char *text)
{
    return mr_stop_feed(stop, state, text, strlen(text));
}

static void test_stop_holds_exactly_what_may_become_a_string_T2_near_miss(void **state)
{
    (void)state;
    static const char *const strings[] = {"\n\nUser:", "END"};
    const struct {
        const char *piece;
        uint32_t held;
    } steps[] = {
        {"Hello", 0}, {"\n", 1},       {"x", 0}, {"\n\n", 2}, {"\n", 2},
        {"Use", 5},   {"d", 0},        {"E", 1}, {"N", 2},    {"EN", 2},
        {"d", 0},     {"\n\nUser", 6}, {" ", 0}, {"BEN", 2},  {"\n\nE", 1},
    };
    mr_stop *stop = stop_of(strings, 2);
    mr_stop_state at = {0};
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        assert_int_equal(feed(stop, &at, steps[i].piece).index, MR_NO_STOP);
        assert_int_equal(mr_stop_held(stop, at), steps[i].held);
    }
    mr_stop_destroy(stop);
}

static void test_stop_matches_wherever_pieces_end_T1_T3(void **state)
{
    (void)state;
    static const char *const strings[] = {"abcab"};
    static const char text[] = "xabcabcabz"; /* ends first at 6, behind "xabcab" */
    mr_stop *stop = stop_of(strings, 1);
    for (size_t a = 0; a <= 10; a++) {
        for (size_t b = a; b <= 10; b++) {
            const size_t cuts[] = {0, a, b, 10};
            mr_stop_state at = {0};
            size_t end = 0;
            for (size_t i = 0; i < 3 && end == 0; i++) {
                const mr_stop_match m =
                    mr_stop_feed(stop, &at, text + cuts[i], cuts[i + 1] - cuts[i]);
                end = m.index == 0 ? cuts[i] + m.consumed : 0;
            }
            assert_int_equal(end, 6);
        }
    }
    mr_stop_destroy(stop);
}

static void test_stop_first_end_wins_then_the_longest(void **state)
{
    (void)state;
    static const char *const strings[] = {"c", "abcd", "bc", "abc"};
    mr_stop *stop = stop_of(strings, 4);
    mr_stop_state at = {0};
    mr_stop_match m = feed(stop, &at, "zabcd");
    assert_int_equal(m.index, 3);
    assert_int_equal(m.consumed, 4);
    assert_int_equal(mr_stop_held(stop, at), 3); /* it may become "abcd" */
    m = feed(stop, &at, "d");
    assert_int_equal(m.index, 1);
    m = feed(stop, &at, "bc");
    assert_int_equal(m.index, 2);
    assert_int_equal(mr_stop_count(stop), 4);
    assert_memory_equal(mr_stop_string_get(stop, 1).data, "abcd", 4);
    mr_stop_destroy(stop);
}

static void test_stop_equal_strings_and_zero_bytes(void **state)
{
    (void)state;
    const mr_stop_string list[] = {{"a\0b", 3}, {"a\0b", 3}, {"\xff", 1}};
    mr_stop *stop = NULL;
    mr_stop_state at = {0};
    assert_int_equal(mr_stop_create(list, 3, &stop, NULL), MR_OK);
    assert_int_equal(mr_stop_feed(stop, &at, "a\0b", 3).index, 0);
    assert_int_equal(mr_stop_feed(stop, &at, "ab\xff", 3).index, 2);
    mr_stop_destroy(stop);
}

static void test_stop_refuses_bad_lists(void **state)
{
    (void)state;
    static char big[MR_MAX_STOP_BYTES + 1];
    mr_stop_string list[MR_MAX_STOP_STRINGS + 1];
    mr_stop *stop = NULL;
    mr_error err = {0};
    memset(big, 'x', sizeof(big));
    for (size_t i = 0; i <= MR_MAX_STOP_STRINGS; i++) {
        list[i] = (mr_stop_string){.data = "a", .bytes = 1};
    }
    assert_int_equal(mr_stop_create(list, 0, &stop, &err), MR_INVALID_ARGUMENT);
    assert_int_equal(mr_stop_create(list, MR_MAX_STOP_STRINGS + 1, &stop, &err),
                     MR_INVALID_ARGUMENT);
    list[1].bytes = 0;
    assert_int_equal(mr_stop_create(list, 2, &stop, &err), MR_INVALID_ARGUMENT);
    list[1] = (mr_stop_string){.data = big, .bytes = MR_MAX_STOP_BYTES};
    assert_int_equal(mr_stop_create(list, 2, &stop, &err), MR_INVALID_ARGUMENT);
    assert_string_equal(err.field, "stop");
    assert_null(stop);
    assert_int_equal(mr_stop_create(list + 1, 1, &stop, &err), MR_OK);
    mr_stop_destroy(stop);
}

/* ---- against the plainest search ---- */

static size_t naive_held(const mr_stop *stop, const char *text, size_t n)
{
    size_t held = 0;
    for (size_t s = 0; s < mr_stop_count(stop); s++) {
        const mr_stop_string string = mr_stop_string_get(stop, s);
        for (size_t k = 1; k < string.bytes && k <= n; k++) {
            if (k > held && memcmp(text + n - k, string.data, k) == 0) {
                held = k;
            }
        }
    }
    return held;
}

/* Length of the longest string that the text ends in. */
static size_t naive_match(const mr_stop *stop, const char *text, size_t n)
{
    size_t longest = 0;
    for (size_t s = 0; s < mr_stop_count(stop); s++) {
        const mr_stop_string string = mr_stop_string_get(stop, s);
        if (string.bytes <= n && string.bytes > longest &&
            memcmp(text + n - string.bytes, string.data, string.bytes) == 0) {
            longest = string.bytes;
        }
    }
    return longest;
}

static void compare(scripted_random *random, const mr_stop *stop)
{
    char text[200];
    mr_stop_state at = {0};
    for (size_t n = 1; n <= sizeof(text); n++) {
        text[n - 1] = (char)('a' + scripted_draw(random, 3));
        const mr_stop_match match = mr_stop_feed(stop, &at, text + n - 1, 1);
        const size_t length =
            match.index == MR_NO_STOP ? 0 : mr_stop_string_get(stop, match.index).bytes;
        assert_int_equal(length, naive_match(stop, text, n));
        assert_int_equal(mr_stop_held(stop, at), naive_held(stop, text, n));
    }
}

static void test_stop_equals_the_plainest_search_T1_T2_T3(void **state)
{
    (void)state;
    scripted_random random = {.state = 0x51095};
    for (uint32_t round = 0; round < 500; round++) {
        char strings[MR_MAX_STOP_STRINGS][12];
        const char *list[MR_MAX_STOP_STRINGS];
        const uint32_t count = 1 + scripted_draw(&random, MR_MAX_STOP_STRINGS);
        for (uint32_t i = 0; i < count; i++) {
            const uint32_t bytes = 1 + scripted_draw(&random, 11);
            for (uint32_t k = 0; k < bytes; k++) {
                strings[i][k] = (char)('a' + scripted_draw(&random, 3));
            }
            strings[i][bytes] = '\0';
            list[i] = strings[i];
        }
        mr_stop *stop = stop_of(list, count);
        compare(&random, stop);
        mr_stop_destroy(stop);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stop_holds_exactly_what_may_become_a_string_T2_near_miss),
        cmocka_unit_test(test_stop_matches_wherever_pieces_end_T1_T3),
        cmocka_unit_test(test_stop_first_end_wins_then_the_longest),
        cmocka_unit_test(test_stop_equal_strings_and_zero_bytes),
        cmocka_unit_test(test_stop_refuses_bad_lists),
        cmocka_unit_test(test_stop_equals_the_plainest_search_T1_T2_T3),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
