/* SPDX-License-Identifier: Apache-2.0 */
#include "service/lines.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define READ_BYTES ((size_t)64 << 10)

void mr_lines_init(mr_lines *lines, int fd)
{
    *lines = (mr_lines){.fd = fd};
}

void mr_lines_deinit(mr_lines *lines)
{
    mr_buffer_deinit(&lines->data);
}

static bool is_blank(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        if (strchr(" \t\r", text[i]) == NULL || text[i] == '\0') {
            return false;
        }
    }
    return true;
}

/* Forgets what does not fit a line; its newline is still to come. */
static mr_line_kind start_skipping(mr_lines *lines)
{
    lines->begin = lines->data.size;
    lines->scanned = lines->data.size;
    if (lines->skipping) {
        return MR_LINE_WANTING;
    }
    lines->skipping = true;
    lines->number++;
    return MR_LINE_TOO_LONG;
}

mr_line_kind mr_lines_next(mr_lines *lines, const char **text, size_t *bytes)
{
    while (lines->begin < lines->data.size) {
        const uint8_t *data = lines->data.data;
        const size_t size = lines->data.size;
        const uint8_t *newline = memchr(data + lines->scanned, '\n', size - lines->scanned);
        if (newline == NULL && !lines->ended) {
            lines->scanned = size;
            return lines->skipping || size - lines->begin > MR_LINE_MAX_BYTES
                       ? start_skipping(lines)
                       : MR_LINE_WANTING;
        }
        const size_t end = newline == NULL ? size : (size_t)(newline - data);
        *text = (const char *)data + lines->begin;
        *bytes = end - lines->begin;
        const bool skipped = lines->skipping;
        lines->skipping = false;
        lines->number += !skipped; /* a skipped one was counted when it began */
        lines->begin = newline == NULL ? end : end + 1;
        lines->scanned = lines->begin;
        if (!skipped && *bytes > MR_LINE_MAX_BYTES) {
            return MR_LINE_TOO_LONG;
        }
        if (!skipped && !is_blank(*text, *bytes)) {
            return MR_LINE_WHOLE;
        }
    }
    return lines->ended ? MR_LINE_END : MR_LINE_WANTING;
}

mr_status mr_lines_read(mr_lines *lines, mr_error *err)
{
    mr_buffer_consume(&lines->data, lines->begin);
    lines->scanned -= lines->begin;
    lines->begin = 0;
    if (mr_buffer_reserve(&lines->data, READ_BYTES) != MR_OK) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "out of memory for input");
    }
    const ssize_t got = read(lines->fd, lines->data.data + lines->data.size, READ_BYTES);
    if (got < 0 && errno != EINTR) {
        return mr_fail(err, MR_INTERNAL, "reading the input: %s", strerror(errno));
    }
    lines->ended = got == 0;
    lines->data.size += got > 0 ? (size_t)got : 0;
    return MR_OK;
}
