/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request: what a caller asked for, validated and tokenised on the caller's thread, then owned by
 * the engine from submit to its last event.
 *
 *   handler thread                     engine thread                    handler thread
 *   create ─ fill params ─ submit ───► queue ─ steps ─ push events ───► sink wakes ─ peek / pop
 *                     cancel flag ───► seen by the next step
 *
 * A request has one or more choices. All their events go through one bounded ring, in the order in
 * which they happened, and each names its choice. A reader that falls behind fills the ring, and
 * the request pauses; room for the last event of every choice is always kept.
 *
 * Two references: the creator's and the engine's.
 */
#ifndef MILLRACE_SCHEDULER_REQUEST_H
#define MILLRACE_SCHEDULER_REQUEST_H

#include "base/clock.h"
#include "base/flag.h"
#include "base/inbox.h"
#include "base/ring.h"
#include "base/status.h"
#include "cache/prefix_hash.h"
#include "kernels/batch.h"
#include "scheduler/stop.h"

#include <stdbool.h>
#include <stdint.h>

#define MR_REQUEST_ID_MAX   128
#define MR_MAX_CHOICES      128u
#define MR_MAX_BEAMS        16u
#define MR_MAX_TOP_LOGPROBS 20u   /* alternatives a caller may ask for */
#define MR_MAX_LOGIT_BIAS   1024u /* entries */
#define MR_MAX_STOP_TOKENS  64u
#define MR_MAX_TENANTS      256u
#define MR_MAX_WEIGHT       1000u
#define MR_MAX_PRIORITY     1000

/* Values equal millrace.v1.FinishReason. */
typedef enum mr_finish {
    MR_FINISH_NONE = 0,
    MR_FINISH_STOP = 1,
    MR_FINISH_LENGTH = 2,
    MR_FINISH_CANCELLED = 3,
    MR_FINISH_TIME_LIMIT = 4,
    MR_FINISH_ERROR = 5,
} mr_finish;

/* "stop", "length" …, as logs and result files spell it. */
const char *mr_finish_name(mr_finish finish);

typedef struct mr_request_params {
    float temperature;
    float top_p;
    float min_p;
    uint32_t top_k;
    float repetition_penalty;
    float presence_penalty;
    float frequency_penalty;
    uint64_t seed;       /* in use: drawn by the caller when none was given */
    uint32_t max_tokens; /* of each choice, at least 1; room for all is taken at create, so cut it
                            to what can be */
    uint32_t min_tokens; /* the first so many tokens of a choice end it by no stop: end tokens and
                            stop_token_ids are banned, matches of stop strings that end there are
                            passed over */
    uint32_t n;          /* choices, 1 … MR_MAX_CHOICES; 0 counts as 1 */
    /* Above 1: beam search with so many beams (at most MR_MAX_BEAMS, n of them are given: n ≤
     * beam_width). Sampling is off: temperature, filters and seed do not matter. 0 counts as 1. */
    uint32_t beam_width;
    float
        length_penalty; /* beams only: score = cumulative logprob / tokens^length_penalty; finite */
    bool ignore_eos;    /* of the model; stop_token_ids and stop strings still work */
    bool include_stop_in_text; /* the text ends after the stop string, not before it */
    bool keep_special_tokens;  /* special tokens are part of the text that stop strings see */
    bool logprobs;
    uint8_t top_logprobs; /* 0 … MR_MAX_TOP_LOGPROBS; 0 with beams */
    bool logprobs_processed;
    bool prompt_logprobs; /* with top_logprobs alternatives each, whatever `logprobs` is */
    int32_t priority; /* higher runs first among its tenant's; −MR_MAX_PRIORITY … MR_MAX_PRIORITY */
    uint64_t time_limit_ns; /* from arrival on, 0: none; ends every choice with TIME_LIMIT, what was
                               produced stays and the request's error is MR_OK */
} mr_request_params;

/* One token of one choice, or a choice's end without one (token = MR_NO_TOKEN: cancelled, timed
 * out, failed). Each choice has exactly one event with a finish other than NONE, its last; also
 * the choices of a request that was refused have one. */
typedef struct mr_token_event {
    uint32_t token;
    uint16_t choice;
    uint8_t finish; /* mr_finish; not NONE on the choice's last event */
    bool last;      /* the last event of the whole request: nothing follows, usage is complete */
    uint8_t n_top;
    uint16_t matched_stop;     /* index of the stop string that ended it, else MR_NO_STOP */
    uint32_t matched_token;    /* the stop or end token that ended it, else MR_NO_TOKEN */
    float logprob;             /* with logprobs, or beams (theirs is after bias and penalties) */
    double cumulative_logprob; /* sum over the choice's tokens so far, where logprob is given */
    /* The text of a choice is the bytes of its tokens, without special ones unless they are kept
     * and without a matched_token. So many of its bytes may be shown once this event is in, never
     * fewer than the event before said; UINT64_MAX: all so far. With stop strings it leaves out
     * what may become one, and on a match it ends before the string (or after it, if asked for). */
    uint64_t text_bytes;
    mr_alternative top[]; /* [n_top] best first; the ring's stride leaves room for what was asked */
} mr_token_event;

