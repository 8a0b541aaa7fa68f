/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AVX-512 BF16: weights in bf16 are multiplied with activations rounded to bf16, two inputs of 16
 * outputs an instruction, one pair of inputs after the other. All else is as on AVX-512 VNNI.
 */
#include "kernels/cpu/fast_avx512bf16.h"

#include "base/cpu.h"
#include "kernels/cpu/fast_bf16_isa.h"
#include "kernels/cpu/fast_simd_avx512.h"

#include "kernels/cpu/fast_kernels_impl.h"
#include "kernels/cpu/fast_tiles_impl.h"

enum { HALVES = 2, HALF = 16, MAX_ROWS = 6 };

bool mr_fast_avx512bf16_ready(void)
{
#ifdef MR_BF16_EMULATED
    return mr_cpu_detect().avx512_vnni;
#else
    return mr_cpu_detect().avx512_bf16;
#endif
}

/* Some rows from `row`; their number is a constant where this is expanded. */
MR_SIMD void mr_pairs_tile(uint32_t rows, const mr_fast_linear *job, uint32_t row)
{
    const size_t k = mr_fast_half_width(job->k);
    const uint16_t *x = job->x_half + row * k;
    const uint8_t *pair = job->strip;
    mr_vec sum[HALVES][MAX_ROWS];
#pragma GCC unroll 8
    for (uint32_t r = 0; r < rows; r++) {
        sum[0][r] = mr_vec_set(0.0f);
        sum[1][r] = mr_vec_set(0.0f);
    }
    for (size_t i = 0; i < k; i += 2, pair += MR_FAST_STRIP * sizeof(uint32_t)) {
        const __m512i w[HALVES] = {_mm512_loadu_si512(pair), _mm512_loadu_si512(pair + 64)};
#pragma GCC unroll 8
        for (uint32_t r = 0; r < rows; r++) {
            int32_t both;
            memcpy(&both, x + r * k + i, sizeof(both));
            const __m512i activations = _mm512_set1_epi32(both);
            sum[0][r] = mr_bf16_dot(sum[0][r], w[0], activations);
            sum[1][r] = mr_bf16_dot(sum[1][r], w[1], activations);
        }
    }
    float *out = job->out + row * job->out_stride;
#pragma GCC unroll 8
    for (uint32_t half = 0; half < HALVES; half++) {
        const uint32_t lanes = mr_tile_lanes(job->n, half);
#pragma GCC unroll 8
        for (uint32_t r = 0; r < rows; r++) {
            mr_vec v = sum[half][r];
            if (job->bias != NULL) {
                v = mr_vec_add(v, mr_vec_load_part(job->bias + HALF * half, lanes));
            }
            mr_vec_store_part(out + r * job->out_stride + HALF * half, v, lanes);
        }
    }
}

static void linear_pairs(const mr_fast_linear *job)
{
    for (uint32_t row = 0; row < job->rows;) {
        const uint32_t left = job->rows - row;
        if (left >= MAX_ROWS) {
            mr_pairs_tile(MAX_ROWS, job, row);
            row += MAX_ROWS;
        } else if (left >= 3) {
            mr_pairs_tile(3, job, row);
            row += 3;
        } else {
            mr_pairs_tile(1, job, row);
            row++;
        }
    }
}

static void linear(const mr_fast_linear *job)
{
    if (job->layout == MR_FAST_BF16_PAIRS) {
        linear_pairs(job);
    } else if (mr_fast_is_quantised(job->layout)) {
        mr_fast_kernels_avx512.linear(job);
    } else {
        mr_impl_linear_float(job);
    }
}

static uint64_t burst(uint32_t rounds, uint32_t *sink)
{
    return mr_fast_kernels_avx512.burst(rounds, sink);
}

const mr_fast_kernels mr_fast_kernels_avx512bf16 = MR_FAST_KERNELS(linear, burst);
