/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Split attention (split.cu) on the matrix units: the query heads that share a key/value head are
 * the 16 rows of one product. Heads of 64 or 128 elements, one 2-byte type.
 *
 *   block   8 warps; a warp has 32 of the split's 256 keys, and all of their keys and values are on
 *           their way before the first product
 *   keys    straight from memory into registers, as the B operand: the order of elements within a
 *           product is free, so a thread takes 8 contiguous ones (compare linear/few.cu)
 *   values  through shared memory, which turns them; 8 · 32 · D · 2 bytes, used again to merge the
 *           warps, in order
 *
 * Keys and values of one byte go through registers, and are widened on their way.
 *
 * Float32 scores and sums; probabilities are rounded to the type before they meet the values. A row
 * depends on its own keys only. sm_80 and later; what stream.cu takes goes there.
 */
#include "kernels/cuda/attention/codes.cuh"
#include "kernels/cuda/attention/packed.cuh"

#define WARPS   MR_PACKED_WARPS
#define THREADS (WARPS * 32)
#define KEYS    MR_PACKED_KEYS
#define HEADS   MR_PACKED_HEADS

template <typename T, int D>
__device__ static inline void mr_load_queries(const mr_split_args &a, uint32_t token, uint32_t head,
                                              uint32_t heads, mr_packed_queries<D> &q)
{
    const uint32_t group = threadIdx.x % 32 / 4;
    const size_t row = static_cast<size_t>(token) * (a.p.heads + 2 * a.p.kv.heads) + head;
    const uint4 *from = reinterpret_cast<const uint4 *>(static_cast<const T *>(a.qkv) + row * D);
#pragma unroll
    for (int c = 0; c < D / 32; c++) {
        const uint32_t at = c * 4 + threadIdx.x % 4;
        q.lo[c] = group < heads ? from[group * (D / 8) + at] : make_uint4(0, 0, 0, 0);
        q.hi[c] = group + 8 < heads ? from[(group + 8) * (D / 8) + at] : make_uint4(0, 0, 0, 0);
    }
}

/* One piece of work, as one lane sees it: its key is the lane-th of its warp's. */
struct mr_packed_work {
    mr_cuda_item item;
    mr_split_range range;
    uint32_t index; /* of the item */
    uint32_t g;
    uint32_t head;  /* the first */
    uint32_t heads; /* of this piece */
    uint32_t slot;
    bool runs;    /* there is such a piece, and the layer's window reaches it */
    bool there;   /* the lane has a key */
    uint32_t row; /* of its key, among those of its plane */
};

/* Reads nothing that a kernel of this step writes: before the wait it is as good as after it. */
__device__ static inline void mr_find_work(const mr_split_args &a, uint64_t number,
                                           mr_packed_work &work)
{
    const uint32_t n_items = a.p.count > 0 ? a.p.count : a.header->n_items;
    const uint32_t per_item = a.p.kv.heads * a.chunks;
    work.runs = number < static_cast<uint64_t>(n_items) * per_item;
    work.there = false;
    if (!work.runs) {
        return;
    }
    const uint32_t rest = static_cast<uint32_t>(number % per_item);
    const uint32_t chunk = rest % a.chunks;
    work.index = a.p.first + static_cast<uint32_t>(number / per_item);
    work.g = rest / a.chunks;
    work.head = work.g * a.share + chunk * HEADS;
    work.heads = min(a.share - chunk * HEADS, static_cast<uint32_t>(HEADS));
    work.item = a.items[work.index];
    work.range = mr_range_of(a, work.item);
    work.slot = a.token_slot[work.item.token];
    work.runs = work.item.split >= work.range.first_split;
}

/* Key of the lane in its warp. */
__device__ static inline uint32_t mr_key_of(const mr_packed_work &work)
{
    return work.item.split * MR_CUDA_SPLIT_KEYS + threadIdx.x / 32 * KEYS + threadIdx.x % 32;
}

