/* SPDX-License-Identifier: Apache-2.0 */
/* Vectors of 16 floats for fast_kernels_impl.h: plain C. What each function does is said in
 * fast_simd_avx512.h; a · b + c is rounded twice here. */
#ifndef MILLRACE_KERNELS_CPU_FAST_SIMD_PORTABLE_H
#define MILLRACE_KERNELS_CPU_FAST_SIMD_PORTABLE_H

#include "kernels/dtype.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels/cpu/fast_inline.h"
#define MR_TILE_ROWS 3
#define MR_TILE_VECS 2

typedef struct mr_vec {
    float lane[16];
} mr_vec;

MR_SIMD mr_vec mr_vec_set(float x)
{
    mr_vec out;
    for (uint32_t i = 0; i < 16; i++) {
        out.lane[i] = x;
    }
    return out;
}
MR_SIMD mr_vec mr_vec_load(const float *from)
{
    mr_vec out;
    memcpy(out.lane, from, sizeof(out.lane));
    return out;
}
MR_SIMD void mr_vec_store(float *to, mr_vec v)
{
    memcpy(to, v.lane, sizeof(v.lane));
}
MR_SIMD mr_vec mr_vec_load_part(const float *from, uint32_t n)
{
    mr_vec out = {{0}};
    memcpy(out.lane, from, n * sizeof(float));
    return out;
}
MR_SIMD void mr_vec_store_part(float *to, mr_vec v, uint32_t n)
{
    memcpy(to, v.lane, n * sizeof(float));
}
MR_SIMD mr_vec mr_vec_add(mr_vec a, mr_vec b)
{
    for (uint32_t i = 0; i < 16; i++) {
        a.lane[i] += b.lane[i];
    }
    return a;
}
MR_SIMD mr_vec mr_vec_sub(mr_vec a, mr_vec b)
{
    for (uint32_t i = 0; i < 16; i++) {
        a.lane[i] -= b.lane[i];
    }
    return a;
}
MR_SIMD mr_vec mr_vec_mul(mr_vec a, mr_vec b)
{
    for (uint32_t i = 0; i < 16; i++) {
        a.lane[i] *= b.lane[i];
    }
    return a;
}
MR_SIMD mr_vec mr_vec_div(mr_vec a, mr_vec b)
{
    for (uint32_t i = 0; i < 16; i++) {
        a.lane[i] /= b.lane[i];
    }
    return a;
}
MR_SIMD mr_vec mr_vec_fma(mr_vec a, mr_vec b, mr_vec c)
{
    for (uint32_t i = 0; i < 16; i++) {
        a.lane[i] = a.lane[i] * b.lane[i] + c.lane[i];
    }
    return a;
}
MR_SIMD mr_vec mr_vec_max(mr_vec a, mr_vec b)
{
    for (uint32_t i = 0; i < 16; i++) {
        a.lane[i] = a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i];
    }
    return a;
}
MR_SIMD mr_vec mr_vec_min(mr_vec a, mr_vec b)
{
    for (uint32_t i = 0; i < 16; i++) {
        a.lane[i] = a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i];
    }
    return a;
}
MR_SIMD mr_vec mr_vec_round(mr_vec v)
{
    for (uint32_t i = 0; i < 16; i++) {
        v.lane[i] = rintf(v.lane[i]);
    }
    return v;
}
MR_SIMD mr_vec mr_vec_floor(mr_vec v)
{
    for (uint32_t i = 0; i < 16; i++) {
        v.lane[i] = floorf(v.lane[i]);
    }
    return v;
}
/* The integer that a whole value within ±2^30 is; 0 for a NaN. */
MR_SIMD int32_t mr_lane_int(float x)
{
    return x > -0x1p30f && x < 0x1p30f ? (int32_t)x : 0;
}
MR_SIMD mr_vec mr_vec_pow2(mr_vec n)
{
    for (uint32_t i = 0; i < 16; i++) {
        uint32_t bits = (uint32_t)(mr_lane_int(n.lane[i]) + 127) << 23;
        memcpy(&n.lane[i], &bits, sizeof(bits));
    }
    return n;
}
MR_SIMD mr_vec mr_vec_zero_below(mr_vec v, mr_vec x, mr_vec limit)
{
    for (uint32_t i = 0; i < 16; i++) {
        v.lane[i] = x.lane[i] < limit.lane[i] ? 0.0f : v.lane[i];
    }
    return v;
}
MR_SIMD mr_vec mr_vec_window(mr_vec v, uint32_t begin, uint32_t end, mr_vec fill)
{
    for (uint32_t i = 0; i < 16; i++) {
        v.lane[i] = i >= begin && i < end ? v.lane[i] : fill.lane[i];
    }
    return v;
}
MR_SIMD float mr_lane_magnitude(float a, float b)
{
    uint32_t bits_a;
    uint32_t bits_b;
    memcpy(&bits_a, &a, sizeof(a));
    memcpy(&bits_b, &b, sizeof(b));
    bits_b &= 0x7fffffffu;
    bits_a = bits_a > bits_b ? bits_a : bits_b;
    memcpy(&a, &bits_a, sizeof(a));
    return a;
}
MR_SIMD mr_vec mr_vec_magnitude(mr_vec a, mr_vec b)
{
    for (uint32_t i = 0; i < 16; i++) {
        a.lane[i] = mr_lane_magnitude(a.lane[i], b.lane[i]);
    }
    return a;
}
MR_SIMD float mr_vec_reduce_magnitude(mr_vec v)
{
    float top = 0.0f;
    for (uint32_t i = 0; i < 16; i++) {
        top = mr_lane_magnitude(top, v.lane[i]);
    }
    return top;
}
MR_SIMD float mr_vec_reduce_max(mr_vec v)
{
    float top = v.lane[0];
    for (uint32_t i = 0; i < 16; i++) {
        top = v.lane[i] > top ? v.lane[i] : top;
    }
    return top;
}
MR_SIMD float mr_vec_reduce_add(mr_vec v)
{
    for (uint32_t half = 8; half > 0; half /= 2) {
        for (uint32_t i = 0; i < half; i++) {
            v.lane[i] += v.lane[i + half];
        }
    }
    return v.lane[0];
}
MR_SIMD mr_vec mr_vec_load_f16(const uint16_t *from)
{
    mr_vec out;
    for (uint32_t i = 0; i < 16; i++) {
        out.lane[i] = mr_f16_to_f32(from[i]);
    }
    return out;
}
MR_SIMD void mr_vec_store_f16(uint16_t *to, mr_vec v)
{
    for (uint32_t i = 0; i < 16; i++) {
        to[i] = mr_f32_to_f16(v.lane[i]);
    }
}
MR_SIMD mr_vec mr_vec_load_bf16(const uint16_t *from)
{
    mr_vec out;
    for (uint32_t i = 0; i < 16; i++) {
        uint32_t bits = (uint32_t)from[i] << 16;
        memcpy(&out.lane[i], &bits, sizeof(bits));
    }
    return out;
}
MR_SIMD void mr_vec_store_bf16(uint16_t *to, mr_vec v)
{
    for (uint32_t i = 0; i < 16; i++) {
        to[i] = mr_f32_to_bf16(v.lane[i]);
    }
}
MR_SIMD mr_vec mr_vec_load_int8(const int8_t *from)
{
    mr_vec out;
    for (uint32_t i = 0; i < 16; i++) {
        out.lane[i] = (float)from[i];
    }
    return out;
}
MR_SIMD int32_t mr_vec_store_codes(int8_t *to, mr_vec lo, mr_vec hi, int32_t *low_sum)
{
    int32_t low = 0;
    int32_t high = 0;
    for (uint32_t i = 0; i < 16; i++) {
        to[i] = (int8_t)mr_lane_int(rintf(lo.lane[i]));
        to[16 + i] = (int8_t)mr_lane_int(rintf(hi.lane[i]));
        low += to[i];
        high += to[16 + i];
    }
    *low_sum = low;
    return low + high;
}
MR_SIMD mr_vec mr_vec_rotate_pairs(mr_vec v, const float *cos, const float *sin)
{
    for (uint32_t i = 0; i < 8; i++) {
        float a = v.lane[2 * i];
        float b = v.lane[2 * i + 1];
        v.lane[2 * i] = a * cos[i] - b * sin[i];
        v.lane[2 * i + 1] = a * sin[i] + b * cos[i];
    }
    return v;
}

#endif
