/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one instruction of AVX-512 BF16 that fast_avx512bf16.c uses, or with MR_BF16_EMULATED a C
 * function that does what the processor's manual says of it: in each lane of 32 bits the product
 * of the upper halves is added first and then that of the lower ones, fused, to nearest even; what
 * is denormal is 0.
 */
#ifndef MILLRACE_KERNELS_CPU_FAST_BF16_ISA_H
#define MILLRACE_KERNELS_CPU_FAST_BF16_ISA_H

#include "kernels/cpu/fast_inline.h"

#include <immintrin.h>
#include <stdint.h>

#ifdef MR_BF16_EMULATED

#include <math.h>
#include <string.h>

static inline float mr_bf16_flushed(float x)
{
    return fpclassify(x) == FP_SUBNORMAL ? copysignf(0.0f, x) : x;
}
static inline float mr_bf16_of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof(x));
    return mr_bf16_flushed(x);
}
static inline __m512 mr_bf16_dot(__m512 sum, __m512i a, __m512i b)
{
    float sums[16];
    uint32_t x[16];
    uint32_t y[16];
    memcpy(sums, &sum, sizeof(sums));
    memcpy(x, &a, sizeof(x));
    memcpy(y, &b, sizeof(y));
    for (int i = 0; i < 16; i++) {
        const uint32_t high = 0xffff0000u;
        float s = mr_bf16_flushed(sums[i]);
        s = fmaf(mr_bf16_of_bits(x[i] & high), mr_bf16_of_bits(y[i] & high), s);
        s = mr_bf16_flushed(s);
        s = fmaf(mr_bf16_of_bits(x[i] << 16), mr_bf16_of_bits(y[i] << 16), s);
        sums[i] = mr_bf16_flushed(s);
    }
    memcpy(&sum, sums, sizeof(sums));
    return sum;
}

#else

MR_SIMD __m512 mr_bf16_dot(__m512 sum, __m512i a, __m512i b)
{
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}

#endif

#endif
