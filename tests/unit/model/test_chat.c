/* SPDX-License-Identifier: Apache-2.0 */
#include "model/chat.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "golden.h"

#define MAX_MESSAGES 16

static json_t *golden; /* tests/data/chat_smollm2.json: what Jinja renders */

static int load_golden(void **state)
{
    (void)state;
    golden = golden_load("chat_smollm2.json");
    return 0;
}

static int drop_golden(void **state)
{
    (void)state;
    json_decref(golden);
    return 0;
}

static mr_chat_template *create(mr_bytes text)
{
    mr_chat_template *made = NULL;
    assert_int_equal(mr_chat_template_create(text, &made, NULL), MR_OK);
    return made;
}

static mr_bytes bytes_of(const char *text)
{
    return (mr_bytes){(const uint8_t *)text, strlen(text)};
}

static size_t read_messages(const json_t *row, mr_chat_message *messages)
{
    const json_t *list = json_object_get(row, "messages");
    const size_t count = json_array_size(list);
    assert_in_range(count, 1, MAX_MESSAGES);
    for (size_t i = 0; i < count; i++) {
        messages[i].role = golden_bytes(json_array_get(list, i), "role");
        messages[i].content = golden_bytes(json_array_get(list, i), "content");
    }
    return count;
}

/* The next span is exactly `text`; an empty text has none. */
static size_t check_span(const mr_chat_rendered *rendered, size_t span, mr_bytes text)
{
    if (text.size == 0) {
        return span;
    }
    assert_true(span < rendered->n_plain);
    const mr_text_span plain = rendered->plain[span];
    assert_int_equal(plain.end - plain.begin, text.size);
    assert_memory_equal(rendered->text.data + plain.begin, text.data, text.size);
    assert_true(span == 0 || rendered->plain[span - 1].end < plain.begin);
    return span + 1;
}

static void test_render_K5_equals_jinja(void **state)
{
    (void)state;
    mr_chat_template *tmpl = create(golden_bytes(golden, "template"));
    assert_true(mr_chat_template_known(tmpl));
    const json_t *rows = json_object_get(golden, "rows");
    assert_true(json_array_size(rows) >= 100);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        mr_chat_message messages[MAX_MESSAGES];
        const size_t count = read_messages(row, messages);
        const mr_bytes text = golden_bytes(row, "text");
        mr_chat_rendered got = {0};
        assert_int_equal(mr_chat_render(tmpl, messages, count,
                                        json_is_true(json_object_get(row, "open")), &got, NULL),
                         MR_OK);
        assert_int_equal(got.text.size, text.size);
        assert_memory_equal(got.text.data, text.data, text.size);
        mr_chat_rendered_deinit(&got);
    }
    mr_chat_template_destroy(tmpl);
}

static void test_render_K6_spans_are_the_messages(void **state)
{
    (void)state;
    mr_chat_template *tmpl = create(golden_bytes(golden, "template"));
    const json_t *rows = json_object_get(golden, "rows");
    for (size_t i = 0; i < json_array_size(rows); i++) {
        mr_chat_message messages[MAX_MESSAGES];
        const size_t count = read_messages(json_array_get(rows, i), messages);
        mr_chat_rendered got = {0};
        assert_int_equal(mr_chat_render(tmpl, messages, count, true, &got, NULL), MR_OK);
        size_t span = 0;
        for (size_t m = 0; m < count; m++) {
            span = check_span(&got, span, messages[m].role);
            span = check_span(&got, span, messages[m].content);
        }
        assert_int_equal(span, got.n_plain);
        mr_chat_rendered_deinit(&got);
    }
    mr_chat_template_destroy(tmpl);
}

static void render_refused(const mr_chat_template *tmpl, const mr_chat_message *messages,
                           size_t count, mr_status expected, const char *field, const char *part)
{
    mr_chat_rendered got = {0};
    mr_error err = {0};
    assert_int_equal(mr_chat_render(tmpl, messages, count, true, &got, &err), expected);
    assert_string_equal(err.field, field);
    assert_non_null(strstr(err.message, part));
    assert_null(got.text.data);
    assert_null(got.plain);
}

static void test_render_refuses_bad_messages(void **state)
{
    (void)state;
    mr_chat_template *tmpl = create(golden_bytes(golden, "template"));
    const mr_chat_message bad_content[] = {{bytes_of("user"), bytes_of("fine")},
                                           {bytes_of("user"), bytes_of("ab\xC0")}};
    const mr_chat_message bad_role[] = {{bytes_of("\xFF"), bytes_of("fine")}};
    render_refused(tmpl, bad_content, 2, MR_INVALID_ARGUMENT, "messages[1].content", "byte 2");
    render_refused(tmpl, bad_role, 1, MR_INVALID_ARGUMENT, "messages[0].role", "byte 0");
    render_refused(tmpl, NULL, 0, MR_INVALID_ARGUMENT, "messages", "at least one");
    mr_chat_template_destroy(tmpl);
}

/* No fallback to another format: the digest of "{{ x }}" comes from sha256sum. */
static void test_render_K4_unknown_template_refused(void **state)
{
    (void)state;
    const mr_chat_message hello[] = {{bytes_of("user"), bytes_of("Hello")}};
    mr_chat_template *other = create(bytes_of("{{ x }}"));
    assert_false(mr_chat_template_known(other));
    render_refused(other, hello, 1, MR_FAILED_PRECONDITION, "",
                   "e52c737297f7dad622da7e58f5a16e7437f2716daccb4da859fc567ccd75c9a4");
    mr_chat_template_destroy(other);
    mr_chat_template *none = create((mr_bytes){NULL, 0});
    assert_false(mr_chat_template_known(none));
    render_refused(none, hello, 1, MR_FAILED_PRECONDITION, "", "no chat template");
    mr_chat_template_destroy(none);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_render_K5_equals_jinja),
        cmocka_unit_test(test_render_K6_spans_are_the_messages),
        cmocka_unit_test(test_render_refuses_bad_messages),
        cmocka_unit_test(test_render_K4_unknown_template_refused),
    };
    return cmocka_run_group_tests(tests, load_golden, drop_golden);
}
