/* SPDX-License-Identifier: Apache-2.0 */
/* F8_E4M3: rounding to codes, and codes as numbers of 2 bytes. */
#ifndef MILLRACE_KERNELS_CUDA_DEVICE_E4M3_CUH
#define MILLRACE_KERNELS_CUDA_DEVICE_E4M3_CUH

#include "kernels/cuda/device/common.cuh"

#include <cuda_fp8.h>

#define MR_E4M3_MAX 448.0f

/* Two numbers rounded to nearest even, the first in the low byte; what is too large becomes the
 * largest, a NaN stays one. */
__device__ static inline uint32_t mr_e4m3_pair(float a, float b)
{
    return __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, __NV_E4M3);
}

__device__ static inline uint32_t mr_e4m3_four(float a, float b, float c, float d)
{
    return mr_e4m3_pair(a, b) | mr_e4m3_pair(c, d) << 16;
}

/* A code as the type of an element. */
struct mr_code_e4m3 {
    uint8_t code;
};

__device__ static inline float mr_to_float(mr_code_e4m3 x)
{
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(x.code, __NV_E4M3)));
}

/* The scale of a row with this largest magnitude, and its inverse. So small a row that the inverse
 * would overflow is nought. */
__device__ static inline float mr_e4m3_scale(float largest, float fixed, float *inverse)
{
    if (fixed > 0.0f) {
        *inverse = 1.0f / fixed;
        return fixed;
    }
    const bool nought = largest < 1e-30f;
    *inverse = nought ? 0.0f : MR_E4M3_MAX / largest;
    return nought ? 0.0f : largest / MR_E4M3_MAX;
}

/*
 * Codes in the high bytes of two halves become numbers: sign, exponent and mantissa move to their
 * places, and a product by a power of two, which is exact, makes up for the other bias and for the
 * denormal numbers. The code of NaN becomes 480.
 */
template <typename T> struct mr_e4m3_pairs;
template <> struct mr_e4m3_pairs<__half> {
    __device__ static uint32_t widen(uint32_t x)
    {
        const uint32_t bits = (x & 0x80008000u) | (x >> 1 & 0x3f803f80u);
        const __half2 y = __hmul2(*reinterpret_cast<const __half2 *>(&bits),
                                  __halves2half2(__float2half(256.0f), __float2half(256.0f)));
        return *reinterpret_cast<const uint32_t *>(&y);
    }
};
template <> struct mr_e4m3_pairs<__nv_bfloat16> {
    __device__ static uint32_t widen(uint32_t x)
    {
        const uint32_t bits = (x & 0x80008000u) | (x >> 4 & 0x07f007f0u);
        /* 2^120 */
        const __nv_bfloat162 y = __hmul2(*reinterpret_cast<const __nv_bfloat162 *>(&bits),
                                         __floats2bfloat162_rn(0x1p120f, 0x1p120f));
        return *reinterpret_cast<const uint32_t *>(&y);
    }
};

/* Four codes of a word as pairs in order: (0, 1), (2, 3). */
template <typename T>
__device__ static inline void mr_e4m3_widen(uint32_t word, uint32_t &low, uint32_t &high)
{
    low = mr_e4m3_pairs<T>::widen(__byte_perm(word, 0, 0x1404));
    high = mr_e4m3_pairs<T>::widen(__byte_perm(word, 0, 0x3424));
}

/* Four codes of a word as halves, in order; a NaN stays one from sm_89 on. */
__device__ static inline void mr_e4m3_halves(uint32_t word, uint32_t &low, uint32_t &high)
{
#if __CUDA_ARCH__ >= 890
    asm("{\n"
        ".reg .b16 lo, hi;\n"
        "mov.b32 {lo, hi}, %2;\n"
        "cvt.rn.f16x2.e4m3x2 %0, lo;\n"
        "cvt.rn.f16x2.e4m3x2 %1, hi;\n"
        "}\n"
        : "=r"(low), "=r"(high)
        : "r"(word));
#else
    mr_e4m3_widen<__half>(word, low, high);
#endif
}

#endif
