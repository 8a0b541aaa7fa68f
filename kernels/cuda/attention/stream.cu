/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Split attention (split.cu) fed by the copy engine: memory never waits for a sum. Heads of 64 or
 * 128 elements, one 2-byte type, up to 8 query heads a key/value head, blocks of 8 to 128 keys.
 * sm_90.
 *
 *   piece   (item, key/value head); a block takes every gridDim-th
 *   block   a warp that copies, up to `stages` stages ahead, through the pieces without a stop; 8
 *           warps that compute, each with its 32 of a split's 256 keys: one stage
 *   stage   32 keys and their values as TMA swizzles them (maps.cuh)
 *   sums    scores as [keys][8 heads], results as [D][8 heads]: the heads are the 8 columns of a
 *           product, so that none of it is wasted on heads that are not there
 *
 * A warp's keys and the order in which warps and splits are added up are fixed: a row depends on
 * its own keys only. Float32 scores and sums; probabilities are rounded to the type before they
 * meet the values.
 */
#include "kernels/cuda/attention/stream.cuh"

#if __CUDA_ARCH__ >= 900

/* ---- the warps that compute ---- */

/* Byte offset of chunk c (16 bytes) of row r in a stage's keys or values. */
template <int D> __device__ static inline uint32_t mr_staged(uint32_t r, uint32_t c)
{
    return r / 8 * (D / 64 * 1024) + c / 8 * 1024 + r % 8 * 128 + ((c % 8 ^ r % 8) << 4);
}

/* What a thread has of its two heads, 2 · (lane % 4) and the one behind it. */
struct mr_stream_heads {
    float max[2];
    float sum[2];
};

/* Scores of 32 keys with 8 heads; s[m] are keys 16m + lane / 4, and 8 further. */
template <typename T, int D>
__device__ static inline void mr_score_stage(uint32_t queries, uint32_t keys, float (&s)[2][4])
{
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        s[0][i] = 0.0f;
        s[1][i] = 0.0f;
    }
#pragma unroll
    for (int k = 0; k < D / 32; k++) {
        uint32_t q[4]; /* 32 elements of 8 heads */
        mr_load_matrices<false>(queries + lane % 8 * (D * 2) + (k * 4 + lane / 8) * 16, q);
#pragma unroll
        for (int m = 0; m < 2; m++) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                uint32_t x[4];
                mr_load_matrices<false>(
                    keys + mr_staged<D>(m * 16 + lane % 16, k * 4 + h * 2 + lane / 16), x);
                mr_matrix<T>::multiply(s[m], x[0], x[1], x[2], x[3], q[2 * h], q[2 * h + 1]);
            }
        }
    }
}

/* Scores become probabilities relative to the warp's maximum. */
__device__ static inline void mr_weigh_stage(const mr_split_args &a, const mr_stream_piece &piece,
                                             uint32_t first, float (&s)[2][4],
                                             mr_stream_heads &heads)
{
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        heads.max[h] = -CUDART_INF_F;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const uint32_t key = first + j * 8 + lane / 4;
            float &x = s[j / 2][j % 2 * 2 + h];
            x *= a.p.scale;
            x = a.p.soft_cap > 0.0f ? a.p.soft_cap * tanhf(x / a.p.soft_cap) : x;
            x = key >= piece.begin && key < piece.end ? x * LOG2E : -CUDART_INF_F;
            heads.max[h] = fmaxf(heads.max[h], x);
        }
#pragma unroll
        for (int o = 4; o < 32; o *= 2) {
            heads.max[h] = fmaxf(heads.max[h], __shfl_xor_sync(0xffffffffu, heads.max[h], o));
        }
        heads.sum[h] = 0.0f;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float &x = s[j / 2][j % 2 * 2 + h];
            x = heads.max[h] == -CUDART_INF_F ? 0.0f : mr_exp2(x - heads.max[h]);
            heads.sum[h] += x;
        }
#pragma unroll
        for (int o = 4; o < 32; o *= 2) {
            heads.sum[h] += __shfl_xor_sync(0xffffffffu, heads.sum[h], o);
        }
    }
}

