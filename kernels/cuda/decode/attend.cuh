/* SPDX-License-Identifier: Apache-2.0 */
/* Rotation, KV write and attention of the decode kernel: that of packed.cuh, for whose items a
 * block also makes the queries and, with a token's last split, the new key and value. Keys and
 * values of earlier steps are on their way before the products of this layer are waited for. */
#ifndef MILLRACE_KERNELS_CUDA_DECODE_ATTEND_CUH
#define MILLRACE_KERNELS_CUDA_DECODE_ATTEND_CUH

#include "kernels/cuda/decode/state.cuh"

#define MR_KEYS MR_PACKED_KEYS

/* One piece of work, (item, key/value head), as one lane sees it: its key is the lane-th of its
 * warp's. It is the same in every layer. */
struct mr_work {
    mr_cuda_item item;
    uint32_t index; /* of the item */
    uint32_t g;
    uint32_t position; /* of the token */
    uint32_t key;      /* of the lane */
    uint32_t row;      /* of its key, among those of its plane */
    uint32_t new_row;  /* of the new key */
    bool runs;         /* there is such a piece */
    bool there;        /* the lane has a key of an earlier step */
    bool newest;       /* the split has the new key */
    bool writes;       /* which is to be kept */
    float2 turn[2];    /* cosine and sine of pairs lane and lane + 32 */
};

__device__ static inline uint32_t mr_work_count(const mr_decode_args &a)
{
    return mr_at<const mr_cuda_step_header>(a.p.header)->n_items * a.p.kv_heads;
}

__device__ static inline void mr_find_work(const mr_decode_args &a, uint32_t number, uint32_t count,
                                           mr_work &w)
{
    const mr_cuda_decode &p = a.p;
    const uint32_t lane = threadIdx.x % 32;
    w.runs = number < count;
    if (!w.runs) {
        return;
    }
    w.index = number / p.kv_heads;
    w.g = number % p.kv_heads;
    w.item = mr_at<const mr_cuda_item>(p.items)[w.index];
    w.position = mr_at<const uint32_t>(p.positions)[w.item.token];
    w.newest = w.item.split == w.position / MR_CUDA_SPLIT_KEYS;
    w.key = w.item.split * MR_CUDA_SPLIT_KEYS + threadIdx.x / 32 * MR_KEYS + lane;
    w.there = w.key < w.position;
    w.row = 0;
    if (w.there) {
        const uint32_t *table =
            mr_at<const uint32_t>(p.block_tables) +
            static_cast<size_t>(mr_at<const uint32_t>(p.token_slot)[w.item.token]) * p.max_blocks;
        const uint32_t index = a.shift >= 0 ? w.key >> a.shift : w.key / p.block_size;
        w.row = (table[index] * p.kv_heads + w.g) * p.block_size + (w.key - index * p.block_size);
    }
    const uint32_t slot = mr_at<const uint32_t>(p.kv_slot)[w.item.token];
    const uint32_t block = slot / p.block_size;
    w.writes = w.newest && block != MR_NULL_BLOCK;
    w.new_row = (block * p.kv_heads + w.g) * p.block_size + slot % p.block_size;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const uint32_t unit = lane + 32 * j;
        w.turn[j] =
            p.table != 0 && unit < p.pairs
                ? mr_at<const float2>(p.table)[static_cast<size_t>(w.position) * p.pairs + unit]
                : make_float2(1.0f, 0.0f);
    }
}

/* Where things are in the memory for rows: values of all warps (later their sums), and at its end
 * heads [H / G queries, key, value][D]. */
template <typename T, int D>
__device__ static inline T *mr_heads_at(const mr_decode_args &a, const mr_decode_state &st)
{
    return reinterpret_cast<T *>(st.act + a.act_bytes) - (MR_PACKED_HEADS + 2) * D;
}

