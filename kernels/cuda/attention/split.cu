/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention of single tokens over the paged cache, keys divided at fixed positions: decoding, and
 * every shape that prompt attention (tiles.cu) does not take. Heads, types and blocks that suit the
 * matrix units go on to warp_split.cu; the kernel here takes all others.
 *
 *   item     (token, split): keys [256 · split, 256 · split + 256) as far as the token sees them
 *   work     (item, key/value head, S of the query heads that share it)
 *   block    128 threads in streams of LANES; a stream takes every (128 / LANES)-th key, a thread 8
 *            elements of it, so that a key is one contiguous read
 *
 * Softmax is online within a stream; streams meet in shared memory in order. Where a token has more
 * than one split, partial results go to memory, and the block that comes last (a counter knows)
 * adds them up in the order of the splits. So a row depends on its own keys only, whatever the
 * grid. Float32 throughout. Shared memory: streams · S · (8 · LANES + 2) floats.
 */
#include "kernels/cuda/attention/split.cuh"

#define THREADS MR_SPLIT_THREADS
#define KEYS    4 /* of a stream in flight */

/* Eight elements of one byte are one load, others take 16 bytes at a time. */
__device__ static inline void mr_load_vectors(const void *from, uint2 (&v)[1])
{
    v[0] = *static_cast<const uint2 *>(from);
}

template <int N> __device__ static inline void mr_load_vectors(const void *from, uint2 (&v)[N])
{
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        const uint4 x = static_cast<const uint4 *>(from)[i];
        v[2 * i] = make_uint2(x.x, x.y);
        v[2 * i + 1] = make_uint2(x.z, x.w);
    }
}

/* Eight elements from d on as float32; those from `width` on are 0. */
template <typename KV>
__device__ static inline void mr_load8(const KV *p, uint32_t d, uint32_t width, bool whole,
                                       float (&x)[8])
{
    if (whole) {
        union {
            uint2 v[sizeof(KV)];
            KV e[8];
        } raw;
        mr_load_vectors(p + d, raw.v);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            x[i] = mr_to_float(raw.e[i]);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        x[i] = d + i < width ? mr_to_float(p[d + i]) : 0.0f;
    }
}

/* Running softmax of one stream for S heads. */
template <int S> struct mr_stream {
    float max[S];
    float sum[S];
    float acc[S][8];
};

template <typename KV> struct mr_is_i8 {
    static constexpr bool value = false;
};
template <> struct mr_is_i8<mr_code_i8> {
    static constexpr bool value = true;
};

/* The place of a key or value among the tokens of all pieces of its plane. */
__device__ static inline uint32_t mr_kv_row(const mr_split_args &a, const uint32_t *table,
                                            uint32_t g, uint32_t key)
{
    const uint32_t size = a.p.kv.block_size;
    const uint32_t index = a.shift >= 0 ? key >> a.shift : key / size;
    const uint32_t within = key - index * size;
    return (table[index] * a.p.kv.heads + g) * size + within;
}

/* Its scale, if its type has such. */
template <typename KV>
__device__ static inline float mr_kv_scale(const mr_split_args &a, const KV *plane, uint32_t row)
{
    return mr_is_i8<KV>::value ? mr_code_scale(plane, row, a.p.kv.width, a.p.kv.block_size) : 1.0f;
}

