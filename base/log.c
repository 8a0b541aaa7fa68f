/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include "base/log_internal.h"
#include "base/utf8.h"

#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static atomic_int current_level = MR_LOG_INFO;
static atomic_int current_format = MR_LOG_LOGFMT;

void mr_log_set_level(mr_log_level level)
{
    atomic_store_explicit(&current_level, (int)level, memory_order_relaxed);
}

void mr_log_set_format(mr_log_format format)
{
    atomic_store_explicit(&current_format, (int)format, memory_order_relaxed);
}

bool mr_log_wanted(mr_log_level level)
{
    return (int)level >= atomic_load_explicit(&current_level, memory_order_relaxed);
}

static void put_char(mr_log_line *line, char c)
{
    if (line->size < MR_LOG_LINE_BYTES - 1) {
        line->text[line->size++] = c;
    }
}

static void MR_PRINTF(2, 0) put_format(mr_log_line *line, const char *fmt, va_list args)
{
    const size_t room = MR_LOG_LINE_BYTES - line->size;
    const int length = vsnprintf(line->text + line->size, room, fmt, args);
    if (length > 0) {
        line->size += (size_t)length < room ? (size_t)length : room - 1;
    }
}

static void MR_PRINTF(2, 3) put(mr_log_line *line, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    put_format(line, fmt, args);
    va_end(args);
}

static void put_quoted(mr_log_line *line, const char *text)
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

const char *mr_log_quote(const char *text, char *out, size_t bytes)
{
    size_t used = 0;
    out[used++] = '"';
    for (; *text != '\0'; text++) {
        const size_t needed = *text == '"' || *text == '\\' ? 2 : 1;
        if (used + needed + 2 > bytes) {
            break;
        }
        if (needed == 2) {
            out[used++] = '\\';
        }
        out[used++] = *text;
    }
    out[used++] = '"';
    out[used] = '\0';
    return out;
}

static void make_timestamp(char out[32])
{
    struct timespec now;
    struct tm utc;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    const size_t length = strftime(out, 32, "%Y-%m-%dT%H:%M:%S", &utc);
    snprintf(out + length, 32 - length, ".%03dZ", (int)(now.tv_nsec / 1000000));
}

/* One event stays one line, whatever a value holds; characters are whole. */
static void clean(mr_log_line *line)
{
    line->size -= mr_utf8_pending(line->text, line->size);
    for (size_t i = 0; i < line->size; i++) {
        if ((unsigned char)line->text[i] < 0x20) {
            line->text[i] = ' ';
        }
    }
}

void mr_log_write(mr_log_level level, const char *module, const char *msg, const char *fmt,
                  va_list args)
{
    static const char *const names[] = {"debug", "info", "warn", "error"};
    char timestamp[32];
    make_timestamp(timestamp);
    mr_log_line line = {.size = 0};
    if (atomic_load_explicit(&current_format, memory_order_relaxed) == MR_LOG_JSON) {
        mr_log_line pairs = {.size = 0};
        if (fmt != NULL) {
            put_format(&pairs, fmt, args);
        }
        clean(&pairs);
        pairs.text[pairs.size] = '\0';
        mr_log_json(&line, timestamp, names[level], module, msg, pairs.text);
    } else {
        put(&line, "ts=%s level=%s module=%s msg=", timestamp, names[level], module);
        put_quoted(&line, msg);
        if (fmt != NULL) {
            put_char(&line, ' ');
            put_format(&line, fmt, args);
        }
        clean(&line);
    }
    line.text[line.size++] = '\n';
    /* A line that standard error does not take is lost: there is nowhere else to report it. */
    const ssize_t written = write(STDERR_FILENO, line.text, line.size);
    (void)written;
}

void mr_log(mr_log_level level, const char *module, const char *msg, const char *fmt, ...)
{
    mr_log_fold_tick();
    if (!mr_log_wanted(level)) {
        return;
    }
    va_list args;
    va_start(args, fmt);
    mr_log_write(level, module, msg, fmt, args);
    va_end(args);
}

void mr_log_record(const char *module, const char *msg, const char *fmt, ...)
{
    mr_log_fold_tick();
    va_list args;
    va_start(args, fmt);
    mr_log_write(MR_LOG_INFO, module, msg, fmt, args);
    va_end(args);
}
