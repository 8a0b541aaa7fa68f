/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention of prompts over the paged cache: 128 queries of one head at a time, after Dao,
 * "FlashAttention-2" (2023). Heads of 64 or 128 elements; queries, keys and values of one 2-byte
 * type.
 *
 *   grid    (query heads, tiles of queries); later queries, which see more keys, go first
 *   block   8 warps of 16 queries; keys and values come 64 at a time through shared memory, two
 *           stages of cp.async, chunks of 16 bytes swizzled by their row
 *   memory  2 stages · (keys + values) · 64 · D · 2 bytes; queries stay in registers
 *
 * Softmax is online, in float32; probabilities are rounded to the type before they meet the values.
 * Keys are visited in order from a multiple of 64 on: a row does not depend on other sequences.
 * sm_80 and later.
 */
#include "kernels/cuda/device/common.cuh"

#define WARPS   8
#define THREADS (WARPS * 32)
#define ROWS    MR_CUDA_TILE_ROWS
#define KEYS    64
#define LOG2E   1.4426950408889634f

static_assert(ROWS == WARPS * 16, "a warp takes 16 queries");

struct mr_tiles_args {
    mr_cuda_attention p;
    const mr_cuda_tile *tiles;
    const uint32_t *positions;
    const uint32_t *token_slot;
    const uint32_t *block_tables;
    uint32_t share;
    int32_t shift; /* block_size = 1 << shift, or −1 */
};

template <typename T> struct mr_pair_of;
template <> struct mr_pair_of<__half> {
    __device__ static uint32_t pack(float lo, float hi)
    {
        const __half2 v = __floats2half2_rn(lo, hi);
        return *reinterpret_cast<const uint32_t *>(&v);
    }
    __device__ static void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
    {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, "
                     "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
};
template <> struct mr_pair_of<__nv_bfloat16> {
    __device__ static uint32_t pack(float lo, float hi)
    {
        const __nv_bfloat162 v = __floats2bfloat162_rn(lo, hi);
        return *reinterpret_cast<const uint32_t *>(&v);
    }
    __device__ static void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
    {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                     "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
};

/* Byte offset of chunk c (16 bytes) of row r in a tile of D-element rows. */
template <int D> __device__ static inline uint32_t mr_swizzled(uint32_t r, uint32_t c)
{
    return r * (D * 2) + ((c ^ (r & 7)) << 4);
}

template <bool TRANSPOSED>
__device__ static inline void mr_load_matrices(uint32_t address, uint32_t (&m)[4])
{
    if (TRANSPOSED) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                     : "r"(address));
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                     : "r"(address));
    }
}

/* Starts the copy of KEYS keys or values from `first` on; what lies behind `end` becomes 0. */
template <int D>
__device__ static inline void mr_fetch(const mr_tiles_args &a, mr_cuda_ptr plane,
                                       const uint32_t *table, uint32_t g, uint32_t first,
                                       uint32_t end, uint32_t to)
{
    constexpr uint32_t CHUNKS = D / 8;
    const uint32_t size = a.p.kv.block_size;
#pragma unroll
    for (uint32_t i = threadIdx.x; i < KEYS * CHUNKS; i += THREADS) {
        const uint32_t r = i / CHUNKS;
        const uint32_t c = i % CHUNKS;
        const uint32_t key = first + r;
        const bool there = key < end;
        const uint32_t index = there ? (a.shift >= 0 ? key >> a.shift : key / size) : 0;
        const uint32_t within = there ? key - index * size : 0;
        const uint64_t offset =
            (((static_cast<uint64_t>(table[index]) * a.p.kv.heads + g) * size + within) * D +
             c * 8) *
            2;
        const uint32_t bytes = there ? 16 : 0;
        asm volatile(
            "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to + mr_swizzled<D>(r, c)),
            "l"(static_cast<unsigned long long>(plane + offset)), "r"(bytes));
    }
}

__device__ static inline void mr_commit()
{
    asm volatile("cp.async.commit_group;");
}

template <int N> __device__ static inline void mr_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N));
}

/* Scores of the warp's 16 queries with the KEYS keys at `keys`. */
template <typename T, int D>
__device__ static inline void mr_scores(const uint32_t (&q)[D / 16][4], uint32_t keys,
                                        float (&s)[KEYS / 8][4])
{
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t r = lane % 8 + (lane / 16) * 8; /* keys 0–7, 0–7, 8–15, 8–15 */
    const uint32_t c = lane / 8 % 2;               /* elements 0–7, 8–15, 0–7, 8–15 */
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            s[n][i] = 0.0f;
        }
    }
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
#pragma unroll
        for (int n = 0; n < KEYS / 16; n++) {
            uint32_t b[4];
            mr_load_matrices<false>(keys + mr_swizzled<D>(n * 16 + r, k * 2 + c), b);
            mr_pair_of<T>::mma(s[2 * n], q[k], b[0], b[1]);
            mr_pair_of<T>::mma(s[2 * n + 1], q[k], b[2], b[3]);
        }
    }
}

