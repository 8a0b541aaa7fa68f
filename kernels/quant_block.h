/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks of the quantised types of GGUF files, taken apart: every one of them is groups of 32
 * elements, each a small integer times a scale, less a minimum. Both may differ between the halves
 * of a group.
 *
 *   type    elements  bytes  code            scale of 16 or 32     minimum
 *   Q8_0          32     34  q               d
 *   Q4_0          32     18  q − 8           d
 *   Q4_1          32     20  q               d                     −m
 *   Q5_0          32     22  q − 16          d
 *   Q5_1          32     24  q               d                     −m
 *   IQ4_NL        32     18  table[q]        d
 *   Q2_K         256     84  q               d · 4 bits     (16)   dmin · 4 bits  (16)
 *   Q3_K         256    110  q − 4           d · ±6 bits    (16)
 *   Q4_K         256    144  q               d · 6 bits     (32)   dmin · 6 bits  (32)
 *   Q5_K         256    176  q               d · 6 bits     (32)   dmin · 6 bits  (32)
 *   Q6_K         256    210  q − 32          d · int8       (16)
 *   IQ4_XS       256    136  table[q]        d · ±6 bits    (32)
 *
 * d, m and dmin are f16, so a product of one of them and a small integer is exact in float32. Where
 * a file has an infinity or a NaN for one of them, IEEE 754 says what comes out.
 */
#ifndef MILLRACE_KERNELS_QUANT_BLOCK_H
#define MILLRACE_KERNELS_QUANT_BLOCK_H

#include "kernels/dtype.h"

#include <stdint.h>

#define MR_QUANT_GROUP      32u /* elements of a group */
#define MR_QUANT_GROUPS_MAX 8u  /* groups of a block */

/* Element i is scale[i / 16] · codes[i] − min[i / 16], the product rounded to float32 and then the
 * difference. */
typedef struct mr_quant_group {
    int8_t codes[MR_QUANT_GROUP];
    float scale[2];
    float min[2]; /* 0 where the type has none */
} mr_quant_group;

/* Takes the block of a quantised type at `block` (any alignment) apart, into as many groups as it
 * has: groups[block_elements / 32]. */
void mr_quant_unpack(mr_dtype dtype, const uint8_t *block, mr_quant_group *groups);

#endif
