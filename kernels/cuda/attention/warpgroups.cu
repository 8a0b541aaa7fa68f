/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prompt attention (tiles.cu) on Hopper's warpgroup products, after Shah et al., "FlashAttention-3"
 * (2024). Heads of 64 or 128 elements; queries, keys and values of one 2-byte type; blocks of 8 to
 * 128 keys. sm_90a.
 *
 *   grid      a block a processor; works through (tile, head) pairs, long ones first, the next
 *             from a counter
 *   block     a warp that copies, and two warpgroups of 64 queries each that compute in turn: while
 *             the matrix units work for one, the other has its softmax
 *   copies    by TMA, a block of keys at once, 128-byte swizzle: [8 keys][64 elements] is 1024
 *             bytes, then the other 64 elements of these keys, then the next 8 keys
 *   products  scores: both operands in shared memory; values: probabilities from registers. The
 *             next scores are under way while a warpgroup has its softmax
 *   memory    queries 128 · D · 2 bytes, keys and values 2 stages · 2 · 128 · D · 2, results as
 *             queries
 *
 * Keys are visited in order, 128 at a time from a multiple of 128 on, and what a row does not see
 * leaves its sums as they are: a row depends neither on other sequences nor on where a prompt was
 * divided. Softmax in float32; probabilities are rounded to the type before they meet the values.
 */
#include "kernels/cuda/attention/warpgroups.cuh"

#if MR_HAS_WGMMA

/* ---- the warpgroups that compute ---- */

/* What a thread has of its rows g and g + 8. */
struct mr_soft_rows {
    int32_t position[2];
    float max[2]; /* of scores, before `factor` */
    float sum[2];
};

/* Starts the scores of the warpgroup's queries. */
template <typename T, int D>
__device__ static inline void mr_start_scores(uint32_t queries, uint32_t keys, float (&s)[KEYS / 2])
{
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        const uint32_t half = k / 4;
        const uint32_t at = k % 4 * 32;
        mr_multiply_shared(T(), s, mr_operand(queries + half * ROWS * 128 + at, 16, 1024),
                           mr_operand(keys + half * 1024 + at, 16, D / 64 * 1024), k > 0);
    }
    mr_products_commit();
}

/* Starts out += probabilities · values. */
template <typename T, int D>
__device__ static inline void mr_start_values(const uint32_t (&weights)[KEYS / 4], uint32_t values,
                                              float (&out)[D / 2])
{
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++) {
        mr_multiply_turned(T(), out, weights + 4 * k,
                           mr_operand(values + k * 2 * (D / 64) * 1024, 1024, D / 64 * 1024));
    }
    mr_products_commit();
}

/* tanh of the scores, capped ones being this times the cap: 1 − 2 / (1 + e^2x). */
__device__ static inline void mr_cap(float before, float (&s)[KEYS / 2])
{
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++) {
        float r;
        asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(1.0f + mr_exp2(s[i] * before)));
        s[i] = 1.0f - 2.0f * r;
    }
}

/* Scores that a row does not see become −∞. */
__device__ static inline void mr_hide(const mr_cuda_attention &p, uint32_t first,
                                      const int32_t (&position)[2], float (&s)[KEYS / 2])
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int32_t last =
            position[h] - static_cast<int32_t>(first) - static_cast<int32_t>(threadIdx.x % 4 * 2);
        const int32_t before = p.window > 0 ? last - static_cast<int32_t>(p.window) : -KEYS;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int32_t key = n * 8 + i;
                float &x = s[n * 4 + h * 2 + i];
                x = key <= last && key > before ? x : -CUDART_INF_F;
            }
        }
    }
}

/* Turns scores into probabilities relative to the new maximum; gives by how much what was summed
 * before fades. */
__device__ static inline void mr_soften(float factor, float (&s)[KEYS / 2], mr_soft_rows &rows,
                                        float (&fade)[2])
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float top = rows.max[h];
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) {
            top = fmaxf(top, fmaxf(s[n * 4 + h * 2], s[n * 4 + h * 2 + 1]));
        }
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        /* A row that has seen no key: any finite shift keeps −∞ what it is. */
        const float shift = top == -CUDART_INF_F ? 0.0f : top * factor;
        fade[h] = mr_exp2(rows.max[h] * factor - shift);
        rows.max[h] = top;
        float sum = 0.0f;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float &x = s[n * 4 + h * 2 + i];
                x = mr_exp2(x * factor - shift);
                sum += x;
            }
        }
        rows.sum[h] = rows.sum[h] * fade[h] + sum;
    }
}