/* Of one prompt token, given those before it. */
typedef struct mr_prompt_logprob {
    float logprob; /* −INFINITY: none (PROCESSED, and a filter removed it) */
    uint8_t n_top;
} mr_prompt_logprob;

/* Written by the engine before the request's last event becomes visible, read by the consumer after
 * it. */
typedef struct mr_request_usage {
    uint32_t prompt_tokens;
    uint32_t completion_tokens; /* of all choices; with beams of those that are given */
    uint32_t longest_choice;    /* tokens of the one of them that has most */
    uint32_t cached_tokens;
    uint32_t preemptions; /* of all choices; max_preemptions bounds each */
    uint64_t arrived_ns;
    uint64_t scheduled_ns;   /* first step; 0: never */
    uint64_t first_token_ns; /* 0: none */
    uint64_t finished_ns;
    mr_finish finish; /* of the choice that ended worst: the values are in that order */
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
    uint32_t tenant;  /* whose it is: a number that the caller gives a meaning */
    uint32_t weight;  /* of the tenant's share, at least 1; all its requests have the same */
    uint32_t *prompt; /* owns, [n_prompt]; the engine appends the output behind it */
    uint32_t n_prompt;
    mr_request_params params; /* n and beam_width at least 1 */
    uint32_t *bias_tokens;    /* owns, [n_bias] */
    float *bias_values;       /* owns, [n_bias] */
    uint32_t n_bias;
    uint32_t *stop_tokens; /* owns, [n_stop_tokens] */
    uint32_t n_stop_tokens;
    mr_stop *stop; /* owns; NULL: no stop strings */
    uint64_t key;  /* Philox key, from seed and prompt */
    mr_prefix_root prefix;
    mr_block_hash *hashes; /* owns, [n_prompt / prefix.block_size] and one more: of the blocks that
                              the prompt fills; NULL: no prefix caching */
    uint64_t arrived_ns;
    uint64_t deadline_ns; /* MR_NEVER: none */
    mr_sink *sink;        /* borrows until its publish() for the last event has returned */
    void *owner;          /* the creator's, opaque here */

    /* Shared. */
    mr_refs refs;
    mr_flag cancelled;
    mr_ring events; /* engine → consumer, mr_token_event */
    mr_inbox_node to_engine;

    /* The engine's until the first event is visible, then the consumer's to read. Entry i is of
     * prompt token i; the first token has none, so entry 0 is void. */
    mr_prompt_logprob *prompt_logprobs; /* owns, [n_prompt]; NULL: not asked for */
    mr_alternative *prompt_top;         /* owns, [n_prompt][top_logprobs] best first */
    uint32_t n_prompt_scored; /* entries 1 … n_prompt_scored − 1 are valid: n_prompt once a token
                                 came, fewer if the request ended before */

    /* The engine's until the request's last event, then the consumer's to read. */
    mr_request_usage usage;
    mr_error error; /* MR_OK after STOP, LENGTH and its own TIME_LIMIT; CANCELLED, DEADLINE_EXCEEDED
                       (the deadline) or the failure; one for all choices */
    bool reader_lost; /* that failure: nobody read for slow_reader_timeout */

    struct mr_group *group; /* owns; the engine's to use */
};

typedef struct mr_request_spec {
    const char *id;         /* NUL-terminated, at most MR_REQUEST_ID_MAX bytes */
    uint32_t tenant;        /* below MR_MAX_TENANTS */
    uint32_t weight;        /* 1 … MR_MAX_WEIGHT; 0 counts as 1 */
    const uint32_t *prompt; /* copied */
    uint32_t n_prompt;      /* at least 1 */
    mr_request_params params;
    const uint32_t *bias_tokens; /* copied, [n_bias]; below the vocabulary size */
    const float *bias_values;    /* copied, [n_bias]; finite, or −INFINITY to ban the token */
    uint32_t n_bias;             /* at most MR_MAX_LOGIT_BIAS */
    const uint32_t *stop_tokens; /* copied, [n_stop_tokens]; below the vocabulary size */
    uint32_t n_stop_tokens;      /* at most MR_MAX_STOP_TOKENS */
    /* NULL: its blocks are neither looked for nor kept. Copied; block_size is at least 1. */
    const mr_prefix_root *prefix;
    mr_stop *stop; /* NULL: none; taken when create gives a request, else it stays the caller's */
    uint64_t arrived_ns;
    uint64_t deadline_ns;
    mr_sink *sink;
    void *owner;
    /* Events, at most MR_RING_MAX_CAPACITY; 0: the default, 256; raised to two a choice. */
    uint32_t ring_capacity;
} mr_request_spec;

/* Gives a request with one reference. INVALID_ARGUMENT for a number or combination that the
 * comments above exclude (fields as in mr_request_params; "logit_bias", "stop_token_ids"),
 * RESOURCE_EXHAUSTED when memory is short. Any thread. */
MR_MUST_USE mr_status mr_request_create(const mr_request_spec *spec, mr_request **out,
                                        mr_error *err);
void mr_request_ref(mr_request *request);
void mr_request_unref(mr_request *request);

#endif
