/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The policy: which rows run in the next step. Plain CPU code without threads, clocks of its own
 * or devices, so every policy is tested in virtual time with a scripted model.
 *
 *   add ─► waiting ─► running ─► finished
 *             ▲          │ preempted (blocks given back, recomputed later)
 *             └──────────┘
 *
 * Every sequence is a token list and a count of tokens whose K/V is computed; a step computes the
 * next part of what is missing. Prefill chunks, decodes and recomputation are one case.
 */
#ifndef MILLRACE_SCHEDULER_SCHEDULER_H
#define MILLRACE_SCHEDULER_SCHEDULER_H

#include "base/status.h"
#include "cache/block_pool.h"
#include "cache/host_tier.h"
#include "kernels/backend.h"
#include "kernels/batch.h"
#include "model/tokenizer.h"
#include "scheduler/fair_queue.h"
#include "scheduler/request.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct mr_scheduler mr_scheduler;

typedef struct mr_scheduler_options {
    uint32_t max_batch_size;   /* running sequences (choices, beams), at least 1 */
    uint32_t max_batch_tokens; /* T of a step; below max_batch_size it bounds the sequences */
    /* R of a step; 0, or what is too few: one a sequence. Choices of a new request and logprobs of
     * prompts want more, and take more steps if there are fewer. The executor must have as many as
     * mr_scheduler_batch_limits() says. */
    uint32_t max_rows;
    uint32_t max_seq_length;  /* prompt + output, tokens */
    uint32_t max_queue;       /* waiting requests */
    uint32_t max_preemptions; /* of one request */
    mr_fair_options fair;     /* who comes first */
    uint32_t
        prefill_interval; /* 1: prefill rows in every step; N: at most every N-th while decoding */
    uint64_t batch_timeout_ns; /* an idle engine waits this long for companions */
    uint64_t slow_reader_timeout_ns;
    const uint32_t *eos; /* copied */
    uint32_t n_eos;
    uint32_t vocab_size;
    const mr_tokenizer *tokenizer; /* borrows; NULL: requests with stop strings are refused */
    mr_host_tier *host_tier; /* borrows until destroy; NULL: who is preempted is computed again */
} mr_scheduler_options;

#define MR_STEP_SIZES 13u /* upper bounds that steps are counted by */

/* Always: started = Σ finished + running + waiting. */
typedef struct mr_scheduler_stats {
    uint32_t waiting; /* requests of which nothing runs */
    uint32_t running; /* requests of which something runs */
    uint64_t started; /* requests given to the scheduler, rejected ones too */
    uint64_t
        finished[MR_FINISH_ERROR + 1]; /* requests, by the largest mr_finish of their choices */
    uint64_t rejected;                 /* of them ended in an add(): ERROR */
    uint64_t corrupted;                /* of them ended by logits that are no numbers: ERROR */
    uint64_t prompt_tokens;            /* computed */
    uint64_t generated_tokens;
    uint64_t steps;
    uint64_t step_tokens; /* of all steps: prompts, decodes and what is computed again */
    uint64_t step_sizes[MR_STEP_SIZES + 1]; /* steps by tokens, at most mr_step_size_bounds[i] and
                                               more than the one before; the last: more than all */
    uint64_t preemptions;
    uint64_t prefix_queries;   /* prompt tokens of the requests that looked into the prefix cache */
    uint64_t prefix_hits;      /* of them found */
    uint32_t prefix_blocks;    /* that the prefix index knows: cached ones, and live ones */
    uint64_t preempted_tokens; /* whose K/V was lost by them */
    uint64_t swapped_out;      /* of them those whose K/V was kept in the host tier */
    uint64_t swapped_in;       /* and those that went on with it */
    mr_block_pool_stats blocks;
    mr_host_tier_stats host; /* zero without one */
} mr_scheduler_stats;

extern const uint32_t mr_step_size_bounds[MR_STEP_SIZES]; /* 1, 8, 16 … 16384 */

