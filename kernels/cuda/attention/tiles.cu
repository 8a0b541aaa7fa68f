/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention of prompts over the paged cache: 128 queries of one head at a time, after Dao,
 * "FlashAttention-2" (2023). Heads of 64 or 128 elements; queries, keys and values of one 2-byte
 * type.
 *
 *   grid    (query heads, tiles of queries); later queries, which see more keys, go first
 *   block   4 warps of 32 queries; keys and values come 64 at a time through shared memory, two
 *           stages of cp.async, chunks of 16 bytes swizzled by their row; two blocks a processor
 *   memory  queries: 128 · D · 2 bytes; keys and values: 2 stages · 2 · 64 · D · 2 bytes
 *
 * Softmax is online, in float32; probabilities are rounded to the type before they meet the values.
 * Keys are visited in order from a multiple of 64 on: a row does not depend on other sequences.
 * sm_80 and later; what warpgroups.cu takes goes there.
 */
#include "kernels/cuda/attention/codes.cuh"
#include "kernels/cuda/attention/tiles.cuh"
#include "kernels/cuda/device/mma.cuh"

#define WARPS   4
#define THREADS (WARPS * 32)
#define ROWS    MR_CUDA_TILE_ROWS
#define PARTS   2 /* of 16 rows, of a warp */
#define KEYS    64

static_assert(ROWS == WARPS * PARTS * 16, "a warp takes 32 queries");

/* Eight numbers, times a scale. */
template <typename T> __device__ static inline uint4 mr_times(uint4 x, float scale)
{
    union {
        uint4 v;
        T e[8];
    } y;
    y.v = x;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        y.e[i] = mr_from_float<T>(mr_to_float(y.e[i]) * scale);
    }
    return y.v;
}

/* Keys that some row of the tile sees. Others may hold anything, and 0 times a NaN is none. */
struct mr_seen_keys {
    uint32_t begin;
    uint32_t end;
};

/* Starts the copies of KEYS keys and values from `first` on; what no row sees becomes 0. */
template <int D>
__device__ static inline void mr_fetch(const mr_tiles_args &a, const uint32_t *table, uint32_t g,
                                       uint32_t first, mr_seen_keys seen, uint32_t to)
{
    constexpr uint32_t CHUNKS = D / 8;
    const uint32_t size = a.p.kv.block_size;
    const uint32_t c = threadIdx.x % CHUNKS;
    const uint4 *keys = mr_at<const uint4>(a.p.kv.keys);
    const uint4 *values = mr_at<const uint4>(a.p.kv.values);
#pragma unroll
    for (uint32_t r = threadIdx.x / CHUNKS; r < KEYS; r += THREADS / CHUNKS) {
        const uint32_t key = first + r;
        const bool there = key >= seen.begin && key < seen.end;
        size_t from = 0;
        if (there) {
            const uint32_t index = a.shift >= 0 ? key >> a.shift : key / size;
            const uint32_t row = (table[index] * a.p.kv.heads + g) * size + (key - index * size);
            from = static_cast<size_t>(row) * CHUNKS + c;
        }
        mr_copy16(to + mr_swizzled<D>(r, c), keys + from, there);
        mr_copy16(to + KEYS * D * 2 + mr_swizzled<D>(r, c), values + from, there);
    }
}

/* The same of keys and values of one byte, which are widened on their way: they are there after the
 * next barrier. */
template <typename T, int D, bool I8>
__device__ static inline void mr_fetch_codes(const mr_tiles_args &a, const uint32_t *table,
                                             uint32_t g, uint32_t first, mr_seen_keys seen,
                                             uint32_t to)
{
    constexpr uint32_t CHUNKS = D / 8;
    const uint32_t size = a.p.kv.block_size;
    const uint32_t c = threadIdx.x % CHUNKS;
    const uint8_t *planes[2] = {mr_at<const uint8_t>(a.p.kv.keys),
                                mr_at<const uint8_t>(a.p.kv.values)};
#pragma unroll 4
    for (uint32_t r = threadIdx.x / CHUNKS; r < KEYS; r += THREADS / CHUNKS) {
        const uint32_t key = first + r;
        const bool there = key >= seen.begin && key < seen.end;
        const uint32_t at = there ? key : seen.begin;
        const uint32_t index = a.shift >= 0 ? at >> a.shift : at / size;
        const uint32_t row = (table[index] * a.p.kv.heads + g) * size + (at - index * size);
#pragma unroll
        for (int plane = 0; plane < 2; plane++) {
            const uint2 codes = *reinterpret_cast<const uint2 *>(
                planes[plane] + mr_code_row<I8>(row, D, size) + c * 8);
            uint4 x = mr_widen8<T, I8>(codes);
            if (I8) {
                x = mr_times<T>(x, mr_code_scale(planes[plane], row, D, size));
            }
            mr_store16(to + plane * KEYS * D * 2 + mr_swizzled<D>(r, c),
                       there ? x : make_uint4(0, 0, 0, 0));
        }
    }
}

