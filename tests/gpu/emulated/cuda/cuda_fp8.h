/* SPDX-License-Identifier: Apache-2.0 */
/* In place of CUDA's header of this name, as cuda_fp16.h is: F8_E4M3, rounded to nearest even, what
 * is too large becomes the largest. */
#ifndef MILLRACE_TESTS_EMULATED_CUDA_FP8_H
#define MILLRACE_TESTS_EMULATED_CUDA_FP8_H

#include <cuda_fp16.h>

enum { __NV_SATFINITE };
enum { __NV_E4M3 };

static inline uint32_t emulated_e4m3(float x)
{
    const uint32_t sign = emulated_bits(x) >> 24 & 0x80u;
    const float magnitude = fabsf(x);
    if (std::isnan(x)) {
        return 0x7f;
    }
    if (magnitude < 0x1p-6f) { /* multiples of 2^-9 */
        return sign | static_cast<uint32_t>(nearbyintf(magnitude * 0x1p9f));
    }
    /* Three bits of mantissa behind the exponent, whose bias is 7. */
    const uint32_t bits = emulated_bits(std::min(magnitude, 448.0f));
    const uint32_t rounded = bits + 0x7ffffu + (bits >> 20 & 1);
    return sign | ((rounded >> 20) - (120u << 3));
}

static inline uint16_t __nv_cvt_float2_to_fp8x2(float2 x, int, int)
{
    return static_cast<uint16_t>(emulated_e4m3(x.x) | emulated_e4m3(x.y) << 8);
}

static inline __half __nv_cvt_fp8_to_halfraw(uint8_t code, int)
{
    const uint32_t exponent = code >> 3 & 15;
    const float mantissa = static_cast<float>(code & 7);
    float x = exponent == 0 ? mantissa * 0x1p-9f
                            : (8.0f + mantissa) * ldexpf(1.0f, static_cast<int>(exponent) - 10);
    x = (code & 0x7f) == 0x7f ? NAN : x;
    return __float2half_rn((code & 0x80) != 0 ? -x : x);
}

#endif
