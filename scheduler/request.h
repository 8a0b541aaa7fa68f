/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request: what a caller asked for, validated and tokenised on the caller's thread, then owned by
 * the engine from submit to its last event.
 *
 *   handler thread                     engine thread                    handler thread
 *   create ─ fill params ─ submit ───► queue ─ steps ─ push events ───► sink wakes ─ peek / pop
 *                     cancel flag ───► seen by the next step
 *
 * Two references: the creator's and the engine's. Output goes through a bounded ring; a reader
 * that falls behind fills it, and its sequences pause.
 */
#ifndef MILLRACE_SCHEDULER_REQUEST_H
#define MILLRACE_SCHEDULER_REQUEST_H

#include "base/clock.h"
#include "base/flag.h"
#include "base/inbox.h"
#include "base/ring.h"
#include "base/status.h"
#include "kernels/batch.h"

#include <stdbool.h>
#include <stdint.h>

#define MR_REQUEST_ID_MAX 128

/* Values equal millrace.v1.FinishReason. */
typedef enum mr_finish {
    MR_FINISH_NONE = 0,
    MR_FINISH_STOP = 1,
    MR_FINISH_LENGTH = 2,
    MR_FINISH_CANCELLED = 3,
    MR_FINISH_TIME_LIMIT = 4,
    MR_FINISH_ERROR = 5,
} mr_finish;

typedef struct mr_request_params {
    float temperature;
    float top_p;
    float min_p;
    uint32_t top_k;
    float repetition_penalty;
    float presence_penalty;
    float frequency_penalty;
    uint64_t seed;       /* in use: drawn by the caller when none was given */
    uint32_t max_tokens; /* at least 1; room for all is taken at create, so cut it to what can be */
    uint32_t min_tokens;
    bool ignore_eos;
    bool logprobs;
    uint8_t top_logprobs;
    bool logprobs_processed;
} mr_request_params;

/* One token, or the end without one (token = MR_NO_TOKEN: cancelled, timed out, failed). */
typedef struct mr_token_event {
    uint32_t token;
    uint16_t choice;
    uint8_t finish; /* mr_finish; not NONE on the choice's last event */
    uint8_t n_top;
    float logprob;
    uint32_t matched_token; /* the stop token that ended it, else MR_NO_TOKEN */
    /* Bytes of the choice's text that may be shown once this token is in; UINT64_MAX: all of it. */
    uint64_t text_bytes;
    mr_alternative top[]; /* [n_top] best first; the ring's stride leaves room for what was asked */
} mr_token_event;

/* Written by the engine before the last event becomes visible, read by the consumer after it. */
typedef struct mr_request_usage {
    uint32_t prompt_tokens;
    uint32_t completion_tokens;
    uint32_t cached_tokens;
    uint32_t preemptions;
    uint64_t arrived_ns;
    uint64_t scheduled_ns;    /* first step; 0: never */
    uint64_t first_token_ns;  /* 0: none */
    uint64_t finished_ns;
} mr_request_usage;

typedef struct mr_request mr_request;
typedef struct mr_sink mr_sink;

/* Where a request's news goes: one sink a completion queue or waiting thread. Called by the engine
 * thread once a step with all of the sink's requests that have news; it must not block. */
struct mr_sink {
    void (*publish)(mr_sink *sink, mr_request *const *requests, uint32_t count);
};

struct mr_request {
    /* Set by the creator before submit, read-only afterwards. */
    char id[MR_REQUEST_ID_MAX + 1];
    uint32_t *prompt; /* owns, [n_prompt]; the engine appends the output behind it */
    uint32_t n_prompt;
    mr_request_params params;
    uint64_t key;         /* Philox key, from seed and prompt */
    uint64_t arrived_ns;
    uint64_t deadline_ns; /* MR_NEVER: none */
    mr_sink *sink;        /* borrows until its publish() for the last event has returned */
    void *owner;          /* the creator's, opaque here */

    /* Shared. */
    mr_refs refs;
    mr_flag cancelled;
    mr_ring events; /* engine → consumer, mr_token_event */
    mr_inbox_node to_engine;
    mr_inbox_node to_owner; /* for the sink's use */

    /* The engine's until the last event, then the consumer's to read. */
    mr_request_usage usage;
    mr_error error; /* MR_OK after STOP and LENGTH; CANCELLED, DEADLINE_EXCEEDED or the failure */

    struct mr_sequence *sequence; /* the engine's */
};

typedef struct mr_request_spec {
    const char *id;         /* NUL-terminated, at most MR_REQUEST_ID_MAX bytes */
    const uint32_t *prompt; /* copied */
    uint32_t n_prompt;      /* at least 1 */
    mr_request_params params;
    uint64_t arrived_ns;
    uint64_t deadline_ns;
    mr_sink *sink;
    void *owner;
    uint32_t ring_capacity; /* events; 0: the default, 256 */
} mr_request_spec;

/* Gives a request with one reference. RESOURCE_EXHAUSTED when memory is short. Any thread. */
MR_MUST_USE mr_status mr_request_create(const mr_request_spec *spec, mr_request **out,
                                        mr_error *err);
void mr_request_ref(mr_request *request);
void mr_request_unref(mr_request *request);

#endif