/* Keys and values from `first` on, as they are stored. */
template <typename T, int D, bool CODES>
__device__ static inline void mr_fetch_any(const mr_tiles_args &a, const uint32_t *table,
                                           uint32_t g, uint32_t first, mr_seen_keys seen,
                                           uint32_t to)
{
    if (!CODES) {
        mr_fetch<D>(a, table, g, first, seen, to);
    } else if (a.p.kv.type == MR_DTYPE_I8) {
        mr_fetch_codes<T, D, true>(a, table, g, first, seen, to);
    } else {
        mr_fetch_codes<T, D, false>(a, table, g, first, seen, to);
    }
}

/* Starts the copy of the tile's queries; rows from `count` on become 0. */
template <typename T, int D>
__device__ static inline void mr_fetch_queries(const mr_tiles_args &a, const mr_cuda_tile &tile,
                                               uint32_t head, uint32_t to)
{
    constexpr uint32_t CHUNKS = D / 8;
    const uint32_t heads = a.p.heads + 2 * a.p.kv.heads;
    const uint32_t c = threadIdx.x % CHUNKS;
    const uint4 *qkv = mr_at<const uint4>(a.p.qkv);
#pragma unroll
    for (uint32_t r = threadIdx.x / CHUNKS; r < ROWS; r += THREADS / CHUNKS) {
        const bool there = r < tile.count;
        const size_t row = static_cast<size_t>(tile.token + (there ? r : 0)) * heads + head;
        mr_copy16(to + mr_swizzled<D>(r, c), qkv + row * CHUNKS + c, there);
    }
}

/* Scores of the warp's queries with the KEYS keys at `keys`. */
template <typename T, int D>
__device__ static inline void mr_scores(uint32_t queries, uint32_t keys,
                                        float (&s)[PARTS][KEYS / 8][4])
{
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t q_row = threadIdx.x / 32 * PARTS * 16 + lane % 16;
    const uint32_t k_row = lane % 8 + (lane / 16) * 8; /* keys 0–7, 0–7, 8–15, 8–15 */
    const uint32_t k_chunk = lane / 8 % 2;             /* elements 0–7, 8–15, 0–7, 8–15 */
#pragma unroll
    for (int m = 0; m < PARTS; m++) {
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                s[m][n][i] = 0.0f;
            }
        }
    }
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        uint32_t q[PARTS][4];
#pragma unroll
        for (int m = 0; m < PARTS; m++) {
            mr_load_matrices<false>(queries + mr_swizzled<D>(q_row + m * 16, k * 2 + lane / 16),
                                    q[m]);
        }
#pragma unroll
        for (int n = 0; n < KEYS / 16; n++) {
            uint32_t b[4];
            mr_load_matrices<false>(keys + mr_swizzled<D>(n * 16 + k_row, k * 2 + k_chunk), b);
#pragma unroll
            for (int m = 0; m < PARTS; m++) {
                mr_matrix<T>::multiply(s[m][2 * n], q[m][0], q[m][1], q[m][2], q[m][3], b[0], b[1]);
                mr_matrix<T>::multiply(s[m][2 * n + 1], q[m][0], q[m][1], q[m][2], q[m][3], b[2],
                                       b[3]);
            }
        }
    }
}

/* out += probabilities (in s) · values. */
template <typename T, int D>
__device__ static inline void mr_add_values(const float (&s)[PARTS][KEYS / 8][4], uint32_t values,
                                            float (&out)[PARTS][D / 8][4])
{
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++) {
        uint32_t a[PARTS][4];
#pragma unroll
        for (int m = 0; m < PARTS; m++) {
            a[m][0] = mr_matrix<T>::pack(s[m][2 * k][0], s[m][2 * k][1]);
            a[m][1] = mr_matrix<T>::pack(s[m][2 * k][2], s[m][2 * k][3]);
            a[m][2] = mr_matrix<T>::pack(s[m][2 * k + 1][0], s[m][2 * k + 1][1]);
            a[m][3] = mr_matrix<T>::pack(s[m][2 * k + 1][2], s[m][2 * k + 1][3]);
        }
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
            uint32_t b[4];
            mr_load_matrices<true>(values + mr_swizzled<D>(k * 16 + lane % 16, n * 2 + lane / 16),
                                   b);
#pragma unroll
            for (int m = 0; m < PARTS; m++) {
                mr_matrix<T>::multiply(out[m][2 * n], a[m][0], a[m][1], a[m][2], a[m][3], b[0],
                                       b[1]);
                mr_matrix<T>::multiply(out[m][2 * n + 1], a[m][0], a[m][1], a[m][2], a[m][3], b[2],
                                       b[3]);
            }
        }
    }
}

