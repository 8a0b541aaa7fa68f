/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Split attention (split.cu) on the matrix units, every warp for itself. Heads of 64 or 128
 * elements; keys and values of the compute type or of one byte; blocks of a power of two, from 8
 * on. sm_80 and later.
 *
 *   piece   (item, key/value head, 8 of the query heads that share it): at most 256 keys
 *   warp    takes every n-th piece and never waits for another: it has a ring of stages of its own,
 *           and asks for those of the pieces to come while it computes one; so memory rests neither
 *           between pieces nor while splits are added up
 *   stage   4 KiB of keys and their values, as cp.async brings them
 *   sums    scores as [keys][8 heads], results as [D][8 heads]: the heads are the 8 columns of a
 *           product, so that little of it is wasted on heads that are not there
 *
 * Softmax is online over the stages of a piece; the splits of a token are added up, in order, by a
 * kernel that follows: to count them within the launch a warp would have to wait for all the copies
 * it has asked for, which cost a fifth of the time. Where there is at most a piece a block, its
 * warps share one and meet in shared memory, unless rows must not depend on how much there is; then
 * they count within the launch, for they have no copies to wait for. Float32 scores and sums;
 * probabilities are rounded to the type before they meet the values.
 */
#include "kernels/cuda/attention/warp_split.cuh"

#define WARPS  4 /* of a block */
#define BLOCKS 2 /* of a processor, where they fit */
#define STAGES 3 /* of a warp */

#define JOIN_ITEMS  4u /* of a block at a time, of the kernel that joins splits */
#define JOIN_WARPS  4u
#define JOIN_BLOCKS 4 /* of a processor */

/* Whether a block is a team that has at most one piece, and its splits meet within the launch. */
__device__ static inline bool mr_is_team(const mr_warp_split_args &a)
{
    const uint64_t pieces = static_cast<uint64_t>(mr_warp_split_items(a)) * a.p.kv.heads * a.chunks;
    return !a.p.invariant && pieces <= a.blocks;
}

/* ---- splits of a token become one ---- */

/* Adds up the parts of `splits` splits, for one head: a lane has elements 2 · lane and the one
 * behind it of every 64, and knows how one split in 32 fades. */
template <typename T, int D>
__device__ static inline void mr_join_head(const mr_warp_split_args &a, uint32_t token,
                                           uint32_t head, uint32_t base, uint32_t splits)
{
    const uint32_t lane = threadIdx.x % 32;
    const float *parts = mr_partial_at(a, base, head);
    const size_t stride = static_cast<size_t>(a.p.heads) * (D + 2);
    float top = -CUDART_INF_F;
    for (uint32_t i = lane; i < splits; i += 32) {
        top = fmaxf(top, parts[i * stride + D]);
    }
    top = mr_warp_fold(top, mr_larger());
    float2 acc[D / 64] = {};
    float sum = 0.0f;
    for (uint32_t first = 0; first < splits; first += 32) {
        const uint32_t n = min(splits - first, 32u);
        const float *part = parts + first * stride;
        float fade = 0.0f;
        if (lane < n) {
            const float2 of = *reinterpret_cast<const float2 *>(part + lane * stride + D);
            /* Every split has a key. NaN scores stay NaN: no test may swallow them. */
            fade = exp2f(of.x - top);
            sum += of.y * fade;
        }
#pragma unroll 8
        for (uint32_t i = 0; i < n; i++) {
            const float w = __shfl_sync(0xffffffffu, fade, i);
#pragma unroll
            for (int j = 0; j < D / 64; j++) {
                const float2 x = reinterpret_cast<const float2 *>(part + i * stride)[j * 32 + lane];
                acc[j].x += x.x * w;
                acc[j].y += x.y * w;
            }
        }
    }
    const float scale = a.value_scale / mr_warp_sum(sum);
    T *out = static_cast<T *>(a.out) + (static_cast<size_t>(token) * a.p.heads + head) * D;
#pragma unroll
    for (int j = 0; j < D / 64; j++) {
        out[j * 64 + lane * 2] = mr_from_float<T>(acc[j].x * scale);
        out[j * 64 + lane * 2 + 1] = mr_from_float<T>(acc[j].y * scale);
    }
}