__device__ static inline void mr_find_row(const mr_split_args &a, mr_packed_work &work)
{
    const uint32_t key = mr_key_of(work);
    const uint32_t size = a.p.kv.block_size;
    work.row = 0;
    work.there = work.runs && key >= work.range.begin && key < work.range.end;
    if (work.there) {
        const uint32_t *table = a.block_tables + static_cast<size_t>(work.slot) * a.p.max_blocks;
        const uint32_t index = a.shift >= 0 ? key >> a.shift : key / size;
        work.row = (table[index] * a.p.kv.heads + work.g) * size + (key - index * size);
    }
}

/* Keys and values of one byte: those that the lane feeds to products, and those that it puts into
 * shared memory. */
template <int D> struct mr_packed_codes {
    uint2 keys[KEYS / 8][D / 32];
    uint4 values[D / 16];
    float key_scale; /* of the lane's key, I8 only */
    float value_scale;
};

template <int D, bool I8>
__device__ static inline void mr_fetch_codes(const mr_split_args &a, const mr_packed_work &work,
                                             mr_packed_codes<D> &codes)
{
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t size = a.p.kv.block_size;
    const uint32_t seen = __ballot_sync(0xffffffffu, work.there);
    const uint8_t *keys = reinterpret_cast<const uint8_t *>(static_cast<uintptr_t>(a.p.kv.keys));
    const uint8_t *values =
        reinterpret_cast<const uint8_t *>(static_cast<uintptr_t>(a.p.kv.values));
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++) {
        const uint32_t key = n * 8 + lane / 4;
        const uint32_t row = __shfl_sync(0xffffffffu, work.row, key);
        const uint2 *from =
            reinterpret_cast<const uint2 *>(keys + mr_code_row<I8>(row, D, size)) + lane % 4;
#pragma unroll
        for (int c = 0; c < D / 32; c++) {
            codes.keys[n][c] = (seen >> key & 1) != 0 ? from[c * 4] : make_uint2(0, 0);
        }
    }
#pragma unroll
    for (int i = 0; i < D / 16; i++) {
        const uint32_t key = (i * 32 + lane) / (D / 16);
        const uint32_t row = __shfl_sync(0xffffffffu, work.row, key);
        const uint4 *from = reinterpret_cast<const uint4 *>(values + mr_code_row<I8>(row, D, size));
        codes.values[i] =
            (seen >> key & 1) != 0 ? from[(i * 32 + lane) % (D / 16)] : make_uint4(0, 0, 0, 0);
    }
    if (I8) {
        codes.key_scale = work.there ? mr_code_scale(keys, work.row, D, size) : 0.0f;
        codes.value_scale = work.there ? mr_code_scale(values, work.row, D, size) : 0.0f;
    }
}

template <typename T, int D, bool I8>
__device__ static inline void mr_score_codes(const mr_packed_queries<D> &q,
                                             const mr_packed_codes<D> &codes,
                                             float (&s)[KEYS / 8][4])
{
    uint4 keys[KEYS / 8][D / 32];
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
        for (int c = 0; c < D / 32; c++) {
            keys[n][c] = mr_widen8<T, I8>(codes.keys[n][c]);
        }
    }
    mr_score_keys<T, D>(q, keys, s);
}

/* Times what each key's lane has. */
__device__ static inline void mr_times_keys(float scale, float (&s)[KEYS / 8][4])
{
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float of = __shfl_sync(0xffffffffu, scale, n * 8 + threadIdx.x % 4 * 2 + i);
            s[n][i] *= of;
            s[n][i + 2] *= of;
        }
    }
}

template <typename T, int D, bool I8>
__device__ static inline void mr_store_values(const mr_packed_codes<D> &codes, uint32_t values)
{
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < D / 16; i++) {
        const uint32_t key = (i * 32 + lane) / (D / 16);
        const uint32_t c = (i * 32 + lane) % (D / 16) * 2;
        mr_store16(values + mr_swizzled<D>(key, c),
                   mr_widen8<T, I8>(make_uint2(codes.values[i].x, codes.values[i].y)));
        mr_store16(values + mr_swizzled<D>(key, c + 1),
                   mr_widen8<T, I8>(make_uint2(codes.values[i].z, codes.values[i].w)));
    }
}