template <typename KV, int LANES, int S>
__device__ static inline void mr_visit_keys(const mr_split_args &a, const uint32_t *table,
                                            uint32_t g, uint32_t begin, uint32_t end,
                                            const float (&q)[S][8], mr_stream<S> &st)
{
    constexpr uint32_t STREAMS = THREADS / LANES;
    const uint32_t width = a.p.kv.width;
    const uint32_t d = threadIdx.x % LANES * 8;
    const bool inside = d < width;
    constexpr bool I8 = mr_is_i8<KV>::value;
    const bool whole = width % 8 == 0 && !(I8 && a.p.kv.block_size % 2 != 0);
    const KV *keys = mr_at<const KV>(a.p.kv.keys);
    const KV *values = mr_at<const KV>(a.p.kv.values);
    /* All lanes of a warp make the same number of turns: they shuffle together. */
    for (uint32_t first = begin; first < end; first += STREAMS * KEYS) {
        uint32_t row[KEYS];
        bool seen[KEYS];
        float x[KEYS][8];
        float score[KEYS][S];
#pragma unroll
        for (int j = 0; j < KEYS; j++) {
            const uint32_t key = first + j * STREAMS + threadIdx.x / LANES;
            seen[j] = key < end;
            row[j] = mr_kv_row(a, table, g, seen[j] ? key : begin);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                x[j][i] = 0.0f;
            }
            if (inside) {
                mr_load8(keys + mr_code_row<I8>(row[j], width, a.p.kv.block_size), d, width, whole,
                         x[j]);
            }
        }
#pragma unroll
        for (int j = 0; j < KEYS; j++) {
            const float key_scale = mr_kv_scale(a, keys, row[j]);
#pragma unroll
            for (int s = 0; s < S; s++) {
                float dot = 0.0f;
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    dot += q[s][i] * x[j][i];
                }
#pragma unroll
                for (int o = LANES / 2; o > 0; o /= 2) {
                    dot += __shfl_xor_sync(0xffffffffu, dot, o);
                }
                dot *= a.p.scale * key_scale;
                dot = a.p.soft_cap > 0.0f ? a.p.soft_cap * tanhf(dot / a.p.soft_cap) : dot;
                score[j][s] = seen[j] ? dot * MR_LOG2E : -CUDART_INF_F;
            }
            if (inside) {
                mr_load8(values + mr_code_row<I8>(row[j], width, a.p.kv.block_size), d, width,
                         whole, x[j]);
            }
            if (I8) {
                const float value_scale = mr_kv_scale(a, values, row[j]);
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    x[j][i] *= value_scale;
                }
            }
        }
#pragma unroll
        for (int s = 0; s < S; s++) {
            float max = st.max[s];
#pragma unroll
            for (int j = 0; j < KEYS; j++) {
                max = fmaxf(max, score[j][s]);
            }
            if (max == -CUDART_INF_F) {
                continue; /* this stream has seen no key yet */
            }
            const float fade = exp2f(st.max[s] - max);
            st.max[s] = max;
            st.sum[s] *= fade;
#pragma unroll
            for (int i = 0; i < 8; i++) {
                st.acc[s][i] *= fade;
            }
#pragma unroll
            for (int j = 0; j < KEYS; j++) {
                const float weight = exp2f(score[j][s] - max);
                st.sum[s] += weight;
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    st.acc[s][i] += weight * x[j][i];
                }
            }
        }
    }
}

template <typename KV, int LANES, int S>
__device__ static inline void mr_run_item(const mr_split_args &a, uint32_t item, uint32_t g,
                                          uint32_t chunk, float *shared, uint32_t *arrived)
{
    constexpr uint32_t STREAMS = THREADS / LANES;
    constexpr uint32_t ROW = LANES * 8 + 2;
    const mr_cuda_item it = a.items[item];
    const uint32_t width = a.p.kv.width;
    const mr_split_range range = mr_range_of(a, it);
    if (it.split < range.first_split) {
        return; /* out of this layer's window */
    }
    const uint32_t heads = min(a.share - chunk * S, static_cast<uint32_t>(S));
    const uint32_t head = g * a.share + chunk * S;
    const uint32_t d = threadIdx.x % LANES * 8;

    float q[S][8];
    const size_t row = static_cast<size_t>(it.token) * (a.p.heads + 2 * a.p.kv.heads) * width;
    mr_stream<S> st;
#pragma unroll
    for (int s = 0; s < S; s++) {
        st.max[s] = -CUDART_INF_F;
        st.sum[s] = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            st.acc[s][i] = 0.0f;
            q[s][i] = s < static_cast<int>(heads) && d + i < width
                          ? mr_load_as(a.qkv, a.p.type, row + (head + s) * width + d + i)
                          : 0.0f;
        }
    }
    const uint32_t *table =
        a.block_tables + static_cast<size_t>(a.token_slot[it.token]) * a.p.max_blocks;
    mr_visit_keys<KV, LANES, S>(a, table, g, range.begin, range.end, q, st);

    __syncthreads(); /* the item before may still be read */
    float *mine = shared + (threadIdx.x / LANES) * ROW;
