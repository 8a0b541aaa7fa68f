/* SPDX-License-Identifier: Apache-2.0 */
/* Throughput of a model on this machine, without server or scheduler. */
#ifndef MILLRACE_SERVICE_BENCH_H
#define MILLRACE_SERVICE_BENCH_H

#include "base/status.h"
#include "service/runtime.h"

#include <stdint.h>

typedef struct mr_bench_result {
    double tokens_per_s; /* median of the runs */
    mr_exec_times spent; /* by all runs, without what is not timed */
} mr_bench_result;

/* Prompt tokens a second of one prompt of `tokens`, in steps of max_batch_tokens: `repeat` runs
 * after a short one that is not counted. The runtime has no engine. */
MR_MUST_USE mr_status mr_bench_prefill(mr_runtime *runtime, uint32_t tokens, uint32_t repeat,
                                       mr_bench_result *out, mr_error *err);

typedef struct mr_bench_decode_spec {
    uint32_t batch;    /* sequences that decode together */
    uint32_t prompt;   /* tokens that each has already; computing them is not timed */
    uint32_t generate; /* tokens that each decodes */
    uint32_t repeat;
} mr_bench_decode_spec;

/* Generated tokens a second, all sequences together; runs as above. */
MR_MUST_USE mr_status mr_bench_decode(mr_runtime *runtime, const mr_bench_decode_spec *spec,
                                      mr_bench_result *out, mr_error *err);

/* Of `count` ≥ 1 runs, which it sorts; of an even number the mean of the two in the middle. */
double mr_bench_median(double *runs, uint32_t count);

#endif
