/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Load on a server: many streams side by side on one connection and one thread.
 *
 * Closed loop: `concurrency` streams, each followed by the next when it ends. Open loop: requests
 * arrive on their own schedule, however many are still under way. Times count from when a request
 * was due, not from when it could be sent: a stalled server, or client, does not hide what it
 * costs.
 *
 * Static batches are what servers do that cannot let a request join others under way: up to
 * `static_batch` of those that have arrived are sent together, and the next ones when all of these
 * have ended. A batch runs to its longest output: all are asked for as many tokens, of which each
 * counts its own.
 */
#ifndef MILLRACE_SERVICE_LOAD_RUN_H
#define MILLRACE_SERVICE_LOAD_RUN_H

#include "base/status.h"
#include "service/client.h"
#include "service/generation.h"
#include "service/load.h"

#include <stdbool.h>
#include <stdint.h>

#define MR_LOAD_STATUSES 17 /* of mr_status */

typedef struct mr_load_spec {
    uint32_t requests;
    uint32_t concurrency;  /* closed loop; 0: open loop, by `rate` */
    uint32_t static_batch; /* of an open loop; 0: requests are sent as they arrive */
    double rate;           /* arrivals a second */
    mr_load_range prompt_tokens;
    mr_load_range output_tokens;
    uint32_t vocab_size;               /* prompts are random ids below it */
    const mr_generation_ask *sampling; /* of every request, but for its seed */
    uint64_t seed;
    uint64_t timeout_ms; /* deadline of each request; 0: none */
    double slo_ttft_ms;  /* HUGE_VAL: not asked for */
    double slo_itl_ms;   /* on a request's mean; HUGE_VAL: not asked for */
    void (*progress)(void *ctx, uint64_t done, uint64_t total); /* may be NULL */
    void *progress_ctx;
} mr_load_spec;

typedef struct mr_load_result {
    uint64_t done; /* ended well, with all tokens */
    uint64_t failed;
    uint64_t errors[MR_LOAD_STATUSES]; /* the failed ones, by status */
    mr_error first_error;
    uint64_t output_tokens; /* of those done */
    uint64_t cached_tokens; /* of their prompts */
    uint64_t good;          /* done within the objectives */
    uint64_t good_tokens;   /* output tokens of these */
    uint32_t most_in_flight;
    uint64_t duration_ns; /* from the first request's due time to the last end */
    mr_load_samples ttft; /* one a request done: to the first token */
    /* One a token after those of the first message; those of one message share its gap. */
    mr_load_samples inter_token;
    mr_load_samples tpot; /* one a request done: mean time a token after the first message */
    mr_load_samples e2e;
    mr_load_samples late; /* one a request: sent after it was due */
} mr_load_result;

/* Runs until every request has ended. Requests that fail are counted, and no error of the run;
 * RESOURCE_EXHAUSTED when memory is short. `result` is to be deinitialised either way. */
MR_MUST_USE mr_status mr_load_run(mr_client *client, const mr_load_spec *spec,
                                  mr_load_result *result, mr_error *err);
void mr_load_result_deinit(mr_load_result *result);

#endif
