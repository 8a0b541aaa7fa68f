/* SPDX-License-Identifier: Apache-2.0 */
#include "random_blocks.h"

#include "tiny_plan.h"

#include <string.h>

/* The f16 numbers of a block that decide how large its values are, as shares of that size; all
 * other bytes may have any value. */
typedef struct recipe {
    uint32_t scale_at;
    float scale;
    uint32_t offset_at; /* 0: the type has none */
    float offset;
} recipe;

static const recipe recipes[MR_DTYPE_COUNT] = {
    [MR_DTYPE_Q8_0] = {0, 1.0f / 127.0f, 0, 0},
    [MR_DTYPE_Q4_0] = {0, 1.0f / 8.0f, 0, 0},
    [MR_DTYPE_Q4_1] = {0, 2.0f / 15.0f, 2, -1.0f},
    [MR_DTYPE_Q5_0] = {0, 1.0f / 16.0f, 0, 0},
    [MR_DTYPE_Q5_1] = {0, 2.0f / 31.0f, 2, -1.0f},
    [MR_DTYPE_Q2_K] = {80, 2.0f / (15 * 3), 82, 1.0f / 15.0f},
    [MR_DTYPE_Q3_K] = {108, 1.0f / (32 * 4), 0, 0},
    [MR_DTYPE_Q4_K] = {0, 2.0f / (63 * 15), 2, 1.0f / 63.0f},
    [MR_DTYPE_Q5_K] = {0, 2.0f / (63 * 31), 2, 1.0f / 63.0f},
    [MR_DTYPE_Q6_K] = {208, 1.0f / (128 * 32), 0, 0},
    [MR_DTYPE_IQ4_NL] = {0, 1.0f / 127.0f, 0, 0},
    [MR_DTYPE_IQ4_XS] = {0, 1.0f / (32 * 127), 0, 0},
};

static void put_u16(uint8_t *to, uint16_t bits)
{
    to[0] = (uint8_t)bits;
    to[1] = (uint8_t)(bits >> 8);
}

void random_blocks(mr_dtype dtype, uint8_t *to, uint64_t elements, float amplitude, uint64_t *state)
{
    const mr_dtype_info *info = mr_dtype_info_get(dtype);
    const recipe *r = &recipes[dtype];
    for (uint64_t b = 0; b < elements / info->block_elements; b++, to += info->block_bytes) {
        const float value = tiny_uniform(state, -amplitude, amplitude);
        const float size = tiny_uniform(state, amplitude / 2, amplitude);
        for (uint32_t i = 0; i < info->block_bytes; i++) {
            to[i] = (uint8_t)tiny_random(state);
        }
        if (dtype == MR_DTYPE_F32) {
            memcpy(to, &value, sizeof(value));
        } else if (dtype == MR_DTYPE_F16) {
            put_u16(to, mr_f32_to_f16(value));
        } else if (dtype == MR_DTYPE_BF16) {
            put_u16(to, mr_f32_to_bf16(value));
        } else {
            put_u16(to + r->scale_at, mr_f32_to_f16(size * r->scale));
        }
        if (r->offset_at != 0) {
            put_u16(to + r->offset_at, mr_f32_to_f16(size * r->offset));
        }
    }
}

void uniform_blocks(mr_dtype dtype, uint8_t *to, uint64_t elements, float amplitude, uint8_t byte)
{
    const mr_dtype_info *info = mr_dtype_info_get(dtype);
    const recipe *r = &recipes[dtype];
    for (uint64_t b = 0; b < elements / info->block_elements; b++, to += info->block_bytes) {
        memset(to, byte, info->block_bytes);
        put_u16(to + r->scale_at, mr_f32_to_f16(amplitude * r->scale));
        if (r->offset_at != 0) {
            put_u16(to + r->offset_at, mr_f32_to_f16(amplitude * r->offset));
        }
    }
}
