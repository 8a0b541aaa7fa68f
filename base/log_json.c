/* SPDX-License-Identifier: Apache-2.0 */
/* A log line as JSON. Call sites render logfmt pairs; here they become members. */
#include "base/log_internal.h"
#include "base/utf8.h"

#include <ctype.h>
#include <string.h>

#define ROOM (MR_LOG_LINE_BYTES - 2) /* for what comes before the closing brace and the newline */

/* False, and `line` as it was, when the bytes do not fit. */
static bool put(mr_log_line *line, const char *text, size_t bytes)
{
    if (bytes > ROOM - line->size) {
        return false;
    }
    memcpy(line->text + line->size, text, bytes);
    line->size += bytes;
    return true;
}

/* A JSON string of `bytes` of text. Backslashes that escape a quote or a backslash in logfmt go
 * first, where `escaped`. Text that is not UTF-8 keeps its ASCII. */
static bool put_string(mr_log_line *line, const char *text, size_t bytes, bool escaped)
{
    static const char hex[] = "0123456789abcdef";
    const bool valid = mr_utf8_valid(text, bytes, NULL);
    bool fits = put(line, "\"", 1);
    for (size_t i = 0; i < bytes && fits; i++) {
        if (escaped && text[i] == '\\' && i + 1 < bytes &&
            (text[i + 1] == '"' || text[i + 1] == '\\')) {
            i++;
        }
        const unsigned char c = (unsigned char)text[i];
        if (c == '"' || c == '\\') {
            const char pair[2] = {'\\', (char)c};
            fits = put(line, pair, 2);
        } else if (c < 0x20) {
            const char code[6] = {'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]};
            fits = put(line, code, 6);
        } else {
            const unsigned char plain = c < 0x80 || valid ? c : '?';
            fits = put(line, (const char *)&plain, 1);
        }
    }
    return fits && put(line, "\"", 1);
}

/* Skips decimal digits; false when there is none. */
static bool skip_digits(const char **at, const char *end)
{
    const char *begin = *at;
    while (*at < end && isdigit((unsigned char)**at)) {
        ++*at;
    }
    return *at > begin;
}

/* True of what JSON takes as a number, true or false: such values stay bare. */
static bool is_bare(const char *at, const char *end)
{
    const size_t bytes = (size_t)(end - at);
    if ((bytes == 4 && memcmp(at, "true", 4) == 0) || (bytes == 5 && memcmp(at, "false", 5) == 0)) {
        return true;
    }
    at += at < end && *at == '-' ? 1 : 0;
    const bool zero = at + 1 < end && *at == '0' && isdigit((unsigned char)at[1]);
    if (zero || !skip_digits(&at, end)) {
        return false;
    }
    if (at < end && *at == '.') {
        at++;
        if (!skip_digits(&at, end)) {
            return false;
        }
    }
    if (at < end && (*at == 'e' || *at == 'E')) {
        at++;
        at += at < end && (*at == '+' || *at == '-') ? 1 : 0;
        if (!skip_digits(&at, end)) {
            return false;
        }
    }
    return at == end;
}

/* The end of the quoted value whose first character `at` is; a value that was cut ends with the
 * text. */
static const char *end_of_quoted(const char *at)
{
    while (*at != '\0' && *at != '"') {
        at += *at == '\\' && at[1] != '\0' ? 2 : 1;
    }
    return at;
}

/* Adds the member at `at` and returns where the next one begins; NULL: it did not fit. */
static const char *put_member(mr_log_line *line, const char *at)
{
    const char *equals = at + strcspn(at, "= ");
    if (*equals != '=') {
        return *equals == '\0' ? equals : equals + 1; /* no pair */
    }
    const char *value = equals + 1;
    const bool quoted = *value == '"';
    value += quoted ? 1 : 0;
    const char *end = quoted ? end_of_quoted(value) : value + strcspn(value, " ");
    const size_t size = line->size;
    bool fits = put(line, ",", 1) && put_string(line, at, (size_t)(equals - at), false) &&
                put(line, ":", 1);
    fits = fits && (!quoted && is_bare(value, end)
                        ? put(line, value, (size_t)(end - value))
                        : put_string(line, value, (size_t)(end - value), quoted));
    if (!fits) {
        line->size = size;
        return NULL;
    }
    end += quoted && *end == '"' ? 1 : 0;
    return end + strspn(end, " ");
}

static bool put_text(mr_log_line *line, const char *name, const char *text)
{
    const size_t size = line->size;
    const bool fits = put(line, size == 0 ? "{" : ",", 1) &&
                      put_string(line, name, strlen(name), false) && put(line, ":", 1) &&
                      put_string(line, text, strlen(text), false);
    line->size = fits ? line->size : size;
    return fits;
}

void mr_log_json(mr_log_line *line, const char *timestamp, const char *level, const char *module,
                 const char *msg, const char *pairs)
{
    (void)put_text(line, "ts", timestamp);
    (void)put_text(line, "level", level);
    (void)put_text(line, "module", module);
    bool fits = put_text(line, "msg", msg);
    for (const char *at = pairs; fits && *at != '\0';) {
        at = put_member(line, at);
        fits = at != NULL;
    }
    line->text[line->size++] = '}';
}
