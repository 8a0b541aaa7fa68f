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
#include "kernels/cuda/attention/maps.cuh"
#include "kernels/cuda/attention/tiles.cuh"
#include "kernels/cuda/device/wgmma.cuh"

#define KEYS    128
#define GROUPS  2  /* warpgroups that compute */
#define ROWS    64 /* of one */
#define THREADS ((GROUPS + 1) * 128)
#define STAGES  2
#define LOG2E   1.4426950408889634f

static_assert(ROWS * GROUPS == MR_CUDA_TILE_ROWS, "the warpgroups share a tile");

struct mr_warpgroup_args {
    mr_tiles_args tiles;
    uint32_t *next; /* counter of pairs given out, 0 between launches */
    uint32_t pairs; /* (tile, head) */
    uint32_t shift; /* block_size = 1 << shift */
    float before;   /* with a soft cap: scores times this go into 2^x for tanh */
};

struct mr_warpgroup_maps {
    CUtensorMap queries;
    CUtensorMap keys;
    CUtensorMap values;
};

#if MR_HAS_WGMMA

/* One (tile, head) pair. */
struct mr_pair {
    uint32_t token;
    uint32_t count; /* 0: there are no more */
    uint32_t position;
    uint32_t head;
};

template <int D> struct mr_room {
    static constexpr uint32_t TILE = KEYS * D * 2;
    static constexpr uint32_t QUERIES = 0;
    static constexpr uint32_t STAGE = 2 * TILE; /* keys, values */
    static constexpr uint32_t STAGED = GROUPS * ROWS * D * 2;
    static constexpr uint32_t RESULTS = STAGED + STAGES * STAGE;
    static constexpr uint32_t PAIR = RESULTS + GROUPS * ROWS * D * 2;
    static constexpr uint32_t BARRIERS = PAIR + sizeof(mr_pair);
    static constexpr uint32_t BYTES = BARRIERS + (2 + 4 * STAGES) * 8;
};

/* Addresses of the barriers. `full`: copied; `empty`: may be copied to. */
template <int D> struct mr_barriers {
    uint32_t base;
    __device__ uint32_t full_queries() const
    {
        return base;
    }
    __device__ uint32_t empty_queries() const
    {
        return base + 8;
    }
    __device__ uint32_t full(uint32_t stage, uint32_t values) const
    {
        return base + 16 + (stage * 4 + values * 2) * 8;
    }
    __device__ uint32_t empty(uint32_t stage, uint32_t values) const
    {
        return full(stage, values) + 8;
    }
};

/* Keys of a pair that are visited: tiles of KEYS, from `first` on, up to `end`. */
struct mr_span {
    uint32_t first;
    uint32_t end;
    uint32_t turns;
    uint32_t seen; /* the first key that any row sees */
};

__device__ static inline mr_span mr_span_of(const mr_cuda_attention &p, const mr_pair &pair)
{
    mr_span s;
    s.end = pair.position + pair.count;
    s.seen = p.window > 0 && pair.position >= p.window ? pair.position - p.window + 1 : 0;
    s.first = s.seen / KEYS * KEYS;
    s.turns = (s.end - s.first + KEYS - 1) / KEYS;
    return s;
}

/* ---- the warp that copies ---- */

__device__ static inline mr_pair mr_pair_at(const mr_warpgroup_args &a, uint32_t index)
{
    const mr_cuda_attention &p = a.tiles.p;
    mr_pair pair = {};
    if (index < a.pairs) {
        const mr_cuda_tile tile = a.tiles.tiles[p.n_tiles - 1 - index / p.heads];
        pair.token = tile.token;
        pair.count = tile.count;
        pair.position = a.tiles.positions[tile.token];
        pair.head = index % p.heads;
    }
    return pair;
}

/* Where block `index` of the sequence lies, in groups of 8 keys. */
__device__ static inline uint32_t mr_place_of(const mr_warpgroup_args &a, const mr_span &span,
                                              const uint32_t *table, uint32_t g, uint32_t index)
{
    const uint32_t first = index << a.shift;
    const bool there = first < span.end && first + (1u << a.shift) > span.seen;
    return there ? (table[index] * a.tiles.p.kv.heads + g) << (a.shift - 3) : MR_MAP_NOWHERE;
}

template <int D>
__device__ static inline void mr_copy_keys(const mr_warpgroup_args &a,
                                           const mr_warpgroup_maps &maps, const mr_pair &pair,
                                           uint32_t shared, uint32_t &turn)
{
    using room = mr_room<D>;
    const mr_barriers<D> barriers = {shared + room::BARRIERS};
    const uint32_t lane = threadIdx.x % 32;
    const mr_span span = mr_span_of(a.tiles.p, pair);
    const uint32_t *table =
        a.tiles.block_tables +
        static_cast<size_t>(a.tiles.token_slot[pair.token]) * a.tiles.p.max_blocks;
    const uint32_t g = pair.head / a.tiles.share;
    const uint32_t blocks = KEYS >> a.shift;
    const uint32_t index = (span.first >> a.shift) + lane;
    const bool mine = lane < blocks;
    uint32_t place = mine ? mr_place_of(a, span, table, g, index) : 0;
    for (uint32_t i = 0; i < span.turns; i++, turn++) {
        const uint32_t stage = turn % STAGES;
        const uint32_t parity = turn / STAGES % 2 ^ 1;
        const uint32_t to =
            shared + room::STAGED + stage * room::STAGE + lane * (room::TILE / blocks);
        const int32_t here = static_cast<int32_t>(place);
        place = mine && i + 1 < span.turns
                    ? mr_place_of(a, span, table, g, index + (i + 1) * blocks)
                    : 0;
#pragma unroll
        for (uint32_t v = 0; v < 2; v++) {
            mr_barrier_wait(barriers.empty(stage, v), parity);
            if (lane == 0) {
                mr_barrier_expect(barriers.full(stage, v), room::TILE);
            }
            __syncwarp();
            if (mine) {
                mr_copy_tile4(to + v * room::TILE, v == 0 ? &maps.keys : &maps.values,
                              barriers.full(stage, v), here);
            }
        }
    }
}

