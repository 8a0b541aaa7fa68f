/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include "base/utf8.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define LINE_MAX_BYTES 2048u /* below PIPE_BUF, so that lines of several threads never mix */

typedef struct log_line {
    char text[LINE_MAX_BYTES];
    size_t size; /* at most LINE_MAX_BYTES - 1: room for the newline */
} log_line;

static atomic_int current_level = MR_LOG_INFO;

void mr_log_set_level(mr_log_level level)
{
    atomic_store_explicit(&current_level, (int)level, memory_order_relaxed);
}

static void put_char(log_line *line, char c)
{
    if (line->size < LINE_MAX_BYTES - 1) {
        line->text[line->size++] = c;
    }
}

static void MR_PRINTF(2, 0) put_format(log_line *line, const char *fmt, va_list args)
{
    const size_t room = LINE_MAX_BYTES - line->size;
    const int length = vsnprintf(line->text + line->size, room, fmt, args);
    if (length > 0) {
        line->size += (size_t)length < room ? (size_t)length : room - 1;
    }
}

static void MR_PRINTF(2, 3) put(log_line *line, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    put_format(line, fmt, args);
    va_end(args);
}

static void put_quoted(log_line *line, const char *text)
{
    put_char(line, '"');
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\') {
            put_char(line, '\\');
        }
        put_char(line, *text);
    }
    put_char(line, '"');
}

static void put_timestamp(log_line *line)
{
    struct timespec now;
    struct tm utc;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    put(line, "ts=%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", utc.tm_year + 1900, utc.tm_mon + 1,
        utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec, (int)(now.tv_nsec / 1000000));
}

void mr_log(mr_log_level level, const char *module, const char *msg, const char *fmt, ...)
{
    static const char *const names[] = {"debug", "info", "warn", "error"};
    if ((int)level < atomic_load_explicit(&current_level, memory_order_relaxed)) {
        return;
    }
    log_line line = {.size = 0};
    put_timestamp(&line);
    put(&line, " level=%s module=%s msg=", names[level], module);
    put_quoted(&line, msg);
    if (fmt != NULL) {
        put_char(&line, ' ');
        va_list args;
        va_start(args, fmt);
        put_format(&line, fmt, args);
        va_end(args);
    }
    line.size -= mr_utf8_pending(line.text, line.size);
    for (size_t i = 0; i < line.size; i++) {
        /* One event stays one line, whatever a value holds. */
        if ((unsigned char)line.text[i] < 0x20) {
            line.text[i] = ' ';
        }
    }
    line.text[line.size++] = '\n';
    /* A line that standard error does not take is lost: there is nowhere else to report it. */
    const ssize_t written = write(STDERR_FILENO, line.text, line.size);
    (void)written;
}
