/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Philox4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw, "Parallel random
 * numbers: as easy as 1, 2, 3" (SC 2011). Every random number in millrace is a pure function of a
 * key and a counter, so results do not depend on order, threads or device.
 */
#ifndef MILLRACE_BASE_PHILOX_H
#define MILLRACE_BASE_PHILOX_H

#include <stdint.h>

/* What a number is drawn for; the third word of the counter. */
typedef enum mr_draw_purpose {
    MR_DRAW_TOKEN = 0,  /* Gumbel noise of the next token */
    MR_DRAW_WEIGHT = 1, /* load_format: random */
} mr_draw_purpose;

void mr_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* (bits >> 9 + 1/2) / 2^23: a float in (0, 1), never 0 or 1, exact and so bit-equal everywhere.
 * 23 bits and the half fill a float's 24; with 24 bits the sum would round and could reach 1. */
static inline float mr_uniform(uint32_t bits)
{
    return ((float)(bits >> 9) + 0.5f) * 0x1p-23f;
}

/* Uniform for vocabulary index `v` of the draw at absolute position `position`, choice `choice`:
 * word v % 4 of Philox(counter = {position, choice, MR_DRAW_TOKEN, v / 4}, key), the key's low
 * 32 bits first. */
float mr_token_uniform(uint64_t key, uint32_t position, uint32_t choice, uint32_t v);

/* -ln(-ln(u)): standard Gumbel noise of a uniform in (0, 1). */
float mr_gumbel(float u);

#endif
