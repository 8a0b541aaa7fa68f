/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/buffer.h"
#include "model/json_sax.h"

#include <stdlib.h>
#include <string.h>

/* Writes what came, one event after another. */
typedef struct transcript {
    mr_buffer text;
    const char *pattern; /* only events at this path; NULL: all */
    int stop_after;      /* events; -1: never */
} transcript;

static mr_status note(void *ctx, const mr_json_event *event, mr_error *err)
{
    static const char *const marks[] = {"null", "bool", "num", "str", "{", "}", "[", "]"};
    transcript *t = ctx;
    if (t->stop_after == 0) {
        return mr_fail(err, MR_UNIMPLEMENTED, "stopped here");
    }
    t->stop_after--;
    if (t->pattern != NULL && !mr_json_at(event, t->pattern)) {
        return MR_OK;
    }
    return mr_buffer_printf(&t->text, "%s%.*s=%s%.*s%s", t->text.size > 0 ? " " : "",
                            (int)event->key.size, (const char *)event->key.data, marks[event->kind],
                            (int)event->text.size, (const char *)event->text.data,
                            event->kind == MR_JSON_BOOL ? (event->boolean ? "1" : "0") : "");
}

static void assert_events(const char *json, const char *pattern, const char *expected)
{
    transcript t = {.pattern = pattern, .stop_after = -1};
    mr_error err = {0};
    assert_int_equal(mr_json_sax_parse(json, strlen(json), 4096, note, &t, &err), MR_OK);
    assert_int_equal(mr_buffer_append(&t.text, "", 1), MR_OK);
    assert_string_equal((const char *)t.text.data, expected);
    mr_buffer_deinit(&t.text);
}

static void test_events_carry_the_key_of_their_value(void **state)
{
    (void)state;
    assert_events("{\"a\":1,\"b\":{\"c\":[true,\"x\\u00e9\"]},\"d\":null}", NULL,
                  "={ a=num1 b={ c=[ =bool1 =strx\xc3\xa9 c=] b=} d=null =}");
    assert_events(" 12.5e3 ", NULL, "=num12.5e3");
    assert_events("{\"\":1}", NULL, "={ =num1 =}");
}

static void test_paths_match_keys_and_wildcards(void **state)
{
    (void)state;
    const char *json = "{\"t\":[{\"id\":1,\"s\":2},{\"id\":3}],\"id\":4,\"u\":{\"id\":{\"id\":5}}}";
    assert_events(json, "/t/*/id", "id=num1 id=num3");
    assert_events(json, "/*", "t=[ t=] id=num4 u={ u=}");
    assert_events(json, "/*/*/id", "id=num1 id=num3 id=num5");
    assert_events(json, "", "={ =}");
    assert_events(json, "/nothing", "");
}

static mr_status note_place(void *ctx, const mr_json_event *event, mr_error *err)
{
    transcript *t = ctx;
    (void)err;
    if (event->kind != MR_JSON_NUMBER) {
        return MR_OK;
    }
    for (uint32_t i = 0; i < mr_json_depth(event); i++) {
        const mr_bytes key = mr_json_path_key(event, i);
        MR_TRY(mr_buffer_printf(&t->text, "/%.*s%llu", (int)key.size, (const char *)key.data,
                                (unsigned long long)mr_json_path_index(event, i)));
    }
    return MR_OK;
}

static void test_a_value_knows_where_it_is(void **state)
{
    (void)state;
    const char *json = "{\"m\":[[],[\"a\",7],{}]}";
    transcript t = {0};
    assert_int_equal(mr_json_sax_parse(json, strlen(json), 4096, note_place, &t, NULL), MR_OK);
    assert_int_equal(mr_buffer_append(&t.text, "", 1), MR_OK);
    assert_string_equal((const char *)t.text.data, "/m0/1/1");
    mr_buffer_deinit(&t.text);
}

static void assert_refused(const char *json, size_t size, size_t max_bytes, const char *words)
{
    transcript t = {.stop_after = -1};
    mr_error err = {0};
    assert_int_equal(mr_json_sax_parse(json, size, max_bytes, note, &t, &err), MR_DATA_LOSS);
    assert_non_null(strstr(err.message, words));
    mr_buffer_deinit(&t.text);
}

static void test_what_is_no_json_is_refused_with_its_place(void **state)
{
    (void)state;
    static const char *const bad[] = {"{",          "{\"a\":}", "[1,]",     "{} {}",
                                      "{\"a\" 1}",  "nul",      "\"\x80\"", "[1] x",
                                      "/* c */ {}", "'a'",      "{a:1}"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_refused("[\"\xC0\xAF\"]", 6, 4096, "not UTF-8 at byte 2"); /* overlong */
        assert_refused(bad[i], strlen(bad[i]), 4096, "byte ");
    }
    assert_refused("", 0, 4096, "0 bytes");
    assert_refused("[1,2,3]", 7, 6, "7 bytes where 1 to 6");
}

static void test_depth_is_bounded(void **state)
{
    (void)state;
    char json[2 * MR_JSON_MAX_DEPTH + 3];
    memset(json, '[', MR_JSON_MAX_DEPTH + 1);
    memset(json + MR_JSON_MAX_DEPTH + 1, ']', MR_JSON_MAX_DEPTH + 1);
    assert_refused(json, 2 * (MR_JSON_MAX_DEPTH + 1), 4096, "64 levels");
    transcript t = {.stop_after = -1};
    assert_int_equal(
        mr_json_sax_parse(json + 1, 2 * (size_t)MR_JSON_MAX_DEPTH, 4096, note, &t, NULL), MR_OK);
    mr_buffer_deinit(&t.text);
}

static void test_the_handlers_error_is_the_parses(void **state)
{
    (void)state;
    transcript t = {.stop_after = 2};
    mr_error err = {0};
    assert_int_equal(mr_json_sax_parse("[1,2,3]", 7, 4096, note, &t, &err), MR_UNIMPLEMENTED);
    assert_string_equal(err.message, "stopped here");
    mr_buffer_deinit(&t.text);
}

static mr_json_event number(const char *text)
{
    return (mr_json_event){.kind = MR_JSON_NUMBER,
                           .text = {.data = (const uint8_t *)text, .size = strlen(text)}};
}

static void test_numbers(void **state)
{
    (void)state;
    uint64_t whole = 7;
    double real = 7.0;
    mr_json_event event = number("18446744073709551615");
    assert_true(mr_json_u64(&event, UINT64_MAX, &whole));
    assert_true(whole == UINT64_MAX);
    static const char *const none[] = {"18446744073709551616", "-1", "1.0", "1e3", "11"};
    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++) {
        event = number(none[i]);
        assert_false(mr_json_u64(&event, i == 4 ? 10 : UINT64_MAX, &whole));
    }
    event = number("-12.5e-1");
    assert_true(mr_json_double(&event, &real));
    assert_true(real == -1.25);
    event = number("1e999");
    assert_false(mr_json_double(&event, &real));
    event.kind = MR_JSON_STRING;
    assert_false(mr_json_u64(&event, UINT64_MAX, &whole));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_events_carry_the_key_of_their_value),
        cmocka_unit_test(test_paths_match_keys_and_wildcards),
        cmocka_unit_test(test_a_value_knows_where_it_is),
        cmocka_unit_test(test_what_is_no_json_is_refused_with_its_place),
        cmocka_unit_test(test_depth_is_bounded),
        cmocka_unit_test(test_the_handlers_error_is_the_parses),
        cmocka_unit_test(test_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