/* Turns 8 × 8 elements over. */
__device__ static inline uint32_t mr_turn_matrix(uint32_t x)
{
    uint32_t y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

/* out[t]: elements 16t + lane / 4, and 8 further, of the thread's two heads. */
template <typename T, int D>
__device__ static inline void mr_sum_stage(const float (&s)[2][4], uint32_t values,
                                           float (&out)[D / 16][4])
{
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < 2; m++) {
        const uint32_t lo = mr_turn_matrix(mr_matrix<T>::pack(s[m][0], s[m][1]));
        const uint32_t hi = mr_turn_matrix(mr_matrix<T>::pack(s[m][2], s[m][3]));
#pragma unroll
        for (int t = 0; t < D / 16; t++) {
            uint32_t v[4];
            mr_load_matrices<true>(
                values + mr_staged<D>(m * 16 + lane / 16 * 8 + lane % 8, t * 2 + lane / 8 % 2), v);
            mr_matrix<T>::multiply(out[t], v[0], v[1], v[2], v[3], lo, hi);
        }
    }
}

/* Values from row `from` on become 0: they are what some sequence left in the last block, and 0
 * times that need not be 0. */
template <int D> __device__ static inline void mr_clear_stage(uint32_t values, uint32_t from)
{
    for (uint32_t i = from * (D / 8) + threadIdx.x % 32; i < KEYS * (D / 8); i += 32) {
        asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(
                         values + mr_staged<D>(i / (D / 8), i % (D / 8))),
                     "r"(0)
                     : "memory");
    }
    mr_fence_shared(); /* a copy comes here next */
    __syncwarp();
}

/* The warp's sums into shared memory: [heads][D] numerators, maximum, sum. */
template <int D>
__device__ static inline void mr_put_sums(float *to, uint32_t share, const mr_stream_heads &heads,
                                          const float (&out)[D / 16][4])
{
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint32_t head = lane % 4 * 2 + h;
        if (head >= share) {
            continue;
        }
        float *line = to + head * (D + 2);
#pragma unroll
        for (int t = 0; t < D / 16; t++) {
            line[t * 16 + lane / 4] = out[t][h];
            line[t * 16 + lane / 4 + 8] = out[t][2 + h];
        }
        if (lane < 4) {
            line[D] = heads.max[h];
            line[D + 1] = heads.sum[h];
        }
    }
}

/* The computing warps alone. */
__device__ static inline void mr_meet()
{
    mr_named_sync(1, CONSUMERS);
}

/* A warp finds by how much each split of its head fades, in `fades` [share][splits], and the sum
 * behind them. */
template <int D>
__device__ static inline void mr_weigh_splits(const mr_split_args &a, const float *parts,
                                              size_t stride, uint32_t splits, float *fades)
{
    const uint32_t head = threadIdx.x / 32;
    const uint32_t lane = threadIdx.x % 32;
    const float *mine = parts + head * (D + 2) + D;
    float top = -CUDART_INF_F;
    for (uint32_t i = lane; i < splits; i += 32) {
        top = fmaxf(top, mine[i * stride]);
    }
#pragma unroll
    for (int o = 16; o > 0; o /= 2) {
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, o));
    }
    float sum = 0.0f;
    for (uint32_t i = lane; i < splits; i += 32) {
        const float fade = exp2f(mine[i * stride] - top); /* every split has a key */
        fades[head * (splits + 1) + i] = fade;
        sum += mine[i * stride + 1] * fade;
    }
    sum = mr_warp_sum(sum);
    if (lane == 0) {
        fades[head * (splits + 1) + splits] = sum;
    }
}

/* All splits of a token are there: adds them up. `fades` is shared memory of the
 * warps' sums, which have been read. */
