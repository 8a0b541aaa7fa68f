/* SPDX-License-Identifier: Apache-2.0 */
/* Split attention, every warp for itself (warp_split.cu): what a warp computes of a stage that its
 * ring (warp_split_ring.cuh) has brought. */
#ifndef MILLRACE_KERNELS_CUDA_ATTENTION_WARP_SPLIT_CUH
#define MILLRACE_KERNELS_CUDA_ATTENTION_WARP_SPLIT_CUH

#include "kernels/cuda/attention/warp_split_ring.cuh"
#include "kernels/cuda/device/mma.cuh"

/* Softmax over the piece's keys so far. A lane has heads 2 · (lane % 4) and the one behind it, as
 * columns; out[n] are rows of D: lane / 4 and 8 further of the n-th sixteen, or, of one-byte
 * values, 2 · (lane / 4) and the one behind it. */
template <int D> struct mr_warp_split_sums {
    float max[2];
    float sum[2]; /* of the lane's keys only */
    float out[D / 16][4];
};

template <int D> __device__ static inline void mr_clear_sums(mr_warp_split_sums<D> &sums)
{
    sums = {};
    sums.max[0] = -CUDART_INF_F;
    sums.max[1] = -CUDART_INF_F;
}

template <typename T> struct mr_is_half {
    static constexpr bool value = false;
};
template <> struct mr_is_half<__half> {
    static constexpr bool value = true;
};

/* What products are made of: integers are exact in both types; F8_E4M3 is in f16, and so are
 * queries in bf16 between 2^-17 and 65504, which what is larger becomes. */
template <typename T, mr_warp_split_kv KV> struct mr_warp_split_operand {
    using type = T;
};
template <typename T> struct mr_warp_split_operand<T, MR_WARP_SPLIT_E4M3> {
    using type = __half;
};

/* By what power of two probabilities are larger than they are, for f16 has few numbers below
 * 2^-14; what they are divided by is so, too. */
template <typename T, mr_warp_split_kv KV> __device__ constexpr float mr_warp_split_lift()
{
    return mr_is_half<typename mr_warp_split_operand<T, KV>::type>::value ? 6.0f : 0.0f;
}

__device__ static inline float mr_to_half_range(float x)
{
    return isnan(x) ? x : fminf(fmaxf(x, -65504.0f), 65504.0f);
}

/* Two queries as they are multiplied. */
template <typename T, mr_warp_split_kv KV>
__device__ static inline uint32_t mr_warp_split_query(uint32_t q)
{
    if (KV != MR_WARP_SPLIT_E4M3 || mr_is_half<T>::value) {
        return q;
    }
    const float2 x = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162 *>(&q));
    return mr_matrix<__half>::pack(mr_to_half_range(x.x), mr_to_half_range(x.y));
}

/* Queries as B operands, a row of 8 heads by lane / 4, in the order in which a lane has elements of
 * keys. */
template <typename T, int D, mr_warp_split_kv KV>
__device__ static inline void
mr_load_queries(const mr_warp_split_args &a, const mr_warp_split_piece &piece, uint32_t (&q)[D / 8])
{
    const uint32_t head = threadIdx.x % 32 / 4;
    const uint32_t quad = threadIdx.x % 4;
    const size_t row =
        static_cast<size_t>(piece.token) * (a.p.heads + 2 * a.p.kv.heads) + piece.head + head;
    const uint32_t *from = static_cast<const uint32_t *>(a.qkv) + row * (D / 2);
#pragma unroll
    for (int i = 0; i < D / 8; i++) {
        const uint32_t at = KV == MR_WARP_SPLIT_SAME ? i * 4 + quad : i / 2 * 8 + quad * 2 + i % 2;
        q[i] = head < piece.heads ? from[at] : 0;
    }
#pragma unroll
    for (int i = 0; i < D / 8; i++) {
        q[i] = mr_warp_split_query<T, KV>(q[i]);
    }
}

/* Four codes as pairs of operands in order. */
template <typename T, mr_warp_split_kv KV>
__device__ static inline void mr_widen4(uint32_t word, uint32_t &low, uint32_t &high)
{
    if (KV == MR_WARP_SPLIT_I8) {
        mr_i8_widen<T>(word, low, high);
    } else {
        mr_e4m3_halves(word, low, high);
    }
}

/* Scores of the 16 keys from row 16m on: keys lane / 4 and 8 further, with the lane's two heads.
 * `keys`: where chunk lane / 16 of row lane % 16 lies. */