/* A block takes JOIN_ITEMS items and a key/value head, and joins the tokens whose last split is
 * among them; its warps take turns at their heads. */
template <typename T, int D>
__global__ static void __launch_bounds__(JOIN_WARPS * 32, 8)
    mr_attention_join_kernel(const __grid_constant__ mr_warp_split_args a)
{
    mr_let_next_come();
    mr_wait_for_previous();
    const uint32_t n_items = mr_warp_split_items(a);
    const bool single = n_items == a.header->n_tokens && a.p.count == 0; /* split each */
    if (single || mr_is_team(a)) {
        return;
    }
    const uint32_t groups = (n_items + JOIN_ITEMS - 1) / JOIN_ITEMS;
    for (uint32_t at = blockIdx.x; at < groups * a.p.kv.heads; at += gridDim.x) {
        const uint32_t index = at / a.p.kv.heads * JOIN_ITEMS + threadIdx.x % 32;
        uint32_t token = 0;
        uint32_t base = 0;
        uint32_t splits = 1;
        if (threadIdx.x % 32 < JOIN_ITEMS && index < n_items) {
            const mr_cuda_item item = a.items[a.p.first + index];
            const mr_split_range range = mr_range_of(a, item);
            token = item.token;
            base = item.base + range.first_split;
            splits = item.split + 1 == range.first_split + range.splits ? range.splits : 1;
        }
        const uint32_t found = __ballot_sync(0xffffffffu, splits > 1);
        const uint32_t heads = __popc(found) * a.share; /* of all that are found */
        for (uint32_t i = threadIdx.x / 32; i < heads; i += JOIN_WARPS) {
            const uint32_t lane = __fns(found, 0, static_cast<int>(i / a.share) + 1);
            mr_join_head<T, D>(
                a, __shfl_sync(0xffffffffu, token, lane), at % a.p.kv.heads * a.share + i % a.share,
                __shfl_sync(0xffffffffu, base, lane), __shfl_sync(0xffffffffu, splits, lane));
        }
    }
}

/* A team's block has written its part of a token's splits, says one thread. Whether all are there
 * now. */
__device__ static inline bool mr_count_part(const mr_warp_split_args &a,
                                            const mr_warp_split_piece &piece)
{
    uint32_t *counter = a.counters + static_cast<size_t>(piece.token) * a.p.heads + piece.head;
    __threadfence();
    const bool all = atomicAdd(counter, 1) == piece.splits - 1;
    if (all) {
        *counter = 0;
    }
    __threadfence();
    return all;
}

/* ---- pieces ---- */

/* A warp's sums become the result, or the split's part of it. */
template <typename T, int D, mr_warp_split_kv KV>
__device__ static inline void mr_put_sums(const mr_warp_split_args &a,
                                          const mr_warp_split_piece &piece,
                                          const mr_warp_split_sums<D> &sums)
{
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint32_t head = piece.head + lane % 4 * 2 + h;
        if (head >= piece.head + piece.heads) {
            continue;
        }
        T *out =
            static_cast<T *>(a.out) + (static_cast<size_t>(piece.token) * a.p.heads + head) * D;
        float *part = mr_partial_at(a, piece.index, head);
        const float scale = a.value_scale / sums.sum[h];
#pragma unroll
        for (int i = 0; i < D / 8; i++) {
            const float x = sums.out[i / 2][i % 2 * 2 + h];
            const uint32_t d = mr_warp_split_element<KV>(i);
            if (piece.splits == 1) {
                out[d] = mr_from_float<T>(x * scale);
            } else {
                part[d] = x;
            }
        }
        if (piece.splits > 1 && lane < 4) {
            *reinterpret_cast<float2 *>(part + D) = make_float2(sums.max[h], sums.sum[h]);
        }
    }
}