/* What a thread knows of its rows: g and g + 8 of each part. */
struct mr_tile_rows {
    uint32_t position[PARTS][2];
    float max[PARTS][2]; /* of scores, before `factor` */
    float sum[PARTS][2];
};

/* Scores of part m that a row does not see become −∞. */
__device__ static inline void mr_mask(const mr_cuda_attention &p, uint32_t first,
                                      const uint32_t (&position)[2], float (&s)[KEYS / 8][4])
{
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t key = first + n * 8 + threadIdx.x % 4 * 2 + i % 2;
            const uint32_t at = position[i / 2];
            const bool seen = key <= at && (p.window == 0 || at - key < p.window);
            s[n][i] = seen ? s[n][i] : -CUDART_INF_F;
        }
    }
}

/* Turns scores into probabilities relative to the new maximum; gives by how much what was summed
 * before fades. */
__device__ static inline void mr_softmax(float factor, float (&s)[KEYS / 8][4], float (&max)[2],
                                         float (&sum)[2], float (&fade)[2])
{
    float top[2] = {max[0], max[1]};
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            top[i / 2] = fmaxf(top[i / 2], s[n][i]);
        }
    }
    float shift[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        top[h] = fmaxf(top[h], __shfl_xor_sync(0xffffffffu, top[h], 1));
        top[h] = fmaxf(top[h], __shfl_xor_sync(0xffffffffu, top[h], 2));
        /* A row that has seen no key: any finite shift keeps −∞ what it is. */
        shift[h] = top[h] == -CUDART_INF_F ? 0.0f : top[h] * factor;
        fade[h] = mr_exp2(max[h] * factor - shift[h]);
        max[h] = top[h];
        sum[h] *= fade[h];
    }
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            s[n][i] = mr_exp2(s[n][i] * factor - shift[i / 2]);
            sum[i / 2] += s[n][i];
        }
    }
}

template <typename T, int D>
__device__ static inline void mr_store_rows(const mr_tiles_args &a, const mr_cuda_tile &tile,
                                            uint32_t head, uint32_t part,
                                            const float (&out)[D / 8][4], float (&sum)[2])
{
    const uint32_t lane = threadIdx.x % 32;
    T *to = mr_at<T>(a.p.out);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], 1);
        sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], 2);
        const uint32_t r = (threadIdx.x / 32 * PARTS + part) * 16 + lane / 4 + h * 8;
        if (r >= tile.count) {
            continue;
        }
        uint32_t *row = reinterpret_cast<uint32_t *>(
            to + (static_cast<size_t>(tile.token + r) * a.p.heads + head) * D);
        const float scale = a.value_scale / sum[h];
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            row[n * 4 + lane % 4] =
                mr_matrix<T>::pack(out[n][2 * h] * scale, out[n][2 * h + 1] * scale);
        }
    }
}

/* One stage: KEYS keys from `first` on. */
template <typename T, int D, bool CAPPED>
__device__ static inline void mr_visit(const mr_tiles_args &a, uint32_t first, bool masked,
                                       uint32_t queries, uint32_t keys, mr_tile_rows &rows,
                                       float (&out)[PARTS][D / 8][4])
{
    float s[PARTS][KEYS / 8][4];
    mr_scores<T, D>(queries, keys, s);
#pragma unroll
    for (int m = 0; m < PARTS; m++) {
        if (CAPPED) {
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    s[m][n][i] = a.p.soft_cap * tanhf(s[m][n][i] * a.p.scale / a.p.soft_cap);
                }
            }
        }
        if (masked) {
            mr_mask(a.p, first, rows.position[m], s[m]);
        }
        float fade[2];
        mr_softmax(a.factor, s[m], rows.max[m], rows.sum[m], fade);
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                out[m][n][i] *= fade[i / 2];
            }
        }
    }
    mr_add_values<T, D>(s, keys + KEYS * D * 2, out);
}

