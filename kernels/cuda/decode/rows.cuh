/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of a product on their way into shared memory. */
#ifndef MILLRACE_KERNELS_CUDA_DECODE_ROWS_CUH
#define MILLRACE_KERNELS_CUDA_DECODE_ROWS_CUH

#include "kernels/cuda/decode/state.cuh"

#define MR_NORM_PARTS   (MR_DECODE_WIDTH / 4 / MR_DECODE_TAKERS)
#define MR_NARROW_PARTS 8 /* of 128 elements */

/* Rows start 16 banks apart: two of them are read at once. */
__host__ __device__ static inline uint32_t mr_pitch_of(uint32_t k)
{
    return (k * 2 + 127) / 128 * 128 + 64;
}

/* `map`: which row of memory is row r; null: r. */
__device__ static inline void mr_stage_rows(const mr_decode_args &a, mr_decode_state &st,
                                            mr_cuda_ptr from, const uint32_t *map, uint32_t k)
{
    st.pitch = mr_pitch_of(k);
    if (MR_SKIPS(4)) {
        return;
    }
    const uint32_t vectors = k / 8;
    for (uint32_t row = 0; row < a.p.rows; row++) {
        const uint4 *line = mr_ptr<const uint4>(from) +
                            static_cast<size_t>(map != nullptr ? map[row] : row) * vectors;
        for (uint32_t i = threadIdx.x; i < vectors; i += MR_DECODE_TAKERS) {
            mr_copy16(st.act_at + row * st.pitch + i * 16, line + i, true);
        }
    }
    mr_commit();
    mr_wait_copies<0>();
    mr_meet_block();
}

/* Gains of the elements that a thread has of each row. */
struct mr_gains {
    float4 v[MR_NARROW_PARTS];
};

/* Streams up to this wide are normalised a warp a row, wider ones by all warps together. */
__device__ static inline bool mr_is_narrow(const mr_decode_args &a)
{
    return a.p.width <= MR_NARROW_PARTS * 128;
}

