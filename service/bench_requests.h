/* SPDX-License-Identifier: Apache-2.0 */
/* Throughput of whole requests on this machine: the scheduler that serves, without a server. */
#ifndef MILLRACE_SERVICE_BENCH_REQUESTS_H
#define MILLRACE_SERVICE_BENCH_REQUESTS_H

#include "base/status.h"
#include "service/runtime.h"

#include <stdint.h>

typedef struct mr_bench_requests_spec {
    uint32_t requests; /* all submitted at once; the queue has room for them */
    uint32_t prompt;   /* random tokens of each, others in every run: no prefix is found again */
    uint32_t generate; /* tokens that each generates, greedily, whatever ends there are */
    uint32_t repeat;
} mr_bench_requests_spec;

typedef struct mr_bench_requests_result {
    double seconds;            /* from the first submit to the last token: the median of the runs */
    uint64_t prompt_tokens;    /* of all requests of a run */
    uint64_t generated_tokens; /* that came of them */
} mr_bench_requests_result;

/* `repeat` runs after a short one that is not counted. The runtime has an engine. The status of a
 * request that fails. */
MR_MUST_USE mr_status mr_bench_requests(mr_runtime *runtime, const mr_bench_requests_spec *spec,
                                        mr_bench_requests_result *out, mr_error *err);

#endif
