/* SPDX-License-Identifier: Apache-2.0 */
/* Rotation of queries and keys, and the write of keys and values into the paged cache. */
#include "kernels/cuda/device/common.cuh"

#define THREADS 256

__global__ static void mr_rope_table_kernel(mr_cuda_rope_table p, const float *inv_freq,
                                            float2 *out)
{
    mr_let_next_come();
    mr_wait_for_previous();
    const size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= static_cast<size_t>(p.positions) * p.pairs) {
        return;
    }
    const double angle =
        static_cast<double>(i / p.pairs) * static_cast<double>(inv_freq[i % p.pairs]);
    double sine;
    double cosine;
    sincos(angle, &sine, &cosine);
    const double factor = static_cast<double>(p.factor);
    out[i] = make_float2(static_cast<float>(cosine * factor), static_cast<float>(sine * factor));
}

int mr_cuda_rope_make_table(mr_cuda_context *context, const mr_cuda_rope_table *p)
{
    const uint64_t count = static_cast<uint64_t>(p->positions) * p->pairs;
    const uint32_t blocks = static_cast<uint32_t>((count + THREADS - 1) / THREADS);
    return mr_launch(context, mr_rope_table_kernel, blocks, THREADS, 0, *p,
                     mr_at<const float>(p->inv_freq), mr_at<float2>(p->out));
}

/* One warp a head of a token. */
template <typename T>
__global__ static void mr_head_norm_kernel(mr_cuda_head_norm p, T *qkv, const float *q_gain,
                                           const float *k_gain)
{
    mr_let_next_come();
    mr_wait_for_previous();
    const uint32_t head = blockIdx.y * (THREADS / 32) + threadIdx.x / 32;
    if (head >= p.heads + p.kv_heads) {
        return;
    }
    const size_t row = static_cast<size_t>(blockIdx.x) * (p.heads + 2 * p.kv_heads) + head;
    const float *gain = head < p.heads ? q_gain : k_gain;
    T *x = qkv + row * p.width;
    float sum = 0.0f;
    for (uint32_t i = threadIdx.x % 32; i < p.width; i += 32) {
        sum += mr_to_float(x[i]) * mr_to_float(x[i]);
    }
    const float scale = 1.0f / sqrtf(mr_warp_sum(sum) / static_cast<float>(p.width) + p.epsilon);
    for (uint32_t i = threadIdx.x % 32; i < p.width; i += 32) {
        x[i] = mr_from_float<T>(mr_to_float(x[i]) * scale * gain[i]);
    }
}

int mr_cuda_rope_head_norm(mr_cuda_context *context, const mr_cuda_head_norm *p)
{
    const dim3 grid(p->tokens, mr_ceil_div(p->heads + p->kv_heads, THREADS / 32));
    MR_CUDA_DISPATCH(p->type, T,
                     return mr_launch(context, mr_head_norm_kernel<T>, grid, THREADS, 0, *p,
                                      mr_at<T>(p->qkv), mr_at<const float>(p->q_gain),
                                      mr_at<const float>(p->k_gain)));
}

/* Elements of a pair in a head. */
__device__ static inline void mr_pair_of(const mr_cuda_rope_kv &p, uint32_t i, uint32_t *a,
                                         uint32_t *b)
{
    const bool halves = p.pairing == MR_ROPE_HALVES;
    *a = halves ? i : 2 * i;
    *b = halves ? i + p.pairs : 2 * i + 1;
}

/* Blocks (token, part of its heads). A thread takes one pair of elements of a head, queries first,
 * then keys, then values; what is not rotated passes through. */
template <typename T, typename KV>
__global__ static void mr_rope_kv_kernel(mr_cuda_rope_kv p, T *qkv, const float2 *table,
                                         const uint32_t *positions, const uint32_t *kv_slot,
                                         KV *keys, KV *values)
{
    mr_let_next_come();
    mr_wait_for_previous();
    const uint32_t t = blockIdx.x;
    const uint32_t width = p.kv.width;
    const uint32_t heads = p.heads + 2 * p.kv.heads;
    const uint32_t units = (width + 1) / 2; /* pairs of a head, the last may be one element */
    const uint32_t i = blockIdx.y * blockDim.x + threadIdx.x;
    const uint32_t head = i / units;
    const uint32_t unit = i % units;
    if (head >= heads) {
        return;
    }
    const bool turns = table != nullptr && head < p.heads + p.kv.heads && unit < p.pairs;
    uint32_t a = 2 * unit;
    uint32_t b = 2 * unit + 1;
    if (turns) {
        mr_pair_of(p, unit, &a, &b);
    }
    T *x = qkv + (static_cast<size_t>(t) * heads + head) * width;
    float u = mr_to_float(x[a]);
    float v = b < width ? mr_to_float(x[b]) : 0.0f;
    if (turns) {
        const float2 r = table[static_cast<size_t>(positions[t]) * p.pairs + unit];
        const float turned = u * r.x - v * r.y;
        v = v * r.x + u * r.y;
        u = turned;
    }
    if (head < p.heads) {
        if (turns) {
            x[a] = mr_from_float<T>(u);
            x[b] = mr_from_float<T>(v);
        }
        return;
    }
    const uint32_t block = kv_slot[t] / p.kv.block_size;
    const uint32_t offset = kv_slot[t] % p.kv.block_size;
    if (block == MR_NULL_BLOCK) {
        return;
    }
    const uint32_t g = (head - p.heads) % p.kv.heads;
    KV *to = (head < p.heads + p.kv.heads ? keys : values) +
             ((static_cast<size_t>(block) * p.kv.heads + g) * p.kv.block_size + offset) * width;
    to[a] = mr_from_float<KV>(u);
    if (b < width) {
        to[b] = mr_from_float<KV>(v);
    }
}