template <typename T, int D, mr_warp_split_kv KV>
__device__ static inline void mr_score_keys(const uint32_t (&q)[D / 8], uint32_t keys, int m,
                                            float (&s)[4])
{
    using stage = mr_warp_split_stage<D, KV>;
    using matrix = mr_matrix<typename mr_warp_split_operand<T, KV>::type>;
    float part[2][4] = {};
#pragma unroll
    for (int k = 0; k < static_cast<int>(stage::ROW / 32); k++) {
        uint32_t x[4];
        mr_load_matrices<false>(stage::further(keys, m, k), x);
        if constexpr (KV == MR_WARP_SPLIT_SAME) {
            matrix::multiply(part[k % 2], x[0], x[1], x[2], x[3], q[2 * k], q[2 * k + 1]);
        } else {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                uint32_t y[4];
                mr_widen4<T, KV>(x[2 * h], y[0], y[2]);
                mr_widen4<T, KV>(x[2 * h + 1], y[1], y[3]);
                matrix::multiply(part[h], y[0], y[1], y[2], y[3], q[4 * k + 2 * h],
                                 q[4 * k + 2 * h + 1]);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        s[i] = part[0][i] + part[1][i];
    }
}

/* Adds 16 keys' values from row 16m on, times their probabilities. `values`: where the lane's row
 * and chunk of the first matrices lie. */
template <typename T, int D, mr_warp_split_kv KV>
__device__ static inline void mr_sum_values(const float (&p)[4], uint32_t values, int m,
                                            float (&out)[D / 16][4])
{
    using stage = mr_warp_split_stage<D, KV>;
    using matrix = mr_matrix<typename mr_warp_split_operand<T, KV>::type>;
    const uint32_t lo = mr_turn_matrix(matrix::pack(p[0], p[1]));
    const uint32_t hi = mr_turn_matrix(matrix::pack(p[2], p[3]));
#pragma unroll
    for (int n = 0; n < static_cast<int>(stage::ROW / 32); n++) {
        uint32_t v[4];
        mr_load_matrices<true>(stage::further(values, m, n), v);
        if constexpr (KV == MR_WARP_SPLIT_SAME) {
            matrix::multiply(out[n], v[0], v[1], v[2], v[3], lo, hi);
        } else {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                /* A word is two neighbours of one key, then of the next. */
                uint32_t y[4];
                mr_widen4<T, KV>(__byte_perm(v[2 * h], 0, 0x3120), y[0], y[1]);
                mr_widen4<T, KV>(__byte_perm(v[2 * h + 1], 0, 0x3120), y[2], y[3]);
                matrix::multiply(out[2 * n + h], y[0], y[1], y[2], y[3], lo, hi);
            }
        }
    }
}

/* Of the lane's i-th score of the m-th 16 keys: its key, among the stage's. */
__device__ static inline uint32_t mr_warp_split_row(int m, int i)
{
    return m * 16 + i / 2 * 8 + threadIdx.x % 32 / 4;
}

/* Sums of products become scores, in powers of two; −∞ where a key does not count. */
template <int D, mr_warp_split_kv KV, int M>
__device__ static inline void mr_scale_scores(const mr_warp_split_args &a,
                                              const mr_warp_split_piece &piece, uint32_t key,
                                              const uint8_t *memory, float (&s)[M][4])
{
    using stage = mr_warp_split_stage<D, KV>;
    if (KV == MR_WARP_SPLIT_I8) {
        const float *of = reinterpret_cast<const float *>(memory + stage::KEY_SCALES);
#pragma unroll
        for (int i = 0; i < 4 * M; i++) {
            s[i / 4][i % 4] *= of[mr_warp_split_row(i / 4, i % 4)];
        }
    }
    if (a.p.soft_cap > 0.0f) {
        const float in = a.p.scale / a.p.soft_cap;
        const float out = a.p.soft_cap * MR_LOG2E;
#pragma unroll
        for (int i = 0; i < 4 * M; i++) {
            s[i / 4][i % 4] = tanhf(s[i / 4][i % 4] * in) * out;
        }
    } else {
        const float scale = a.p.scale * MR_LOG2E;
#pragma unroll
        for (int i = 0; i < 4 * M; i++) {
            s[i / 4][i % 4] *= scale;
        }
    }
    if (key < piece.begin || key + stage::KEYS > piece.end) {
#pragma unroll
        for (int i = 0; i < 4 * M; i++) {
            const uint32_t at = key + mr_warp_split_row(i / 4, i % 4);
            if (at < piece.begin || at >= piece.end) {
                s[i / 4][i % 4] = -CUDART_INF_F;
            }
        }
    }
}

