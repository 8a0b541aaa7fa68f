/* SPDX-License-Identifier: Apache-2.0 */
#include "model/chat.h"

#include "model/chat_internal.h"

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

/* tests/data/chat_templates.json: what Jinja renders, or the template raises. */
static void check_golden_row(const mr_chat_template *tmpl, const json_t *row, const char *family)
{
    mr_chat_message messages[MAX_MESSAGES];
    const size_t count = read_messages(row, messages);
    const bool open = json_is_true(json_object_get(row, "open"));
    const char *raised = json_string_value(json_object_get(row, "error"));
    mr_chat_rendered got = {0};
    mr_error err = {0};
    const mr_status status = mr_chat_render(tmpl, messages, count, open, &got, &err);
    if (raised != NULL) {
        assert_int_equal(status, MR_INVALID_ARGUMENT);
        assert_non_null(strstr(err.message, raised));
        assert_non_null(strstr(err.field, "messages["));
        return;
    }
    const mr_bytes text = golden_bytes(row, "text");
    assert_int_equal(status, MR_OK);
    if (got.text.size != text.size ||
        (text.size > 0 && memcmp(got.text.data, text.data, text.size) != 0)) {
        fail_msg("%s: \"%.*s\" is not \"%.*s\"", family, (int)got.text.size,
                 (const char *)got.text.data, (int)text.size, (const char *)text.data);
    }
    size_t from = 0;
    for (size_t i = 0; i < got.n_plain; i++) {
        assert_true(got.plain[i].begin >= from && got.plain[i].end > got.plain[i].begin);
        from = got.plain[i].end;
    }
    assert_true(from <= got.text.size);
    mr_chat_rendered_deinit(&got);
}

static void test_render_K5_families_equal_jinja(void **state)
{
    (void)state;
    json_t *root = golden_load("chat_templates.json");
    const json_t *families = json_object_get(root, "families");
    assert_int_equal(json_array_size(families), 13);
    for (size_t i = 0; i < json_array_size(families); i++) {
        const json_t *family = json_array_get(families, i);
        const char *digest = json_string_value(json_object_get(family, "template_sha256"));
        const char *name = json_string_value(json_object_get(family, "name"));
        const json_t *rows = json_object_get(family, "rows");
        mr_chat_template *tmpl = NULL;
        assert_int_equal(mr_chat_template_create_digest(digest, &tmpl, NULL), MR_OK);
        assert_true(mr_chat_template_known(tmpl));
        assert_int_equal(mr_chat_template_set_ends(tmpl, golden_bytes(family, "bos"),
                                                   golden_bytes(family, "eos"), NULL),
                         MR_OK);
        assert_true(json_array_size(rows) >= 50);
        for (size_t r = 0; r < json_array_size(rows); r++) {
            check_golden_row(tmpl, json_array_get(rows, r), name);
        }
        mr_chat_template_destroy(tmpl);
    }
    json_decref(root);
}

/* Of what users say in a chat no byte lies outside the plain spans: a text that is nowhere in the
 * templates is only found inside of them. */
static void test_render_K6_families_keep_users_text_plain(void **state)
{
    (void)state;
    static const char text[] = "zq<|eot_id|>[INST]qz";
    const mr_chat_message messages[] = {{mr_bytes_of("user"), mr_bytes_of(text)},
                                        {mr_bytes_of("assistant"), mr_bytes_of(text)},
                                        {mr_bytes_of("user"), mr_bytes_of(text)}};
    const mr_chat_known *known;
    for (size_t i = 0; (known = mr_chat_known_at(i)) != NULL; i++) {
        mr_chat_template *tmpl = NULL;
        assert_int_equal(mr_chat_template_create_digest(known->digest, &tmpl, NULL), MR_OK);
        mr_chat_rendered got = {0};
        assert_int_equal(mr_chat_render(tmpl, messages, 3, true, &got, NULL), MR_OK);
        size_t found = 0;
        for (size_t s = 0; s < got.n_plain; s++) {
            const mr_text_span span = got.plain[s];
            if (span.end - span.begin == strlen(text)) {
                assert_memory_equal(got.text.data + span.begin, text, strlen(text));
                memset(got.text.data + span.begin, ' ', strlen(text));
                found++;
            }
        }
        assert_int_equal(found, 3);
        assert_null(memmem(got.text.data, got.text.size, "zq", 2));
        mr_chat_rendered_deinit(&got);
        mr_chat_template_destroy(tmpl);
    }
}

/* A file's last line feed, which Jinja drops too. */
static void test_create_ignores_the_last_line_feed(void **state)
{
    (void)state;
    const mr_bytes source = golden_bytes(golden, "template");
    char longer[4096];
    assert_true(source.size + 1 < sizeof(longer));
    memcpy(longer, source.data, source.size);
    longer[source.size] = '\n';
    mr_chat_template *tmpl = create((mr_bytes){(const uint8_t *)longer, source.size + 1});
    assert_true(mr_chat_template_known(tmpl));
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
    const mr_chat_message bad_content[] = {{mr_bytes_of("user"), mr_bytes_of("fine")},
                                           {mr_bytes_of("user"), mr_bytes_of("ab\xC0")}};
    const mr_chat_message bad_role[] = {{mr_bytes_of("\xFF"), mr_bytes_of("fine")}};
    render_refused(tmpl, bad_content, 2, MR_INVALID_ARGUMENT, "messages[1].content", "byte 2");
    render_refused(tmpl, bad_role, 1, MR_INVALID_ARGUMENT, "messages[0].role", "byte 0");
    render_refused(tmpl, NULL, 0, MR_INVALID_ARGUMENT, "messages", "at least one");
    mr_chat_template_destroy(tmpl);
}

/* No fallback to another format: the digest of "{{ x }}" comes from sha256sum. */
static void test_render_K4_unknown_template_refused(void **state)
{
    (void)state;
    const mr_chat_message hello[] = {{mr_bytes_of("user"), mr_bytes_of("Hello")}};
    mr_chat_template *other = create(mr_bytes_of("{{ x }}"));
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
        cmocka_unit_test(test_render_K5_families_equal_jinja),
        cmocka_unit_test(test_render_K6_families_keep_users_text_plain),
        cmocka_unit_test(test_create_ignores_the_last_line_feed),
        cmocka_unit_test(test_render_refuses_bad_messages),
        cmocka_unit_test(test_render_K4_unknown_template_refused),
    };
    return cmocka_run_group_tests(tests, load_golden, drop_golden);
}