/* Keys of earlier steps into registers, their values into shared memory; zeroes for others. */
template <typename T, int D>
__device__ static inline void mr_fetch_keys(const mr_cuda_decode_layer &l, const mr_work &w,
                                            uint32_t values, uint4 (&keys)[MR_KEYS / 8][D / 32])
{
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t seen = __ballot_sync(0xffffffffu, w.there);
    const uint4 *key_plane = mr_at<const uint4>(l.keys);
    const uint4 *value_plane = mr_at<const uint4>(l.values);
#pragma unroll
    for (int n = 0; n < MR_KEYS / 8; n++) {
        const uint32_t k = n * 8 + lane / 4;
        const size_t from = static_cast<size_t>(__shfl_sync(0xffffffffu, w.row, k)) * (D / 8);
#pragma unroll
        for (int c = 0; c < D / 32; c++) {
            keys[n][c] = (seen >> k & 1) != 0 ? __ldcg(key_plane + from + c * 4 + lane % 4)
                                              : make_uint4(0, 0, 0, 0);
        }
    }
#pragma unroll
    for (int i = 0; i < MR_KEYS * (D / 8) / 32; i++) {
        const uint32_t k = (i * 32 + lane) / (D / 8);
        const uint32_t c = (i * 32 + lane) % (D / 8);
        const size_t from = static_cast<size_t>(__shfl_sync(0xffffffffu, w.row, k)) * (D / 8);
        mr_copy16(values + mr_swizzled<D>(k, c), value_plane + from + c, (seen >> k & 1) != 0);
    }
    mr_commit();
}

/* One element of the product's result. */
template <typename T> __device__ static inline float mr_far_element(mr_cuda_ptr from, size_t at)
{
    const unsigned short raw = __ldcg(mr_at<const unsigned short>(from) + at);
    return mr_to_float(*reinterpret_cast<const T *>(&raw));
}

/* RMS norm of a head, D / 32 elements a lane. */
template <typename T, int D>
__device__ static inline void mr_norm_head(float epsilon, const float *gain, float (&v)[D / 32])
{
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < D / 32; j++) {
        sum += v[j] * v[j];
    }
    const float scale = 1.0f / sqrtf(mr_warp_sum(sum) / static_cast<float>(D) + epsilon);
#pragma unroll
    for (int j = 0; j < D / 32; j++) {
        v[j] = v[j] * scale * gain[threadIdx.x % 32 + 32 * j];
    }
}

/* A warp turns head x, which is h of the piece's, and writes what is to be kept. */
template <typename T, int D>
__device__ static inline void mr_turn_head(const mr_cuda_decode &p, const mr_cuda_decode_layer &l,
                                           const mr_work &w, uint32_t h, uint32_t share, T *x)
{
    T *kept = mr_at<T>(h == share ? l.keys : l.values) + static_cast<size_t>(w.new_row) * D;
#pragma unroll
    for (int j = 0; j < D / 64; j++) {
        const uint32_t unit = threadIdx.x % 32 + 32 * j;
        const bool turns = p.table != 0 && h <= share && unit < p.pairs;
        const bool halves = turns && p.pairing == MR_ROPE_HALVES;
        const uint32_t at0 = halves ? unit : 2 * unit;
        const uint32_t at1 = halves ? unit + p.pairs : 2 * unit + 1;
        float u = mr_to_float(x[at0]);
        float v = mr_to_float(x[at1]);
        if (turns) {
            const float2 r = w.turn[j];
            const float turned = u * r.x - v * r.y;
            v = v * r.x + u * r.y;
            u = turned;
        }
        x[at0] = mr_from_float<T>(u);
        x[at1] = mr_from_float<T>(v);
        if (h >= share && w.writes) {
            kept[at0] = mr_from_float<T>(u);
            kept[at1] = mr_from_float<T>(v);
        }
    }
}

/* The piece's queries, and the new key and value with the token's last split: a warp a head. */
template <typename T, int D>
__device__ static inline void mr_make_heads(const mr_decode_args &a, const mr_cuda_decode_layer &l,
                                            const mr_work &w, T *heads)
{
    const mr_cuda_decode &p = a.p;
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t share = p.heads / p.kv_heads;
    for (uint32_t h = threadIdx.x / 32; h < share + (w.newest ? 2 : 0); h += MR_DECODE_WARPS) {
        const uint32_t head = h < share    ? w.g * share + h
                              : h == share ? p.heads + w.g
                                           : p.heads + p.kv_heads + w.g;
        const size_t from =
            (static_cast<size_t>(w.item.token) * (p.heads + 2 * p.kv_heads) + head) * D;
        T *x = heads + h * D;
        float v[D / 32];
#pragma unroll
        for (int j = 0; j < D / 32; j++) {
            v[j] = mr_far_element<T>(p.qkv, from + lane + 32 * j);
        }
        if (l.q_gain != 0 && h <= share) {
            mr_norm_head<T, D>(p.head_epsilon, mr_at<const float>(h < share ? l.q_gain : l.k_gain),
                               v);
        }
#pragma unroll
        for (int j = 0; j < D / 32; j++) {
            x[lane + 32 * j] = mr_from_float<T>(v[j]);
        }
        __syncwarp();
        mr_turn_head<T, D>(p, l, w, h, share, x);
    }
    mr_meet_block();
}

