/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/dtype.h"
#include "kernels/float_bits.h"
#include "kernels/quant_block.h"
#include "kernels/weight_codes.h"

static void dequantize_f16(const uint8_t *restrict src, float *restrict dst, uint64_t elements)
{
    for (uint64_t i = 0; i < elements; i++) {
        dst[i] = mr_load_f16(src + 2 * i);
    }
}

static void dequantize_bf16(const uint8_t *restrict src, float *restrict dst, uint64_t elements)
{
    for (uint64_t i = 0; i < elements; i++) {
        dst[i] = mr_bf16_widen(mr_load_u16(src + 2 * i));
    }
}

static void dequantize_group(const mr_quant_group *restrict group, float *restrict dst)
{
    const uint32_t half = MR_QUANT_GROUP / 2;
    for (uint32_t i = 0; i < half; i++) {
        dst[i] = group->scale[0] * (float)group->codes[i] - group->min[0];
    }
    for (uint32_t i = half; i < MR_QUANT_GROUP; i++) {
        dst[i] = group->scale[1] * (float)group->codes[i] - group->min[1];
    }
}

static void dequantize_blocks(mr_dtype dtype, const uint8_t *src, float *dst, uint64_t elements)
{
    const mr_dtype_info *info = mr_dtype_info_get(dtype);
    mr_quant_group groups[MR_QUANT_GROUPS_MAX];
    for (uint64_t b = 0; b < elements / info->block_elements; b++, src += info->block_bytes) {
        mr_quant_unpack(dtype, src, groups);
        for (uint32_t g = 0; g < info->block_elements / MR_QUANT_GROUP; g++) {
            dequantize_group(&groups[g], dst);
            dst += MR_QUANT_GROUP;
        }
    }
}

void mr_dequantize(mr_dtype dtype, const void *src, float *dst, uint64_t elements)
{
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
    case MR_DTYPE_CODES4:
    case MR_DTYPE_CODES8:
    case MR_DTYPE_CODES_F8:
        mr_dequantize_codes(dtype, src, dst, elements);
        break;
    default:
        dequantize_blocks(dtype, src, dst, elements);
        break;
    }
}
