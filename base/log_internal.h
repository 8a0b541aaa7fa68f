/* SPDX-License-Identifier: Apache-2.0 */
/* What log.c (levels and lines), log_fold.c and log_json.c share. */
#ifndef MILLRACE_BASE_LOG_INTERNAL_H
#define MILLRACE_BASE_LOG_INTERNAL_H

#include "base/log.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#define MR_LOG_LINE_BYTES 2048u /* below PIPE_BUF, so that lines of several threads never mix */

typedef struct mr_log_line {
    char text[MR_LOG_LINE_BYTES];
    size_t size; /* at most MR_LOG_LINE_BYTES - 1: room for the newline */
} mr_log_line;

/* True when lines of this level are written. */
bool mr_log_wanted(mr_log_level level);
/* Renders and writes one line. */
void mr_log_write(mr_log_level level, const char *module, const char *msg, const char *fmt,
                  va_list args) MR_PRINTF(4, 0);

/* Tells of what was folded and is due by now; costs next to nothing when there is none. */
void mr_log_fold_tick(void);

/* Makes the JSON line of rendered logfmt pairs. A member that does not fit is left out, and
 * everything after it; the line is whole JSON whatever `msg` and `pairs` hold. */
void mr_log_json(mr_log_line *line, const char *timestamp, const char *level, const char *module,
                 const char *msg, const char *pairs);

#endif
