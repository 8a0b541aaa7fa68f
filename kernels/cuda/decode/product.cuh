/* SPDX-License-Identifier: Apache-2.0 */
/* Products of the decode kernel: as linear/few.cu computes them, in its order of sums, but with
 * weights from the ring. Warp w has chunks w, w + 8, … of 32 inputs. */
#ifndef MILLRACE_KERNELS_CUDA_DECODE_PRODUCT_CUH
#define MILLRACE_KERNELS_CUDA_DECODE_PRODUCT_CUH

#include "kernels/cuda/decode/state.cuh"

#define MR_CHUNK 32                                            /* inputs of two matrix products */
#define MR_MINE  (MR_RING_INPUTS / MR_CHUNK / MR_DECODE_WARPS) /* chunks of a slot a warp has */

/* Where the rows of a product are: in shared memory, or (far) in the second cache. */
struct mr_rows {
    const uint8_t *far;  /* [..][k] of T */
    const uint32_t *map; /* which of them is row r; null: r */
    uint32_t k;
};

/* The warp's chunks of the rows, from `input` on. */
template <int NT, bool STAGED>
__device__ static inline void mr_load_rows(const mr_decode_args &a, const mr_decode_state &st,
                                           const mr_rows &rows, uint32_t input,
                                           uint4 (&b)[MR_MINE][NT])
{
    const uint32_t group = threadIdx.x % 32 / 4;
#pragma unroll
    for (int n = 0; n < NT; n++) {
        const uint32_t row = n * 8 + group;
        const bool there = row < a.p.rows;
        size_t from = row;
        if (!STAGED && there && rows.map != nullptr) {
            from = rows.map[row];
        }
#pragma unroll
        for (int j = 0; j < MR_MINE; j++) {
            const uint32_t at =
                input + (j * MR_DECODE_WARPS + threadIdx.x / 32) * MR_CHUNK + threadIdx.x % 4 * 8;
            b[j][n] = make_uint4(0, 0, 0, 0);
            if (there && at < rows.k) {
                b[j][n] = STAGED ? mr_shared_load(st.act_at + row * st.pitch + at * 2)
                                 : __ldcg(reinterpret_cast<const uint4 *>(
                                       rows.far + (from * rows.k + at) * 2));
            }
        }
    }
}

/* The next slot of the ring, `inputs` of which (or all) are to be multiplied. */
template <typename T, int NT>
__device__ static inline void mr_take_slot(const mr_decode_args &a, mr_decode_state &st,
                                           uint32_t inputs, const uint4 (&b)[MR_MINE][NT],
                                           float (&acc)[NT][4])
{
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t warp = threadIdx.x / 32;
    const uint32_t full = st.ring.bars + st.ring.slot * 8;
    st.waits = st.waits && mr_bar_wait(full, st.ring.parity);
    const uint32_t base = st.ring.data + st.ring.slot * MR_RING_SLOT + lane / 4 * MR_RING_LINE +
                          warp / 2 * MR_RING_TILE * MR_RING_LINE + warp % 2 * MR_CHUNK * 2 +
                          lane % 4 * 16;
    if (!MR_SKIPS(8)) {
        uint4 lo[MR_MINE];
        uint4 hi[MR_MINE];
#pragma unroll
        for (int j = 0; j < MR_MINE; j++) {
            const uint32_t at = base + j * (MR_DECODE_WARPS * MR_CHUNK / MR_RING_BLOCK) *
                                           MR_RING_TILE * MR_RING_LINE;
            lo[j] = mr_shared_load(at);
            hi[j] = mr_shared_load(at + 8 * MR_RING_LINE);
        }
#pragma unroll
        for (int j = 0; j < MR_MINE; j++) {
            if ((j * MR_DECODE_WARPS + warp) * MR_CHUNK < inputs) {
#pragma unroll
                for (int n = 0; n < NT; n++) {
                    mr_matrix<T>::multiply(acc[n], lo[j].x, hi[j].x, lo[j].y, hi[j].y, b[j][n].x,
                                           b[j][n].y);
                    mr_matrix<T>::multiply(acc[n], lo[j].z, hi[j].z, lo[j].w, hi[j].w, b[j][n].z,
                                           b[j][n].w);
                }
            }
        }
    }
    __syncwarp();
    if (lane == 0) {
        mr_bar_arrive(full + st.ring.slots * 8);
    }
    mr_ring_next(st.ring);
}

/* Sums of one or two tiles, over all inputs. */
template <typename T, int NT, bool STAGED>
__device__ static inline void mr_multiply(const mr_decode_args &a, mr_decode_state &st,
                                          const mr_rows &rows, uint32_t together,
                                          float (&acc)[2][NT][4])
{
    uint4 b[MR_MINE][NT];
    if (!STAGED) {
        mr_load_rows<NT, STAGED>(a, st, rows, 0, b);
    }
    for (uint32_t input = 0; input < rows.k; input += MR_RING_INPUTS) {
        uint4 next[MR_MINE][NT];
        if (STAGED) {
            mr_load_rows<NT, STAGED>(a, st, rows, input, b);
        } else {
            mr_load_rows<NT, STAGED>(a, st, rows, input + MR_RING_INPUTS, next);
        }
        mr_take_slot<T, NT>(a, st, rows.k - input, b, acc[0]);
        if (together == 2) {
            mr_take_slot<T, NT>(a, st, rows.k - input, b, acc[1]);
        }
#pragma unroll
        for (int j = 0; j < MR_MINE; j++) {
#pragma unroll
            for (int n = 0; n < NT; n++) {
                if (!STAGED) {
                    b[j][n] = next[j][n];
                }
            }
        }
    }
}

