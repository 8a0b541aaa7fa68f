/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of a product on their way into shared memory. */
#ifndef MILLRACE_KERNELS_CUDA_DECODE_ROWS_CUH
#define MILLRACE_KERNELS_CUDA_DECODE_ROWS_CUH

#include "kernels/cuda/decode/state.cuh"

#define MR_NORM_PARTS (MR_DECODE_WIDTH / 4 / MR_DECODE_TAKERS)

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

struct mr_gains {
    float4 v[MR_NORM_PARTS];
};

/* Gains depend on nothing, and are far: asked for before a wait. */
__device__ static inline void mr_load_gains(const mr_decode_args &a, mr_cuda_ptr from, mr_gains &g)
{
#pragma unroll
    for (int m = 0; m < MR_NORM_PARTS; m++) {
        const uint32_t i = 4 * (threadIdx.x + m * MR_DECODE_TAKERS);
        g.v[m] = i < a.p.width
                     ? __ldg(reinterpret_cast<const float4 *>(mr_ptr<const float>(from) + i))
                     : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
}

/* Up to MR_DECODE_NORMS rows of the stream. */
struct mr_norm_rows {
    float4 v[MR_DECODE_NORMS][MR_NORM_PARTS];
};

__device__ static inline void mr_load_stream(const mr_decode_args &a, const mr_decode_state &st,
                                             uint32_t first, mr_norm_rows &x)
{
    const float *stream =
        mr_ptr<const float>(st.stream) + static_cast<size_t>(first) * a.p.width;
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

/* Sums of squares of each row by warps of four elements a thread, as pointwise.cu has them. */
__device__ static inline void mr_sum_squares(const mr_decode_args &a, const mr_decode_state &st,
                                             uint32_t first, uint32_t warps, const mr_norm_rows &x)
{
#pragma unroll
    for (int r = 0; r < MR_DECODE_NORMS; r++) {
#pragma unroll
        for (int m = 0; m < MR_NORM_PARTS; m++) {
            const uint32_t warp = m * MR_DECODE_WARPS + threadIdx.x / 32;
            if (first + r < a.p.rows && warp < warps) {
                const float4 v = x.v[r][m];
                const float sum = mr_warp_sum(v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w);
                if (threadIdx.x % 32 == 0) {
                    st.scratch[r * 32 + warp] = sum;
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
    const uint32_t width = a.p.width;
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t warps = (width / 4 + 31) / 32;
    st.pitch = mr_pitch_of(width);
    if (MR_SKIPS(4)) {
        return;
    }
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
                continue;
            }
            const float sum = mr_warp_sum(lane < warps ? st.scratch[r * 32 + lane] : 0.0f);
            const float scale = 1.0f / sqrtf(sum / static_cast<float>(width) + a.p.epsilon);
#pragma unroll
            for (int m = 0; m < MR_NORM_PARTS; m++) {
                const uint32_t i = 4 * (threadIdx.x + m * MR_DECODE_TAKERS);
                const float4 v = x.v[r][m];
                if (i < width) {
                    *reinterpret_cast<uint2 *>(st.act + (first + r) * st.pitch + i * 2) =
                        make_uint2(
                            mr_matrix<T>::pack(v.x * scale * g.v[m].x, v.y * scale * g.v[m].y),
                            mr_matrix<T>::pack(v.z * scale * g.v[m].z, v.w * scale * g.v[m].w));
                }
            }
        }
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