template <typename T>
__device__ static inline void mr_pack_weights(const float (&s)[KEYS / 2],
                                              uint32_t (&weights)[KEYS / 4])
{
#pragma unroll
    for (int i = 0; i < KEYS / 4; i++) {
        weights[i] = mr_matrix<T>::pack(s[2 * i], s[2 * i + 1]);
    }
}

/* Values behind the last key, up to the end of its block, become 0: they are what some sequence
 * left there, and 0 times that need not be 0. */
template <int D>
__device__ static inline void mr_clear_values(const mr_warpgroup_args &a, const mr_span &span,
                                              uint32_t group, uint32_t values)
{
    const uint32_t from = span.end % KEYS;
    const uint32_t size = 1u << a.shift;
    const uint32_t to = (from + size - 1) / size * size;
    if (from == to) {
        return;
    }
    constexpr uint32_t CHUNKS = D / 8;
    for (uint32_t i = threadIdx.x % 128; i < (to - from) * CHUNKS; i += 128) {
        const uint32_t row = from + i / CHUNKS;
        const uint32_t c = i % CHUNKS;
        const uint32_t at =
            values + row / 8 * (D / 64 * 1024) + c / 8 * 1024 + row % 8 * 128 + c % 8 * 16;
        asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(0) : "memory");
    }
    mr_fence_shared();
    mr_named_sync(3 + group, 128);
}

/* The warp's 16 rows, through shared memory so that whole lines are written. */
template <typename T, int D>
__device__ static inline void mr_store_pair(const mr_warpgroup_args &a, const mr_pair &pair,
                                            uint32_t row, uint8_t *results, float (&out)[D / 2],
                                            mr_soft_rows &rows)
{
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        rows.sum[h] += __shfl_xor_sync(0xffffffffu, rows.sum[h], 1);
        rows.sum[h] += __shfl_xor_sync(0xffffffffu, rows.sum[h], 2);
        const float scale = 1.0f / rows.sum[h];
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            *reinterpret_cast<uint32_t *>(results + mr_swizzled<D>(lane / 4 + h * 8, n) +
                                          lane % 4 * 4) =
                mr_matrix<T>::pack(out[n * 4 + h * 2] * scale, out[n * 4 + h * 2 + 1] * scale);
        }
    }
    __syncwarp();
    constexpr uint32_t CHUNKS = D / 8;
    uint4 *to = mr_at<uint4>(a.tiles.p.out);
#pragma unroll
    for (uint32_t i = lane; i < 16 * CHUNKS; i += 32) {
        const uint32_t r = i / CHUNKS;
        if (row + r < pair.count) {
            to[(static_cast<size_t>(pair.token + row + r) * a.tiles.p.heads + pair.head) * CHUNKS +
               i % CHUNKS] =
                *reinterpret_cast<const uint4 *>(results + mr_swizzled<D>(r, i % CHUNKS));
        }
    }
    __syncwarp();
}

/* Lets the compiler know that a warp goes one way: products stand in no divergent path. */
__device__ static inline mr_pair mr_same_for_all(const mr_pair &pair)
{
    return {__shfl_sync(0xffffffffu, pair.token, 0), __shfl_sync(0xffffffffu, pair.count, 0),
            __shfl_sync(0xffffffffu, pair.position, 0), __shfl_sync(0xffffffffu, pair.head, 0)};
}

