/* SPDX-License-Identifier: Apache-2.0 */
#include "base/status.h"

#include "base/utf8.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* Copies `bytes` of `text` into out[capacity]; too long a text, or one that `cut` says was cut
 * already, ends in "..." after a whole character. */
static void copy_text(char *out, size_t capacity, const char *text, size_t bytes, bool cut)
{
    if (!cut && bytes < capacity) {
        memcpy(out, text, bytes);
        out[bytes] = '\0';
        return;
    }
    const size_t room = capacity - sizeof("...");
    size_t keep = bytes < room ? bytes : room;
    keep -= mr_utf8_pending(text, keep);
    memcpy(out, text, keep);
    memcpy(out + keep, "...", sizeof("..."));
}

/* Formats into out[capacity] through a buffer of its own, because the arguments may point into
 * `out`. */
static void MR_PRINTF(3, 0) format_text(char *out, size_t capacity, const char *fmt, va_list args)
{
    char text[MR_ERROR_MESSAGE_MAX];
    const int length = vsnprintf(text, sizeof(text), fmt, args);
    if (length < 0) { /* a wide string that the locale cannot express; none of ours has one */
        copy_text(out, capacity, "", 0, false);
        return;
    }
    const bool cut = (size_t)length >= sizeof(text);
    copy_text(out, capacity, text, cut ? sizeof(text) - 1 : (size_t)length, cut);
}

static void MR_PRINTF(4, 0)
    fill(mr_error *err, mr_status status, const char *field, const char *fmt, va_list args)
{
    char name[MR_ERROR_FIELD_MAX];
    copy_text(name, sizeof(name), field, strlen(field), false);
    format_text(err->message, sizeof(err->message), fmt, args);
    memcpy(err->field, name, sizeof(name));
    err->status = status;
    err->retry_after_ms = 0;
}

mr_status mr_fail(mr_error *err, mr_status status, const char *fmt, ...)
{
    if (err != NULL) {
        va_list args;
        va_start(args, fmt);
        fill(err, status, "", fmt, args);
        va_end(args);
    }
    return status;
}

mr_status mr_fail_field(mr_error *err, mr_status status, const char *field, const char *fmt, ...)
{
    if (err != NULL) {
        va_list args;
        va_start(args, fmt);
        fill(err, status, field, fmt, args);
        va_end(args);
    }
    return status;
}

mr_status mr_fail_context(mr_error *err, const char *fmt, ...)
{
    if (err == NULL) {
        return MR_INTERNAL;
    }
    char joined[2 * MR_ERROR_MESSAGE_MAX];
    va_list args;
    va_start(args, fmt);
    format_text(joined, MR_ERROR_MESSAGE_MAX, fmt, args);
    va_end(args);

    const size_t used = strlen(joined);
    const int rest = (int)strnlen(err->message, sizeof(err->message) - 1);
    (void)snprintf(joined + used, sizeof(joined) - used, ": %.*s", rest, err->message);
    copy_text(err->message, sizeof(err->message), joined, strlen(joined), false);
    return err->status;
}

const char *mr_status_name(mr_status status)
{
    switch (status) {
    case MR_OK:
        return "OK";
    case MR_CANCELLED:
        return "CANCELLED";
    case MR_UNKNOWN:
        return "UNKNOWN";
    case MR_INVALID_ARGUMENT:
        return "INVALID_ARGUMENT";
    case MR_DEADLINE_EXCEEDED:
        return "DEADLINE_EXCEEDED";
    case MR_NOT_FOUND:
        return "NOT_FOUND";
    case MR_ALREADY_EXISTS:
        return "ALREADY_EXISTS";
    case MR_PERMISSION_DENIED:
        return "PERMISSION_DENIED";
    case MR_RESOURCE_EXHAUSTED:
        return "RESOURCE_EXHAUSTED";
    case MR_FAILED_PRECONDITION:
        return "FAILED_PRECONDITION";
    case MR_ABORTED:
        return "ABORTED";
    case MR_OUT_OF_RANGE:
        return "OUT_OF_RANGE";
    case MR_UNIMPLEMENTED:
        return "UNIMPLEMENTED";
    case MR_INTERNAL:
        return "INTERNAL";
    case MR_UNAVAILABLE:
        return "UNAVAILABLE";
    case MR_DATA_LOSS:
        return "DATA_LOSS";
    case MR_UNAUTHENTICATED:
        return "UNAUTHENTICATED";
    }
    return "UNKNOWN";
}

void mr_check_failed(const char *expression, const char *file, int line)
{
    fprintf(stderr, "millrace: check failed: %s (%s:%d)\n", expression, file, line);
    __builtin_trap();
}