/* The usual case: a type of 2 bytes, in the cache too, and every pair of a head is rotated or none
 * is. Blocks (token, part of its heads), neighbours in memory side by side. A thread takes 8 pairs
 * of a head, which are two vectors of it. What is read before the wait is older than this step's
 * kernels. */
template <typename T, bool HALVES>
__global__ static void mr_rope_kv_wide_kernel(mr_cuda_rope_kv p, uint32_t parts, uint4 *qkv,
                                              const float4 *table, const uint32_t *positions,
                                              const uint32_t *kv_slot, uint4 *keys, uint4 *values)
{
    mr_let_next_come();
    const uint32_t t = blockIdx.x / parts;
    const uint32_t vectors = p.kv.width / 8; /* of a head */
    const uint32_t heads = p.heads + 2 * p.kv.heads;
    const uint32_t i = blockIdx.x % parts * blockDim.x + threadIdx.x;
    const uint32_t head = i / (vectors / 2);
    const uint32_t unit = i % (vectors / 2);
    const bool turns = table != nullptr && head < p.heads + p.kv.heads;
    if (head >= heads || (head < p.heads && !turns)) {
        return;
    }
    float4 turn[4]; /* cos, sin, cos, sin */
    if (turns) {
        const float4 *from = table + (static_cast<size_t>(positions[t]) * vectors / 2 + unit) * 4;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            turn[j] = from[j];
        }
    }
    const uint32_t slot = kv_slot[t];
    const uint32_t first = HALVES ? unit : 2 * unit;
    const uint32_t second = HALVES ? unit + vectors / 2 : 2 * unit + 1;
    mr_wait_for_previous();
    union {
        uint4 v[2];
        T e[16];
    } x;
    uint4 *row = qkv + (static_cast<size_t>(t) * heads + head) * vectors;
    x.v[0] = row[first];
    x.v[1] = row[second];
    if (turns) {
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const int a = HALVES ? j : 2 * j;
            const int b = HALVES ? j + 8 : 2 * j + 1;
            const float cosine = j % 2 == 0 ? turn[j / 2].x : turn[j / 2].z;
            const float sine = j % 2 == 0 ? turn[j / 2].y : turn[j / 2].w;
            const float u = mr_to_float(x.e[a]);
            const float v = mr_to_float(x.e[b]);
            x.e[a] = mr_from_float<T>(u * cosine - v * sine);
            x.e[b] = mr_from_float<T>(v * cosine + u * sine);
        }
    }
    uint4 *to = row;
    if (head >= p.heads) {
        const uint32_t block = slot / p.kv.block_size;
        if (block == MR_NULL_BLOCK) {
            return;
        }
        const uint32_t g = (head - p.heads) % p.kv.heads;
        to = (head < p.heads + p.kv.heads ? keys : values) +
             ((static_cast<size_t>(block) * p.kv.heads + g) * p.kv.block_size +
              slot % p.kv.block_size) *
                 vectors;
    }
    to[first] = x.v[0];
    to[second] = x.v[1];
}

template <typename T, bool HALVES>
static int rope_wide(mr_cuda_context *context, const mr_cuda_rope_kv *p)
{
    const uint32_t units = (p->heads + 2 * p->kv.heads) * (p->kv.width / 16);
    const uint32_t parts = mr_ceil_div(units, THREADS);
    const uint32_t threads = mr_ceil_div(mr_ceil_div(units, parts), 32) * 32;
    return mr_launch(context, mr_rope_kv_wide_kernel<T, HALVES>, p->tokens * parts, threads, 0, *p,
                     parts, mr_at<uint4>(p->qkv), mr_at<const float4>(p->table),
                     mr_at<const uint32_t>(p->positions), mr_at<const uint32_t>(p->kv_slot),
                     mr_at<uint4>(p->kv.keys), mr_at<uint4>(p->kv.values));
}

int mr_cuda_rope_run(mr_cuda_context *context, const mr_cuda_rope_kv *p)
{
    if (p->type != MR_DTYPE_F32 && p->kv.type == p->type && p->kv.width % 16 == 0 &&
        (p->table == 0 || 2 * p->pairs == p->kv.width)) {
        if (p->type == MR_DTYPE_F16) {
            return p->pairing == MR_ROPE_HALVES ? rope_wide<__half, true>(context, p)
                                                : rope_wide<__half, false>(context, p);
        }
        return p->pairing == MR_ROPE_HALVES ? rope_wide<__nv_bfloat16, true>(context, p)
                                            : rope_wide<__nv_bfloat16, false>(context, p);
    }
    const uint32_t pairs = (p->heads + 2 * p->kv.heads) * ((p->kv.width + 1) / 2);
    const dim3 grid(p->tokens, mr_ceil_div(pairs, THREADS));
    MR_CUDA_DISPATCH(
        p->type, T,
        MR_CUDA_DISPATCH(p->kv.type, KV,
                         return mr_launch(context, mr_rope_kv_kernel<T, KV>, grid, THREADS, 0, *p,
                                          mr_at<T>(p->qkv), mr_at<const float2>(p->table),
                                          mr_at<const uint32_t>(p->positions),
                                          mr_at<const uint32_t>(p->kv_slot), mr_at<KV>(p->kv.keys),
                                          mr_at<KV>(p->kv.values))));
}