/* Everything of a piece of work on its way. */
template <typename T, int D>
__device__ static inline void mr_fetch_work(const mr_split_args &a, const mr_packed_work &work,
                                            uint32_t values, uint4 (&keys)[KEYS / 8][D / 32],
                                            mr_packed_queries<D> &q)
{
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t seen = __ballot_sync(0xffffffffu, work.there);
    const uint4 *key_plane = reinterpret_cast<const uint4 *>(static_cast<uintptr_t>(a.p.kv.keys));
    const uint4 *value_plane =
        reinterpret_cast<const uint4 *>(static_cast<uintptr_t>(a.p.kv.values));
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++) {
        const uint32_t key = n * 8 + lane / 4;
        const size_t from = static_cast<size_t>(__shfl_sync(0xffffffffu, work.row, key)) * (D / 8);
#pragma unroll
        for (int c = 0; c < D / 32; c++) {
            keys[n][c] = (seen >> key & 1) != 0 ? key_plane[from + c * 4 + lane % 4]
                                                : make_uint4(0, 0, 0, 0);
        }
    }
#pragma unroll
    for (int i = 0; i < KEYS * (D / 8) / 32; i++) {
        const uint32_t key = (i * 32 + lane) / (D / 8);
        const uint32_t c = (i * 32 + lane) % (D / 8);
        const size_t from = static_cast<size_t>(__shfl_sync(0xffffffffu, work.row, key)) * (D / 8);
        mr_copy16(values + mr_swizzled<D>(key, c), value_plane + from + c, (seen >> key & 1) != 0);
    }
    mr_commit();
    mr_load_queries<T, D>(a, work.item.token, work.head, work.heads, q);
}

/* The warps' sums become the result, or the split's part of it. */
template <int D>
__device__ static inline void mr_store_sums(const mr_split_args &a, const mr_packed_work &work,
                                            const float *sums)
{
    const uint32_t heads = work.heads;
    const size_t out = (static_cast<size_t>(work.item.token) * a.p.heads + work.head) * D;
    for (uint32_t i = threadIdx.x; i < heads * D; i += THREADS) {
        const uint32_t h = i / D;
        float max;
        float sum;
        const float acc =
            mr_merge(sums + h * (D + 2), heads * (D + 2), WARPS, D, i % D, &max, &sum);
        if (work.range.splits == 1) {
            mr_store_as(a.out, a.p.type, out + i, acc / sum * a.value_scale);
            continue;
        }
        float *to = mr_partial_at(a, work.index, work.head + h);
        to[i % D] = acc;
        if (i % D == 0) {
            to[D] = max;
            to[D + 1] = sum;
        }
    }
}

/* How keys and values are stored. */
enum mr_packed_kv { MR_PACKED_SAME, MR_PACKED_E4M3, MR_PACKED_I8 };

/* Probabilities of the warp's keys, whose values lie in shared memory or are on their way there;
 * finds the next work meanwhile. */
template <typename T, int D, mr_packed_kv KV>
__device__ static inline void
mr_packed_keys(const mr_split_args &a, const mr_packed_work &work, uint64_t next_number,
               mr_packed_work &next, uint32_t values, float (&s)[KEYS / 8][4], mr_packed_rows &rows)
{
    const uint32_t first = work.item.split * MR_CUDA_SPLIT_KEYS + threadIdx.x / 32 * KEYS;
    mr_packed_queries<D> q;
    if constexpr (KV == MR_PACKED_SAME) {
        uint4 keys[KEYS / 8][D / 32];
        mr_fetch_work<T, D>(a, work, values, keys, q);
        mr_find_work(a, next_number, next);
        mr_find_row(a, next);
        mr_score_keys<T, D>(q, keys, s);
        mr_weigh(a.p.scale, a.p.soft_cap, work.range, first, s, rows);
    } else {
        constexpr bool I8 = KV == MR_PACKED_I8;
        mr_packed_codes<D> codes;
        mr_fetch_codes<D, I8>(a, work, codes);
        mr_load_queries<T, D>(a, work.item.token, work.head, work.heads, q);
        mr_find_work(a, next_number, next);
        mr_find_row(a, next);
        mr_score_codes<T, D, I8>(q, codes, s);
        if (I8) {
            mr_times_keys(codes.key_scale, s);
        }
        mr_weigh(a.p.scale, a.p.soft_cap, work.range, first, s, rows);
        if (I8) {
            mr_times_keys(codes.value_scale, s);
        }
        mr_store_values<T, D, I8>(codes, values);
    }
}

