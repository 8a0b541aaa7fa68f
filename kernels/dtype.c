/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/dtype.h"

#include "base/checked.h"

#include <string.h>

#define QUANT_ELEMENTS 32

static const mr_dtype_info dtypes[MR_DTYPE_COUNT] = {
    [MR_DTYPE_F32] = {"F32", 1, 4},
    [MR_DTYPE_F16] = {"F16", 1, 2},
    [MR_DTYPE_BF16] = {"BF16", 1, 2},
    [MR_DTYPE_Q8_0] = {"Q8_0", QUANT_ELEMENTS, 2 + QUANT_ELEMENTS},
    [MR_DTYPE_Q4_0] = {"Q4_0", QUANT_ELEMENTS, 2 + QUANT_ELEMENTS / 2},
    [MR_DTYPE_Q4_1] = {"Q4_1", QUANT_ELEMENTS, 4 + QUANT_ELEMENTS / 2},
};

const mr_dtype_info *mr_dtype_info_get(mr_dtype dtype)
{
    MR_CHECK((unsigned)dtype < MR_DTYPE_COUNT);
    return &dtypes[dtype];
}

bool mr_dtype_row_bytes(mr_dtype dtype, uint64_t elements, uint64_t *out)
{
    const mr_dtype_info *info = mr_dtype_info_get(dtype);
    if (elements % info->block_elements != 0) {
        return false;
    }
    return mr_mul_u64(elements / info->block_elements, info->block_bytes, out);
}

static inline float float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static inline uint32_t bits_of_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

/* Branch-free, so that loops over it vectorise. The exponent is rebased by a multiplication, which
 * also normalises f16 subnormals exactly. A NaN becomes quiet and keeps its payload, as the F16C
 * instructions do it. */
static inline float f16_to_f32(uint16_t bits)
{
    const uint32_t magnitude = (uint32_t)(bits & 0x7fffu) << 13;
    uint32_t result = bits_of_float(float_of_bits(magnitude) * 0x1p112f);
    result |= magnitude >= 0x0f800000u ? 0x7f800000u : 0u;
    result |= magnitude > 0x0f800000u ? 0x00400000u : 0u;
    return float_of_bits(result | (uint32_t)(bits & 0x8000u) << 16);
}

static inline float bf16_to_f32(uint16_t bits)
{
    return float_of_bits((uint32_t)bits << 16);
}

float mr_f16_to_f32(uint16_t bits)
{
    return f16_to_f32(bits);
}

uint16_t mr_f32_to_f16(float value)
{
    const uint32_t bits = bits_of_float(value);
    const uint32_t sign = bits >> 16 & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
    }
    if (magnitude >= 0x477ff000u) { /* from 65520 on: rounds past the largest half */
        return (uint16_t)(sign | 0x7c00u);
    }
    if (magnitude < 0x38800000u) {
        /* Below 2^-14. Adding 1/2 puts the float's last place at 2^-24, the unit of the halves'
         * subnormals, so the addition itself rounds to nearest even. */
        const float rounded = float_of_bits(magnitude) + 0.5f;
        return (uint16_t)(sign | (bits_of_float(rounded) - 0x3f000000u));
    }
    const uint32_t odd = magnitude >> 13 & 1u;
    return (uint16_t)(sign | (magnitude - 0x38000000u + 0xfffu + odd) >> 13);
}

float mr_bf16_to_f32(uint16_t bits)
{
    return bf16_to_f32(bits);
}

uint16_t mr_f32_to_bf16(float value)
{
    const uint32_t bits = bits_of_float(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)(bits >> 16 | 0x40u);
    }
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

static inline uint16_t load_u16(const uint8_t *src)
{
    return (uint16_t)(src[0] | src[1] << 8);
}

static void dequantize_f16(const uint8_t *restrict src, float *restrict dst, uint64_t elements)
{
    for (uint64_t i = 0; i < elements; i++) {
        dst[i] = f16_to_f32(load_u16(src + 2 * i));
    }
}

static void dequantize_bf16(const uint8_t *restrict src, float *restrict dst, uint64_t elements)
{
    for (uint64_t i = 0; i < elements; i++) {
        dst[i] = bf16_to_f32(load_u16(src + 2 * i));
    }
}

static void dequantize_q8_0(const uint8_t *restrict src, float *restrict dst, uint64_t blocks)
{
    for (uint64_t b = 0; b < blocks; b++) {
        const float d = f16_to_f32(load_u16(src));
        for (uint32_t i = 0; i < QUANT_ELEMENTS; i++) {
            dst[i] = d * (float)(int8_t)src[2 + i];
        }
        src += 2 + QUANT_ELEMENTS;
        dst += QUANT_ELEMENTS;
    }
}

static void dequantize_q4_0(const uint8_t *restrict src, float *restrict dst, uint64_t blocks)
{
    for (uint64_t b = 0; b < blocks; b++) {
        const float d = f16_to_f32(load_u16(src));
        for (uint32_t i = 0; i < QUANT_ELEMENTS / 2; i++) {
            dst[i] = d * (float)((src[2 + i] & 15) - 8);
            dst[i + QUANT_ELEMENTS / 2] = d * (float)((src[2 + i] >> 4) - 8);
        }
        src += 2 + QUANT_ELEMENTS / 2;
        dst += QUANT_ELEMENTS;
    }
}

static void dequantize_q4_1(const uint8_t *restrict src, float *restrict dst, uint64_t blocks)
{
    for (uint64_t b = 0; b < blocks; b++) {
        const float d = f16_to_f32(load_u16(src));
        const float m = f16_to_f32(load_u16(src + 2));
        for (uint32_t i = 0; i < QUANT_ELEMENTS / 2; i++) {
            dst[i] = d * (float)(src[4 + i] & 15) + m;
            dst[i + QUANT_ELEMENTS / 2] = d * (float)(src[4 + i] >> 4) + m;
        }
        src += 4 + QUANT_ELEMENTS / 2;
        dst += QUANT_ELEMENTS;
    }
}

void mr_dequantize(mr_dtype dtype, const void *src, float *dst, uint64_t elements)
{
    const uint64_t blocks = elements / mr_dtype_info_get(dtype)->block_elements;
    switch (dtype) {
    case MR_DTYPE_F32:
        memcpy(dst, src, elements * sizeof(float));
        break;
    case MR_DTYPE_F16:
        dequantize_f16(src, dst, elements);
        break;
    case MR_DTYPE_BF16:
        dequantize_bf16(src, dst, elements);
        break;
    case MR_DTYPE_Q8_0:
        dequantize_q8_0(src, dst, blocks);
        break;
    case MR_DTYPE_Q4_0:
        dequantize_q4_0(src, dst, blocks);
        break;
    case MR_DTYPE_Q4_1:
        dequantize_q4_1(src, dst, blocks);
        break;
    case MR_DTYPE_COUNT:
        break;
    }
}
