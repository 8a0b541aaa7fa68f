/* SPDX-License-Identifier: Apache-2.0 */
/* In place of CUDA's header of this name: what the emulated kernels use of it. Every operation is
 * one in float32, rounded to nearest even, which is what a GPU gives. */
#ifndef MILLRACE_TESTS_EMULATED_CUDA_FP16_H
#define MILLRACE_TESTS_EMULATED_CUDA_FP16_H

#include <cuda_runtime.h>

struct __half {
    uint16_t bits;
};

struct __half2 {
    __half x, y;
};

static inline float __half2float(__half h)
{
    /* As if the exponents had one bias, and then by the power of two between them. */
    const uint32_t magnitude = h.bits & 0x7fffu;
    const bool finite = magnitude < 0x7c00u;
    const float x = finite ? emulated_float(magnitude << 13) * 0x1p112f
                           : emulated_float(0x7f800000u | magnitude << 13);
    return (h.bits & 0x8000u) != 0 ? -x : x;
}

static inline __half __float2half_rn(float f)
{
    const uint32_t bits = emulated_bits(f);
    const uint32_t magnitude = bits & 0x7fffffffu;
    uint32_t half;
    if (magnitude > 0x7f800000u) {
        half = 0x7fffu; /* NaN */
    } else if (magnitude >= 0x477ff000u) {
        half = 0x7c00u; /* 65520 and more */
    } else if (magnitude < 0x38800000u) {
        half = static_cast<uint32_t>(nearbyintf(fabsf(f) * 0x1p24f)); /* below 2^-14 */
    } else {
        half = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1)) >> 13;
    }
    return {static_cast<uint16_t>(half | (bits >> 16 & 0x8000u))};
}

static inline __half __float2half(float f)
{
    return __float2half_rn(f);
}

static inline __half2 __halves2half2(__half x, __half y)
{
    return {x, y};
}

static inline __half2 __floats2half2_rn(float x, float y)
{
    return {__float2half_rn(x), __float2half_rn(y)};
}

static inline __half2 __hsub2(__half2 a, __half2 b)
{
    return __floats2half2_rn(__half2float(a.x) - __half2float(b.x),
                             __half2float(a.y) - __half2float(b.y));
}

static inline __half2 __hmul2(__half2 a, __half2 b)
{
    return __floats2half2_rn(__half2float(a.x) * __half2float(b.x),
                             __half2float(a.y) * __half2float(b.y));
}

#endif