#pragma unroll
    for (int s = 0; s < S; s++) {
        float *to = mine + s * STREAMS * ROW;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            to[d + i] = st.acc[s][i];
        }
        if (d == 0) {
            to[LANES * 8] = st.max[s];
            to[LANES * 8 + 1] = st.sum[s];
        }
    }
    __syncthreads();
    const size_t out = static_cast<size_t>(it.token) * a.p.heads * width;
    for (uint32_t i = threadIdx.x; i < heads * width; i += THREADS) {
        const uint32_t s = i / width;
        float max;
        float sum;
        const float acc =
            mr_merge(shared + s * STREAMS * ROW, ROW, STREAMS, LANES * 8, i % width, &max, &sum);
        if (range.splits == 1) {
            mr_store_as(a.out, a.p.type, out + (head + s) * width + i % width,
                        acc / sum * a.value_scale);
            continue;
        }
        float *to = mr_partial_at(a, item, head + s);
        to[i % width] = acc;
        if (i % width == 0) {
            to[width] = max;
            to[width + 1] = sum;
        }
    }
    mr_finish_item(a, it, head, heads, range.first_split, range.splits, arrived);
}

template <typename KV, int LANES, int S>
__global__ static void __launch_bounds__(THREADS) mr_attention_split_kernel(mr_split_args a)
{
    MR_DYNAMIC_SHARED(float, 16, shared);
    __shared__ uint32_t arrived;
    mr_let_next_come();
    mr_wait_for_previous();
    const uint32_t n_items = a.p.count > 0 ? a.p.count : a.header->n_items;
    const uint32_t per_item = a.p.kv.heads * a.chunks;
    for (uint64_t w = blockIdx.x; w < static_cast<uint64_t>(n_items) * per_item; w += gridDim.x) {
        const uint32_t item = a.p.first + static_cast<uint32_t>(w / per_item);
        const uint32_t rest = static_cast<uint32_t>(w % per_item);
        mr_run_item<KV, LANES, S>(a, item, rest / a.chunks, rest % a.chunks, shared, &arrived);
    }
}

template <typename KV, int LANES, int S>
static int launch(mr_cuda_context *context, mr_split_args *a)
{
    const size_t bytes = static_cast<size_t>(S) * (THREADS / LANES) * (LANES * 8 + 2) * 4;
    a->chunks = mr_ceil_div(a->share, S);
    const uint32_t blocks = mr_split_blocks(context, *a, 3);
    return mr_launch(context, mr_attention_split_kernel<KV, LANES, S>, blocks, THREADS, bytes, *a);
}

template <typename KV, int LANES> static int choose(mr_cuda_context *context, mr_split_args *a)
{
    return a->share == 1 ? launch<KV, LANES, 1>(context, a) : launch<KV, LANES, 4>(context, a);
}

template <typename KV> static int choose_lanes(mr_cuda_context *context, mr_split_args *a)
{
    if (a->p.kv.width <= 64) {
        return choose<KV, 8>(context, a);
    }
    return a->p.kv.width <= 128 ? choose<KV, 16>(context, a) : choose<KV, 32>(context, a);
}

int mr_cuda_attention_split_run(mr_cuda_context *context, const mr_cuda_attention *p)
{
    mr_split_args a = mr_split_args_of(p);
    if (mr_cuda_attention_takes_warp_splits(context, p)) {
        return mr_cuda_attention_warp_split_run(context, &a);
    }
    switch (p->kv.type) {
    case MR_DTYPE_F8_E4M3:
        return choose_lanes<mr_code_e4m3>(context, &a);
    case MR_DTYPE_I8:
        return choose_lanes<mr_code_i8>(context, &a);
    case MR_DTYPE_F16:
        return choose_lanes<__half>(context, &a);
    case MR_DTYPE_BF16:
        return choose_lanes<__nv_bfloat16>(context, &a);
    default:
        return choose_lanes<float>(context, &a);
    }
}
