/* SPDX-License-Identifier: Apache-2.0 */
/* Between quant_block.c and quant_superblock.c. */
#ifndef MILLRACE_KERNELS_QUANT_INTERNAL_H
#define MILLRACE_KERNELS_QUANT_INTERNAL_H

#include "kernels/quant_block.h"

#define MR_QUANT_HALF (MR_QUANT_GROUP / 2)

/* What the 4-bit codes of IQ4_NL and IQ4_XS stand for. */
extern const int8_t mr_quant_iq4[16];

static inline void mr_quant_set(mr_quant_group *group, float scale, float min)
{
    group->scale[0] = group->scale[1] = scale;
    group->min[0] = group->min[1] = min;
}

/* Blocks of 256 elements: 8 groups. */
void mr_quant_unpack_q2_k(const uint8_t *block, mr_quant_group *groups);
void mr_quant_unpack_q3_k(const uint8_t *block, mr_quant_group *groups);
void mr_quant_unpack_q4_k(const uint8_t *block, mr_quant_group *groups);
void mr_quant_unpack_q5_k(const uint8_t *block, mr_quant_group *groups);
void mr_quant_unpack_q6_k(const uint8_t *block, mr_quant_group *groups);
void mr_quant_unpack_iq4_xs(const uint8_t *block, mr_quant_group *groups);

#endif