/* A warpgroup's part of one pair, but for the store. */
template <typename T, int D, bool CAPPED> struct mr_consumer {
    using room = mr_room<D>;
    const mr_warpgroup_args &a;
    uint32_t shared;
    uint32_t group;
    mr_span span;
    uint32_t turn; /* of its first keys */
    mr_soft_rows rows;
    float out[D / 2];
    float s[KEYS / 2];
    uint32_t weights[KEYS / 4];

    __device__ mr_consumer(const mr_warpgroup_args &args, uint32_t at, uint32_t number)
        : a(args), shared(at), group(number), turn(0)
    {
    }
    __device__ inline mr_barriers<D> barriers() const
    {
        return {shared + room::BARRIERS};
    }
    __device__ inline uint32_t tile(uint32_t t, uint32_t values) const
    {
        return shared + room::STAGED + t % STAGES * room::STAGE + values * room::TILE;
    }
    __device__ inline void await(uint32_t t, uint32_t values) const
    {
        mr_barrier_wait(barriers().full(t % STAGES, values), t / STAGES % 2);
    }
    __device__ inline void leave(uint32_t barrier) const
    {
        if (threadIdx.x % 32 == 0) {
            mr_barrier_arrive(barrier);
        }
    }
    __device__ inline void leave(uint32_t t, uint32_t values) const
    {
        leave(barriers().empty(t % STAGES, values));
    }
    __device__ inline uint32_t queries() const
    {
        return shared + room::QUERIES + group * ROWS * D * 2;
    }
    /* Scores of the i-th keys are there: probabilities. */
    template <bool MASKED> __device__ inline void soften(uint32_t i, float (&fade)[2])
    {
        if (CAPPED) {
            mr_cap(a.before, s);
        }
        if (MASKED) {
            mr_hide(a.tiles.p, span.first + i * KEYS, rows.position, s);
        }
        mr_soften(a.tiles.factor, s, rows, fade);
    }
    /* Scores of the i-th keys and values of those before. */
    template <bool MASKED> __device__ inline void visit(uint32_t i)
    {
        const uint32_t t = turn + i;
        await(t, 0);
        mr_named_sync(1 + group, GROUPS * 128);
        mr_pin(s);
        mr_products_begin();
        mr_start_scores<T, D>(queries(), tile(t, 0), s);
        await(t - 1, 1);
        mr_products_begin();
        mr_start_values<T, D>(weights, tile(t - 1, 1), out);
        mr_named_arrive(2 - group, GROUPS * 128);
        mr_products_wait<1>();
        mr_pin(s);
        leave(t, 0);
        float fade[2];
        soften<MASKED>(i, fade);
        mr_products_wait<0>();
        mr_pin(out);
        leave(t - 1, 1);
#pragma unroll
        for (int j = 0; j < D / 2; j++) {
            out[j] *= fade[j / 2 % 2];
        }
        mr_pack_weights<T>(s, weights);
    }
    __device__ inline void run(const mr_pair &pair)
    {
        span = mr_span_of(a.tiles.p, pair);
        const uint32_t row = group * ROWS + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            rows.position[h] = static_cast<int32_t>(pair.position + row + h * 8);
            rows.max[h] = -CUDART_INF_F;
            rows.sum[h] = 0.0f;
        }
#pragma unroll
        for (int j = 0; j < D / 2; j++) {
            out[j] = 0.0f;
        }
        await(turn, 0);
        mr_pin(s);
        mr_products_begin();
        mr_start_scores<T, D>(queries(), tile(turn, 0), s);
        mr_products_wait<0>();
        mr_pin(s);
        leave(turn, 0);
        float fade[2];
        soften<true>(0, fade);
        mr_pack_weights<T>(s, weights);
        /* Keys that every row of the warpgroup sees need no mask. */
        const uint32_t whole = (pair.position + group * ROWS + 1 - span.first) / KEYS;
        const uint32_t plain = a.tiles.p.window > 0 ? 1 : min(whole, span.turns);
        uint32_t i = 1;
        for (; i < plain; i++) {
            visit<false>(i);
        }
        for (; i < span.turns; i++) {
            visit<true>(i);
        }
        leave(barriers().empty_queries());
        const uint32_t last = turn + span.turns - 1;
        await(last, 1);
        mr_clear_values<D>(a, span, group, tile(last, 1));
        mr_pin(out);
        mr_products_begin();
        mr_start_values<T, D>(weights, tile(last, 1), out);
        mr_products_wait<0>();
        mr_pin(out);
        leave(last, 1);
        turn += span.turns;
    }
};

template <typename T, int D, bool CAPPED>
__device__ static inline void mr_consume(const mr_warpgroup_args &a, uint8_t *memory,
                                         uint32_t shared)
{
    using room = mr_room<D>;
    const uint32_t group = __shfl_sync(0xffffffffu, threadIdx.x / 128 - 1, 0);
    const uint32_t row = threadIdx.x / 32 * 16 - 64; /* of the warp, in the tile */
    const mr_barriers<D> barriers = {shared + room::BARRIERS};
    uint8_t *results = memory + room::RESULTS + row * D * 2;
    mr_consumer<T, D, CAPPED> consumer(a, shared, group);
    if (group == 1) {
        mr_named_arrive(1, GROUPS * 128); /* the first goes first */
    }
    for (uint32_t n = 0;; n++) {
        mr_barrier_wait(barriers.full_queries(), n % 2);
        const mr_pair pair =
            mr_same_for_all(*reinterpret_cast<const mr_pair *>(memory + room::PAIR));
        if (pair.count == 0) {
            break;
        }
        consumer.run(pair);
        mr_store_pair<T, D>(a, pair, row, results, consumer.out, consumer.rows);
    }
    if (group == 0) {
        mr_named_sync(1, GROUPS * 128);
    }
}