/* All stages of what the loader brings of a piece; `at` is where the ring stands. */
template <typename T, int D, mr_warp_split_kv KV>
__device__ static inline void
mr_run_piece(const mr_warp_split_args &a, const mr_warp_split_piece &piece, uint8_t *memory,
             mr_warp_split_loader<D, KV> &loader, uint32_t &at, mr_warp_split_sums<D> &sums)
{
    using stage = mr_warp_split_stage<D, KV>;
    const uint32_t ring = static_cast<uint32_t>(__cvta_generic_to_shared(memory));
    uint32_t q[D / 8];
    mr_load_queries<T, D, KV>(a, piece, q);
    mr_clear_sums(sums);
    const bool none = piece.begin >= piece.end; /* a warp of a team */
    uint32_t key = none ? piece.end : piece.begin / stage::KEYS * stage::KEYS;
    for (; key < piece.end; key += stage::KEYS) {
        const uint32_t before = at == 0 ? STAGES - 1 : at - 1;
        mr_wait_copies<STAGES - 2>();
        __syncwarp(); /* all have the stage, and none reads the one before it any more */
        loader.ask(a, ring + before * stage::BYTES);
        mr_run_stage<T, D, KV>(a, piece, q, memory + at * stage::BYTES, ring + at * stage::BYTES,
                               key, sums);
        at = at + 1 == STAGES ? 0 : at + 1;
    }
    mr_sum_lanes(sums);
}

/* A warp's pieces. */
template <typename T, int D, mr_warp_split_kv KV>
__device__ static inline void mr_run_alone(const mr_warp_split_args &a, uint8_t *memory,
                                           mr_warp_split_loader<D, KV> &loader)
{
    mr_warp_split_piece piece;
    mr_warp_split_sums<D> sums;
    uint32_t at = 0; /* stage of the ring */
    for (mr_warp_split_cursor cursor(a, false); cursor.find(a, piece); cursor.advance(a)) {
        mr_run_piece<T, D, KV>(a, piece, memory, loader, at, sums);
        mr_put_sums<T, D, KV>(a, piece, sums);
    }
}

/* A block's one piece, a part of it by each warp; they meet in shared memory. */
template <typename T, int D, mr_warp_split_kv KV>
__device__ static inline void mr_run_team(const mr_warp_split_args &a, uint8_t *shared,
                                          uint8_t *memory, mr_warp_split_loader<D, KV> &loader)
{
    constexpr uint32_t STRIDE =
        STAGES * mr_warp_split_stage<D, KV>::BYTES / 4; /* floats, of a warp */
    mr_warp_split_piece piece;
    mr_warp_split_sums<D> sums;
    uint32_t at = 0;
    if (!mr_warp_split_cursor(a, true).find(a, piece)) {
        return;
    }
    mr_run_piece<T, D, KV>(a, piece, memory, loader, at, sums);
    mr_wait_copies<0>();
    __syncwarp();
    mr_share_sums<D, KV>(reinterpret_cast<float *>(memory), sums);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < piece.heads * D; i += WARPS * 32) {
        const uint32_t h = i / D;
        const uint32_t head = piece.head + h;
        float max;
        float sum;
        const float acc = mr_merge(reinterpret_cast<float *>(shared) + h * (D + 2), STRIDE, WARPS,
                                   D, i % D, &max, &sum);
        if (piece.splits == 1) {
            T *out = static_cast<T *>(a.out) + static_cast<size_t>(piece.token) * a.p.heads * D;
            out[head * D + i % D] = mr_from_float<T>(acc / sum * a.value_scale);
            continue;
        }
        float *part = mr_partial_at(a, piece.index, head);
        part[i % D] = acc;
        if (i % D == 0) {
            *reinterpret_cast<float2 *>(part + D) = make_float2(max, sum);
        }
    }
    if (piece.splits == 1) {
        return;
    }
    __syncthreads(); /* the warps' sums are not needed any more */
    volatile bool *all = reinterpret_cast<volatile bool *>(shared);
    if (threadIdx.x == 0) {
        *all = mr_count_part(a, piece);
    }
    __syncthreads();
    if (*all) {
        for (uint32_t h = threadIdx.x / 32; h < piece.heads; h += WARPS) {
            mr_join_head<T, D>(a, piece.token, piece.head + h, piece.base, piece.splits);
        }
    }
}

