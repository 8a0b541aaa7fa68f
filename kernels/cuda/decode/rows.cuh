/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of a product on their way into shared memory. */
#ifndef MILLRACE_KERNELS_CUDA_DECODE_ROWS_CUH
#define MILLRACE_KERNELS_CUDA_DECODE_ROWS_CUH

#include "kernels/cuda/decode/state.cuh"

/* Rows start 16 banks apart: two of them are read at once. */
__host__ __device__ static inline uint32_t mr_pitch_of(uint32_t k)
{
    return (k * 2 + 127) / 128 * 128 + 64;
}

/* Rows [rows][k] of memory on their way. `map`: which of them is row r; null: r. */
__device__ static inline void mr_copy_rows(const mr_decode_args &a, mr_decode_state &st,
                                           mr_cuda_ptr from, const uint32_t *map, uint32_t k)
{
    st.pitch = mr_pitch_of(k);
    const uint32_t vectors = k / 8;
    /* Row and place of the next vector of a thread, without a division each. */
    const uint32_t rows_on = MR_DECODE_TAKERS / vectors;
    const uint32_t on = MR_DECODE_TAKERS % vectors;
    uint32_t row = threadIdx.x / vectors;
    uint32_t at = threadIdx.x % vectors;
    while (row < a.p.rows) {
        const size_t line = map != nullptr ? map[row] : row;
        mr_copy16(st.act_at + row * st.pitch + at * 16,
                  mr_at<const uint4>(from) + line * vectors + at, true);
        row += rows_on;
        at += on;
        if (at >= vectors) {
            at -= vectors;
            row++;
        }
    }
    mr_commit();
}

__device__ static inline void mr_stage_rows(const mr_decode_args &a, mr_decode_state &st,
                                            mr_cuda_ptr from, const uint32_t *map, uint32_t k)
{
    mr_copy_rows(a, st, from, map, k);
    mr_wait_copies<0>();
    mr_meet_block();
}

/* ---- norms ---- */

/* A norm's sum of squares comes in parts of 16 columns, by whoever has them. What is rounded before
 * the scale is known has room in BF16; F16 gets some by a power of two. */
template <typename T> __device__ static inline float mr_norm_room();
template <> __device__ inline float mr_norm_room<__half>()
{
    return 0x1p-5f;
}
template <> __device__ inline float mr_norm_room<__nv_bfloat16>()
{
    return 1.0f;
}

/* One element of the stream, for the norm to come. The 16 lanes of a tile's columns are here. */
template <typename T>
__device__ static inline void mr_put_for_norm(const mr_decode_args &a, uint32_t row,
                                              uint32_t output, float x, float gain)
{
    const uint32_t lanes = 0xffffu << (threadIdx.x & 16);
    mr_at<T>(a.p.normed)[static_cast<size_t>(row) * a.p.width + output] =
        mr_from_float<T>(x * gain * mr_norm_room<T>());
    float squares = x * x;
#pragma unroll
    for (int d = 8; d > 0; d /= 2) {
        squares += __shfl_xor_sync(lanes, squares, d);
    }
    if (threadIdx.x % MR_DECODE_TILE == 0) {
        mr_at<float>(
            a.p.squares)[(static_cast<size_t>(row) * a.p.width + output) / MR_DECODE_TILE] =
            squares;
    }
}

/* The scales of a norm's rows, of which a warp has every eighth: the sums of all its rows are on
 * their way together. */
template <typename T, int NT>
__device__ static inline void mr_scale_normed(const mr_decode_args &a, const mr_decode_state &st)
{
    const uint32_t first = threadIdx.x / 32;
    const uint32_t parts = a.p.width / MR_DECODE_TILE;
    const float *squares = mr_at<const float>(a.p.squares) + static_cast<size_t>(first) * parts;
    float sum[NT] = {};
    for (uint32_t i = threadIdx.x % 32; i < parts; i += 32) {
#pragma unroll
        for (int n = 0; n < NT; n++) {
            sum[n] += first + n * MR_DECODE_WARPS < a.p.rows
                          ? __ldcg(squares + n * MR_DECODE_WARPS * parts + i)
                          : 0.0f;
        }
    }
#pragma unroll
    for (int n = 0; n < NT; n++) {
        sum[n] = mr_warp_sum(sum[n]);
    }
#pragma unroll
    for (int n = 0; n < NT; n++) {
        const uint32_t row = first + n * MR_DECODE_WARPS;
        if (threadIdx.x % 32 == 0 && row < a.p.rows) {
            st.scales[row] = 1.0f / sqrtf(sum[n] / static_cast<float>(a.p.width) + a.p.epsilon) /
                             mr_norm_room<T>();
        }
    }
}

/* The rows of a norm into shared memory, and their scales. */
template <typename T, int NT>
__device__ static inline void mr_stage_normed(const mr_decode_args &a, mr_decode_state &st)
{
    static_assert(MR_DECODE_WARPS == 8, "a warp has NT rows of NT times 8");
    mr_copy_rows(a, st, a.p.normed, nullptr, a.p.width);
    mr_scale_normed<T, NT>(a, st);
    mr_wait_copies<0>();
    mr_meet_block();
}

/* This block's columns of the stream, and their part of the first norm. */
template <typename T>
__device__ static inline void mr_load_own(const mr_decode_args &a, const mr_decode_state &st,
                                          const mr_share &s)
{
    const uint32_t width = (s.end - s.begin) * MR_DECODE_TILE;
    const float *gain =
        mr_at<const float>(mr_at<const mr_cuda_decode_layer>(a.p.layers)->attention_gain);
    for (uint32_t i = threadIdx.x; i < width * a.p.rows; i += MR_DECODE_TAKERS) {
        const uint32_t row = i / width;
        const uint32_t output = s.begin * MR_DECODE_TILE + i % width;
        const float x =
            __ldcg(mr_at<const float>(a.p.stream) + static_cast<size_t>(row) * a.p.width + output);
        st.own[row * a.own_width + i % width] = x;
        mr_put_for_norm<T>(a, row, output, x, gain[output]);
    }
}

#endif