template <int D> __device__ static inline void mr_init_barriers(uint32_t shared)
{
    const mr_barriers<D> barriers = {shared + mr_room<D>::BARRIERS};
    mr_barrier_init(barriers.full_queries(), 1);
    mr_barrier_init(barriers.empty_queries(), GROUPS * 4);
    for (uint32_t i = 0; i < STAGES * 2; i++) {
        mr_barrier_init(barriers.full(i / 2, i % 2), 1);
        mr_barrier_init(barriers.empty(i / 2, i % 2), GROUPS * 4);
    }
    mr_barriers_ready();
}

#endif /* MR_HAS_WGMMA */

template <typename T, int D, bool CAPPED>
__global__ static void __launch_bounds__(THREADS, 1)
    mr_attention_warpgroups_kernel(const __grid_constant__ mr_warpgroup_args a,
                                   const __grid_constant__ mr_warpgroup_maps maps)
{
#if MR_HAS_WGMMA
    MR_DYNAMIC_SHARED(uint8_t, 1024, memory);
    const uint32_t shared = static_cast<uint32_t>(__cvta_generic_to_shared(memory));
    mr_let_next_come();
    if (threadIdx.x == 0) {
        mr_init_barriers<D>(shared);
        mr_prefetch_map(&maps.queries);
        mr_prefetch_map(&maps.keys);
        mr_prefetch_map(&maps.values);
    }
    __syncthreads();
    mr_wait_for_previous();
    if (threadIdx.x < 128) {
        mr_registers_give<40>();
        if (threadIdx.x < 32) {
            mr_produce<D>(a, maps, memory, shared);
        }
    } else {
        mr_registers_take<232>();
        mr_consume<T, D, CAPPED>(a, memory, shared);
    }
#endif
}

/* ---- launch ---- */

static bool describe_all(const mr_cuda_context *context, const mr_cuda_attention &p,
                         mr_warpgroup_maps *maps)
{
    const cuuint64_t row = static_cast<cuuint64_t>(p.kv.width) * 2 * (p.heads + 2 * p.kv.heads);
    const mr_map_shape queries = {2, {row / 2, p.tokens}, {row}, {64, ROWS}};
    return mr_map_describe(context, &maps->queries, p.type, p.qkv, queries) &&
           mr_map_plane(context, &maps->keys, p.kv, p.kv.keys, p.kv.block_size) &&
           mr_map_plane(context, &maps->values, p.kv, p.kv.values, p.kv.block_size);
}

template <typename T, int D, bool CAPPED>
static int launch(mr_cuda_context *context, const mr_warpgroup_args &a,
                  const mr_warpgroup_maps &maps)
{
    constexpr int BYTES = mr_room<D>::BYTES;
    const cudaError_t code =
        cudaFuncSetAttribute(mr_attention_warpgroups_kernel<T, D, CAPPED>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES);
    if (code != cudaSuccess) {
        return code;
    }
    const uint32_t processors = static_cast<uint32_t>(context->properties.multiProcessorCount);
    return mr_launch(context, mr_attention_warpgroups_kernel<T, D, CAPPED>,
                     a.pairs < processors ? a.pairs : processors, THREADS, BYTES, a, maps);
}

template <typename T>
static int choose(mr_cuda_context *context, const mr_warpgroup_args &a,
                  const mr_warpgroup_maps &maps)
{
    const bool capped = a.tiles.p.soft_cap > 0.0f;
    if (a.tiles.p.kv.width == 64) {
        return capped ? launch<T, 64, true>(context, a, maps)
                      : launch<T, 64, false>(context, a, maps);
    }
    return capped ? launch<T, 128, true>(context, a, maps)
                  : launch<T, 128, false>(context, a, maps);
}

int mr_cuda_attention_warpgroups_run(mr_cuda_context *context, const mr_tiles_args *tiles,
                                     bool *done)
{
    const mr_cuda_attention &p = tiles->p;
    *done = mr_map_takes(context, p.kv) && p.qkv % 16 == 0;
    mr_warpgroup_maps maps;
    if (*done && !describe_all(context, p, &maps)) {
        *done = false;
    }
    if (!*done) {
        return 0;
    }
    mr_warpgroup_args a = {};
    a.tiles = *tiles;
    a.next = mr_at<uint32_t>(p.counters);
    a.pairs = p.n_tiles * p.heads;
    a.shift = static_cast<uint32_t>(tiles->shift);
    if (p.soft_cap > 0.0f) {
        a.tiles.factor = p.soft_cap * MR_LOG2E;
        a.before = 2.0f * MR_LOG2E * p.scale / p.soft_cap;
    }
    return p.type == MR_DTYPE_F16 ? choose<__half>(context, a, maps)
                                  : choose<__nv_bfloat16>(context, a, maps);
}