/* The warp that has the new key puts it, and its value, among the others. */
template <typename T, int D>
__device__ static inline void mr_put_newest(const mr_work &w, const T *heads, uint32_t share,
                                            uint8_t *values, uint4 (&keys)[MR_KEYS / 8][D / 32])
{
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t mine = w.position % MR_CUDA_SPLIT_KEYS - threadIdx.x / 32 * MR_KEYS;
    if (!w.newest || mine >= MR_KEYS) {
        return;
    }
    const uint4 *key = reinterpret_cast<const uint4 *>(heads + share * D);
    const uint4 *value = reinterpret_cast<const uint4 *>(heads + (share + 1) * D);
#pragma unroll
    for (int n = 0; n < MR_KEYS / 8; n++) {
#pragma unroll
        for (int c = 0; c < D / 32; c++) {
            if (n * 8 + lane / 4 == mine) {
                keys[n][c] = key[c * 4 + lane % 4];
            }
        }
    }
    if (lane < D / 8) {
        *reinterpret_cast<uint4 *>(values + mr_swizzled<D>(mine, lane)) = value[lane];
    }
    __syncwarp();
}

/* Partial results of a token's head, past the first cache, by a warp whose lanes have an element
 * `d` each: maxima and sums of 32 splits are read at once, elements in the order of splits. Every
 * split has a key that is seen. */
__device__ static inline float mr_merge_far(const float *parts, size_t stride, uint32_t n,
                                            uint32_t width, uint32_t d)
{
    const uint32_t lane = threadIdx.x % 32;
    float top = -CUDART_INF_F;
    for (uint32_t i = lane; i < n; i += 32) {
        top = fmaxf(top, __ldcg(parts + i * stride + width));
    }
    top = mr_warp_fold(top, mr_larger());
    float acc = 0.0f;
    float total = 0.0f;
    for (uint32_t first = 0; first < n; first += 32) {
        const uint32_t here = min(32u, n - first);
        const float *part = parts + first * stride;
        float fade = 0.0f;
        if (lane < here) {
            fade = exp2f(__ldcg(part + lane * stride + width) - top);
            total += __ldcg(part + lane * stride + width + 1) * fade;
        }
#pragma unroll 8
        for (uint32_t i = 0; i < here; i++) {
            acc += __ldcg(part + i * stride + d) * __shfl_sync(0xffffffffu, fade, i);
        }
    }
    return acc / mr_warp_sum(total);
}

/* The split's results are in memory: whoever comes last of the token's adds them up. */
template <typename T, int D>
__device__ static inline void mr_finish_split(const mr_decode_args &a, const mr_decode_state &st,
                                              const mr_work &w, uint32_t splits)
{
    const mr_cuda_decode &p = a.p;
    const uint32_t share = p.heads / p.kv_heads;
    const uint32_t head = w.g * share;
    uint32_t *counter =
        mr_at<uint32_t>(p.counters) + static_cast<size_t>(w.item.token) * p.heads + head;
    __threadfence();
    mr_meet_block();
    if (threadIdx.x == 0) {
        *st.arrived = atomicAdd(counter, 1);
    }
    mr_meet_block();
    if (*st.arrived != splits - 1) {
        return;
    }
    __threadfence();
    if (threadIdx.x == 0) {
        *counter = 0;
    }
    const size_t stride = static_cast<size_t>(p.heads) * (D + 2);
    const float *parts = mr_at<const float>(p.partials) + w.item.base * stride + head * (D + 2);
    T *out = mr_at<T>(p.att) + (static_cast<size_t>(w.item.token) * p.heads + head) * D;
    for (uint32_t i = threadIdx.x; i < share * D; i += MR_DECODE_TAKERS) {
        out[i] = mr_from_float<T>(mr_merge_far(parts + i / D * (D + 2), stride, splits, D, i % D));
    }
}