template <typename T, int D, mr_warp_split_kv KV>
__global__ static void __launch_bounds__(WARPS * 32, BLOCKS)
    mr_attention_warp_split_kernel(const __grid_constant__ mr_warp_split_args a)
{
    using stage = mr_warp_split_stage<D, KV>;
    MR_DYNAMIC_SHARED(uint8_t, 128, shared);
    uint8_t *memory = shared + threadIdx.x / 32 * (STAGES * stage::BYTES);
    mr_let_next_come();
    mr_wait_for_previous();
    const bool team = mr_is_team(a);
    mr_warp_split_loader<D, KV> loader(a, team);
#pragma unroll 1
    for (uint32_t i = 0; i < STAGES - 1; i++) {
        loader.ask(a, static_cast<uint32_t>(__cvta_generic_to_shared(memory)) + i * stage::BYTES);
    }
    if (team) {
        mr_run_team<T, D, KV>(a, shared, memory, loader);
    } else {
        mr_run_alone<T, D, KV>(a, memory, loader);
    }
}

/* Bytes of shared memory of a block. */
template <int D, mr_warp_split_kv KV> static constexpr uint32_t mr_warp_split_bytes()
{
    return WARPS * STAGES * mr_warp_split_stage<D, KV>::BYTES;
}

template <typename T, int D, mr_warp_split_kv KV>
static int launch(mr_cuda_context *context, mr_warp_split_args &a)
{
    using stage = mr_warp_split_stage<D, KV>;
    const uint32_t bytes = mr_warp_split_bytes<D, KV>();
    const uint32_t size = a.p.kv.block_size;
    const uint32_t fit =
        static_cast<uint32_t>(context->properties.sharedMemPerMultiprocessor) / (bytes + 1024);
    a.scales16 = KV == MR_WARP_SPLIT_I8 ? size * 4 / 16 : 0;
    a.piece16 = size * stage::ROW / 16 + a.scales16;
    a.blocks = mr_split_blocks(context, a, fit < BLOCKS ? 1 : BLOCKS);
    int code =
        cudaFuncSetAttribute(mr_attention_warp_split_kernel<T, D, KV>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
    if (code == 0) {
        code = mr_launch(context, mr_attention_warp_split_kernel<T, D, KV>, a.blocks, WARPS * 32,
                         bytes, a);
    }
    if (code == 0) {
        code = mr_launch(context, mr_attention_join_kernel<T, D>,
                         mr_split_blocks(context, a, JOIN_BLOCKS), JOIN_WARPS * 32, 0, a);
    }
    return code;
}

template <typename T, int D> static int choose(mr_cuda_context *context, mr_warp_split_args &a)
{
    if (a.p.kv.type == MR_DTYPE_F8_E4M3) {
        return launch<T, D, MR_WARP_SPLIT_E4M3>(context, a);
    }
    return a.p.kv.type == MR_DTYPE_I8 ? launch<T, D, MR_WARP_SPLIT_I8>(context, a)
                                      : launch<T, D, MR_WARP_SPLIT_SAME>(context, a);
}

bool mr_cuda_attention_takes_warp_splits(const mr_cuda_context *context, const mr_cuda_attention *p)
{
    const uint32_t size = p->kv.block_size;
    const uint32_t bytes = p->kv.type != MR_DTYPE_I8
                               ? mr_warp_split_bytes<128, MR_WARP_SPLIT_SAME>()
                           : p->kv.width == 64 ? mr_warp_split_bytes<64, MR_WARP_SPLIT_I8>()
                                               : mr_warp_split_bytes<128, MR_WARP_SPLIT_I8>();
    return mr_cuda_is_for_matrices(p->type, p->kv.type, size, p->kv.width) && size >= 8 &&
           (size & (size - 1)) == 0 && bytes <= context->properties.sharedMemPerBlockOptin;
}

int mr_cuda_attention_warp_split_run(mr_cuda_context *context, const mr_split_args *split)
{
    mr_warp_split_args a = {};
    static_cast<mr_split_args &>(a) = *split;
    a.chunks = mr_ceil_div(a.share, MR_WARP_SPLIT_HEADS);
    if (a.p.type == MR_DTYPE_F16) {
        return a.p.kv.width == 64 ? choose<__half, 64>(context, a)
                                  : choose<__half, 128>(context, a);
    }
    return a.p.kv.width == 64 ? choose<__nv_bfloat16, 64>(context, a)
                              : choose<__nv_bfloat16, 128>(context, a);
}
