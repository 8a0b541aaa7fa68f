/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/kv_layout.h"

#include "base/checked.h"
#include "kernels/float_bits.h"

#include <math.h>

bool mr_kv_dtype_known(mr_dtype dtype)
{
    return dtype == MR_DTYPE_F32 || dtype == MR_DTYPE_F16 || dtype == MR_DTYPE_BF16 ||
           dtype == MR_DTYPE_F8_E4M3 || dtype == MR_DTYPE_I8;
}

bool mr_kv_layout_make(const mr_plan_kv *kv, mr_dtype dtype, uint32_t block_size, mr_kv_layout *out)
{
    if (!mr_kv_dtype_known(dtype)) {
        return false;
    }
    mr_kv_layout l = {.element = mr_dtype_info_get(dtype)->block_bytes};
    l.scales = dtype == MR_DTYPE_I8 ? (uint64_t)block_size * sizeof(float) : 0;
    const bool fits =
        mr_mul_u64(l.element, kv->head_width, &l.row) && mr_mul_u64(l.row, block_size, &l.piece) &&
        mr_add_u64(l.piece, l.scales, &l.piece) && mr_align_u64(l.piece, sizeof(float), &l.piece) &&
        mr_mul_u64(l.piece, kv->heads, &l.block) &&
        mr_mul_u64(l.block, 2 * (uint64_t)kv->layers, &l.all);
    if (fits) {
        *out = l;
    }
    return fits;
}

float mr_kv_quantize(const float *from, int8_t *codes, uint32_t count)
{
    uint32_t top = 0; /* of magnitudes, as bits: a NaN is the largest */
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t bits = mr_bits_of_float(from[i]) & 0x7fffffffu;
        top = bits > top ? bits : top;
    }
    const float largest = mr_float_of_bits(top);
    /* So small a vector that 127 / largest would overflow is nought. */
    const bool nought = largest < 0x1p-110f;
    const float factor = nought ? 0.0f : 127.0f / largest;
    for (uint32_t i = 0; i < count; i++) {
        const float code = rintf(from[i] * factor);
        const float kept = code >= -127.0f && code <= 127.0f ? code : 0.0f; /* NaN neither */
        codes[i] = (int8_t)kept;
    }
    return nought ? 0.0f : largest / 127.0f;
}
