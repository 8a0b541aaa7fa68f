/* SPDX-License-Identifier: Apache-2.0 */
/* The model of tiny_plan.h once more, written straight down in double precision: no plan, no
 * cache, no batch. */
#ifndef MILLRACE_TESTS_NAIVE_MODEL_H
#define MILLRACE_TESTS_NAIVE_MODEL_H

#include "tiny_plan.h"

/* Logits [count][vocab] after each of the tokens, keys and values rounded to kv_dtype. The caller
 * frees them. */
double *naive_logits(const tiny_plan *tiny, const int32_t *tokens, uint32_t count,
                     mr_dtype kv_dtype);

#endif
