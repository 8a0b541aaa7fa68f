/* SPDX-License-Identifier: Apache-2.0 */
/* A small plan whose layers have F8_E4M3 codes with a scale an output, as FP8 checkpoints do. */
#ifndef MILLRACE_TESTS_TINY_CODES_H
#define MILLRACE_TESTS_TINY_CODES_H

#include "kernels/weight_codes.h"
#include "tiny_plan.h"

#define TINY_CODES 64

typedef struct tiny_codes {
    uint8_t *codes[TINY_CODES]; /* owns */
    float *scales[TINY_CODES];  /* owns */
    uint32_t count;
} tiny_codes;

/* The code nearest to a number of at most 448, the even one of two. */
uint8_t tiny_e4m3(float x);
/* Makes codes of the matrices of all layers, which were F32. `out` outlives the plan. */
void tiny_codes_create(const tiny_plan *tiny, tiny_codes *out);
void tiny_codes_destroy(tiny_codes *codes);

#endif