/* The warps' sums become the result, or the split's part of it. */
template <typename T, int D>
__device__ static inline void mr_store_heads(const mr_decode_args &a, const mr_decode_state &st,
                                             const mr_work &w, uint32_t splits)
{
    const mr_cuda_decode &p = a.p;
    const uint32_t share = p.heads / p.kv_heads;
    const uint32_t head = w.g * share;
    const float *sums = reinterpret_cast<const float *>(st.act);
    for (uint32_t i = threadIdx.x; i < share * D; i += MR_DECODE_TAKERS) {
        float max;
        float sum;
        const float acc = mr_merge(sums + i / D * (D + 2), share * (D + 2), MR_DECODE_WARPS, D,
                                   i % D, &max, &sum);
        if (splits == 1) {
            mr_at<T>(p.att)[(static_cast<size_t>(w.item.token) * p.heads + head) * D + i] =
                mr_from_float<T>(acc / sum);
            continue;
        }
        float *to = mr_at<float>(p.partials) +
                    (static_cast<size_t>(w.index) * p.heads + head + i / D) * (D + 2);
        to[i % D] = acc;
        if (i % D == 0) {
            to[D] = max;
            to[D + 1] = sum;
        }
    }
    if (splits > 1) {
        mr_finish_split<T, D>(a, st, w, splits);
    }
}

/* The piece of work whose keys and values are on their way. */
template <typename T, int D>
__device__ static inline void mr_attend(const mr_decode_args &a, const mr_decode_state &st,
                                        const mr_cuda_decode_layer &l, const mr_work &w,
                                        uint4 (&keys)[MR_KEYS / 8][D / 32])
{
    const mr_cuda_decode &p = a.p;
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t warp = threadIdx.x / 32;
    const uint32_t share = p.heads / p.kv_heads;
    const uint32_t values = warp * MR_KEYS * D * 2;
    T *heads = mr_heads_at<T, D>(a, st);
    mr_make_heads<T, D>(a, l, w, heads);
    mr_packed_queries<D> q;
    const uint4 *from = reinterpret_cast<const uint4 *>(heads);
#pragma unroll
    for (int c = 0; c < D / 32; c++) {
        const uint32_t at = c * 4 + lane % 4;
        const uint32_t row = lane / 4;
        q.lo[c] = row < share ? from[row * (D / 8) + at] : make_uint4(0, 0, 0, 0);
        q.hi[c] = row + 8 < share ? from[(row + 8) * (D / 8) + at] : make_uint4(0, 0, 0, 0);
    }
    mr_wait_copies<0>();
    __syncwarp();
    mr_put_newest<T, D>(w, heads, share, st.act + values, keys);

    mr_split_range range;
    range.first_split = 0;
    range.splits = w.position / MR_CUDA_SPLIT_KEYS + 1;
    range.begin = w.item.split * MR_CUDA_SPLIT_KEYS;
    range.end = min(w.position + 1, (w.item.split + 1) * MR_CUDA_SPLIT_KEYS);
    float s[MR_KEYS / 8][4];
    mr_packed_rows rows;
    mr_score_keys<T, D>(q, keys, s);
    mr_weigh(p.scale, p.soft_cap, range, range.begin + warp * MR_KEYS, s, rows);
    float out[D / 8][4] = {};
    mr_sum_values<T, D>(s, st.act_at + values, out);
    mr_meet_block();
    mr_share_sums<D>(reinterpret_cast<float *>(st.act) + warp * share * (D + 2), share, rows, out);
    mr_meet_block();
    mr_store_heads<T, D>(a, st, w, range.splits);
}

/* Attention of a layer. `first`: this block's first piece of work, which runs. */
template <typename T, int D>
__device__ static inline void mr_attend_all(const mr_decode_args &a, mr_decode_state &st,
                                            const mr_work &first, uint32_t count,
                                            uint32_t qkv_workers)
{
    const mr_cuda_decode_layer &l = mr_at<const mr_cuda_decode_layer>(a.p.layers)[st.layer];
    const uint32_t values = st.act_at + threadIdx.x / 32 * MR_KEYS * D * 2;
    uint4 keys[MR_KEYS / 8][D / 32];
    mr_work w = first;
    mr_fetch_keys<T, D>(l, w, values, keys);
    mr_await(a, st, MR_PART_QKV, qkv_workers, st.layer + 1);
    for (uint32_t number = blockIdx.x;;) {
        mr_attend<T, D>(a, st, l, w, keys);
        number += gridDim.x;
        mr_find_work(a, number, count, w);
        if (!w.runs) {
            break;
        }
        mr_meet_block(); /* shared memory is the next piece's */
        mr_fetch_keys<T, D>(l, w, values, keys);
    }
}

#endif
