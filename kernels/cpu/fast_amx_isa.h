/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tile instructions that fast_amx.c uses: eight registers of up to 16 rows × 64 bytes. With
 * MR_AMX_EMULATED they are functions that do what the processor's manual says of each, so that the
 * kernels over them are tested on machines with AVX-512 but without the instructions.
 *
 *   int8   C[m][n] += Σ over k of A[m][4k + i] · B[k][4n + i], i = 0 … 3; exact in int32
 *   bf16   C[m][n] += Σ over k of A[m][2k] · B[k][2n] + Σ over k of A[m][2k + 1] · B[k][2n + 1]
 *          in float32: each sum is a chain of fused multiply-adds along k; to nearest even, and
 *          what is denormal is 0
 *
 * The tile numbers are literals: an instruction has them in its code.
 */
#ifndef MILLRACE_KERNELS_CPU_FAST_AMX_ISA_H
#define MILLRACE_KERNELS_CPU_FAST_AMX_ISA_H

#include "kernels/cpu/fast_inline.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MR_AMX_ROWS = 16, MR_AMX_ROW_BYTES = 64, MR_AMX_TILES = 8 };

/* What ldtilecfg reads. */
typedef struct mr_amx_config {
    uint8_t palette; /* 1 */
    uint8_t start_row;
    uint8_t reserved[14];
    uint16_t row_bytes[16]; /* of each tile; those after the eighth are 0 */
    uint8_t rows[16];
} mr_amx_config;

#ifdef MR_AMX_EMULATED

#include <immintrin.h>
#include <string.h>

static _Thread_local struct {
    mr_amx_config config;
    uint8_t bytes[MR_AMX_TILES][MR_AMX_ROWS][MR_AMX_ROW_BYTES];
} mr_amx;

MR_SIMD void mr_amx_configure(const mr_amx_config *config)
{
    memset(&mr_amx, 0, sizeof(mr_amx));
    mr_amx.config = *config;
}
MR_SIMD void mr_amx_release(void)
{
    memset(&mr_amx, 0, sizeof(mr_amx));
}
static inline void mr_amx_zero(int tile)
{
    memset(mr_amx.bytes[tile], 0, sizeof(mr_amx.bytes[tile]));
}
static inline void mr_amx_load(int tile, const void *from, size_t stride)
{
    mr_amx_zero(tile);
    for (int r = 0; r < mr_amx.config.rows[tile]; r++) {
        memcpy(mr_amx.bytes[tile][r], (const uint8_t *)from + r * stride,
               mr_amx.config.row_bytes[tile]);
    }
}
static inline void mr_amx_store(int tile, void *to, size_t stride)
{
    for (int r = 0; r < mr_amx.config.rows[tile]; r++) {
        memcpy((uint8_t *)to + r * stride, mr_amx.bytes[tile][r], mr_amx.config.row_bytes[tile]);
    }
}
/* Row `row` of a tile. */
static inline __m512i mr_amx_row(int tile, int row)
{
    return _mm512_loadu_si512(mr_amx.bytes[tile][row]);
}
static inline void mr_amx_dot_int8(int c, int a, int b, bool b_signed)
{
    for (int m = 0; m < mr_amx.config.rows[c]; m++) {
        __m512i sum = mr_amx_row(c, m);
        for (int k = 0; k < mr_amx.config.row_bytes[a]; k++) {
            /* Byte k % 4 of each lane, moved to its top and down again. */
            const __m128i up = _mm_cvtsi32_si128(24 - 8 * (k % 4));
            const __m512i top = _mm512_sll_epi32(mr_amx_row(b, k / 4), up);
            const __m512i factor =
                b_signed ? _mm512_srai_epi32(top, 24) : _mm512_srli_epi32(top, 24);
            const __m512i x = _mm512_set1_epi32((int8_t)mr_amx.bytes[a][m][k]);
            sum = _mm512_add_epi32(sum, _mm512_mullo_epi32(x, factor));
        }
        _mm512_storeu_si512(mr_amx.bytes[c][m], sum);
    }
}
/* 0 of the same sign where x is denormal. */
static inline __m512 mr_amx_flushed(__m512 x)
{
    const __m512i bits = _mm512_castps_si512(x);
    const __mmask16 small = _mm512_testn_epi32_mask(bits, _mm512_set1_epi32(0x7f800000));
    return _mm512_castsi512_ps(
        _mm512_mask_and_epi32(bits, small, bits, _mm512_set1_epi32(INT32_MIN)));
}
/* The lower (0) or upper (1) bf16 of each lane. */
static inline __m512 mr_amx_bf16(__m512i pairs, int which)
{
    const __m512i bits = which == 0 ? _mm512_slli_epi32(pairs, 16)
                                    : _mm512_and_si512(pairs, _mm512_set1_epi32(-0x10000));
    return mr_amx_flushed(_mm512_castsi512_ps(bits));
}
static inline void mr_amx_dot_bf16(int c, int a, int b)
{
    for (int m = 0; m < mr_amx.config.rows[c]; m++) {
        __m512 sums[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
        for (int k = 0; k < mr_amx.config.row_bytes[a] / 2; k++) {
            int32_t pair;
            memcpy(&pair, &mr_amx.bytes[a][m][k / 2 * 4], sizeof(pair));
            const __m512 x = mr_amx_bf16(_mm512_set1_epi32(pair), k % 2);
            const __m512 y = mr_amx_bf16(mr_amx_row(b, k / 2), k % 2);
            sums[k % 2] = mr_amx_flushed(_mm512_fmadd_ps(x, y, sums[k % 2]));
        }
        const __m512 both = mr_amx_flushed(_mm512_add_ps(sums[0], sums[1]));
        const __m512 sum = mr_amx_flushed(_mm512_castsi512_ps(mr_amx_row(c, m)));
        _mm512_storeu_ps(mr_amx.bytes[c][m], mr_amx_flushed(_mm512_add_ps(sum, both)));
    }
}
#define mr_amx_dot_signed(c, a, b)   mr_amx_dot_int8(c, a, b, true)
#define mr_amx_dot_unsigned(c, a, b) mr_amx_dot_int8(c, a, b, false)

#else

/* The compilers' own functions do not tell that a load reads memory: what was written before may
 * not have been yet. */
#define mr_amx_configure(config) __asm__ volatile("ldtilecfg %0" : : "m"(*(config)))
#define mr_amx_release()         __asm__ volatile("tilerelease")
#define mr_amx_zero(tile)        __asm__ volatile("tilezero %%tmm" #tile : :)
#define mr_amx_load(tile, from, stride)                                                            \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile                                            \
                     :                                                                             \
                     : "r"((const void *)(from)), "r"((size_t)(stride))                            \
                     : "memory")
#define mr_amx_store(tile, to, stride)                                                             \
    __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)"                                        \
                     :                                                                             \
                     : "r"((void *)(to)), "r"((size_t)(stride))                                    \
                     : "memory")
/* A is signed in both, B signed or not. */
#define mr_amx_dot_signed(c, a, b)                                                                 \
    __asm__ volatile("tdpbssd %%tmm" #b ", %%tmm" #a ", %%tmm" #c : :)
#define mr_amx_dot_unsigned(c, a, b)                                                               \
    __asm__ volatile("tdpbsud %%tmm" #b ", %%tmm" #a ", %%tmm" #c : :)
#define mr_amx_dot_bf16(c, a, b)                                                                   \
    __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c : :)

#endif

#endif
