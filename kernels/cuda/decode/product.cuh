/* SPDX-License-Identifier: Apache-2.0 */
/* Products of the decode kernel: as linear/few.cu computes them, in its order of sums, but with
 * weights from the ring. Warp w has chunks w, w + 8, … of 32 inputs. */
#ifndef MILLRACE_KERNELS_CUDA_DECODE_PRODUCT_CUH
#define MILLRACE_KERNELS_CUDA_DECODE_PRODUCT_CUH

#include "kernels/cuda/decode/rows.cuh"
#include "kernels/cuda/decode/state.cuh"
#include "kernels/cuda/device/e4m3.cuh"

#define MR_CHUNK 32 /* elements of 2 bytes of weights that a warp takes together */
#define MR_MINE  (MR_RING_INPUTS / MR_CHUNK / MR_DECODE_WARPS) /* chunks of a slot a warp has */

/* Where the rows of a product are: in shared memory, or (far) in the second cache. */
struct mr_rows {
    const uint8_t *far;  /* [..][k] of T */
    const uint32_t *map; /* which of them is row r; null: r */
    uint32_t k;
};

/* A warp's chunks of the rows: 8 inputs a lane, or (coded) 16. */
template <int NT, bool CODED> struct mr_rows_ahead {
    uint4 v[MR_MINE][NT][CODED ? 2 : 1];
};

/* Those that go with the slot from `input` on, in elements of 2 bytes of weights. */
template <int NT, bool CODED, bool STAGED>
__device__ static inline void mr_load_rows(const mr_decode_args &a, const mr_decode_state &st,
                                           const mr_rows &rows, uint32_t input,
                                           mr_rows_ahead<NT, CODED> &b)
{
    constexpr uint32_t CODES = CODED ? 2 : 1;
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
            const uint32_t at = (input + (j * MR_DECODE_WARPS + threadIdx.x / 32) * MR_CHUNK +
                                 threadIdx.x % 4 * 8) *
                                CODES;
#pragma unroll
            for (uint32_t h = 0; h < CODES; h++) {
                b.v[j][n][h] = make_uint4(0, 0, 0, 0);
                if (there && at < rows.k) {
                    b.v[j][n][h] =
                        STAGED ? mr_shared_load(st.act_at + row * st.pitch + (at + 8 * h) * 2)
                               : __ldcg(reinterpret_cast<const uint4 *>(
                                     rows.far + (from * rows.k + at + 8 * h) * 2));
                }
            }
        }
    }
}

/* 16 outputs by 32 inputs, of the lane's output (lo) and the one 8 on. */
template <typename T, int NT>
__device__ static inline void mr_multiply_chunk(const uint4 &lo, const uint4 &hi,
                                                const uint4 (&b)[NT][1], float (&acc)[NT][4])
{
#pragma unroll
    for (int n = 0; n < NT; n++) {
        mr_matrix<T>::multiply(acc[n], lo.x, hi.x, lo.y, hi.y, b[n][0].x, b[n][0].y);
        mr_matrix<T>::multiply(acc[n], lo.z, hi.z, lo.w, hi.w, b[n][0].z, b[n][0].w);
    }
}

/* Of codes, by 64 inputs. */
template <typename T, int NT>
__device__ static inline void mr_multiply_chunk(const uint4 &lo, const uint4 &hi,
                                                const uint4 (&b)[NT][2], float (&acc)[NT][4])
{
    const uint32_t low[4] = {lo.x, lo.y, lo.z, lo.w};
    const uint32_t high[4] = {hi.x, hi.y, hi.z, hi.w};
#pragma unroll
    for (int j = 0; j < 4; j++) {
        uint32_t w[4];
        mr_e4m3_widen<T>(low[j], w[0], w[2]);
        mr_e4m3_widen<T>(high[j], w[1], w[3]);
#pragma unroll
        for (int n = 0; n < NT; n++) {
            const uint4 v = b[n][j / 2];
            mr_matrix<T>::multiply(acc[n], w[0], w[1], w[2], w[3], j % 2 == 0 ? v.x : v.z,
                                   j % 2 == 0 ? v.y : v.w);
        }
    }
}

/* Output (of the first eight) of a lane's operands. Lanes that read together have lines in whose
 * order of pieces the halves differ. */
__device__ static inline uint32_t mr_output_of_lane()
{
    const uint32_t group = threadIdx.x % 32 / 4;
    return group % 2 * 4 + group / 2;
}

/* The lane's first piece of 16 bytes in the ring's next slot. */
__device__ static inline uint32_t mr_piece_at(const mr_ring &ring)
{
    const uint32_t warp = threadIdx.x / 32;
    const uint32_t output = mr_output_of_lane();
    const uint32_t piece = warp % 2 * (MR_CHUNK / 8) + threadIdx.x % 4;
    return ring.data + ring.slot * MR_RING_SLOT +
           (warp / 2 * MR_RING_TILE + output) * MR_RING_LINE + (piece ^ output) * 16;
}

