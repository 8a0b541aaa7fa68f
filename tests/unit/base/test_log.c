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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_line_shape, redirect, restore),
        cmocka_unit_test_setup_teardown(test_level_drops_lines, redirect, restore),
        cmocka_unit_test_setup_teardown(test_one_line_whatever_the_values_hold, redirect, restore),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