template <typename T, int D, bool CAPPED, bool CODES>
__global__ static void __launch_bounds__(THREADS, 2) mr_attention_tiles_kernel(mr_tiles_args a)
{
    MR_DYNAMIC_SHARED(uint8_t, 128, staged);
    mr_let_next_come();
    mr_wait_for_previous();
    constexpr uint32_t STAGE = 2 * KEYS * D * 2;
    const uint32_t queries = static_cast<uint32_t>(__cvta_generic_to_shared(staged));
    const uint32_t stages = queries + ROWS * D * 2;
    const uint32_t head = blockIdx.x;
    const uint32_t g = head / a.share;
    const mr_cuda_tile tile = a.tiles[gridDim.y - 1 - blockIdx.y];
    const uint32_t first_position = a.positions[tile.token];
    const uint32_t end = first_position + tile.count; /* keys there are */
    const bool bounded = a.p.window > 0 && first_position >= a.p.window;
    const mr_seen_keys seen = {bounded ? first_position - a.p.window + 1 : 0, end};
    const uint32_t from = seen.begin / KEYS * KEYS;
    const uint32_t *table =
        a.block_tables + static_cast<size_t>(a.token_slot[tile.token]) * a.p.max_blocks;

    mr_fetch_queries<T, D>(a, tile, head, queries);
    mr_fetch_any<T, D, CODES>(a, table, g, from, seen, stages);
    mr_commit();
    float out[PARTS][D / 8][4] = {};
    mr_tile_rows rows;
#pragma unroll
    for (int m = 0; m < PARTS; m++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            rows.position[m][h] =
                first_position + (threadIdx.x / 32 * PARTS + m) * 16 + threadIdx.x % 32 / 4 + h * 8;
            rows.max[m][h] = -CUDART_INF_F;
            rows.sum[m][h] = 0.0f;
        }
    }
    uint32_t stage = 0;
    for (uint32_t first = from; first < end; first += KEYS, stage ^= 1) {
        if (first + KEYS < end) {
            mr_fetch_any<T, D, CODES>(a, table, g, first + KEYS, seen,
                                      stages + (stage ^ 1) * STAGE);
        }
        mr_commit();
        mr_wait_copies<1>();
        __syncthreads();
        const bool masked = first + KEYS > first_position || a.p.window > 0;
        mr_visit<T, D, CAPPED>(a, first, masked, queries, stages + stage * STAGE, rows, out);
        __syncthreads();
    }
#pragma unroll
    for (int m = 0; m < PARTS; m++) {
        mr_store_rows<T, D>(a, tile, head, m, out[m], rows.sum[m]);
    }
}

template <typename T, int D, bool CAPPED, bool CODES>
static int launch(mr_cuda_context *context, const mr_tiles_args &a)
{
    const int bytes = (ROWS + 4 * KEYS) * D * 2;
    const cudaError_t code =
        cudaFuncSetAttribute(mr_attention_tiles_kernel<T, D, CAPPED, CODES>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (code != cudaSuccess) {
        return code;
    }
    const dim3 grid(a.p.heads, a.p.n_tiles);
    return mr_launch(context, mr_attention_tiles_kernel<T, D, CAPPED, CODES>, grid, THREADS, bytes,
                     a);
}

template <typename T, int D> static int choose_kv(mr_cuda_context *context, const mr_tiles_args &a)
{
    const bool capped = a.p.soft_cap > 0.0f;
    if (mr_is_coded(a.p.kv)) {
        return capped ? launch<T, D, true, true>(context, a)
                      : launch<T, D, false, true>(context, a);
    }
    return capped ? launch<T, D, true, false>(context, a) : launch<T, D, false, false>(context, a);
}

template <typename T> static int choose(mr_cuda_context *context, const mr_tiles_args &a)
{
    return a.p.kv.width == 64 ? choose_kv<T, 64>(context, a) : choose_kv<T, 128>(context, a);
}

int mr_cuda_attention_tiles_run(mr_cuda_context *context, const mr_cuda_attention *p)
{
    mr_tiles_args a = {};
    a.p = *p;
    a.value_scale = mr_fold_scales(a.p);
    a.tiles = mr_at<const mr_cuda_tile>(p->tiles);
    a.positions = mr_at<const uint32_t>(p->positions);
    a.token_slot = mr_at<const uint32_t>(p->token_slot);
    a.block_tables = mr_at<const uint32_t>(p->block_tables);
    a.share = p->heads / p->kv.heads;
    const uint32_t size = p->kv.block_size;
    a.shift = (size & (size - 1)) == 0 ? __builtin_ctz(size) : -1;
    a.factor = p->soft_cap > 0.0f ? MR_LOG2E : a.p.scale * MR_LOG2E;
    bool done = false;
    const int code = mr_is_coded(p->kv) ? 0 : mr_cuda_attention_warpgroups_run(context, &a, &done);
    if (code != 0 || done) {
        return code;
    }
    return p->type == MR_DTYPE_F16 ? choose<__half>(context, a) : choose<__nv_bfloat16>(context, a);
}