template <int D>
__device__ static inline void mr_join_splits(const mr_split_args &a, const mr_stream_piece &piece,
                                             uint32_t head, float *fades, uint32_t *arrived)
{
    uint32_t *counter = a.counters + static_cast<size_t>(piece.item.token) * a.p.heads + head;
    mr_meet();
    if (threadIdx.x == 0) {
        __threadfence();
        *arrived = atomicAdd(counter, 1);
        __threadfence();
    }
    mr_meet();
    if (*arrived != piece.splits - 1) {
        return;
    }
    if (threadIdx.x == 0) {
        *counter = 0;
    }
    const float *parts = mr_partial_at(a, piece.item.base + piece.first_split, head);
    const size_t stride = static_cast<size_t>(a.p.heads) * (D + 2);
    const size_t out = (static_cast<size_t>(piece.item.token) * a.p.heads + head) * D;
    if (piece.splits > MOST_SPLITS) {
        for (uint32_t i = threadIdx.x; i < a.share * D; i += CONSUMERS) {
            float max;
            float sum;
            const float acc =
                mr_merge(parts + i / D * (D + 2), stride, piece.splits, D, i % D, &max, &sum);
            mr_store_as(a.out, a.p.type, out + i, acc / sum);
        }
        return;
    }
    if (threadIdx.x / 32 < a.share) {
        mr_weigh_splits<D>(a, parts, stride, piece.splits, fades);
    }
    mr_meet();
    for (uint32_t i = threadIdx.x; i < a.share * D; i += CONSUMERS) {
        const float *fade = fades + i / D * (piece.splits + 1);
        const float *part = parts + i / D * (D + 2) + i % D;
        float acc = 0.0f;
#pragma unroll 16
        for (uint32_t j = 0; j < piece.splits; j++) {
            acc += part[j * stride] * fade[j];
        }
        mr_store_as(a.out, a.p.type, out + i, acc / fade[piece.splits]);
    }
}

/* The sums of warps `from` … `to` − 1 become the result, or the split's part of it. */
template <int D>
__device__ static inline void mr_join_warps(const mr_split_args &a, const mr_stream_piece &piece,
                                            float *sums, uint32_t from, uint32_t to,
                                            uint32_t *arrived)
{
    const uint32_t line = a.share * (D + 2);
    const uint32_t head = piece.g * a.share;
    const size_t out = (static_cast<size_t>(piece.item.token) * a.p.heads + head) * D;
    for (uint32_t i = threadIdx.x; i < a.share * D; i += CONSUMERS) {
        float max;
        float sum;
        const float acc =
            mr_merge(sums + from * line + i / D * (D + 2), line, to - from, D, i % D, &max, &sum);
        if (piece.splits == 1) {
            mr_store_as(a.out, a.p.type, out + i, acc / sum);
            continue;
        }
        float *part = mr_partial_at(a, piece.index, head + i / D);
        part[i % D] = acc;
        if (i % D == 0) {
            part[D] = max;
            part[D + 1] = sum;
        }
    }
    if (piece.splits > 1) {
        mr_join_splits<D>(a, piece, head, sums, arrived);
    }
}

/* One warp's keys of a piece. */
template <typename T, int D>
__device__ static inline void mr_run_stage(const mr_split_args &a, const mr_stream_piece &piece,
                                           uint32_t queries, uint32_t stage, uint32_t first,
                                           mr_stream_heads &heads, float (&out)[D / 16][4])
{
    const uint32_t values = stage + mr_stream_room<D>::TILE;
    float s[2][4];
    mr_score_stage<T, D>(queries, stage, s);
    mr_weigh_stage(a, piece, first, s, heads);
    if (first + KEYS > piece.end) {
        mr_clear_stage<D>(values, piece.end - first);
    }
    mr_sum_stage<T, D>(s, values, out);
}

template <typename T, int D>
__device__ static inline void mr_compute(const mr_stream_args &a, const mr_stream_room<D> &room,
                                         uint8_t *memory, uint32_t shared, uint32_t *arrived)
{
    const uint32_t warp = threadIdx.x / 32;
    float *sums = reinterpret_cast<float *>(memory + room.sums);
    mr_stream_ring ring = {0, 0};
    for (uint32_t n = 0;; n++) {
        mr_barrier_wait(shared + room.full_piece(n), n / AHEAD % 2);
        const mr_stream_piece piece = *reinterpret_cast<const mr_stream_piece *>(
            memory + room.pieces + n % AHEAD * room.PIECE);
        if (piece.end == 0) {
            return;
        }
        const uint32_t base = piece.item.split * MR_CUDA_SPLIT_KEYS;
        const uint32_t from = (piece.begin - base) / KEYS;
        const uint32_t to = (piece.end - base + KEYS - 1) / KEYS;
        const bool mine = warp >= from && warp < to;
        mr_stream_heads heads;
        float out[D / 16][4] = {};
        if (mine) {
            mr_stream_ring here = ring;
            here.advance(warp - from, a.stages);
            mr_barrier_wait(shared + room.full(n, warp), n / AHEAD % 2);
            mr_run_stage<T, D>(a.split, piece, shared + room.queries + n % AHEAD * room.QUERIES,
                               shared + here.stage * room.STAGE, base + warp * KEYS, heads, out);
            __syncwarp();
            if (threadIdx.x % 32 == 0) {
                mr_barrier_arrive(shared + room.empty(here.stage));
            }
        }
        __syncwarp();
        if (threadIdx.x % 32 == 0) {
            mr_barrier_arrive(shared + room.empty_piece(n));
        }
        ring.advance(to - from, a.stages);
        mr_meet(); /* the sums before have been read */
        if (mine) {
            mr_put_sums<D>(sums + warp * a.split.share * (D + 2), a.split.share, heads, out);
        }
        mr_meet();
        mr_join_warps<D>(a.split, piece, sums, from, to, arrived);
    }
}

