/* SPDX-License-Identifier: Apache-2.0 */
/* What rows may ask of sampling, and what of their results must equal kernels/sample.c's. */
#ifndef MILLRACE_TESTS_SAMPLE_ROWS_H
#define MILLRACE_TESTS_SAMPLE_ROWS_H

#include "kernels/backend.h"
#include "kernels/sample.h"

enum { SAMPLE_BIAS = 9 };

typedef struct sample_asked {
    mr_row_params params;
    uint32_t tokens[SAMPLE_BIAS];
    float values[SAMPLE_BIAS];
} sample_asked;

/* Parameters of all kinds, and bounds of their ranges; histories have up to `history` tokens. */
void sample_random_row(uint64_t *state, uint32_t vocab, uint32_t history, sample_asked *out);

/* Row r's token and what was reported beside it. */
void sample_check_row(const mr_step_output *out, uint32_t r, const mr_row_params *p,
                      const mr_sample_result *want);

#endif
