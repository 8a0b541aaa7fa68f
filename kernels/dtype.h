/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Storage types of tensors as they lie in model files, and of the KV cache. Quantised types are
 * made of blocks along a row; a row is always a whole number of blocks.
 */
#ifndef MILLRACE_KERNELS_DTYPE_H
#define MILLRACE_KERNELS_DTYPE_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum mr_dtype {
    MR_DTYPE_F32,
    MR_DTYPE_F16,
    MR_DTYPE_BF16,
    MR_DTYPE_Q8_0, /* 32 × int8, one f16 scale d:          w = d·q          (34 bytes) */
    MR_DTYPE_Q4_0, /* 32 × 4 bit, one f16 scale d:         w = d·(q − 8)    (18 bytes) */
    MR_DTYPE_Q4_1, /* 32 × 4 bit, f16 scale d and min m:   w = d·q + m      (20 bytes) */
    MR_DTYPE_COUNT,
} mr_dtype;

typedef struct mr_dtype_info {
    const char *name; /* as tools print it: "Q4_1", "F32" */
    uint32_t block_elements;
    uint32_t block_bytes;
} mr_dtype_info;

/* Static record. `dtype` must be below MR_DTYPE_COUNT. */
const mr_dtype_info *mr_dtype_info_get(mr_dtype dtype);

/* Bytes of a row of `elements`; false if they are not a whole number of blocks or overflow. */
bool mr_dtype_row_bytes(mr_dtype dtype, uint64_t elements, uint64_t *out);

/* Dequantises `elements` (a multiple of the block) exactly, in float32: the reference that every
 * kernel is held to. In the 4-bit blocks byte i holds element i in its low and element i + 16 in
 * its high nibble. `src` needs no alignment. */
void mr_dequantize(mr_dtype dtype, const void *src, float *dst, uint64_t elements);

float mr_f16_to_f32(uint16_t bits);
uint16_t mr_f32_to_f16(float value); /* round to nearest even */
float mr_bf16_to_f32(uint16_t bits);
uint16_t mr_f32_to_bf16(float value); /* round to nearest even, NaN stays NaN */

#endif
