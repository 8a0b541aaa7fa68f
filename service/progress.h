/* SPDX-License-Identifier: Apache-2.0 */
/* Progress of long work on standard error: a line that is redrawn on a terminal, plain lines now
 * and then elsewhere; nothing at all for work that is soon done. */
#ifndef MILLRACE_SERVICE_PROGRESS_H
#define MILLRACE_SERVICE_PROGRESS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct mr_progress {
    const char *what; /* borrowed until deinit: "loading" */
    pthread_mutex_t mutex;
    bool counts; /* things, not bytes; set after init */
    bool terminal;
    bool drawn;       /* a line stands on the terminal */
    uint64_t next_ns; /* nothing is shown before */
} mr_progress;

void mr_progress_init(mr_progress *progress, const char *what);
/* Clears the line. */
void mr_progress_deinit(mr_progress *progress);
/* An mr_progress_fn; `ctx` is the mr_progress. Any thread. */
void mr_progress_update(void *ctx, uint64_t done, uint64_t total);

#endif