template <int D>
__device__ static inline void mr_init_stream(const mr_stream_room<D> &room, uint32_t stages,
                                             uint32_t shared)
{
    for (uint32_t i = 0; i < AHEAD; i++) {
        mr_barrier_init(shared + room.full_piece(i), 1);
        mr_barrier_init(shared + room.empty_piece(i), WARPS);
        for (uint32_t warp = 0; warp < WARPS; warp++) {
            mr_barrier_init(shared + room.full(i, warp), 1);
        }
    }
    for (uint32_t i = 0; i < stages; i++) {
        mr_barrier_init(shared + room.empty(i), 1);
    }
    mr_barriers_ready();
}

#endif /* __CUDA_ARCH__ >= 900 */

template <typename T, int D>
__global__ static void __launch_bounds__(THREADS, 2)
    mr_attention_stream_kernel(const __grid_constant__ mr_stream_args a,
                               const __grid_constant__ mr_stream_maps maps)
{
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(1024) uint8_t memory[];
    __shared__ uint32_t arrived;
    const uint32_t shared = static_cast<uint32_t>(__cvta_generic_to_shared(memory));
    const mr_stream_room<D> room(a.stages, a.split.share);
    mr_let_next_come();
    if (threadIdx.x == 0) {
        mr_init_stream<D>(room, a.stages, shared);
        mr_prefetch_map(&maps.keys);
        mr_prefetch_map(&maps.values);
    }
    __syncthreads();
    if (threadIdx.x < CONSUMERS) {
        mr_wait_for_previous();
        mr_compute<T, D>(a, room, memory, shared, &arrived);
    } else {
        mr_stream<D>(a, maps, room, memory, shared);
    }
#endif
}

template <typename T, int D>
static int launch(mr_cuda_context *context, mr_stream_args *a, const mr_stream_maps &maps)
{
    /* As many as two blocks a processor have room for. */
    a->stages = D == 64 ? 8 : a->split.share <= 4 ? 5 : 4;
    const mr_stream_room<D> room(a->stages, a->split.share);
    const int most = static_cast<int>(mr_stream_room<D>(4 * 128 / D, HEADS).bytes) + 8192;
    const cudaError_t code = cudaFuncSetAttribute(
        mr_attention_stream_kernel<T, D>, cudaFuncAttributeMaxDynamicSharedMemorySize, most);
    if (code != cudaSuccess) {
        return code;
    }
    return mr_launch(context, mr_attention_stream_kernel<T, D>,
                     mr_split_blocks(context, a->split, 2), THREADS, room.bytes, *a, maps);
}

int mr_cuda_attention_stream_run(mr_cuda_context *context, const mr_split_args *split, bool *done)
{
    const mr_cuda_attention &p = split->p;
    *done = split->share <= HEADS && p.qkv % 16 == 0 && mr_map_takes(context, p.kv);
    const uint32_t keys = p.kv.block_size < KEYS ? p.kv.block_size : KEYS;
    mr_stream_maps maps;
    if (!*done || !mr_map_plane(context, &maps.keys, p.kv, p.kv.keys, keys) ||
        !mr_map_plane(context, &maps.values, p.kv, p.kv.values, keys)) {
        *done = false;
        return 0;
    }
    mr_stream_args a = {};
    a.split = *split;
    a.split.chunks = 1;
    a.shift = static_cast<uint32_t>(split->shift);
    if (p.type == MR_DTYPE_F16) {
        return p.kv.width == 64 ? launch<__half, 64>(context, &a, maps)
                                : launch<__half, 128>(context, &a, maps);
    }
    return p.kv.width == 64 ? launch<__nv_bfloat16, 64>(context, &a, maps)
                            : launch<__nv_bfloat16, 128>(context, &a, maps);
}
