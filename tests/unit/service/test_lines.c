/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "service/lines.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* An open temporary file with `text`, `filler` times 'x', and `rest`; read from its start. */
static FILE *file_of(const char *text, size_t filler, const char *rest)
{
    FILE *file = tmpfile();
    assert_non_null(file);
    fputs(text, file);
    for (size_t i = 0; i < filler; i++) {
        fputc('x', file);
    }
    fputs(rest, file);
    assert_int_equal(fflush(file), 0);
    assert_int_equal(lseek(fileno(file), 0, SEEK_SET), 0);
    return file;
}

static mr_line_kind next(mr_lines *lines, const char **text, size_t *bytes)
{
    mr_line_kind kind;
    while ((kind = mr_lines_next(lines, text, bytes)) == MR_LINE_WANTING) {
        assert_int_equal(mr_lines_read(lines, NULL), MR_OK);
    }
    return kind;
}

static void a_line_that_is_too_long_is_told_by_its_own_number(void **state)
{
    (void)state;
    FILE *file = file_of("a\nb\n", MR_LINE_MAX_BYTES + 100, "\n\nlast");
    mr_lines lines;
    mr_lines_init(&lines, fileno(file));
    const char *text = NULL;
    size_t bytes = 0;
    assert_int_equal(next(&lines, &text, &bytes), MR_LINE_WHOLE);
    assert_int_equal(lines.number, 1);
    assert_int_equal(next(&lines, &text, &bytes), MR_LINE_WHOLE);
    assert_int_equal(lines.number, 2);
    assert_int_equal(next(&lines, &text, &bytes), MR_LINE_TOO_LONG);
    assert_int_equal(lines.number, 3);
    assert_int_equal(next(&lines, &text, &bytes), MR_LINE_WHOLE);
    assert_int_equal(lines.number, 5); /* the empty line counts, but is not handed out */
    assert_int_equal(bytes, 4);
    assert_memory_equal(text, "last", 4);
    assert_int_equal(next(&lines, &text, &bytes), MR_LINE_END);
    mr_lines_deinit(&lines);
    fclose(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_that_is_too_long_is_told_by_its_own_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
