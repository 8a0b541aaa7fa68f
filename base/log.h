/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One line an event on standard error, logfmt or JSON:
 *   ts=2026-11-30T12:00:00.123Z level=info module=engine msg="ready" blocks=512
 *   {"ts":"2026-11-30T12:00:00.123Z","level":"info","module":"engine","msg":"ready","blocks":512}
 * No user text. The step loop logs nothing above debug.
 */
#ifndef MILLRACE_BASE_LOG_H
#define MILLRACE_BASE_LOG_H

#include "base/clock.h"
#include "base/status.h"

#include <stddef.h>

typedef enum mr_log_level {
    MR_LOG_DEBUG,
    MR_LOG_INFO,
    MR_LOG_WARN,
    MR_LOG_ERROR,
} mr_log_level;

typedef enum mr_log_format {
    MR_LOG_LOGFMT,
    MR_LOG_JSON,
} mr_log_format;

/* Lines below `level` are dropped. Default INFO. Any thread. */
void mr_log_set_level(mr_log_level level);
/* Default LOGFMT. Any thread. */
void mr_log_set_format(mr_log_format format);

/* `msg` is a plain sentence; `fmt` (may be NULL) renders the key=value pairs that follow it,
 * already quoted where they need it (mr_log_quote). One write(2) a line. Any thread. */
void mr_log(mr_log_level level, const char *module, const char *msg, const char *fmt, ...)
    MR_PRINTF(4, 5);

/* A line of level info that is written whatever level is set: for what has to be on record. Any
 * thread. */
void mr_log_record(const char *module, const char *msg, const char *fmt, ...) MR_PRINTF(3, 4);

/* For what may happen thousands of times: of the same level, module and `msg`, five lines in ten
 * seconds are written, the rest is counted, and told in one line "<msg>, repeated N times" when the
 * ten seconds are over, something is logged then, and at the latest by mr_log_flush. Any thread. */
void mr_log_folded(mr_log_level level, const char *module, const char *msg, const char *fmt, ...)
    MR_PRINTF(4, 5);
/* Tells of all that was folded. */
void mr_log_flush(void);
/* The clock of the ten seconds, for tests; NULL: the monotonic one. Before there are threads. */
void mr_log_set_clock(const mr_clock *clock);

/* `text` in quotes, as a value that is not known to be plain; returns `out`. Cut to fit, from 3
 * bytes on. */
const char *mr_log_quote(const char *text, char *out, size_t bytes);

#endif
