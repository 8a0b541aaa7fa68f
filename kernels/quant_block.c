/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of 32 elements. Byte i of the nibbles holds element i in its low and element i + 16 in its
 * high half. */
#include "kernels/quant_block.h"

#include "kernels/float_bits.h"
#include "kernels/quant_internal.h"

const int8_t mr_quant_iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                 1,    13,   25,  38,  53,  69,  89,  113};

static void unpack_q8_0(const uint8_t *block, mr_quant_group *group)
{
    mr_quant_set(group, mr_load_f16(block), 0.0f);
    memcpy(group->codes, block + 2, MR_QUANT_GROUP);
}

static void unpack_nibbles(const uint8_t *nibbles, int centre, mr_quant_group *group)
{
    for (uint32_t i = 0; i < MR_QUANT_HALF; i++) {
        group->codes[i] = (int8_t)((nibbles[i] & 15) - centre);
        group->codes[MR_QUANT_HALF + i] = (int8_t)((nibbles[i] >> 4) - centre);
    }
}

/* 4 bytes with the fifth bit of each element, lowest first, then the nibbles. */
static void unpack_5_bits(const uint8_t *bits, int centre, mr_quant_group *group)
{
    unpack_nibbles(bits + 4, centre, group);
    for (uint32_t i = 0; i < MR_QUANT_GROUP; i++) {
        const int fifth = bits[i / 8] >> i % 8 & 1;
        group->codes[i] = (int8_t)(group->codes[i] + 16 * fifth);
    }
}

static void unpack_iq4_nl(const uint8_t *block, mr_quant_group *group)
{
    mr_quant_set(group, mr_load_f16(block), 0.0f);
    unpack_nibbles(block + 2, 0, group);
    for (uint32_t i = 0; i < MR_QUANT_GROUP; i++) {
        group->codes[i] = mr_quant_iq4[group->codes[i]];
    }
}

void mr_quant_unpack(mr_dtype dtype, const uint8_t *block, mr_quant_group *groups)
{
    switch (dtype) {
    case MR_DTYPE_Q8_0:
        unpack_q8_0(block, groups);
        break;
    case MR_DTYPE_Q4_0:
        mr_quant_set(groups, mr_load_f16(block), 0.0f);
        unpack_nibbles(block + 2, 8, groups);
        break;
    case MR_DTYPE_Q4_1:
        mr_quant_set(groups, mr_load_f16(block), -mr_load_f16(block + 2));
        unpack_nibbles(block + 4, 0, groups);
        break;
    case MR_DTYPE_Q5_0:
        mr_quant_set(groups, mr_load_f16(block), 0.0f);
        unpack_5_bits(block + 2, 16, groups);
        break;
    case MR_DTYPE_Q5_1:
        mr_quant_set(groups, mr_load_f16(block), -mr_load_f16(block + 2));
        unpack_5_bits(block + 4, 0, groups);
        break;
    case MR_DTYPE_IQ4_NL:
        unpack_iq4_nl(block, groups);
        break;
    case MR_DTYPE_Q2_K:
        mr_quant_unpack_q2_k(block, groups);
        break;
    case MR_DTYPE_Q3_K:
        mr_quant_unpack_q3_k(block, groups);
        break;
    case MR_DTYPE_Q4_K:
        mr_quant_unpack_q4_k(block, groups);
        break;
    case MR_DTYPE_Q5_K:
        mr_quant_unpack_q5_k(block, groups);
        break;
    case MR_DTYPE_Q6_K:
        mr_quant_unpack_q6_k(block, groups);
        break;
    case MR_DTYPE_IQ4_XS:
        mr_quant_unpack_iq4_xs(block, groups);
        break;
    default:
        MR_CHECK(false);
        break;
    }
}