/* The next N slots of the ring, of a tile each, `inputs` of which (or all) are to be multiplied. */
template <typename T, int N, int NT, bool CODED>
__device__ static inline void mr_take_slots(const mr_decode_args &a, mr_decode_state &st,
                                            uint32_t inputs, const mr_rows_ahead<NT, CODED> &b,
                                            float (*acc)[NT][4])
{
    uint4 lo[N][MR_MINE];
    uint4 hi[N][MR_MINE];
    uint32_t full[N];
#pragma unroll
    for (int m = 0; m < N; m++) {
        full[m] = st.ring.bars + st.ring.slot * 8;
        st.waits = st.waits && mr_bar_wait(full[m], st.ring.parity);
        const uint32_t first = mr_piece_at(st.ring);
#pragma unroll
        for (int j = 0; j < MR_MINE; j++) {
            const uint32_t at = first + j * (MR_DECODE_WARPS * MR_CHUNK / MR_RING_BLOCK) *
                                            MR_RING_TILE * MR_RING_LINE;
            lo[m][j] = mr_shared_load(at);
            hi[m][j] = mr_shared_load(at + 8 * MR_RING_LINE);
        }
        if (m + 1 < N) {
            mr_ring_next(st.ring);
        }
    }
#pragma unroll
    for (int j = 0; j < MR_MINE; j++) {
        if ((j * MR_DECODE_WARPS + threadIdx.x / 32) * MR_CHUNK < inputs) {
#pragma unroll
            for (int m = 0; m < N; m++) {
                mr_multiply_chunk<T, NT>(lo[m][j], hi[m][j], b.v[j], acc[m]);
            }
        }
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
#pragma unroll
        for (int m = 0; m < N; m++) {
            mr_barrier_arrive(full[m] + st.ring.slots * 8);
        }
    }
    mr_ring_next(st.ring);
}

/* Sums of one or two tiles, over all inputs. */
template <typename T, int NT, bool CODED, bool STAGED>
__device__ static inline void mr_multiply(const mr_decode_args &a, mr_decode_state &st,
                                          const mr_rows &rows, uint32_t together,
                                          float (&acc)[2][NT][4])
{
    const uint32_t k = rows.k / (CODED ? 2 : 1);
    /* Two slots at once have twice the products under way, and are given back later: good where
     * products, not memory, set the time. */
    const bool pairs = NT == 1 && together == 2 && (CODED || a.p.width <= MR_DECODE_NARROW);
    mr_rows_ahead<NT, CODED> b;
    if (!STAGED) {
        mr_load_rows<NT, CODED, STAGED>(a, st, rows, 0, b);
    }
    for (uint32_t input = 0; input < k; input += MR_RING_INPUTS) {
        mr_rows_ahead<NT, CODED> next;
        if (STAGED) {
            mr_load_rows<NT, CODED, STAGED>(a, st, rows, input, b);
        } else {
            mr_load_rows<NT, CODED, STAGED>(a, st, rows, input + MR_RING_INPUTS, next);
        }
        if (pairs) {
            mr_take_slots<T, 2>(a, st, k - input, b, acc);
        } else {
            mr_take_slots<T, 1>(a, st, k - input, b, acc);
            if (together == 2) {
                mr_take_slots<T, 1>(a, st, k - input, b, acc + 1);
            }
        }
        if (!STAGED) {
            b = next;
        }
    }
}

/* The warps' sums meet in shared memory. */
template <int NT>
__device__ static inline void mr_share_tiles(const mr_decode_state &st,
                                             const float (&acc)[2][NT][4])
{
    const uint32_t output = mr_output_of_lane();
    const uint32_t quad = threadIdx.x % 4;
    mr_meet_block(); /* the sums before may still be read */
#pragma unroll
    for (int m = 0; m < 2; m++) {
#pragma unroll
        for (int n = 0; n < NT; n++) {
            float *s =
                st.sums + ((m * MR_DECODE_WARPS + threadIdx.x / 32) * NT + n) * MR_DECODE_TILE * 8;
            *reinterpret_cast<float2 *>(s + output * 8 + quad * 2) =
                make_float2(acc[m][n][0], acc[m][n][1]);
            *reinterpret_cast<float2 *>(s + (output + 8) * 8 + quad * 2) =
                make_float2(acc[m][n][2], acc[m][n][3]);
        }
    }
    mr_meet_block();
}

template <int NT>
__device__ static inline float mr_sum_tile(const float *sums, uint32_t m, uint32_t line,
                                           uint32_t row)
{
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < MR_DECODE_WARPS; w++) {
        sum += sums[(((m * MR_DECODE_WARPS + w) * NT + row / 8) * MR_DECODE_TILE + line) * 8 +
                    row % 8];
    }
    return sum;
}

/* What a thread knows of its output before the sums are there. */
struct mr_output {
    uint32_t index;
    uint32_t column; /* among this block's */
    float scale;     /* of its codes */
    float up_scale;
    float gain; /* of the norm to come */
};

