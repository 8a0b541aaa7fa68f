/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One step's work, ragged and flat: the only contract between the scheduler and a model, for the
 * CPU, CUDA and every rank. Prefill chunks, decodes and speculative verification are all just
 * rows.
 *
 *   sequence 0: prefill chunk of 3   sequence 1: decode   sequence 2: verify 2 drafts
 *   token_src   [ 17  98  4  |        ~0               |   55  71  12 ]      T = 7
 *   positions   [ 32  33 34  |       210               |   80  81  82 ]
 *   seq_start   [ 0                   3                    4          7 ]    B = 3
 *   logit_rows  [                     3                    4   5   6 ]       R = 4
 */
#ifndef MILLRACE_KERNELS_BATCH_H
#define MILLRACE_KERNELS_BATCH_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

#define MR_MAX_TOP    32         /* alternatives a row: two for each of 16 beams */
#define MR_NULL_BLOCK 0u         /* block 0 takes the writes of padding rows; never allocated */
#define MR_NO_TARGET  UINT32_MAX /* row_params.target: draw */
#define MR_NO_TOKEN   UINT32_MAX

/* Entry of token_src: a literal id, or ~r = the token that row r of the previous step drew (it may
 * still be on the device when this step is planned). */
static inline bool mr_token_src_is_row(int32_t src)
{
    return src < 0;
}
static inline int32_t mr_token_src_row(uint32_t row)
{
    return ~(int32_t)row;
}

/* What to do with one row of logits. Sampling order: bias → mask → penalties → temperature →
 * top_k → top_p → min_p → draw. Validated before it gets here. */
typedef struct mr_row_params {
    float temperature;        /* 0: greedy, the lowest id among equals */
    float top_p;              /* 1: off */
    float min_p;              /* 0: off */
    uint32_t top_k;           /* 0: off */
    float repetition_penalty; /* 1: off */
    float presence_penalty;   /* 0: off */
    float frequency_penalty;  /* 0: off */
    uint64_t key;             /* Philox key: seed ⊕ low64(SHA-256(prompt ids as u32le)) */
    uint32_t position;        /* absolute position of the token to be drawn */
    uint32_t choice;          /* choice index */
    uint32_t target;          /* MR_NO_TARGET: draw; else score this id instead of drawing */
    uint32_t bias_offset, bias_count; /* into bias_tokens / bias_values; −INFINITY bans a token */
    uint32_t history_len;             /* tokens of the slot's history that count for penalties */
    uint32_t prompt_len;              /* how many of them are the prompt's */
    uint8_t n_top;                    /* alternatives wanted, 0..MR_MAX_TOP */
    bool want_logprob;                /* of the drawn or scored token */
    bool processed; /* logprobs after the sampling steps instead of the model's own */
} mr_row_params;

/* Block `block` becomes entry `index` of the resident table of (slot, group). */
typedef struct mr_block_delta {
    uint32_t slot;
    uint32_t group;
    uint32_t index;
    uint32_t block;
} mr_block_delta;

/* History of `slot` from `start` on becomes history_tokens[offset … offset + count). Sent only
 * for slots with penalties. */
typedef struct mr_history_delta {
    uint32_t slot;
    uint32_t start;
    uint32_t offset;
    uint32_t count;
} mr_history_delta;

typedef struct mr_batch {
    uint64_t step;                   /* 1, 2, 3 …; ranks agree on it */
    uint32_t n_tokens;               /* T, at least 1 */
    uint32_t n_seqs;                 /* B */
    uint32_t n_rows;                 /* R; may be 0 (prefill chunks that end no prompt) */
    uint32_t kv_groups;              /* of kv_slot, as many as the plan has */
    const int32_t *token_src;        /* [T] */
    const uint32_t *positions;       /* [T] */
    const uint32_t *seq_start;       /* [B + 1], ascending, seq_start[B] = T */
    const uint32_t *context_len;     /* [B] tokens in the KV cache once this step is done */
    const uint32_t *rope_length;     /* [B] tokens that the frequencies of mr_rope_rule go by;
                                        NULL: context_len */
    const uint32_t *seq_slot;        /* [B] resident slot: whose block table and history */
    const uint32_t *kv_slot;         /* [groups][T] block · block_size + offset for each new K/V */
    const uint32_t *logit_rows;      /* [R] index into T, ascending */
    const mr_row_params *row_params; /* [R] */
    const uint32_t *mask_ref;        /* [R] grammar mask, 0: none; NULL: none at all */
    const uint32_t *adapter;         /* [B] LoRA slot, 0: base; NULL: none at all */
    const uint32_t *bias_tokens;     /* bias lists of the rows */
    const float *bias_values;
    const mr_block_delta *block_deltas; /* applied before the step */
    uint32_t n_block_deltas;
    const mr_history_delta *history_deltas; /* applied before the step */
    uint32_t n_history_deltas;
    const uint32_t *history_tokens;
} mr_batch;

