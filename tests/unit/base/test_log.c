/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int saved_stderr;
static int read_end;

static int redirect(void **state)
{
    (void)state;
    int ends[2];
    if (pipe(ends) != 0) {
        return -1;
    }
    saved_stderr = dup(STDERR_FILENO);
    read_end = ends[0];
    dup2(ends[1], STDERR_FILENO);
    close(ends[1]);
    return 0;
}

static int restore(void **state)
{
    (void)state;
    dup2(saved_stderr, STDERR_FILENO);
    close(saved_stderr);
    close(read_end);
    mr_log_set_level(MR_LOG_INFO);
    mr_log_set_format(MR_LOG_LOGFMT);
    mr_log_set_clock(NULL);
    return 0;
}

/* What one read gives: one write of one line. */
static size_t read_line(char *line, size_t capacity)
{
    const ssize_t got = read(read_end, line, capacity - 1);
    assert_true(got > 0);
    line[got] = '\0';
    assert_ptr_equal(strchr(line, '\n'), line + got - 1);
    return (size_t)got;
}

static void test_line_shape(void **state)
{
    (void)state;
    char line[4096];
    mr_log(MR_LOG_INFO, "engine", "ready", "blocks=%d", 512);
    read_line(line, sizeof(line));
    static const char shape[] = "ts=dddd-dd-ddTdd:dd:dd.dddZ";
    for (size_t i = 0; shape[i] != '\0'; i++) {
        assert_true(i >= 3 && shape[i] == 'd' ? isdigit(line[i]) : line[i] == shape[i]);
    }
    assert_string_equal(line + strlen(shape),
                        " level=info module=engine msg=\"ready\" blocks=512\n");
    mr_log(MR_LOG_ERROR, "m", "say \"no\"", NULL);
    read_line(line, sizeof(line));
    assert_string_equal(line + strlen(shape), " level=error module=m msg=\"say \\\"no\\\"\"\n");
}

/* What has to be on record is, whatever the level. */
static void test_record_is_written_at_every_level(void **state)
{
    (void)state;
    char line[4096];
    mr_log_set_level(MR_LOG_ERROR);
    mr_log_record("audit", "admin call", "name=%s", "ops");
    read_line(line, sizeof(line));
    assert_non_null(strstr(line, " level=info module=audit msg=\"admin call\" name=ops\n"));
}

static void test_level_drops_lines(void **state)
{
    (void)state;
    char line[4096];
    mr_log(MR_LOG_DEBUG, "m", "dropped by default", NULL);
    mr_log_set_level(MR_LOG_ERROR);
    mr_log(MR_LOG_WARN, "m", "dropped", NULL);
    mr_log_set_level(MR_LOG_DEBUG);
    mr_log(MR_LOG_DEBUG, "m", "kept", NULL);
    read_line(line, sizeof(line));
    assert_non_null(strstr(line, " level=debug module=m msg=\"kept\"\n"));
}

static void test_one_line_whatever_the_values_hold(void **state)
{
    (void)state;
    char line[4096];
    mr_log(MR_LOG_INFO, "m", "a\nb", "key=x\r\ny");
    read_line(line, sizeof(line));
    assert_non_null(strstr(line, "msg=\"a b\" key=x  y\n"));
    char text[3000];
    memset(text, 'x', sizeof(text));
    text[sizeof(text) - 1] = '\0';
    mr_log(MR_LOG_INFO, "m", "long", "key=%s", text);
    assert_int_equal(read_line(line, sizeof(line)), 2048);
    mr_log(MR_LOG_INFO, "m", text, "key=1");
    assert_int_equal(read_line(line, sizeof(line)), 2048);
}

/* Reads a line of JSON and compares what follows its time. */
static void assert_json(const char *wanted)
{
    char line[4096];
    static const char begin[] = "{\"ts\":\"dddd-dd-ddTdd:dd:dd.dddZ\",";
    assert_true(read_line(line, sizeof(line)) > strlen(begin));
    assert_memory_equal(line, begin, 7);
    assert_string_equal(line + strlen(begin), wanted);
}

static void test_json_lines(void **state)
{
    (void)state;
    mr_log_set_format(MR_LOG_JSON);
    mr_log(MR_LOG_INFO, "engine", "ready", "blocks=%d share=%.1f on=true", 512, 0.5);
    assert_json("\"level\":\"info\",\"module\":\"engine\",\"msg\":\"ready\",\"blocks\":512,"
                "\"share\":0.5,\"on\":true}\n");
    mr_log(MR_LOG_WARN, "m", "say \"no\"\t\\", NULL);
    assert_json("\"level\":\"warn\",\"module\":\"m\",\"msg\":\"say \\\"no\\\"\\u0009\\\\\"}\n");
    char name[64];
    mr_log(MR_LOG_ERROR, "m", "x", "id=%s empty=\"\" next=7f",
           mr_log_quote("a \"b\" \\ = c", name, sizeof(name)));
    assert_json(
        "\"level\":\"error\",\"module\":\"m\",\"msg\":\"x\",\"id\":\"a \\\"b\\\" \\\\ = c\","
        "\"empty\":\"\",\"next\":\"7f\"}\n");
}

/* What would be no JSON number stays text. */
static void test_json_numbers(void **state)
{
    (void)state;
    mr_log_set_format(MR_LOG_JSON);
    mr_log(MR_LOG_INFO, "m", "n", "%s", "a=-1 b=007 c=1. d=.5 e=1e-9 f=nan g=0 h=- i=1e j=0.25");
    assert_json(
        "\"level\":\"info\",\"module\":\"m\",\"msg\":\"n\",\"a\":-1,\"b\":\"007\",\"c\":\"1.\","
        "\"d\":\".5\",\"e\":1e-9,\"f\":\"nan\",\"g\":0,\"h\":\"-\",\"i\":\"1e\",\"j\":0.25}\n");
}