/* What the storage given to plan() must hold. */
void mr_scheduler_batch_limits(const mr_scheduler_options *options, uint32_t block_size,
                               mr_batch_limits *out);

/* `pool` is borrowed until destroy; with a prefix index, requests that have a root share blocks by
 * it. Allocates all it needs for max_batch_size sequences. */
MR_MUST_USE mr_status mr_scheduler_create(const mr_scheduler_options *options, mr_block_pool *pool,
                                          mr_scheduler **out, mr_error *err);
/* Ends what is left as CANCELLED and publishes that first. */
void mr_scheduler_destroy(mr_scheduler *scheduler);

/* Takes the caller's reference on `request` into the waiting queue. On failure the request's error
 * is set, its last event is pushed, and it will be published like any other: RESOURCE_EXHAUSTED
 * (queue full, with a retry time; if another tenant holds more of the queue for its weight, the
 * worst of what it has there and never ran ends so instead), INVALID_ARGUMENT (longer than
 * max_seq_length or than the whole pool, more beams than can run, an id beyond the vocabulary;
 * names the limit), FAILED_PRECONDITION (stop strings without a tokenizer). */
void mr_scheduler_add(mr_scheduler *scheduler, mr_request *request, uint64_t now_ns);

/* Plans the next step into `storage`. Returns true when there is a batch to run; else *wake_ns is
 * when to plan again though nothing new arrives (MR_NEVER: not before something does). Readers do
 * not announce what they took, so while a sequence is paused that is a few milliseconds away.
 * Cancelled and overdue requests end here, and their blocks are free when it returns; where more
 * than 256 wait, those among them end within eight plans. Should nothing be planned twice in a row
 * though something runs and no reader is waited for, the newest running request ends with INTERNAL
 * rather than that the engine spins. */
bool mr_scheduler_plan(mr_scheduler *scheduler, uint64_t now_ns, mr_batch_storage *storage,
                       uint64_t *wake_ns);

/* Plans the step behind the planned one before that is applied, with token sources that name its
 * rows; for executors that take two steps at a time. False, and nothing is planned, unless there is
 * nothing but decoding to be done in it: then plan() comes next, once every step is applied. The
 * outputs are applied in the order of the steps, and requests that ended in the first are published
 * between them. While readers, cancelled or overdue requests want plan(), it is false, so they are
 * seen a step later than without; those who wait for a slot up to four steps later. */
bool mr_scheduler_plan_ahead(mr_scheduler *scheduler, uint64_t now_ns, mr_batch_storage *storage);

/* KV blocks to copy, in this order, after plan() returned true and before its batch is run. Valid
 * until apply(). */
const mr_block_copy *mr_scheduler_copies(const mr_scheduler *scheduler, size_t *count);

/* Applies what the planned step gave, the first of two: appends tokens, ends sequences, pushes
 * events. */
void mr_scheduler_apply(mr_scheduler *scheduler, const mr_step_output *output, uint64_t now_ns);

/* Forgets every cached block; from now on roots of this generation count. What runs goes on, and
 * registers nothing of what it has computed so far. Without a prefix index nothing happens. Between
 * steps. */
void mr_scheduler_reset_prefix_cache(mr_scheduler *scheduler, uint32_t generation);

/* The device failed for good: every request ends, with this error if it has run and UNAVAILABLE if
 * it has not. */
void mr_scheduler_fail(mr_scheduler *scheduler, const mr_error *err, uint64_t now_ns);

/* Hands every request with news to its sink, one call a sink, and drops the references of those
 * that ended. After plan and after apply. */
void mr_scheduler_publish(mr_scheduler *scheduler);

/* True when nothing waits or runs. */
bool mr_scheduler_idle(const mr_scheduler *scheduler);
void mr_scheduler_stats_get(const mr_scheduler *scheduler, mr_scheduler_stats *out);

#endif
