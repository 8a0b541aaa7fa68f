/* SPDX-License-Identifier: Apache-2.0 */
/* Vectors of 16 floats for fast_kernels_impl.h: AVX-512. */
#ifndef MILLRACE_KERNELS_CPU_FAST_SIMD_AVX512_H
#define MILLRACE_KERNELS_CPU_FAST_SIMD_AVX512_H

#include <immintrin.h>
#include <stdint.h>

#include "kernels/cpu/fast_inline.h"
#define MR_TILE_ROWS 6
#define MR_TILE_VECS 4

typedef __m512 mr_vec;

MR_SIMD __mmask16 mr_vec_lanes(uint32_t n)
{
    return (__mmask16)((1u << n) - 1u);
}
MR_SIMD mr_vec mr_vec_set(float x)
{
    return _mm512_set1_ps(x);
}
MR_SIMD mr_vec mr_vec_load(const float *from)
{
    return _mm512_loadu_ps(from);
}
MR_SIMD void mr_vec_store(float *to, mr_vec v)
{
    _mm512_storeu_ps(to, v);
}
/* The first n lanes, 1 … 16; the others are 0. */
MR_SIMD mr_vec mr_vec_load_part(const float *from, uint32_t n)
{
    return _mm512_maskz_loadu_ps(mr_vec_lanes(n), from);
}
MR_SIMD void mr_vec_store_part(float *to, mr_vec v, uint32_t n)
{
    _mm512_mask_storeu_ps(to, mr_vec_lanes(n), v);
}
MR_SIMD mr_vec mr_vec_add(mr_vec a, mr_vec b)
{
    return _mm512_add_ps(a, b);
}
MR_SIMD mr_vec mr_vec_sub(mr_vec a, mr_vec b)
{
    return _mm512_sub_ps(a, b);
}
MR_SIMD mr_vec mr_vec_mul(mr_vec a, mr_vec b)
{
    return _mm512_mul_ps(a, b);
}
MR_SIMD mr_vec mr_vec_div(mr_vec a, mr_vec b)
{
    return _mm512_div_ps(a, b);
}
/* a · b + c */
MR_SIMD mr_vec mr_vec_fma(mr_vec a, mr_vec b, mr_vec c)
{
    return _mm512_fmadd_ps(a, b, c);
}
/* The greater; b where one of them is a NaN. */
MR_SIMD mr_vec mr_vec_max(mr_vec a, mr_vec b)
{
    return _mm512_max_ps(a, b);
}
MR_SIMD mr_vec mr_vec_min(mr_vec a, mr_vec b)
{
    return _mm512_min_ps(a, b);
}
MR_SIMD mr_vec mr_vec_round(mr_vec v)
{
    return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
MR_SIMD mr_vec mr_vec_floor(mr_vec v)
{
    return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
}
/* 2^n for whole n in −126 … 127. */
MR_SIMD mr_vec mr_vec_pow2(mr_vec n)
{
    __m512i bits = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 23));
}
/* v, but 0 in the lanes where x < limit. */
MR_SIMD mr_vec mr_vec_zero_below(mr_vec v, mr_vec x, mr_vec limit)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, limit, _CMP_NLT_UQ), v);
}
/* v inside lanes [begin, end), `fill` outside. */
MR_SIMD mr_vec mr_vec_window(mr_vec v, uint32_t begin, uint32_t end, mr_vec fill)
{
    __mmask16 inside = (__mmask16)(((1u << end) - 1u) & ~((1u << begin) - 1u));
    return _mm512_mask_mov_ps(fill, inside, v);
}
/* The greater magnitude; a NaN wins, as its bits are the largest. */
MR_SIMD mr_vec mr_vec_magnitude(mr_vec a, mr_vec b)
{
    __m512i bits = _mm512_and_si512(_mm512_castps_si512(b), _mm512_set1_epi32(INT32_MAX));
    return _mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(a), bits));
}
MR_SIMD float mr_vec_reduce_magnitude(mr_vec v)
{
    int32_t bits = _mm512_reduce_max_epi32(_mm512_castps_si512(v));
    return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(bits)));
}
MR_SIMD float mr_vec_reduce_max(mr_vec v)
{
    return _mm512_reduce_max_ps(v);
}
/* Halves folded onto each other: 8, 4, 2, 1. */
MR_SIMD float mr_vec_reduce_add(mr_vec v)
{
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}
MR_SIMD mr_vec mr_vec_load_f16(const uint16_t *from)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)from));
}
MR_SIMD void mr_vec_store_f16(uint16_t *to, mr_vec v)
{
    _mm256_storeu_si256((void *)to, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
MR_SIMD mr_vec mr_vec_load_bf16(const uint16_t *from)
{
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
/* Round to nearest even; a NaN stays one. */
MR_SIMD void mr_vec_store_bf16(uint16_t *to, mr_vec v)
{
    __m512i bits = _mm512_castps_si512(v);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    rounded = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
    _mm256_storeu_si256((void *)to, _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
}
MR_SIMD mr_vec mr_vec_load_int8(const int8_t *from)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)from)));
}
/* Rounds 32 values within −128 … 127 to int8 and gives the sum, and that of the first 16. */
MR_SIMD int32_t mr_vec_store_codes(int8_t *to, mr_vec lo, mr_vec hi, int32_t *low_sum)
{
    __m128i lo_codes = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(lo));
    __m128i hi_codes = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(hi));
    _mm_storeu_si128((void *)to, lo_codes);
    _mm_storeu_si128((void *)(to + 16), hi_codes);
    /* Bytes made unsigned by adding 128 are summed eight at a time. */
    const __m128i sign = _mm_set1_epi8(-128);
    __m128i low = _mm_sad_epu8(_mm_xor_si128(lo_codes, sign), _mm_setzero_si128());
    __m128i high = _mm_sad_epu8(_mm_xor_si128(hi_codes, sign), _mm_setzero_si128());
    *low_sum = _mm_cvtsi128_si32(low) + _mm_extract_epi32(low, 2) - 16 * 128;
    return *low_sum + _mm_cvtsi128_si32(high) + _mm_extract_epi32(high, 2) - 16 * 128;
}
/* Rotates the pairs (2i, 2i + 1) by the angles whose 8 cosines and sines are given. */
MR_SIMD mr_vec mr_vec_rotate_pairs(mr_vec v, const float *cos, const float *sin)
{
    const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    mr_vec c = _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(_mm256_loadu_ps(cos)));
    mr_vec s = _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(_mm256_loadu_ps(sin)));
    mr_vec swapped = _mm512_permute_ps(v, 0xb1);
    return _mm512_fmaddsub_ps(v, c, _mm512_mul_ps(swapped, s));
}

#endif