/* Runs `work`, and finds the next while its keys and values are on their way. */
template <typename T, int D, mr_packed_kv KV>
__device__ static inline void mr_run_packed(const mr_split_args &a, const mr_packed_work &work,
                                            uint64_t next_number, mr_packed_work &next,
                                            uint8_t *shared, uint32_t *arrived)
{
    const uint32_t warp = threadIdx.x / 32;
    const uint32_t values =
        static_cast<uint32_t>(__cvta_generic_to_shared(shared)) + warp * KEYS * D * 2;
    float s[KEYS / 8][4];
    mr_packed_rows rows;
    __syncthreads(); /* the work before may still be merged */
    mr_packed_keys<T, D, KV>(a, work, next_number, next, values, s, rows);
    float out[D / 8][4] = {};
    mr_wait_copies<0>();
    __syncwarp();
    mr_sum_values<T, D>(s, values, out);
    __syncthreads();
    float *sums = reinterpret_cast<float *>(shared);
    mr_share_sums<D>(sums + warp * work.heads * (D + 2), work.heads, rows, out);
    __syncthreads();
    mr_store_sums<D>(a, work, sums);
    mr_finish_item(a, work.item, work.head, work.heads, work.range.first_split, work.range.splits,
                   arrived);
}

template <typename T, int D, mr_packed_kv KV>
__global__ static void __launch_bounds__(THREADS, 2) mr_attention_packed_kernel(mr_split_args a)
{
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ uint32_t arrived;
    mr_packed_work work;
    mr_let_next_come();
    mr_find_work(a, blockIdx.x, work);
    mr_wait_for_previous();
    mr_find_row(a, work);
    const uint32_t n_items = a.p.count > 0 ? a.p.count : a.header->n_items;
    const uint64_t end = static_cast<uint64_t>(n_items) * a.p.kv.heads * a.chunks;
    for (uint64_t number = blockIdx.x; number < end; number += gridDim.x) {
        mr_packed_work next;
        if (work.runs) {
            mr_run_packed<T, D, KV>(a, work, number + gridDim.x, next, shared, &arrived);
        } else {
            mr_find_work(a, number + gridDim.x, next);
            mr_find_row(a, next);
        }
        work = next;
    }
}

template <typename T, int D, mr_packed_kv KV>
static int launch(mr_cuda_context *context, const mr_split_args &a)
{
    /* Values need KEYS rows of 2 bytes a warp, sums HEADS rows of 4 bytes and a little. */
    const int bytes = WARPS * (KEYS * D * 2 + HEADS * 8);
    const cudaError_t code = cudaFuncSetAttribute(
        mr_attention_packed_kernel<T, D, KV>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (code != cudaSuccess) {
        return code;
    }
    return mr_launch(context, mr_attention_packed_kernel<T, D, KV>, mr_split_blocks(context, a, 2),
                     THREADS, bytes, a);
}

template <typename T, int D> static int choose(mr_cuda_context *context, const mr_split_args &a)
{
    if (a.p.kv.type == MR_DTYPE_F8_E4M3) {
        return launch<T, D, MR_PACKED_E4M3>(context, a);
    }
    return a.p.kv.type == MR_DTYPE_I8 ? launch<T, D, MR_PACKED_I8>(context, a)
                                      : launch<T, D, MR_PACKED_SAME>(context, a);
}

int mr_cuda_attention_packed_run(mr_cuda_context *context, mr_split_args *a)
{
    a->chunks = mr_ceil_div(a->share, HEADS);
    if (a->p.type == MR_DTYPE_F16) {
        return a->p.kv.width == 64 ? choose<__half, 64>(context, *a)
                                   : choose<__half, 128>(context, *a);
    }
    return a->p.kv.width == 64 ? choose<__nv_bfloat16, 64>(context, *a)
                               : choose<__nv_bfloat16, 128>(context, *a);
}