/* A line that is too long loses members, not its form. */
static void test_json_stays_whole(void **state)
{
    (void)state;
    mr_log_set_format(MR_LOG_JSON);
    char text[3000];
    memset(text, 'x', sizeof(text));
    text[sizeof(text) - 1] = '\0';
    mr_log(MR_LOG_INFO, "m", "long", "a=1 key=%s", text);
    assert_json("\"level\":\"info\",\"module\":\"m\",\"msg\":\"long\",\"a\":1}\n");
    mr_log(MR_LOG_INFO, "m", text, "a=1");
    assert_json("\"level\":\"info\",\"module\":\"m\"}\n");
    mr_log(MR_LOG_INFO, "m", "bytes", "bad=\"\xff\" good=\"\xc3\xa9\"");
    assert_json("\"level\":\"info\",\"module\":\"m\",\"msg\":\"bytes\",\"bad\":\"?\",\"good\":"
                "\"\xc3\xa9\"}\n");
}

static uint64_t virtual_now(void *ctx)
{
    return *(uint64_t *)ctx;
}

/* The next line; several may be waiting. */
static void next_line(char *line, size_t capacity)
{
    size_t used = 0;
    do {
        assert_true(used + 1 < capacity && read(read_end, line + used, 1) == 1);
    } while (line[used++] != '\n');
    line[used] = '\0';
}

static void assert_nothing(void)
{
    /* The next line read must be this one. */
    mr_log(MR_LOG_ERROR, "t", "marker", NULL);
    char line[4096];
    next_line(line, sizeof(line));
    assert_non_null(strstr(line, "msg=\"marker\""));
}

static void assert_line(const char *part)
{
    char line[4096];
    next_line(line, sizeof(line));
    if (strstr(line, part) == NULL) {
        fail_msg("\"%s\" lacks \"%s\"", line, part);
    }
}

static void test_repeats_are_folded(void **state)
{
    (void)state;
    uint64_t now = MR_NS_PER_S;
    const mr_clock clock = {virtual_now, &now};
    mr_log_set_clock(&clock);
    for (int i = 0; i < 12; i++) {
        mr_log_folded(MR_LOG_WARN, "m", "again", "i=%d", i);
        if (i < 5) {
            assert_line("msg=\"again\" i=");
        }
    }
    mr_log_folded(MR_LOG_WARN, "m", "other", NULL);
    assert_line("msg=\"other\"");
    assert_nothing();
    now += 10 * MR_NS_PER_S;
    mr_log(MR_LOG_INFO, "m", "later", NULL);
    assert_line("level=warn module=m msg=\"again, repeated 7 times\" repeated=7");
    assert_line("msg=\"later\"");
    mr_log_folded(MR_LOG_WARN, "m", "again", NULL);
    assert_line("msg=\"again\"");
    mr_log_flush();
    assert_nothing();
}

static void test_flush_tells_of_what_was_folded(void **state)
{
    (void)state;
    uint64_t now = MR_NS_PER_S;
    const mr_clock clock = {virtual_now, &now};
    mr_log_set_clock(&clock);
    for (int i = 0; i < 6; i++) {
        mr_log_folded(MR_LOG_INFO, "m", "many", NULL);
        if (i < 5) {
            assert_line("msg=\"many\"");
        }
    }
    mr_log_folded(MR_LOG_DEBUG, "m", "below the level", NULL);
    mr_log_flush();
    assert_line("msg=\"many, repeated 1 times\"");
    assert_nothing();
}

/* More kinds than there is room for: none is lost, only told of earlier. */
static void test_more_kinds_than_room(void **state)
{
    (void)state;
    uint64_t now = MR_NS_PER_S;
    const mr_clock clock = {virtual_now, &now};
    mr_log_set_clock(&clock);
    for (int i = 0; i < 6; i++) {
        mr_log_folded(MR_LOG_INFO, "m", "first", NULL);
        if (i < 5) {
            assert_line("msg=\"first\"");
        }
    }
    for (int i = 0; i < 16; i++) {
        char msg[32];
        snprintf(msg, sizeof(msg), "kind %d", i);
        now++;
        mr_log_folded(MR_LOG_INFO, "m", msg, NULL);
        if (i == 15) {
            assert_line("msg=\"first, repeated 1 times\"");
        }
        assert_line(msg);
    }
    mr_log_flush();
    assert_nothing();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_line_shape, redirect, restore),
        cmocka_unit_test_setup_teardown(test_level_drops_lines, redirect, restore),
        cmocka_unit_test_setup_teardown(test_record_is_written_at_every_level, redirect, restore),
        cmocka_unit_test_setup_teardown(test_one_line_whatever_the_values_hold, redirect, restore),
        cmocka_unit_test_setup_teardown(test_json_lines, redirect, restore),
        cmocka_unit_test_setup_teardown(test_json_numbers, redirect, restore),
        cmocka_unit_test_setup_teardown(test_json_stays_whole, redirect, restore),
        cmocka_unit_test_setup_teardown(test_repeats_are_folded, redirect, restore),
        cmocka_unit_test_setup_teardown(test_flush_tells_of_what_was_folded, redirect, restore),
        cmocka_unit_test_setup_teardown(test_more_kinds_than_room, redirect, restore),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
