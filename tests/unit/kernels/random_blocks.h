/* SPDX-License-Identifier: Apache-2.0 */
/* Random weights in every storage type. */
#ifndef MILLRACE_TESTS_RANDOM_BLOCKS_H
#define MILLRACE_TESTS_RANDOM_BLOCKS_H

#include "kernels/dtype.h"

#include <stdint.h>

/* Fills `elements` (whole blocks) of values of about ±`amplitude`; `state` as tiny_random has it.
 */
void random_blocks(mr_dtype dtype, uint8_t *to, uint64_t elements, float amplitude,
                   uint64_t *state);

/* The same with one byte everywhere but in the f16 numbers of a quantised type. */
void uniform_blocks(mr_dtype dtype, uint8_t *to, uint64_t elements, float amplitude, uint8_t byte);

#endif
