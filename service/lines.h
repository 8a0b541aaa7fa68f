/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of bounded length from a file descriptor, without blocking more than one read(2) does. */
#ifndef MILLRACE_SERVICE_LINES_H
#define MILLRACE_SERVICE_LINES_H

#include "base/buffer.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MR_LINE_MAX_BYTES ((size_t)16 << 20)

typedef struct mr_lines {
    int fd;
    mr_buffer data;
    size_t begin;    /* of the next line in data */
    size_t scanned;  /* no newline before here */
    uint64_t number; /* of the line given last, blank ones counted, from 1 */
    bool ended;      /* the input has */
    bool skipping;   /* the rest of a line that was too long */
} mr_lines;

typedef enum mr_line_kind {
    MR_LINE_WHOLE,    /* *text, *bytes: without its newline, borrowed until the next call */
    MR_LINE_TOO_LONG, /* over MR_LINE_MAX_BYTES: dropped */
    MR_LINE_WANTING,  /* call mr_lines_read first */
    MR_LINE_END,
} mr_line_kind;

/* `fd` stays the caller's. */
void mr_lines_init(mr_lines *lines, int fd);
void mr_lines_deinit(mr_lines *lines);
/* The next line that is not blank. */
mr_line_kind mr_lines_next(mr_lines *lines, const char **text, size_t *bytes);
/* One read(2), which may block. INTERNAL with the system's reason, RESOURCE_EXHAUSTED. */
MR_MUST_USE mr_status mr_lines_read(mr_lines *lines, mr_error *err);

#endif
