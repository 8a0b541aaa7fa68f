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
    MR_DTYPE_Q8_0, /* the quantised types: quant_block.h */
    MR_DTYPE_Q4_0,
    MR_DTYPE_Q4_1,
    MR_DTYPE_Q5_0,
    MR_DTYPE_Q5_1,
    MR_DTYPE_Q2_K,
    MR_DTYPE_Q3_K,
    MR_DTYPE_Q4_K,
    MR_DTYPE_Q5_K,
    MR_DTYPE_Q6_K,
    MR_DTYPE_IQ4_NL,
    MR_DTYPE_IQ4_XS,
    MR_DTYPE_COUNT, /* above: what a weight may be made of that is one tensor of a file */
    /* Tensors of files that are no weights by themselves: codes, indices, and the like. */
    MR_DTYPE_F8_E4M3 = MR_DTYPE_COUNT,
    MR_DTYPE_I8, /* also of the KV cache: kv_layout.h */
    MR_DTYPE_U8,
    MR_DTYPE_BOOL,
    MR_DTYPE_I16,
    MR_DTYPE_I32,
    MR_DTYPE_I64,
    MR_DTYPE_F64,
    /* Never in a file: rows of weights whose codes and scales are in several tensors, as backends
     * get them (weight_codes.h). */
    MR_DTYPE_CODES4,
    MR_DTYPE_CODES8,
    MR_DTYPE_CODES_F8,
    MR_DTYPE_STORED_COUNT,
} mr_dtype;

/* What a weight may be made of, for messages. */
#define MR_DTYPE_NAMES                                                                             \
    "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL or IQ4_XS"

typedef struct mr_dtype_info {
    const char *name; /* as tools print it: "Q4_1", "F32" */
    uint32_t block_elements;
    uint32_t block_bytes;
} mr_dtype_info;

/* Static record. `dtype` must be below MR_DTYPE_STORED_COUNT. */
const mr_dtype_info *mr_dtype_info_get(mr_dtype dtype);

/* Bytes of a row of `elements`; false if they are not a whole number of blocks or overflow. */
bool mr_dtype_row_bytes(mr_dtype dtype, uint64_t elements, uint64_t *out);

/* Whether plans may have weights of the type: those below MR_DTYPE_COUNT and the CODES types. */
bool mr_dtype_is_weight(mr_dtype dtype);

/* Dequantises `elements` (a multiple of the block) of a weight's type in
 * float32: the reference that every kernel is held to. An infinite or NaN scale gives what IEEE 754
 * says. `src` needs no alignment. */
void mr_dequantize(mr_dtype dtype, const void *src, float *dst, uint64_t elements);

float mr_f16_to_f32(uint16_t bits);
uint16_t mr_f32_to_f16(float value); /* round to nearest even */
float mr_bf16_to_f32(uint16_t bits);
uint16_t mr_f32_to_bf16(float value); /* round to nearest even, NaN stays NaN */

#endif