/* Scores become probabilities relative to the largest so far; what there is fades accordingly. */
template <typename T, int D, mr_warp_split_kv KV, int M>
__device__ static inline void mr_weigh(float (&s)[M][4], mr_warp_split_sums<D> &sums)
{
    float max[2] = {sums.max[0], sums.max[1]};
#pragma unroll
    for (int i = 0; i < 4 * M; i++) {
        max[i % 2] = fmaxf(max[i % 2], s[i / 4][i % 4]);
    }
#pragma unroll
    for (int o = 4; o < 32; o *= 2) {
        max[0] = fmaxf(max[0], __shfl_xor_sync(0xffffffffu, max[0], o));
        max[1] = fmaxf(max[1], __shfl_xor_sync(0xffffffffu, max[1], o));
    }
    if (__any_sync(0xffffffffu, max[0] != sums.max[0] || max[1] != sums.max[1])) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float fade = max[h] == sums.max[h] ? 1.0f : mr_exp2(sums.max[h] - max[h]);
            sums.max[h] = max[h];
            sums.sum[h] *= fade;
#pragma unroll
            for (int n = 0; n < D / 16; n++) {
                sums.out[n][h] *= fade;
                sums.out[n][2 + h] *= fade;
            }
        }
    }
    /* A NaN is no maximum, and stays what it is. */
    float top[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        top[h] = (sums.max[h] == -CUDART_INF_F ? 0.0f : sums.max[h]) - mr_warp_split_lift<T, KV>();
    }
#pragma unroll
    for (int i = 0; i < 4 * M; i++) {
        float &x = s[i / 4][i % 4];
        x = mr_exp2(x - top[i % 2]);
        sums.sum[i % 2] += x;
    }
}

/* Which element of D the lane's i-th sum of a head is. */
template <mr_warp_split_kv KV> __device__ static inline uint32_t mr_warp_split_element(uint32_t i)
{
    const uint32_t row = threadIdx.x % 32 / 4;
    return KV == MR_WARP_SPLIT_SAME ? i * 8 + row : i / 2 * 16 + row * 2 + i % 2;
}

/* The lanes' sums of probabilities become the warp's. */
template <int D> __device__ static inline void mr_sum_lanes(mr_warp_split_sums<D> &sums)
{
#pragma unroll
    for (int o = 4; o < 32; o *= 2) {
        sums.sum[0] += __shfl_xor_sync(0xffffffffu, sums.sum[0], o);
        sums.sum[1] += __shfl_xor_sync(0xffffffffu, sums.sum[1], o);
    }
}

/* Into shared memory: [8 heads][D] numerators, maximum, sum. */
template <int D, mr_warp_split_kv KV>
__device__ static inline void mr_share_sums(float *to, const mr_warp_split_sums<D> &sums)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float *line = to + (threadIdx.x % 4 * 2 + h) * (D + 2);
#pragma unroll
        for (int i = 0; i < D / 8; i++) {
            line[mr_warp_split_element<KV>(i)] = sums.out[i / 2][i % 2 * 2 + h];
        }
        if (threadIdx.x % 32 < 4) {
            line[D] = sums.max[h];
            line[D + 1] = sums.sum[h];
        }
    }
}

/* Where the lane's part of the first matrices lies: of keys; of values. */
template <int D, mr_warp_split_kv KV> __device__ static inline uint32_t mr_warp_split_keys_at()
{
    const uint32_t lane = threadIdx.x % 32;
    return mr_warp_split_stage<D, KV>::at(lane % 16, lane / 16);
}

template <int D, mr_warp_split_kv KV> __device__ static inline uint32_t mr_warp_split_values_at()
{
    using stage = mr_warp_split_stage<D, KV>;
    const uint32_t lane = threadIdx.x % 32;
    return stage::VALUES + (KV == MR_WARP_SPLIT_SAME
                                ? stage::at(lane / 16 * 8 + lane % 8, lane / 8 % 2)
                                : stage::at(lane % 16, lane / 16));
}

template <typename T, int D, mr_warp_split_kv KV>
__device__ static inline void
mr_run_stage(const mr_warp_split_args &a, const mr_warp_split_piece &piece,
             const uint32_t (&q)[D / 8], const uint8_t *memory, uint32_t shared, uint32_t key,
             mr_warp_split_sums<D> &sums)
{
    using stage = mr_warp_split_stage<D, KV>;
    constexpr int M = stage::KEYS / 16;
    float s[M][4];
#pragma unroll
    for (int m = 0; m < M; m++) {
        mr_score_keys<T, D, KV>(q, shared + mr_warp_split_keys_at<D, KV>(), m, s[m]);
    }
    mr_scale_scores<D, KV>(a, piece, key, memory, s);
    mr_weigh<T, D, KV>(s, sums);
    if (KV == MR_WARP_SPLIT_I8) {
        const float *of = reinterpret_cast<const float *>(memory + stage::VALUE_SCALES);
#pragma unroll
        for (int i = 0; i < 4 * M; i++) {
            /* For a key that does not count no scale was brought. */
            const uint32_t r = mr_warp_split_row(i / 4, i % 4);
            const bool counts = key + r >= piece.begin && key + r < piece.end;
            s[i / 4][i % 4] = counts ? s[i / 4][i % 4] * of[r] : 0.0f;
        }
    }
#pragma unroll
    for (int m = 0; m < M; m++) {
        mr_sum_values<T, D, KV>(s[m], shared + mr_warp_split_values_at<D, KV>(), m, sums.out);
    }
}

#endif
