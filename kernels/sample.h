/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reference sampler: one row of logits to one token. The CPU backends call it; a device
 * sampler is held to it.
 */
#ifndef MILLRACE_KERNELS_SAMPLE_H
#define MILLRACE_KERNELS_SAMPLE_H

#include "kernels/batch.h"

typedef struct mr_sampler mr_sampler; /* scratch for one thread */

MR_MUST_USE mr_status mr_sampler_create(uint32_t vocab_size, mr_sampler **out);
void mr_sampler_destroy(mr_sampler *sampler);

typedef struct mr_sample_row {
    float *logits; /* [V]; overwritten */
    const mr_row_params *params;
    const uint32_t *bias_tokens; /* [params->bias_count] */
    const float *bias_values;
    const uint32_t *history; /* [params->history_len], NULL without penalties */
} mr_sample_row;

typedef struct mr_sample_result {
    uint32_t token;
    float logprob; /* −INFINITY for a target that has no probability */
    uint8_t n_top; /* tokens without probability are never among the alternatives */
    bool corrupt;  /* a NaN, or no finite largest logit: token is void */
    mr_alternative top[MR_MAX_TOP];
} mr_sample_result;

/* Processed logprobs are the softmax over what survives the filters; at temperature 0, where no
 * filter acts, that of the logits after bias and penalties.
 * Order, noise and logprobs as docs/architecture.md ("Sampling") defines them. Allocates nothing.
 * One thread a sampler. */
void mr_sample(mr_sampler *sampler, const mr_sample_row *row, mr_sample_result *out);

/* The smallest logit, shifted so that the largest is 0, whose probability is at least min_p (above
 * 0) of the largest. */
float mr_sample_min_p_bound(float min_p);

#endif