/* out += probabilities (in s) · values. */
template <typename T, int D>
__device__ static inline void mr_add_values(const float (&s)[KEYS / 8][4], uint32_t values,
                                            float (&out)[D / 8][4])
{
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t r = lane % 16; /* keys 0–7, 8–15, 0–7, 8–15 */
    const uint32_t c = lane / 16; /* elements 0–7, 0–7, 8–15, 8–15 */
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++) {
        const uint32_t a[4] = {
            mr_pair_of<T>::pack(s[2 * k][0], s[2 * k][1]),
            mr_pair_of<T>::pack(s[2 * k][2], s[2 * k][3]),
            mr_pair_of<T>::pack(s[2 * k + 1][0], s[2 * k + 1][1]),
            mr_pair_of<T>::pack(s[2 * k + 1][2], s[2 * k + 1][3]),
        };
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
            uint32_t b[4];
            mr_load_matrices<true>(values + mr_swizzled<D>(k * 16 + r, n * 2 + c), b);
            mr_pair_of<T>::mma(out[2 * n], a, b[0], b[1]);
            mr_pair_of<T>::mma(out[2 * n + 1], a, b[2], b[3]);
        }
    }
}

/* What the rows of one thread (g and g + 8 of the warp's 16) know. */
struct mr_tile_rows {
    uint32_t position[2];
    float max[2];
    float sum[2];
};

/* Scales and masks scores of keys from `first` on, and turns them into probabilities; gives by how
 * much what was summed before fades. */
__device__ static inline void mr_softmax(const mr_cuda_attention &p, uint32_t first, bool masked,
                                         float (&s)[KEYS / 8][4], mr_tile_rows &rows,
                                         float (&fade)[2])
{
    const uint32_t column = threadIdx.x % 4 * 2;
    float top[2] = {rows.max[0], rows.max[1]};
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float x = s[n][i] * p.scale;
            x = p.soft_cap > 0.0f ? p.soft_cap * tanhf(x / p.soft_cap) : x;
            x *= LOG2E;
            if (masked) {
                const uint32_t key = first + n * 8 + column + i % 2;
                const uint32_t at = rows.position[i / 2];
                const bool seen = key <= at && (p.window == 0 || at - key < p.window);
                x = seen ? x : -CUDART_INF_F;
            }
            s[n][i] = x;
            top[i / 2] = fmaxf(top[i / 2], x);
        }
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        top[h] = fmaxf(top[h], __shfl_xor_sync(0xffffffffu, top[h], 1));
        top[h] = fmaxf(top[h], __shfl_xor_sync(0xffffffffu, top[h], 2));
        fade[h] = top[h] == -CUDART_INF_F ? 1.0f : exp2f(rows.max[h] - top[h]);
        rows.max[h] = top[h];
        rows.sum[h] *= fade[h];
    }
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float m = rows.max[i / 2];
            s[n][i] = m == -CUDART_INF_F ? 0.0f : exp2f(s[n][i] - m);
            rows.sum[i / 2] += s[n][i];
        }
    }
}

/* The warp's queries as A operands; rows from `count` on are 0. */
template <typename T, int D>
__device__ static inline void mr_load_queries(const mr_tiles_args &a, const mr_cuda_tile &tile,
                                              uint32_t head, uint32_t (&q)[D / 16][4])
{
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t heads = a.p.heads + 2 * a.p.kv.heads;
    const T *qkv = reinterpret_cast<const T *>(static_cast<uintptr_t>(a.p.qkv));
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint32_t r = threadIdx.x / 32 * 16 + lane / 4 + h * 8;
        const bool there = r < tile.count;
        const size_t row = tile.token + (there ? r : 0);
        const uint32_t *from = reinterpret_cast<const uint32_t *>(qkv + (row * heads + head) * D);
#pragma unroll
        for (int k = 0; k < D / 16; k++) {
            q[k][h] = there ? from[k * 8 + lane % 4] : 0;
            q[k][h + 2] = there ? from[k * 8 + lane % 4 + 4] : 0;
        }
    }
}

