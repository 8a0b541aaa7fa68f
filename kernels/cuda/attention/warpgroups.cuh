/* SPDX-License-Identifier: Apache-2.0 */
/* Prompt attention on Hopper (warpgroups.cu): what is where in shared memory, and the warp that
 * copies. */
#ifndef MILLRACE_KERNELS_CUDA_ATTENTION_WARPGROUPS_CUH
#define MILLRACE_KERNELS_CUDA_ATTENTION_WARPGROUPS_CUH

#include "kernels/cuda/attention/maps.cuh"
#include "kernels/cuda/attention/tiles.cuh"
#include "kernels/cuda/device/wgmma.cuh"

#define KEYS    128
#define GROUPS  2  /* warpgroups that compute */
#define ROWS    64 /* of one */
#define THREADS ((GROUPS + 1) * 128)
#define STAGES  2

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

/* One (tile, head) pair. */
struct mr_pair {
    uint32_t token;
    uint32_t count; /* 0: there are no more */
    uint32_t position;
    uint32_t head;
};

/* Bytes of shared memory, and where what is. */
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

#if MR_HAS_WGMMA

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

#endif /* MR_HAS_WGMMA */

#endif