template <int PART, bool CODED>
__device__ static inline mr_output mr_output_of(const mr_decode_args &a, const mr_decode_state &st,
                                                const mr_share &s, uint32_t tile)
{
    const mr_cuda_decode_layer *l = mr_at<const mr_cuda_decode_layer>(a.p.layers) + st.layer;
    mr_output o;
    o.index = tile * MR_DECODE_TILE + threadIdx.x % MR_DECODE_TILE;
    o.column = o.index - s.begin * MR_DECODE_TILE;
    o.scale = 1.0f;
    o.up_scale = 1.0f;
    o.gain = 0.0f;
    if (tile >= s.end) {
        return o;
    }
    if (CODED) {
        const float *scales =
            mr_at<const float>(l->scales[PART == MR_PART_QKV ? 0 : PART - MR_PART_ATTEND]);
        o.scale = __ldg(scales + o.index);
        o.up_scale = PART == MR_PART_GATED ? __ldg(scales + a.p.ffn + o.index) : 1.0f;
    }
    if (PART == MR_PART_OUT) {
        o.gain = __ldg(mr_at<const float>(l->gated_gain) + o.index);
    } else if (PART == MR_PART_DOWN && st.layer + 1 < a.p.n_layers) {
        o.gain = __ldg(mr_at<const float>(l[1].attention_gain) + o.index);
    }
    return o;
}

/* Adds y, rounded, to the stream; the norm to come is told. */
template <typename T, int PART>
__device__ static inline void mr_add_output(const mr_decode_args &a, const mr_decode_state &st,
                                            const mr_output &o, uint32_t row, float y)
{
    const mr_cuda_decode &p = a.p;
    const size_t at = static_cast<size_t>(row) * p.width + o.index;
    const bool last = st.layer + 1 == p.n_layers;
    if (PART == MR_PART_DOWN && last) {
        mr_at<T>(p.last)[at] = mr_from_float<T>(y);
        return;
    }
    float *own = st.own + row * a.own_width + o.column;
    float x;
    if (PART == MR_PART_OUT && last && p.logit_rows != 0) {
        const uint32_t from = mr_at<const uint32_t>(p.logit_rows)[row];
        x = st.own[from * a.own_width + o.column] + y;
        mr_at<float>(p.last_stream)[at] = x;
    } else {
        x = *own + y;
        *own = x;
        if (PART == MR_PART_OUT && last) {
            mr_at<float>(p.stream)[at] = x;
        }
    }
    mr_put_for_norm<T>(a, row, o.index, x, o.gain);
}

/* What becomes of an output's sum. All are rounded to T, as if they had been stored. */
template <typename T, int NT, int PART>
__device__ static inline void mr_finish_output(const mr_decode_args &a, const mr_decode_state &st,
                                               const mr_output &o, uint32_t m, uint32_t row)
{
    const mr_cuda_decode &p = a.p;
    const uint32_t line = threadIdx.x % MR_DECODE_TILE;
    const bool normed = PART == MR_PART_QKV || PART == MR_PART_GATED;
    const float scale = normed ? st.scales[row] : 1.0f;
    const T y = mr_from_float<T>(mr_sum_tile<NT>(st.sums, m, line, row) * o.scale * scale);
    if (PART == MR_PART_QKV) {
        const uint32_t n = (p.heads + 2 * p.kv_heads) * p.head_width;
        mr_at<T>(p.qkv)[static_cast<size_t>(row) * n + o.index] = y;
    } else if (PART == MR_PART_GATED) {
        const T up = mr_from_float<T>(mr_sum_tile<NT>(st.sums, 1, line, row) * o.up_scale * scale);
        mr_at<T>(p.act)[static_cast<size_t>(row) * p.ffn + o.index] =
            mr_from_float<T>(mr_activate(p.activation, mr_to_float(y)) * mr_to_float(up));
    } else {
        mr_add_output<T, PART>(a, st, o, row, mr_to_float(y));
    }
}

template <typename T, int NT, int PART, bool CODED, bool STAGED>
__device__ static inline void mr_multiply_part(const mr_decode_args &a, mr_decode_state &st,
                                               const mr_share &s, const mr_rows &rows)
{
    constexpr bool GATED = PART == MR_PART_GATED;
    uint32_t together;
    for (uint32_t tile = s.begin; tile < s.end; tile += GATED ? 1 : together) {
        together = mr_together(s, GATED, tile);
        /* A thread has one output of every so many rows. */
        const uint32_t tiles = GATED ? 1 : together;
        const uint32_t m = threadIdx.x / MR_DECODE_TILE % tiles;
        const mr_output o = mr_output_of<PART, CODED>(a, st, s, tile + m);
        float acc[2][NT][4] = {};
        mr_multiply<T, NT, CODED, STAGED>(a, st, rows, together, acc);
        mr_share_tiles<NT>(st, acc);
        for (uint32_t row = threadIdx.x / (MR_DECODE_TILE * tiles); row < a.p.rows;
             row += MR_DECODE_TAKERS / (MR_DECODE_TILE * tiles)) {
            mr_finish_output<T, NT, PART>(a, st, o, m, row);
        }
    }
}

#endif
