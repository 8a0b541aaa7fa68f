/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One line an event on standard error, logfmt:
 *   ts=2026-11-30T12:00:00.123Z level=info module=engine msg="ready" blocks=512
 * No user text. The step loop logs nothing above debug.
 */
#ifndef MILLRACE_BASE_LOG_H
#define MILLRACE_BASE_LOG_H

#include "base/status.h"

typedef enum mr_log_level {
    MR_LOG_DEBUG,
    MR_LOG_INFO,
    MR_LOG_WARN,
    MR_LOG_ERROR,
} mr_log_level;

/* Lines below `level` are dropped. Default INFO. Any thread. */
void mr_log_set_level(mr_log_level level);

/* `msg` is a plain sentence; `fmt` (may be NULL) renders the key=value pairs that follow it,
 * already quoted where they need it. One write(2) a line. */
void mr_log(mr_log_level level, const char *module, const char *msg, const char *fmt, ...)
    MR_PRINTF(4, 5);

#endif