/* Gains depend on nothing, and are far: asked for before a wait. */
__device__ static inline void mr_load_gains(const mr_decode_args &a, mr_cuda_ptr from, mr_gains &g)
{
    const bool narrow = mr_is_narrow(a);
#pragma unroll
    for (int m = 0; m < MR_NARROW_PARTS; m++) {
        const uint32_t i =
            4 * (narrow ? threadIdx.x % 32 + m * 32 : threadIdx.x + m * MR_DECODE_TAKERS);
        g.v[m] = i < a.p.width && (narrow || m < MR_NORM_PARTS)
                     ? __ldg(reinterpret_cast<const float4 *>(mr_ptr<const float>(from) + i))
                     : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
}

__device__ static inline float mr_squares_of(float4 v)
{
    return v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
}

/* Four elements of a row, normalised, into shared memory. */
template <typename T>
__device__ static inline void mr_put_normed(const mr_decode_state &st, uint32_t row, uint32_t i,
                                            float4 v, float scale, float4 g)
{
    *reinterpret_cast<uint2 *>(st.act + row * st.pitch + i * 2) =
        make_uint2(mr_matrix<T>::pack(v.x * scale * g.x, v.y * scale * g.y),
                   mr_matrix<T>::pack(v.z * scale * g.z, v.w * scale * g.w));
}

/* A row of a narrow stream, as a warp has it. */
struct mr_narrow_row {
    float4 v[MR_NARROW_PARTS];
};

__device__ static inline void mr_load_narrow(const mr_decode_args &a, const mr_decode_state &st,
                                             uint32_t row, mr_narrow_row &x)
{
    const float *stream = mr_ptr<const float>(st.stream) + static_cast<size_t>(row) * a.p.width;
#pragma unroll
    for (int m = 0; m < MR_NARROW_PARTS; m++) {
        const uint32_t i = 4 * (threadIdx.x % 32 + m * 32);
        x.v[m] = row < a.p.rows && i < a.p.width
                     ? __ldcg(reinterpret_cast<const float4 *>(stream + i))
                     : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
}

/* A warp a row, the next row on its way. Sums as if each 128 elements had a warp of their own. */
template <typename T>
__device__ static inline void mr_norm_narrow(const mr_decode_args &a, const mr_decode_state &st,
                                             const mr_gains &g)
{
    const uint32_t width = a.p.width;
    const uint32_t lane = threadIdx.x % 32;
    mr_narrow_row x;
    mr_load_narrow(a, st, threadIdx.x / 32, x);
    for (uint32_t row = threadIdx.x / 32; row < a.p.rows; row += MR_DECODE_WARPS) {
        mr_narrow_row next;
        mr_load_narrow(a, st, row + MR_DECODE_WARPS, next);
        float sums = 0.0f;
#pragma unroll
        for (int m = 0; m < MR_NARROW_PARTS; m++) {
            if (m * 128 < width) {
                const float sum = mr_warp_sum(mr_squares_of(x.v[m]));
                sums = lane == m ? sum : sums;
            }
        }
        const float sum = mr_warp_sum(sums);
        const float scale = 1.0f / sqrtf(sum / static_cast<float>(width) + a.p.epsilon);
#pragma unroll
        for (int m = 0; m < MR_NARROW_PARTS; m++) {
            const uint32_t i = 4 * (lane + m * 32);
            if (i < width) {
                mr_put_normed<T>(st, row, i, x.v[m], scale, g.v[m]);
            }
        }
        x = next;
    }
}

/* Up to MR_DECODE_NORMS rows of the stream. */
struct mr_norm_rows {
    float4 v[MR_DECODE_NORMS][MR_NORM_PARTS];
};

__device__ static inline void mr_load_stream(const mr_decode_args &a, const mr_decode_state &st,
                                             uint32_t first, mr_norm_rows &x)
{
    const float *stream = mr_ptr<const float>(st.stream) + static_cast<size_t>(first) * a.p.width;
#pragma unroll
    for (int r = 0; r < MR_DECODE_NORMS; r++) {
#pragma unroll
        for (int m = 0; m < MR_NORM_PARTS; m++) {
            const uint32_t i = 4 * (threadIdx.x + m * MR_DECODE_TAKERS);
            x.v[r][m] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (first + r < a.p.rows && i < a.p.width) {
                x.v[r][m] = __ldcg(reinterpret_cast<const float4 *>(
                    stream + static_cast<size_t>(r) * a.p.width + i));
            }
        }
    }
}

/* Sums of squares of each row, by warps of four elements a thread as pointwise.cu has them. */
__device__ static inline void mr_sum_squares(const mr_decode_args &a, const mr_decode_state &st,
                                             uint32_t first, uint32_t warps, const mr_norm_rows &x)
{
#pragma unroll
    for (int r = 0; r < MR_DECODE_NORMS; r++) {
#pragma unroll
        for (int m = 0; m < MR_NORM_PARTS; m++) {
            const uint32_t warp = m * MR_DECODE_WARPS + threadIdx.x / 32;
            if (first + r < a.p.rows && warp < warps) {
                const float sum = mr_warp_sum(mr_squares_of(x.v[r][m]));
                if (threadIdx.x % 32 == 0) {
                    st.scratch[r * 32 + warp] = sum;
                }
            }
        }
    }
}

/* All warps on each row, MR_DECODE_NORMS rows at a time. */
template <typename T>
__device__ static inline void mr_norm_wide(const mr_decode_args &a, const mr_decode_state &st,
                                           const mr_gains &g)
{
    const uint32_t width = a.p.width;
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t warps = (width / 4 + 31) / 32;
    for (uint32_t first = 0; first < a.p.rows; first += MR_DECODE_NORMS) {
        mr_norm_rows x;
        mr_load_stream(a, st, first, x);
        if (first > 0) {
            mr_meet_block(); /* the rows before may still be summed */
        }
        mr_sum_squares(a, st, first, warps, x);
        mr_meet_block();
#pragma unroll
        for (int r = 0; r < MR_DECODE_NORMS; r++) {
            if (first + r >= a.p.rows) {
                break;
            }
            const float sum = mr_warp_sum(lane < warps ? st.scratch[r * 32 + lane] : 0.0f);
            const float scale = 1.0f / sqrtf(sum / static_cast<float>(width) + a.p.epsilon);
#pragma unroll
            for (int m = 0; m < MR_NORM_PARTS; m++) {
                const uint32_t i = 4 * (threadIdx.x + m * MR_DECODE_TAKERS);
                if (i < width) {
                    mr_put_normed<T>(st, first + r, i, x.v[r][m], scale, g.v[m]);
                }
            }
        }
    }
}

/* RMS norm of the stream into shared memory. */
template <typename T>
__device__ static inline void mr_norm_stream(const mr_decode_args &a, mr_decode_state &st,
                                             const mr_gains &g)
{
    st.pitch = mr_pitch_of(a.p.width);
    if (MR_SKIPS(4)) {
        return;
    }
    if (mr_is_narrow(a)) {
        mr_norm_narrow<T>(a, st, g);
    } else {
        mr_norm_wide<T>(a, st, g);
    }
    mr_meet_block();
}

/* This block's columns of the stream. */
__device__ static inline void mr_load_own(const mr_decode_args &a, const mr_decode_state &st,
                                          const mr_share &s)
{
    const uint32_t width = (s.end - s.begin) * MR_DECODE_TILE;
    for (uint32_t i = threadIdx.x; i < width * a.p.rows; i += MR_DECODE_TAKERS) {
        st.own[i / width * a.own_width + i % width] =
            __ldcg(mr_ptr<const float>(st.stream) + static_cast<size_t>(i / width) * a.p.width +
                   s.begin * MR_DECODE_TILE + i % width);
    }
    mr_meet_block();
}

#endif
