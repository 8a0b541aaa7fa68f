/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tile instructions that fast_amx.c uses: eight registers of up to 16 rows × 64 bytes. With
 * MR_AMX_EMULATED they are C functions that do what the processor's manual says of each, so that
 * the kernels over them are tested on machines without the instructions.
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

#include <math.h>
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
static inline void mr_amx_dot_int8(int c, int a, int b, bool b_signed)
{
    for (int m = 0; m < mr_amx.config.rows[c]; m++) {
        for (int n = 0; n < mr_amx.config.row_bytes[c] / 4; n++) {
            int32_t sum;
            memcpy(&sum, &mr_amx.bytes[c][m][4 * n], sizeof(sum));
            for (int k = 0; k < mr_amx.config.row_bytes[a]; k++) {
                const uint8_t factor = mr_amx.bytes[b][k / 4][4 * n + k % 4];
                sum += (int8_t)mr_amx.bytes[a][m][k] * (b_signed ? (int8_t)factor : factor);
            }
            memcpy(&mr_amx.bytes[c][m][4 * n], &sum, sizeof(sum));
        }
    }
}
static inline float mr_amx_flushed(float x)
{
    return fpclassify(x) == FP_SUBNORMAL ? copysignf(0.0f, x) : x;
}
/* Number `at` of a row of bf16. */
static inline float mr_amx_bf16(const uint8_t *row, int at)
{
    uint16_t half;
    memcpy(&half, row + 2 * at, sizeof(half));
    const uint32_t bits = (uint32_t)half << 16;
    float x;
    memcpy(&x, &bits, sizeof(x));
    return mr_amx_flushed(x);
}
static inline void mr_amx_dot_bf16(int c, int a, int b)
{
    for (int m = 0; m < mr_amx.config.rows[c]; m++) {
        for (int n = 0; n < mr_amx.config.row_bytes[c] / 4; n++) {
            float sums[2] = {0};
            for (int k = 0; k < mr_amx.config.row_bytes[a] / 2; k++) {
                const float x = mr_amx_bf16(mr_amx.bytes[a][m], k);
                const float y = mr_amx_bf16(mr_amx.bytes[b][k / 2], 2 * n + k % 2);
                sums[k % 2] = mr_amx_flushed(fmaf(x, y, sums[k % 2]));
            }
            float sum;
            memcpy(&sum, &mr_amx.bytes[c][m][4 * n], sizeof(sum));
            sum = mr_amx_flushed(mr_amx_flushed(sum) + mr_amx_flushed(sums[0] + sums[1]));
            memcpy(&mr_amx.bytes[c][m][4 * n], &sum, sizeof(sum));
        }
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
