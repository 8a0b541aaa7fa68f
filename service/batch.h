/* SPDX-License-Identifier: Apache-2.0 */
/* Offline batches: JSON lines through the same scheduler that serves. */
#ifndef MILLRACE_SERVICE_BATCH_H
#define MILLRACE_SERVICE_BATCH_H

#include "base/status.h"
#include "service/runtime.h"

#include <stdint.h>
#include <stdio.h>

typedef struct mr_batch_summary {
    uint64_t requests;
    uint64_t failed; /* bad lines included: each has its error row */
} mr_batch_summary;

/* Reads requests from `input_fd` until it ends, runs as many at a time as the engine has use for,
 * and writes the rows in input order, each as soon as all before it are out. Memory is bounded
 * however many lines there are. Fails only when it cannot read or write. Main thread. */
MR_MUST_USE mr_status mr_batch_run_lines(mr_runtime *runtime, int input_fd, FILE *output,
                                         mr_batch_summary *summary, mr_error *err);

#endif