/* The warps' sums meet in shared memory. */
template <int NT>
__device__ static inline void mr_share_tiles(const mr_decode_state &st,
                                             const float (&acc)[2][NT][4])
{
    const uint32_t group = threadIdx.x % 32 / 4;
    const uint32_t quad = threadIdx.x % 4;
    mr_meet_block(); /* the sums before may still be read */
#pragma unroll
    for (int m = 0; m < 2; m++) {
#pragma unroll
        for (int n = 0; n < NT; n++) {
            float *s =
                st.sums + ((m * MR_DECODE_WARPS + threadIdx.x / 32) * NT + n) * MR_DECODE_TILE * 8;
            *reinterpret_cast<float2 *>(s + group * 8 + quad * 2) =
                make_float2(acc[m][n][0], acc[m][n][1]);
            *reinterpret_cast<float2 *>(s + (group + 8) * 8 + quad * 2) =
                make_float2(acc[m][n][2], acc[m][n][3]);
        }
    }
    mr_meet_block();
}

/* Rounded to T, as if it had been stored. */
template <typename T, int NT>
__device__ static inline float mr_sum_tile(const float *sums, uint32_t m, uint32_t line,
                                           uint32_t row)
{
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < MR_DECODE_WARPS; w++) {
        sum += sums[(((m * MR_DECODE_WARPS + w) * NT + row / 8) * MR_DECODE_TILE + line) * 8 +
                    row % 8];
    }
    return mr_to_float(mr_from_float<T>(sum));
}

/* What becomes of an output. `column`: among this block's. */
template <typename T, int PART>
__device__ static inline void mr_store_output(const mr_decode_args &a, const mr_decode_state &st,
                                              uint32_t row, uint32_t output, uint32_t column,
                                              float y, float up)
{
    const mr_cuda_decode &p = a.p;
    if (PART == MR_PART_QKV) {
        const uint32_t n = (p.heads + 2 * p.kv_heads) * p.head_width;
        mr_ptr<T>(p.qkv)[static_cast<size_t>(row) * n + output] = mr_from_float<T>(y);
        return;
    }
    if (PART == MR_PART_GATED) {
        mr_ptr<T>(p.act)[static_cast<size_t>(row) * p.ffn + output] =
            mr_from_float<T>(mr_activate(p.activation, y) * up);
        return;
    }
    const size_t at = static_cast<size_t>(row) * p.width + output;
    const bool last = st.layer + 1 == p.n_layers;
    if (PART == MR_PART_DOWN && last) {
        mr_ptr<T>(p.last)[at] = mr_from_float<T>(y);
        return;
    }
    float *own = st.own + row * a.own_width + column;
    if (PART == MR_PART_OUT && last && p.logit_rows != 0) {
        const size_t from = mr_ptr<const uint32_t>(p.logit_rows)[row];
        mr_ptr<float>(p.last_stream)[at] =
            __ldcg(mr_ptr<const float>(p.stream) + from * p.width + output) + y;
        return;
    }
    *own += y;
    mr_ptr<float>(p.stream)[at] = *own;
}

template <typename T, int NT, int PART, bool STAGED>
__device__ static inline void mr_multiply_part(const mr_decode_args &a, mr_decode_state &st,
                                               const mr_share &s, const mr_rows &rows)
{
    constexpr bool GATED = PART == MR_PART_GATED;
    uint32_t together;
    for (uint32_t tile = s.begin; tile < s.end; tile += GATED ? 1 : together) {
        together = mr_together(s, GATED, tile);
        float acc[2][NT][4] = {};
        mr_multiply<T, NT, STAGED>(a, st, rows, together, acc);
        mr_share_tiles<NT>(st, acc);
        const uint32_t tiles = GATED ? 1 : together;
        for (uint32_t i = threadIdx.x; i < tiles * MR_DECODE_TILE * a.p.rows;
             i += MR_DECODE_TAKERS) {
            const uint32_t line = i % MR_DECODE_TILE;
            const uint32_t m = i / MR_DECODE_TILE % tiles;
            const uint32_t row = i / (MR_DECODE_TILE * tiles);
            const float y = mr_sum_tile<T, NT>(st.sums, m, line, row);
            const float up = GATED ? mr_sum_tile<T, NT>(st.sums, 1, line, row) : 0.0f;
            mr_store_output<T, PART>(a, st, row, (tile + m) * MR_DECODE_TILE + line,
                                     (tile + m - s.begin) * MR_DECODE_TILE + line, y, up);
        }
    }
}

#endif
