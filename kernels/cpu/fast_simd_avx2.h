/* SPDX-License-Identifier: Apache-2.0 */
/* Vectors of 16 floats for fast_kernels_impl.h: AVX2, FMA and F16C, two registers each. What each
 * function does is said in fast_simd_avx512.h. */
#ifndef MILLRACE_KERNELS_CPU_FAST_SIMD_AVX2_H
#define MILLRACE_KERNELS_CPU_FAST_SIMD_AVX2_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "kernels/cpu/fast_inline.h"
#define MR_TILE_ROWS 3
#define MR_TILE_VECS 2

typedef struct mr_vec {
    __m256 lo, hi;
} mr_vec;

MR_SIMD mr_vec mr_vec_set(float x)
{
    return (mr_vec){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
MR_SIMD mr_vec mr_vec_load(const float *from)
{
    return (mr_vec){_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)};
}
MR_SIMD void mr_vec_store(float *to, mr_vec v)
{
    _mm256_storeu_ps(to, v.lo);
    _mm256_storeu_ps(to + 8, v.hi);
}
MR_SIMD mr_vec mr_vec_load_part(const float *from, uint32_t n)
{
    float lanes[16] = {0};
    if (n == 16) {
        return mr_vec_load(from);
    }
    memcpy(lanes, from, n * sizeof(float));
    return mr_vec_load(lanes);
}
MR_SIMD void mr_vec_store_part(float *to, mr_vec v, uint32_t n)
{
    float lanes[16];
    if (n == 16) {
        mr_vec_store(to, v);
        return;
    }
    mr_vec_store(lanes, v);
    memcpy(to, lanes, n * sizeof(float));
}
MR_SIMD mr_vec mr_vec_add(mr_vec a, mr_vec b)
{
    return (mr_vec){_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
MR_SIMD mr_vec mr_vec_sub(mr_vec a, mr_vec b)
{
    return (mr_vec){_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
MR_SIMD mr_vec mr_vec_mul(mr_vec a, mr_vec b)
{
    return (mr_vec){_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
MR_SIMD mr_vec mr_vec_div(mr_vec a, mr_vec b)
{
    return (mr_vec){_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
MR_SIMD mr_vec mr_vec_fma(mr_vec a, mr_vec b, mr_vec c)
{
    return (mr_vec){_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
MR_SIMD mr_vec mr_vec_max(mr_vec a, mr_vec b)
{
    return (mr_vec){_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
MR_SIMD mr_vec mr_vec_min(mr_vec a, mr_vec b)
{
    return (mr_vec){_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}
MR_SIMD mr_vec mr_vec_round(mr_vec v)
{
    return (mr_vec){_mm256_round_ps(v.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
                    _mm256_round_ps(v.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
MR_SIMD mr_vec mr_vec_floor(mr_vec v)
{
    return (mr_vec){_mm256_floor_ps(v.lo), _mm256_floor_ps(v.hi)};
}
MR_SIMD __m256 mr_half_pow2(__m256 n)
{
    __m256i bits = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 23));
}
MR_SIMD mr_vec mr_vec_pow2(mr_vec n)
{
    return (mr_vec){mr_half_pow2(n.lo), mr_half_pow2(n.hi)};
}
MR_SIMD mr_vec mr_vec_zero_below(mr_vec v, mr_vec x, mr_vec limit)
{
    return (mr_vec){_mm256_and_ps(v.lo, _mm256_cmp_ps(x.lo, limit.lo, _CMP_NLT_UQ)),
                    _mm256_and_ps(v.hi, _mm256_cmp_ps(x.hi, limit.hi, _CMP_NLT_UQ))};
}
MR_SIMD mr_vec mr_vec_window(mr_vec v, uint32_t begin, uint32_t end, mr_vec fill)
{
    float inside[16];
    float lanes[16];
    mr_vec_store(inside, v);
    mr_vec_store(lanes, fill);
    for (uint32_t i = begin; i < end; i++) {
        lanes[i] = inside[i];
    }
    return mr_vec_load(lanes);
}
MR_SIMD __m256 mr_half_magnitude(__m256 a, __m256 b)
{
    __m256i bits = _mm256_and_si256(_mm256_castps_si256(b), _mm256_set1_epi32(INT32_MAX));
    return _mm256_castsi256_ps(_mm256_max_epi32(_mm256_castps_si256(a), bits));
}
MR_SIMD mr_vec mr_vec_magnitude(mr_vec a, mr_vec b)
{
    return (mr_vec){mr_half_magnitude(a.lo, b.lo), mr_half_magnitude(a.hi, b.hi)};
}
MR_SIMD float mr_vec_reduce_magnitude(mr_vec v)
{
    __m256i a = _mm256_castps_si256(mr_half_magnitude(v.lo, v.hi));
    __m128i b = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    b = _mm_max_epi32(b, _mm_shuffle_epi32(b, 0x4e));
    b = _mm_max_epi32(b, _mm_shuffle_epi32(b, 0xb1));
    return _mm_cvtss_f32(_mm_castsi128_ps(b));
}
MR_SIMD float mr_vec_reduce_max(mr_vec v)
{
    __m256 a = _mm256_max_ps(v.lo, v.hi);
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}
MR_SIMD float mr_vec_reduce_add(mr_vec v)
{
    __m256 a = _mm256_add_ps(v.lo, v.hi);
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}
MR_SIMD mr_vec mr_vec_load_f16(const uint16_t *from)
{
    return (mr_vec){_mm256_cvtph_ps(_mm_loadu_si128((const void *)from)),
                    _mm256_cvtph_ps(_mm_loadu_si128((const void *)(from + 8)))};
}
MR_SIMD void mr_vec_store_f16(uint16_t *to, mr_vec v)
{
    _mm_storeu_si128((void *)to, _mm256_cvtps_ph(v.lo, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((void *)(to + 8), _mm256_cvtps_ph(v.hi, _MM_FROUND_TO_NEAREST_INT));
}
MR_SIMD __m256 mr_half_load_bf16(const uint16_t *from)
{
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)from));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
MR_SIMD mr_vec mr_vec_load_bf16(const uint16_t *from)
{
    return (mr_vec){mr_half_load_bf16(from), mr_half_load_bf16(from + 8)};
}
MR_SIMD __m256i mr_half_to_bf16(__m256 v)
{
    __m256i bits = _mm256_castps_si256(v);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
}
MR_SIMD void mr_vec_store_bf16(uint16_t *to, mr_vec v)
{
    __m256i both = _mm256_packus_epi32(mr_half_to_bf16(v.lo), mr_half_to_bf16(v.hi));
    _mm256_storeu_si256((void *)to, _mm256_permute4x64_epi64(both, 0xd8));
}
MR_SIMD __m256 mr_half_load_int8(const int8_t *from)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)from)));
}
MR_SIMD mr_vec mr_vec_load_int8(const int8_t *from)
{
    return (mr_vec){mr_half_load_int8(from), mr_half_load_int8(from + 8)};
}
MR_SIMD __m256i mr_half_words(mr_vec v)
{
    __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(v.lo), _mm256_cvtps_epi32(v.hi));
    return _mm256_permute4x64_epi64(words, 0xd8);
}
MR_SIMD int32_t mr_vec_store_codes(int8_t *to, mr_vec lo, mr_vec hi, int32_t *low_sum)
{
    __m256i lo_words = mr_half_words(lo);
    __m256i hi_words = mr_half_words(hi);
    __m256i codes = _mm256_permute4x64_epi64(_mm256_packs_epi16(lo_words, hi_words), 0xd8);
    _mm256_storeu_si256((void *)to, codes);
    /* Bytes made unsigned by adding 128 are summed eight at a time. */
    __m256i bytes = _mm256_xor_si256(codes, _mm256_set1_epi8(-128));
    __m256i sums = _mm256_sad_epu8(bytes, _mm256_setzero_si256());
    __m128i low = _mm256_castsi256_si128(sums);
    __m128i high = _mm256_extracti128_si256(sums, 1);
    *low_sum = _mm_cvtsi128_si32(low) + _mm_extract_epi32(low, 2) - 16 * 128;
    return *low_sum + _mm_cvtsi128_si32(high) + _mm_extract_epi32(high, 2) - 16 * 128;
}
MR_SIMD __m256 mr_half_rotate(__m256 v, const float *cos, const float *sin)
{
    const __m256i twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
    __m256 c = _mm256_castps128_ps256(_mm_loadu_ps(cos));
    __m256 s = _mm256_castps128_ps256(_mm_loadu_ps(sin));
    c = _mm256_permutevar8x32_ps(c, twice);
    s = _mm256_permutevar8x32_ps(s, twice);
    return _mm256_fmaddsub_ps(v, c, _mm256_mul_ps(_mm256_permute_ps(v, 0xb1), s));
}
MR_SIMD mr_vec mr_vec_rotate_pairs(mr_vec v, const float *cos, const float *sin)
{
    return (mr_vec){mr_half_rotate(v.lo, cos, sin), mr_half_rotate(v.hi, cos + 4, sin + 4)};
}

#endif
