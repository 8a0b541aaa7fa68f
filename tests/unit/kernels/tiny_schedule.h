/* SPDX-License-Identifier: Apache-2.0 */
/* The same tokens through a small model, cut into steps in one way or another. */
#ifndef MILLRACE_TESTS_TINY_SCHEDULE_H
#define MILLRACE_TESTS_TINY_SCHEDULE_H

#include "tiny_plan.h"

/* How the tokens of a sequence are cut into steps, and what else is in them. */
typedef struct tiny_schedule {
    uint32_t prefill;    /* tokens that come in chunks, the rest one by one; 0: all in chunks */
    uint32_t chunk;      /* tokens a step */
    uint32_t neighbours; /* other sequences, fed alike, before it */
} tiny_schedule;

/* Reproducible tokens of the model's vocabulary. */
void tiny_tokens(const tiny_plan *tiny, uint64_t seed, int32_t *tokens, uint32_t count);

/* Logits [length][vocabulary] of one sequence, to be freed; of the same tokens every time. */
float *tiny_logits(mr_backend *backend, const tiny_plan *tiny, const mr_exec_options *options,
                   uint32_t length, tiny_schedule how);

/* Largest error of a row of a[rows][width], relative to the length of that row of b; NaN if there
 * is one. */
double tiny_distance(const float *a, const float *b, uint32_t rows, uint32_t width);

#endif
