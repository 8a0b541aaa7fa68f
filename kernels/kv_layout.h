/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How keys and values lie in a KV block: the one place that knows their sizes.
 *
 *   pool   [layer][key, value] planes of [n_blocks][G] pieces: one head in one block
 *   piece  f32, f16, bf16   block_size · D elements
 *          fp8 (F8_E4M3)    block_size · D codes; one scale a layer, the plan's
 *          int8             block_size scales (float), then block_size · D codes
 *                           x ≈ scale · code, one scale a token and KV head, codes ±127
 *
 * The order of the elements of a piece is the backend's; scales lie in the order of tokens.
 */
#ifndef MILLRACE_KERNELS_KV_LAYOUT_H
#define MILLRACE_KERNELS_KV_LAYOUT_H

#include "kernels/dtype.h"
#include "kernels/plan.h"

#include <stdbool.h>
#include <stdint.h>

/* Bytes. */
typedef struct mr_kv_layout {
    uint64_t element;
    uint64_t row;    /* D elements: a token's key or value of one head */
    uint64_t scales; /* at the beginning of a piece; 0: its type has none */
    uint64_t piece;  /* one head in one block; a multiple of 4 */
    uint64_t block;  /* G pieces: one block of a plane */
    uint64_t all;    /* one block of all planes */
} mr_kv_layout;

/* Whether K/V can be kept in this type: F32, F16, BF16, F8_E4M3, I8. */
bool mr_kv_dtype_known(mr_dtype dtype);

/* False when a size does not fit, or the type is none of those. */
bool mr_kv_layout_make(const mr_plan_kv *kv, mr_dtype dtype, uint32_t block_size,
                       mr_kv_layout *out);

/* Keeps a vector as int8: returns its scale, that of the largest magnitude to 127, and rounds to
 * nearest even. A NaN or an infinity makes the scale one. The rule for every backend. */
float mr_kv_quantize(const float *from, int8_t *codes, uint32_t count);

#endif
