/* SPDX-License-Identifier: Apache-2.0 */
/* Split attention on the matrix units, as one warp does it: the query heads that share a key/value
 * head are the 16 rows of a product. */
#ifndef MILLRACE_KERNELS_CUDA_DECODE_PACKED_CUH
#define MILLRACE_KERNELS_CUDA_DECODE_PACKED_CUH

#include "kernels/cuda/attention/split.cuh"
#include "kernels/cuda/device/mma.cuh"

#define MR_PACKED_WARPS 8
#define MR_PACKED_KEYS  32 /* of a warp */
#define MR_PACKED_HEADS 16 /* rows of a product */

static_assert(MR_PACKED_WARPS * MR_PACKED_KEYS == MR_CUDA_SPLIT_KEYS, "the warps share a split");

/* Queries of up to 16 heads as A operands: lo of rows g, hi of rows g + 8. */
template <int D> struct mr_packed_queries {
    uint4 lo[D / 32];
    uint4 hi[D / 32];
};

/* What a thread has of its two rows (heads g and g + 8). */
struct mr_packed_rows {
    float max[2];
    float sum[2];
};

template <typename T, int D>
__device__ static inline void mr_score_keys(const mr_packed_queries<D> &q,
                                            const uint4 (&keys)[MR_PACKED_KEYS / 8][D / 32],
                                            float (&s)[MR_PACKED_KEYS / 8][4])
{
#pragma unroll
    for (int n = 0; n < MR_PACKED_KEYS / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            s[n][i] = 0.0f;
        }
#pragma unroll
        for (int c = 0; c < D / 32; c++) {
            mr_matrix<T>::multiply(s[n], q.lo[c].x, q.hi[c].x, q.lo[c].y, q.hi[c].y, keys[n][c].x,
                                   keys[n][c].y);
            mr_matrix<T>::multiply(s[n], q.lo[c].z, q.hi[c].z, q.lo[c].w, q.hi[c].w, keys[n][c].z,
                                   keys[n][c].w);
        }
    }
}

/* Scores of keys `first` … become probabilities, relative to the warp's own maximum. */
__device__ static inline void mr_weigh(float scale, float soft_cap, const mr_split_range &range,
                                       uint32_t first, float (&s)[MR_PACKED_KEYS / 8][4],
                                       mr_packed_rows &rows)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        rows.max[h] = -CUDART_INF_F;
        rows.sum[h] = 0.0f;
    }
#pragma unroll
    for (int n = 0; n < MR_PACKED_KEYS / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t key = first + n * 8 + threadIdx.x % 4 * 2 + i % 2;
            float x = s[n][i] * scale;
            x = soft_cap > 0.0f ? soft_cap * tanhf(x / soft_cap) : x;
            s[n][i] = key >= range.begin && key < range.end ? x * MR_LOG2E : -CUDART_INF_F;
            rows.max[i / 2] = fmaxf(rows.max[i / 2], s[n][i]);
        }
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        rows.max[h] = fmaxf(rows.max[h], __shfl_xor_sync(0xffffffffu, rows.max[h], 1));
        rows.max[h] = fmaxf(rows.max[h], __shfl_xor_sync(0xffffffffu, rows.max[h], 2));
    }
#pragma unroll
    for (int n = 0; n < MR_PACKED_KEYS / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float max = rows.max[i / 2];
            s[n][i] = max == -CUDART_INF_F ? 0.0f : mr_exp2(s[n][i] - max);
            rows.sum[i / 2] += s[n][i];
        }
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        rows.sum[h] += __shfl_xor_sync(0xffffffffu, rows.sum[h], 1);
        rows.sum[h] += __shfl_xor_sync(0xffffffffu, rows.sum[h], 2);
    }
}

template <typename T, int D>
__device__ static inline void mr_sum_values(const float (&s)[MR_PACKED_KEYS / 8][4],
                                            uint32_t values, float (&out)[D / 8][4])
{
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < MR_PACKED_KEYS / 16; k++) {
        const uint32_t a0 = mr_matrix<T>::pack(s[2 * k][0], s[2 * k][1]);
        const uint32_t a1 = mr_matrix<T>::pack(s[2 * k][2], s[2 * k][3]);
        const uint32_t a2 = mr_matrix<T>::pack(s[2 * k + 1][0], s[2 * k + 1][1]);
        const uint32_t a3 = mr_matrix<T>::pack(s[2 * k + 1][2], s[2 * k + 1][3]);
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
            uint32_t b[4];
            mr_load_matrices<true>(values + mr_swizzled<D>(k * 16 + lane % 16, n * 2 + lane / 16),
                                   b);
            mr_matrix<T>::multiply(out[2 * n], a0, a1, a2, a3, b[0], b[1]);
            mr_matrix<T>::multiply(out[2 * n + 1], a0, a1, a2, a3, b[2], b[3]);
        }
    }
}

/* The warp's sums into shared memory: [heads][D] numerators, maximum, sum. */
template <int D>
__device__ static inline void mr_share_sums(float *to, uint32_t heads, const mr_packed_rows &rows,
                                            const float (&out)[D / 8][4])
{
    const uint32_t group = threadIdx.x % 32 / 4;
    const uint32_t quad = threadIdx.x % 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint32_t row = group + h * 8;
        if (row >= heads) {
            continue;
        }
        float *line = to + row * (D + 2);
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            line[n * 8 + quad * 2] = out[n][2 * h];
            line[n * 8 + quad * 2 + 1] = out[n][2 * h + 1];
        }
        if (quad == 0) {
            line[D] = rows.max[h];
            line[D + 1] = rows.sum[h];
        }
    }
}

#endif
