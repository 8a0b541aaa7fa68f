/* SPDX-License-Identifier: Apache-2.0 */
/* In place of CUDA's header of this name, as cuda_fp16.h is. */
#ifndef MILLRACE_TESTS_EMULATED_CUDA_BF16_H
#define MILLRACE_TESTS_EMULATED_CUDA_BF16_H

#include <cuda_runtime.h>

struct __nv_bfloat16 {
    uint16_t bits;
};

struct __nv_bfloat162 {
    __nv_bfloat16 x, y;
};

static inline float __bfloat162float(__nv_bfloat16 h)
{
    return emulated_float(static_cast<uint32_t>(h.bits) << 16);
}

static inline __nv_bfloat16 __float2bfloat16_rn(float f)
{
    const uint32_t bits = emulated_bits(f);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return {0x7fff}; /* NaN */
    }
    return {static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16)};
}

static inline float2 __bfloat1622float2(__nv_bfloat162 p)
{
    return {__bfloat162float(p.x), __bfloat162float(p.y)};
}

static inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y)
{
    return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}

static inline __nv_bfloat162 __hsub2(__nv_bfloat162 a, __nv_bfloat162 b)
{
    return __floats2bfloat162_rn(__bfloat162float(a.x) - __bfloat162float(b.x),
                                 __bfloat162float(a.y) - __bfloat162float(b.y));
}

static inline __nv_bfloat162 __hmul2(__nv_bfloat162 a, __nv_bfloat162 b)
{
    return __floats2bfloat162_rn(__bfloat162float(a.x) * __bfloat162float(b.x),
                                 __bfloat162float(a.y) * __bfloat162float(b.y));
}

#endif