template <typename T, int D>
__device__ static inline void mr_store_rows(const mr_tiles_args &a, const mr_cuda_tile &tile,
                                            uint32_t head, const float (&out)[D / 8][4],
                                            const float (&sum)[2])
{
    const uint32_t lane = threadIdx.x % 32;
    T *to = reinterpret_cast<T *>(static_cast<uintptr_t>(a.p.out));
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint32_t r = threadIdx.x / 32 * 16 + lane / 4 + h * 8;
        if (r >= tile.count) {
            continue;
        }
        uint32_t *row = reinterpret_cast<uint32_t *>(
            to + (static_cast<size_t>(tile.token + r) * a.p.heads + head) * D);
        const float scale = 1.0f / sum[h];
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            row[n * 4 + lane % 4] =
                mr_pair_of<T>::pack(out[n][2 * h] * scale, out[n][2 * h + 1] * scale);
        }
    }
}

template <typename T, int D>
__global__ static void __launch_bounds__(THREADS, 1) mr_attention_tiles_kernel(mr_tiles_args a)
{
    extern __shared__ __align__(128) uint8_t staged[];
    constexpr uint32_t PLANE = KEYS * D * 2;
    const uint32_t base = static_cast<uint32_t>(__cvta_generic_to_shared(staged));
    const uint32_t head = blockIdx.x;
    const uint32_t g = head / a.share;
    const mr_cuda_tile tile = a.tiles[gridDim.y - 1 - blockIdx.y];
    const uint32_t first_position = a.positions[tile.token];
    const uint32_t end = first_position + tile.count; /* keys there are */
    const uint32_t from = a.p.window > 0 && first_position >= a.p.window
                              ? (first_position - a.p.window + 1) / KEYS * KEYS
                              : 0;
    const uint32_t *table =
        a.block_tables + static_cast<size_t>(a.token_slot[tile.token]) * a.p.max_blocks;

    uint32_t q[D / 16][4];
    mr_load_queries<T, D>(a, tile, head, q);
    float out[D / 8][4] = {};
    mr_tile_rows rows;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        rows.position[h] = first_position + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + h * 8;
        rows.max[h] = -CUDART_INF_F;
        rows.sum[h] = 0.0f;
    }
    mr_fetch<D>(a, a.p.kv.keys, table, g, from, end, base);
    mr_fetch<D>(a, a.p.kv.values, table, g, from, end, base + PLANE);
    mr_commit();
    uint32_t stage = 0;
    for (uint32_t first = from; first < end; first += KEYS, stage ^= 1) {
        if (first + KEYS < end) {
            const uint32_t next = base + (stage ^ 1) * 2 * PLANE;
            mr_fetch<D>(a, a.p.kv.keys, table, g, first + KEYS, end, next);
            mr_fetch<D>(a, a.p.kv.values, table, g, first + KEYS, end, next + PLANE);
        }
        mr_commit();
        mr_wait<1>();
        __syncthreads();
        const uint32_t here = base + stage * 2 * PLANE;
        float s[KEYS / 8][4];
        float fade[2];
        mr_scores<T, D>(q, here, s);
        const bool masked = first + KEYS > first_position || a.p.window > 0;
        mr_softmax(a.p, first, masked, s, rows, fade);
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                out[n][i] *= fade[i / 2];
            }
        }
        mr_add_values<T, D>(s, here + PLANE, out);
        __syncthreads();
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        rows.sum[h] += __shfl_xor_sync(0xffffffffu, rows.sum[h], 1);
        rows.sum[h] += __shfl_xor_sync(0xffffffffu, rows.sum[h], 2);
    }
    mr_store_rows<T, D>(a, tile, head, out, rows.sum);
}

template <typename T, int D> static int launch(mr_cuda_context *context, const mr_tiles_args &a)
{
    const int bytes = 4 * KEYS * D * 2;
    const cudaError_t code = cudaFuncSetAttribute(
        mr_attention_tiles_kernel<T, D>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (code != cudaSuccess) {
        return code;
    }
    const dim3 grid(a.p.heads, a.p.n_tiles);
    mr_attention_tiles_kernel<T, D><<<grid, THREADS, bytes, context->stream>>>(a);
    return cudaGetLastError();
}

int mr_cuda_attention_tiles_run(mr_cuda_context *context, const mr_cuda_attention *p)
{
    mr_tiles_args a = {};
    a.p = *p;
    a.tiles = mr_at<const mr_cuda_tile>(p->tiles);
    a.positions = mr_at<const uint32_t>(p->positions);
    a.token_slot = mr_at<const uint32_t>(p->token_slot);
    a.block_tables = mr_at<const uint32_t>(p->block_tables);
    a.share = p->heads / p->kv.heads;
    const uint32_t size = p->kv.block_size;
    a.shift = (size & (size - 1)) == 0 ? __builtin_ctz(size) : -1;
    if (p->type == MR_DTYPE_F16) {
        return p->kv.width == 64 ? launch<__half, 64>(context, a) : launch<__half, 128>(context, a);
    }
    return p->kv.width == 64 ? launch<__nv_bfloat16, 64>(context, a)
                             : launch<__nv_bfloat16, 128>(context, a);
}