typedef struct mr_alternative {
    uint32_t token;
    float logprob;
} mr_alternative;

/* What a step gave; valid until the next submit() on the same executor. */
typedef struct mr_step_output {
    uint64_t step;
    uint32_t n_rows;
    const uint32_t *tokens;    /* [R] drawn id, or the row's target */
    const float *logprobs;     /* [R]; meaningful where want_logprob */
    const uint8_t *n_top;      /* [R] */
    const mr_alternative *top; /* [R][MR_MAX_TOP] best first */
    const uint8_t *corrupt;    /* [R] nonzero: the logits held a NaN, tokens[r] is void */
    const float *logits;       /* [R][V] if asked for at compile, else NULL */
} mr_step_output;

/* Arrays for building batches, allocated once. `batch` points into them; append with the
 * functions below, then hand `&storage->batch` to submit(). One thread. */
typedef struct mr_batch_limits {
    uint32_t max_tokens;  /* T */
    uint32_t max_seqs;    /* B and slots */
    uint32_t max_rows;    /* R */
    uint32_t max_context; /* tokens a sequence may have */
    uint32_t block_size;
    uint32_t kv_groups;
    uint32_t max_bias;    /* bias entries a step */
    uint32_t max_history; /* history tokens a step */
} mr_batch_limits;

typedef struct mr_batch_storage mr_batch_storage;

MR_MUST_USE mr_status mr_batch_storage_create(const mr_batch_limits *limits,
                                              mr_batch_storage **out);
void mr_batch_storage_destroy(mr_batch_storage *storage);
/* Empties it for the next step; `step` goes up by one. */
void mr_batch_reset(mr_batch_storage *storage);
/* The next step follows `step`, which another storage had. */
void mr_batch_follow(mr_batch_storage *storage, uint64_t step);
const mr_batch *mr_batch_get(const mr_batch_storage *storage);

/* Starts the next sequence: `slot`, context length after the step, adapter (0: base). */
MR_MUST_USE mr_status mr_batch_add_seq(mr_batch_storage *storage, uint32_t slot,
                                       uint32_t context_len, uint32_t adapter);
/* The length by which the frequencies of rotary positions go that follow it (mr_rope_rule), for the
 * sequence started last; without it, its context length. The same in every step of a sequence, so
 * that its keys agree with each other: the scheduler gives the length of the prompt. */
void mr_batch_set_rope_length(mr_batch_storage *storage, uint32_t tokens);
/* Adds a token to the sequence started last; kv_slot has one entry a group. */
MR_MUST_USE mr_status mr_batch_add_token(mr_batch_storage *storage, int32_t src, uint32_t position,
                                         const uint32_t *kv_slot);
/* Adds `count` tokens with literal ids at positions from `position` on, whose K/V goes into places
 * from `kv_slot` on, one behind the other: a part of one block. For one KV group. */
MR_MUST_USE mr_status mr_batch_add_span(mr_batch_storage *storage, const uint32_t *tokens,
                                        uint32_t count, uint32_t position, uint32_t kv_slot);
/* Asks for the logits of the token added last; a token may have several rows. Bias lists may be
 * empty; NULL with params->bias_count above 0: the row shares the list of the row added last. */
MR_MUST_USE mr_status mr_batch_add_row(mr_batch_storage *storage, const mr_row_params *params,
                                       const uint32_t *bias_tokens, const float *bias_values);
MR_MUST_USE mr_status mr_batch_add_block(mr_batch_storage *storage, const mr_block_delta *delta);
MR_MUST_USE mr_status mr_batch_add_history(mr_batch_storage *storage, uint32_t slot, uint32_t start,
                                           const uint32_t *tokens, uint32_t count);
/* All of the above give RESOURCE_EXHAUSTED when the storage is full: a bug of the planner, which
 * must respect the limits. */

#endif
