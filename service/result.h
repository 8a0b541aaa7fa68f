/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Generation on this machine, outside the server: a sink that a thread can wait on, and the results
 * of one request, one a choice, as they grow.
 */
#ifndef MILLRACE_SERVICE_RESULT_H
#define MILLRACE_SERVICE_RESULT_H

#include "base/buffer.h"
#include "scheduler/request.h"
#include "service/generation_lists.h"
#include "service/runtime.h"
#include "service/text.h"

#include <stdbool.h>
#include <stdint.h>

/* A sink whose news wake poll(2), so that one thread can wait for the engine and for input. */
typedef struct mr_waiter {
    mr_sink sink;
    int fd; /* an eventfd: readable after news */
} mr_waiter;

MR_MUST_USE mr_status mr_waiter_init(mr_waiter *waiter, mr_error *err);
void mr_waiter_deinit(mr_waiter *waiter);
/* Waits for news, or for input on `input_fd` (-1: not of interest). True iff input is ready (its
 * end counts). Look at the requests after it returns. */
bool mr_waiter_wait(mr_waiter *waiter, int input_fd);

typedef struct mr_result_token {
    uint32_t id;
    float logprob;
    uint32_t n_top;
    mr_alternative top[MR_MAX_TOP]; /* best first */
} mr_result_token;

typedef struct mr_result {
    uint32_t index;   /* of the choice */
    mr_buffer text;   /* whole characters */
    mr_ids token_ids; /* the end token included */
    bool logprobs;
    mr_buffer tokens;       /* mr_result_token [token_ids.count], with logprobs only */
    mr_finish finish;       /* NONE while it runs */
    uint32_t matched_token; /* MR_NO_TOKEN: none */
    mr_buffer matched_stop; /* the stop string; empty: none */
    bool scored;            /* cumulative_logprob is given */
    double cumulative_logprob;
    uint64_t seed;
    uint32_t prompt_tokens;
    uint32_t cached_tokens;
    mr_error error; /* status MR_OK unless it failed */
} mr_result;

void mr_result_init(mr_result *result);
void mr_result_deinit(mr_result *result);
/* Appends a token with its logprob (NULL where none was asked for). */
MR_MUST_USE mr_status mr_result_add_token(mr_result *result, uint32_t id,
                                          const mr_result_token *logprob);

/* A request that runs here, and what it gave so far. Zero-initialised is valid and empty. */
typedef struct mr_local_run {
    mr_request *request;     /* owns a reference; NULL: none */
    mr_text_stream *streams; /* owns, [n_results] */
    mr_result *results;      /* owns, [n_results], by their index */
    uint32_t n_results;
    bool ended; /* nothing follows */
} mr_local_run;

typedef struct mr_local_ask {
    const uint32_t *prompt; /* checked, as params are */
    size_t n_prompt;
    const mr_request_params *params;
    mr_generation_lists *lists; /* its `stop` is taken */
} mr_local_ask;

/* Submits; the run's ring has room for all its tokens, so that a caller who is busy elsewhere
 * never counts as a slow reader. Initialises `run`, to be deinitialised also after an error. */
MR_MUST_USE mr_status mr_local_run_start(mr_local_run *run, mr_runtime *runtime, mr_waiter *waiter,
                                         const mr_local_ask *ask, mr_error *err);
/* Takes what the engine has given; never blocks. */
MR_MUST_USE mr_status mr_local_run_take(mr_local_run *run, mr_error *err);
/* Drops what the engine has given; never blocks. True once the run has ended. */
bool mr_local_run_discard(mr_local_run *run);
/* The run must have ended, or never started. */
void mr_local_run_deinit(mr_local_run *run);

#endif