template <int D>
__device__ static inline void mr_copy_queries(const mr_warpgroup_maps &maps, const mr_pair &pair,
                                              uint32_t shared)
{
    using room = mr_room<D>;
    const mr_barriers<D> barriers = {shared + room::BARRIERS};
    mr_barrier_expect(barriers.full_queries(), GROUPS * ROWS * D * 2);
    for (uint32_t i = 0; i < GROUPS * (D / 64); i++) {
        mr_copy_tile2(shared + room::QUERIES + i * ROWS * 128, &maps.queries,
                      barriers.full_queries(),
                      static_cast<int32_t>(pair.head * D + i % (D / 64) * 64),
                      static_cast<int32_t>(pair.token + i / (D / 64) * ROWS));
    }
}

template <int D>
__device__ static inline void mr_produce(const mr_warpgroup_args &a, const mr_warpgroup_maps &maps,
                                         uint8_t *memory, uint32_t shared)
{
    using room = mr_room<D>;
    const mr_barriers<D> barriers = {shared + room::BARRIERS};
    const uint32_t lane = threadIdx.x % 32;
    uint32_t turn = 0;
    mr_pair pair = mr_pair_at(a, blockIdx.x);
    for (uint32_t n = 0;; n++) {
        mr_barrier_wait(barriers.empty_queries(), n % 2 ^ 1);
        if (lane == 0) {
            *reinterpret_cast<mr_pair *>(memory + room::PAIR) = pair;
            if (pair.count > 0) {
                mr_copy_queries<D>(maps, pair, shared);
            } else {
                mr_barrier_arrive(barriers.full_queries());
            }
        }
        __syncwarp();
        if (pair.count == 0) {
            return;
        }
        /* Every block is refused once: after as many refusals and gifts the counter is 0 again. */
        uint32_t next = lane == 0 ? gridDim.x + atomicInc(a.next, a.pairs - 1) : 0;
        mr_copy_keys<D>(a, maps, pair, shared, turn);
        next = __shfl_sync(0xffffffffu, next, 0);
        pair = mr_pair_at(a, next);
    }
}

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
    uint4 *to = reinterpret_cast<uint4 *>(static_cast<uintptr_t>(a.tiles.p.out));
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
    extern __shared__ __align__(1024) uint8_t memory[];
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

typedef CUresult (*mr_encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                                 const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                                 const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                                 CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/* The driver's function that describes tensors: the module is not linked with the driver. */
int mr_cuda_attention_open(mr_cuda_context *context)
{
    cudaDriverEntryPointQueryResult result;
#if CUDART_VERSION >= 12050
    const int code = cudaGetDriverEntryPointByVersion(
        "cuTensorMapEncodeTiled", &context->encode_tensor, 12000, cudaEnableDefault, &result);
#else
    const int code = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &context->encode_tensor,
                                             cudaEnableDefault, &result);
#endif
    if (code == 0 && result != cudaDriverEntryPointSuccess) {
        context->encode_tensor = nullptr; /* an older driver: tiles.cu does the work */
    }
    return code;
}

bool mr_map_describe(const mr_cuda_context *context, CUtensorMap *map, mr_dtype type,
                     mr_cuda_ptr at, const mr_map_shape &shape)
{
    const mr_encode_fn encode = reinterpret_cast<mr_encode_fn>(context->encode_tensor);
    const cuuint32_t steps[4] = {1, 1, 1, 1};
    return encode(map,
                  type == MR_DTYPE_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                       : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                  shape.rank, mr_at<void>(at), shape.sizes, shape.strides, shape.box, steps,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

bool mr_map_plane(const mr_cuda_context *context, CUtensorMap *map, const mr_cuda_kv &kv,
                  mr_cuda_ptr plane, uint32_t keys)
{
    const cuuint64_t line = static_cast<cuuint64_t>(kv.width) * 2;
    const mr_map_shape shape = {
        4,
        {64, 8, kv.width / 64, MR_MAP_NOWHERE},
        {line, 128, 8 * line},
        {64, 8, kv.width / 64, keys / 8},
    };
    return mr_map_describe(context, map, kv.type, plane, shape);
}

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
    constexpr int BYTES = KEYS * D * 2 * (2 * STAGES + 2) + 256;
#if MR_HAS_WGMMA
    static_assert(mr_room<D>::BYTES <= BYTES, "shared memory");
#endif
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
        a.tiles.factor = p.soft_cap * LOG2E;
        a.before = 2.0f * LOG2E * p.scale / p.soft_cap;
    }
    return p.type == MR_DTYPE_F16 ? choose<__half>(context, a, maps)
                                  : choose<__nv_bfloat16>(context, a, maps);
}
