/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A scripted model for tests of the scheduler. The next token is a function of all the tokens
 * before it, and the executor takes those from a paged KV cache that it fills as a device would:
 * a wrong block, position or missing token changes what comes out. It also checks the contract of
 * batch.h and notes the first violation; asserting is the test's job, on the test's thread.
 */
#ifndef MILLRACE_TESTS_SCHEDULER_SCRIPTED_H
#define MILLRACE_TESTS_SCHEDULER_SCRIPTED_H

#include "kernels/backend.h"
#include "scheduler/scheduler.h"
#include "scripted_transfers.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct scripted_exec {
    mr_exec base;
    mr_batch_limits limits;
    uint32_t n_blocks;
    uint32_t vocab_size;
    uint32_t max_blocks;        /* of a slot */
    uint64_t fail_at_step;      /* submit() fails there; 0: never */
    uint32_t corrupt_at;        /* rows of this position hold a NaN; 0: none */
    bool real_top;              /* alternatives and logprobs are those of scripted_logprob() */
    uint32_t n_copies;          /* blocks copied so far */
    uint32_t max_seq_rows;      /* the most rows that a sequence had in a step */
    const mr_batch *batches[2]; /* submitted and not waited for, in order */
    uint32_t n_batches;
    uint32_t most_batches; /* at a time, so far */
    uint32_t *drawn;       /* [rows] of the step before */
    uint32_t n_drawn;
    uint32_t *tables;       /* [slots][max_blocks] */
    uint32_t *kv_tokens;    /* [n_blocks · block_size] */
    uint32_t *kv_positions; /* [n_blocks · block_size] */
    uint32_t *owners;       /* [n_blocks] slot + 1 of who writes it in the step that is checked */
    float *distribution;    /* [vocab] scratch */
    uint32_t *history;      /* [slots][max_context] */
    uint32_t *context;      /* [max_context] scratch */
    uint32_t *tokens;       /* [rows] */
    float *logprobs;        /* [rows] */
    uint8_t *n_top;         /* [rows] */
    uint8_t *corrupt;       /* [rows] */
    mr_alternative *top;    /* [rows][MR_MAX_TOP] */
    scripted_transfers transfers;
    char violation[256]; /* "": none */
} scripted_exec;

void scripted_exec_init(scripted_exec *exec, const mr_scheduler_options *options,
                        uint32_t block_size, uint32_t n_blocks);
void scripted_exec_deinit(scripted_exec *exec);

static inline uint32_t scripted_block_bytes(uint32_t block_size)
{
    return block_size * 2 * sizeof(uint32_t);
}

/* Token that choice `choice` draws after tokens[n]; the next one up if it is banned. */
uint32_t scripted_next(const uint32_t *tokens, uint32_t n, uint32_t choice, uint32_t vocab_size,
                       const uint32_t *banned, uint32_t n_banned);

/* Logprobs of all tokens after tokens[n]; banned ones have −INFINITY. */
void scripted_distribution(const uint32_t *tokens, uint32_t n, uint32_t vocab_size,
                           const uint32_t *banned, uint32_t n_banned, float *out);

/* Small generator of test cases. */
typedef struct scripted_random {
    uint64_t state;
} scripted_random;

uint32_t scripted_draw(scripted_random *random, uint32_t below);

#endif
