/* SPDX-License-Identifier: Apache-2.0 */
/* Rotation of queries and keys, and the write of keys and values into the paged cache. */
#include "kernels/cuda/attention/codes.cuh"

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
    float u = mr_to_float(x[a]) * mr_raw_scale(p.raw, t, head * width + a);
    float v = b < width ? mr_to_float(x[b]) * mr_raw_scale(p.raw, t, head * width + b) : 0.0f;
    if (turns) {
        const float2 r = table[static_cast<size_t>(positions[t]) * p.pairs + unit];
        const float turned = u * r.x - v * r.y;
        v = v * r.x + u * r.y;
        u = turned;
    }
    if (head < p.heads) {
        if (turns || p.raw.row != 0) {
            x[a] = mr_from_float<T>(u);
            if (b < width) {
                x[b] = mr_from_float<T>(v);
            }
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
    if (head >= heads || (head < p.heads && !turns && p.raw.row == 0)) {
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
    if (p.raw.row != 0) {
#pragma unroll
        for (int j = 0; j < 16; j++) {
            const uint32_t column = (head * vectors + (j < 8 ? first : second)) * 8 + j % 8;
            x.e[j] = mr_from_float<T>(mr_to_float(x.e[j]) * mr_raw_scale(p.raw, t, column));
        }
    }
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

/* ---- caches of one byte an element ---- */

#define HEAD_PAIRS 4 /* of a lane: heads of up to 256 elements */

/* A head of a token, two elements a place: a lane has pairs lane, lane + 32, … */
struct mr_rope_head {
    float u[HEAD_PAIRS];
    float v[HEAD_PAIRS];
    uint32_t a[HEAD_PAIRS];
    uint32_t b[HEAD_PAIRS];
};

template <typename T>
__device__ static inline void mr_turn_head(const mr_cuda_rope_kv &p, const T *x, uint32_t head,
                                           bool turns, const float2 *angles, mr_rope_head &h)
{
    const uint32_t width = p.kv.width;
    const uint32_t first = head * width; /* column of the product */
#pragma unroll
    for (int j = 0; j < HEAD_PAIRS; j++) {
        const uint32_t unit = j * 32 + threadIdx.x % 32;
        const bool turned = turns && unit < p.pairs;
        h.a[j] = 2 * unit;
        h.b[j] = 2 * unit + 1;
        if (turned) {
            mr_pair_of(p, unit, &h.a[j], &h.b[j]);
        }
        h.u[j] = h.a[j] < width
                     ? mr_to_float(x[h.a[j]]) * mr_raw_scale(p.raw, blockIdx.x, first + h.a[j])
                     : 0.0f;
        h.v[j] = h.b[j] < width
                     ? mr_to_float(x[h.b[j]]) * mr_raw_scale(p.raw, blockIdx.x, first + h.b[j])
                     : 0.0f;
        if (turned) {
            const float2 r = angles[unit];
            const float u = h.u[j] * r.x - h.v[j] * r.y;
            h.v[j] = h.v[j] * r.x + h.u[j] * r.y;
            h.u[j] = u;
        }
    }
}

template <typename V>
__device__ static inline void mr_put_pair(V *to, uint32_t width, const mr_rope_head &h, int j, V u,
                                          V v)
{
    if (h.a[j] < width) {
        to[h.a[j]] = u;
    }
    if (h.b[j] < width) {
        to[h.b[j]] = v;
    }
}

/* As mr_kv_quantize of kernels/kv_layout.h does it: a NaN or an infinity makes the scale one. */
__device__ static inline float mr_i8_scale(const mr_rope_head &h, float *factor)
{
    uint32_t top = 0;
#pragma unroll
    for (int j = 0; j < HEAD_PAIRS; j++) {
        top = max(top, __float_as_uint(h.u[j]) & 0x7fffffffu);
        top = max(top, __float_as_uint(h.v[j]) & 0x7fffffffu);
    }
    const float largest = __uint_as_float(__reduce_max_sync(0xffffffffu, top));
    const bool nought = largest < 0x1p-110f;
    *factor = nought ? 0.0f : 127.0f / largest;
    return nought ? 0.0f : largest / 127.0f;
}

__device__ static inline mr_code_i8 mr_i8_of(float x)
{
    const float code = rintf(x);
    return mr_code_i8{static_cast<int8_t>(code >= -127.0f && code <= 127.0f ? code : 0.0f)};
}

__device__ static inline void mr_keep_i8(const mr_cuda_rope_kv &p, uint8_t *plane, uint32_t row,
                                         const mr_rope_head &h)
{
    float factor;
    const float scale = mr_i8_scale(h, &factor);
    mr_code_i8 *to =
        reinterpret_cast<mr_code_i8 *>(plane + mr_code_row<true>(row, p.kv.width, p.kv.block_size));
#pragma unroll
    for (int j = 0; j < HEAD_PAIRS; j++) {
        mr_put_pair(to, p.kv.width, h, j, mr_i8_of(h.u[j] * factor), mr_i8_of(h.v[j] * factor));
    }
    if (threadIdx.x % 32 == 0) {
        *reinterpret_cast<float *>(plane + mr_code_scale_at(row, p.kv.width, p.kv.block_size)) =
            scale;
    }
}

__device__ static inline void mr_keep_e4m3(const mr_cuda_rope_kv &p, uint8_t *plane, float scale,
                                           uint32_t row, const mr_rope_head &h)
{
    uint8_t *to = plane + mr_code_row<false>(row, p.kv.width, p.kv.block_size);
    const float factor = 1.0f / scale;
#pragma unroll
    for (int j = 0; j < HEAD_PAIRS; j++) {
        const uint32_t pair = mr_e4m3_pair(h.u[j] * factor, h.v[j] * factor);
        mr_put_pair(to, p.kv.width, h, j, static_cast<uint8_t>(pair),
                    static_cast<uint8_t>(pair >> 8));
    }
}

/* One warp a head of a token: queries, then keys, then values. */
template <typename T>
__global__ static void mr_rope_codes_kernel(mr_cuda_rope_kv p, T *qkv, const float2 *table,
                                            const uint32_t *positions, const uint32_t *kv_slot,
                                            uint8_t *keys, uint8_t *values)
{
    mr_let_next_come();
    mr_wait_for_previous();
    const uint32_t t = blockIdx.x;
    const uint32_t heads = p.heads + 2 * p.kv.heads;
    const uint32_t head = blockIdx.y * (THREADS / 32) + threadIdx.x / 32;
    const bool query = head < p.heads;
    const bool key = !query && head < p.heads + p.kv.heads;
    const bool turns = table != nullptr && (query || key);
    if (head >= heads || (query && !turns && p.raw.row == 0)) {
        return;
    }
    T *x = qkv + (static_cast<size_t>(t) * heads + head) * p.kv.width;
    mr_rope_head h;
    mr_turn_head(p, x, head, turns,
                 turns ? table + static_cast<size_t>(positions[t]) * p.pairs : nullptr, h);
    if (query) {
#pragma unroll
        for (int j = 0; j < HEAD_PAIRS; j++) {
            mr_put_pair(x, p.kv.width, h, j, mr_from_float<T>(h.u[j]), mr_from_float<T>(h.v[j]));
        }
        return;
    }
    const uint32_t block = kv_slot[t] / p.kv.block_size;
    if (block == MR_NULL_BLOCK) {
        return;
    }
    const uint32_t g = (head - p.heads) % p.kv.heads;
    const uint32_t row = (block * p.kv.heads + g) * p.kv.block_size + kv_slot[t] % p.kv.block_size;
    if (p.kv.type == MR_DTYPE_I8) {
        mr_keep_i8(p, key ? keys : values, row, h);
    } else {
        mr_keep_e4m3(p, key ? keys : values, key ? p.kv.key_scale : p.kv.value_scale, row, h);
    }
}

static int run_codes(mr_cuda_context *context, const mr_cuda_rope_kv *p)
{
    const dim3 grid(p->tokens, mr_ceil_div(p->heads + 2 * p->kv.heads, THREADS / 32));
    MR_CUDA_DISPATCH(p->type, T,
                     return mr_launch(context, mr_rope_codes_kernel<T>, grid, THREADS, 0, *p,
                                      mr_at<T>(p->qkv), mr_at<const float2>(p->table),
                                      mr_at<const uint32_t>(p->positions),
                                      mr_at<const uint32_t>(p->kv_slot), mr_at<uint8_t>(p->kv.keys),
                                      mr_at<uint8_t>(p->kv.values)));
}

int mr_cuda_rope_run(mr_cuda_context *context, const mr_cuda_rope_kv *p)
{
    if (mr_is_coded(p->kv)) {
        return run_codes(context, p);
    }
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
