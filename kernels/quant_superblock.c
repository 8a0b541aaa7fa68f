/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of 256 elements, whose groups have small integers for scales. */
#include "kernels/float_bits.h"
#include "kernels/quant_internal.h"

enum { GROUPS = MR_QUANT_GROUPS_MAX, GROUP = MR_QUANT_GROUP };

/* Two bits of each element of a group: groups 0 … 3 share 32 bytes, groups 4 … 7 the next 32. */
static inline int two_bits(const uint8_t *bits, uint32_t group, uint32_t i)
{
    return bits[group / 4 * GROUP + i] >> 2 * (group % 4) & 3;
}

/* Four bits: groups 2j and 2j + 1 share 32 bytes. */
static inline int four_bits(const uint8_t *bits, uint32_t group, uint32_t i)
{
    return bits[group / 2 * GROUP + i] >> 4 * (group % 2) & 15;
}

/*   0  scale (low nibble) and minimum (high nibble) of each 16  [16]
 *  16  2 bits an element  [64]
 *  80  d, dmin */
void mr_quant_unpack_q2_k(const uint8_t *block, mr_quant_group *groups)
{
    const float d = mr_load_f16(block + 80);
    const float dmin = mr_load_f16(block + 82);
    for (uint32_t g = 0; g < GROUPS; g++) {
        for (uint32_t half = 0; half < 2; half++) {
            const uint8_t pair = block[2 * g + half];
            groups[g].scale[half] = d * (float)(pair & 15);
            groups[g].min[half] = dmin * (float)(pair >> 4);
        }
        for (uint32_t i = 0; i < GROUP; i++) {
            groups[g].codes[i] = (int8_t)two_bits(block + 16, g, i);
        }
    }
}

/*   0  third bit, byte i has that of element i of every group  [32]
 *  32  2 bits an element  [64]
 *  96  6 bits a scale of each 16: four of scale s in byte s % 8, two in byte 8 + s % 4  [12]
 * 108  d */
void mr_quant_unpack_q3_k(const uint8_t *block, mr_quant_group *groups)
{
    const uint8_t *scales = block + 96;
    const float d = mr_load_f16(block + 108);
    for (uint32_t g = 0; g < GROUPS; g++) {
        for (uint32_t half = 0; half < 2; half++) {
            const uint32_t s = 2 * g + half;
            const int low = scales[s % 8] >> 4 * (s / 8) & 15;
            const int high = scales[8 + s % 4] >> 2 * (s / 4) & 3;
            groups[g].scale[half] = d * (float)((low | high << 4) - 32);
            groups[g].min[half] = 0.0f;
        }
        for (uint32_t i = 0; i < GROUP; i++) {
            const int third = block[i] >> g & 1;
            groups[g].codes[i] = (int8_t)((two_bits(block + 32, g, i) | third << 2) - 4);
        }
    }
}

/* Scales and minima of Q4_K and Q5_K: d, dmin, and 12 bytes with 6 bits for each. Those of groups
 * 0 … 3 are the low bits of bytes 0 … 3 and 4 … 7; those of groups 4 … 7 are the nibbles of bytes
 * 8 … 11 and, above them, the two bits that are left in those. */
static void unpack_scales(const uint8_t *block, mr_quant_group *groups)
{
    const uint8_t *bits = block + 4;
    const float d = mr_load_f16(block);
    const float dmin = mr_load_f16(block + 2);
    for (uint32_t g = 0; g < GROUPS / 2; g++) {
        const uint8_t scale = bits[g];
        const uint8_t min = bits[4 + g];
        const uint8_t both = bits[8 + g];
        mr_quant_set(&groups[g], d * (float)(scale & 63), dmin * (float)(min & 63));
        mr_quant_set(&groups[4 + g], d * (float)((both & 15) | scale >> 6 << 4),
                     dmin * (float)(both >> 4 | min >> 6 << 4));
    }
}

/*   0  d, dmin, scales and minima  [16]
 *  16  4 bits an element  [128] */
void mr_quant_unpack_q4_k(const uint8_t *block, mr_quant_group *groups)
{
    unpack_scales(block, groups);
    for (uint32_t g = 0; g < GROUPS; g++) {
        for (uint32_t i = 0; i < GROUP; i++) {
            groups[g].codes[i] = (int8_t)four_bits(block + 16, g, i);
        }
    }
}

/*   0  d, dmin, scales and minima  [16]
 *  16  fifth bit, byte i has that of element i of every group  [32]
 *  48  4 bits an element  [128] */
void mr_quant_unpack_q5_k(const uint8_t *block, mr_quant_group *groups)
{
    unpack_scales(block, groups);
    for (uint32_t g = 0; g < GROUPS; g++) {
        for (uint32_t i = 0; i < GROUP; i++) {
            const int fifth = block[16 + i] >> g & 1;
            groups[g].codes[i] = (int8_t)(four_bits(block + 48, g, i) | fifth << 4);
        }
    }
}

/*   0  4 low bits: byte i of each 64 has those of elements i and 64 + i of 128  [128]
 * 128  2 high bits an element  [64]
 * 192  int8 scale of each 16  [16]
 * 208  d */
void mr_quant_unpack_q6_k(const uint8_t *block, mr_quant_group *groups)
{
    const float d = mr_load_f16(block + 208);
    for (uint32_t g = 0; g < GROUPS; g++) {
        const uint8_t *low = block + g / 4 * 64 + g % 2 * GROUP;
        for (uint32_t half = 0; half < 2; half++) {
            groups[g].scale[half] = d * (float)(int8_t)block[192 + 2 * g + half];
            groups[g].min[half] = 0.0f;
        }
        for (uint32_t i = 0; i < GROUP; i++) {
            const int nibble = low[i] >> 4 * (g / 2 % 2) & 15;
            groups[g].codes[i] = (int8_t)((nibble | two_bits(block + 128, g, i) << 4) - 32);
        }
    }
}

/*   0  d
 *   2  2 high bits of each group's scale, a little-endian word
 *   4  4 low bits of each group's scale  [4]
 *   8  4 bits an element: byte i of a group's 16 has elements i and 16 + i  [128] */
void mr_quant_unpack_iq4_xs(const uint8_t *block, mr_quant_group *groups)
{
    const float d = mr_load_f16(block);
    const uint32_t high = mr_load_u16(block + 2);
    for (uint32_t g = 0; g < GROUPS; g++) {
        const uint8_t *codes = block + 8 + g * MR_QUANT_HALF;
        const int scale = (block[4 + g / 2] >> 4 * (g % 2) & 15) | (int)(high >> 2 * g & 3) << 4;
        mr_quant_set(&groups[g], d * (float)(scale - 32), 0.0f);
        for (uint32_t i = 0; i < MR_QUANT_HALF; i++) {
            groups[g].codes[i] = mr_quant_iq4[codes[i] & 15];
            groups[g].codes[MR_QUANT_HALF + i] = mr_quant_iq4[codes[i] >> 4];
        }
    }
}
