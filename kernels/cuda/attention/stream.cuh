/* SPDX-License-Identifier: Apache-2.0 */
/* Split attention fed by the copy engine (stream.cu): what is where in shared memory, and the warp
 * that copies. */
#ifndef MILLRACE_KERNELS_CUDA_ATTENTION_STREAM_CUH
#define MILLRACE_KERNELS_CUDA_ATTENTION_STREAM_CUH

#include "kernels/cuda/attention/maps.cuh"
#include "kernels/cuda/attention/split.cuh"
#include "kernels/cuda/device/wgmma.cuh"

#define WARPS       8
#define CONSUMERS   (WARPS * 32)
#define THREADS     (CONSUMERS + 32)
#define KEYS        32 /* of a stage */
#define HEADS       MR_STREAM_HEADS
#define AHEAD       4   /* pieces whose queries are there */
#define MOST_SPLITS 512 /* of a token, whose weights have room among the warps' sums */
#define LOG2E       1.4426950408889634f

static_assert(MOST_SPLITS + 1 <= WARPS * (64 + 2), "weights have room");
static_assert(WARPS * KEYS == MR_CUDA_SPLIT_KEYS, "the warps share a split");

struct mr_stream_args {
    mr_split_args split;
    uint32_t shift;  /* block_size = 1 << shift */
    uint32_t stages; /* at least 4 */
};

struct mr_stream_maps {
    CUtensorMap keys;
    CUtensorMap values;
};

/* One (item, key/value head). */
struct mr_stream_piece {
    mr_cuda_item item;
    uint32_t index; /* of the item */
    uint32_t g;
    uint32_t begin; /* keys */
    uint32_t end;   /* 0: there are no more pieces */
    uint32_t first_split;
    uint32_t splits;
};

/* Bytes of shared memory, and where what is. */
template <int D> struct mr_stream_room {
    static constexpr uint32_t TILE = KEYS * D * 2;
    static constexpr uint32_t STAGE = 2 * TILE; /* keys, values */
    static constexpr uint32_t PIECE = 64;
    static constexpr uint32_t QUERIES = HEADS * D * 2; /* of a piece */
    uint32_t sums;
    uint32_t queries;
    uint32_t pieces;
    uint32_t barriers;
    uint32_t bytes;

    __host__ __device__ mr_stream_room(uint32_t stages, uint32_t share)
    {
        sums = stages * STAGE;
        queries = (sums + WARPS * share * (D + 2) * 4 + 127) / 128 * 128;
        pieces = queries + AHEAD * QUERIES;
        barriers = pieces + AHEAD * PIECE;
        bytes = barriers + (AHEAD * (WARPS + 2) + stages) * 8;
    }
    /* Piece n and its queries are there; have been read. */
    __host__ __device__ uint32_t full_piece(uint32_t n) const
    {
        return barriers + n % AHEAD * ((WARPS + 2) * 8);
    }
    __host__ __device__ uint32_t empty_piece(uint32_t n) const
    {
        return full_piece(n) + 8;
    }
    /* A warp's stage of piece n is there. Every piece has a phase of every warp, with or without
     * keys: so no barrier can be two phases ahead of who waits for it. */
    __host__ __device__ uint32_t full(uint32_t n, uint32_t warp) const
    {
        return full_piece(n) + 16 + warp * 8;
    }
    __host__ __device__ uint32_t empty(uint32_t stage) const
    {
        return barriers + AHEAD * ((WARPS + 2) * 8) + stage * 8;
    }
};

static_assert(sizeof(mr_stream_piece) <= 64, "PIECE");

#if __CUDA_ARCH__ >= 900

/* Where a ring of stages stands. */
struct mr_stream_ring {
    uint32_t stage;
    uint32_t parity;

    __device__ void advance(uint32_t by, uint32_t stages)
    {
        stage += by;
        while (stage >= stages) {
            stage -= stages;
            parity ^= 1;
        }
    }
};

/* ---- the warp that copies ---- */

/* What the copying warp knows of a piece; fetched in steps, long before it is needed. */
struct mr_stream_plan {
    mr_cuda_item item;
    uint32_t index;
    uint32_t g;
    bool there;
    uint32_t position;
    uint32_t slot;
};

__device__ static inline void mr_plan_item(const mr_split_args &a, uint64_t number, uint64_t end,
                                           mr_stream_plan &plan)
{
    plan.there = number < end;
    if (plan.there) {
        plan.index = a.p.first + static_cast<uint32_t>(number / a.p.kv.heads);
        plan.g = static_cast<uint32_t>(number % a.p.kv.heads);
        plan.item = a.items[plan.index];
    }
}

__device__ static inline void mr_plan_token(const mr_split_args &a, mr_stream_plan &plan)
{
    if (plan.there) {
        plan.position = a.positions[plan.item.token];
        plan.slot = a.token_slot[plan.item.token];
    }
}

__device__ static inline mr_stream_piece mr_piece_of(const mr_split_args &a,
                                                     const mr_stream_plan &plan)
{
    const uint32_t last = plan.position;
    const uint32_t from = a.p.window > 0 && last >= a.p.window ? last - a.p.window + 1 : 0;
    mr_stream_piece piece;
    piece.item = plan.item;
    piece.index = plan.index;
    piece.g = plan.g;
    piece.first_split = from / MR_CUDA_SPLIT_KEYS;
    piece.splits = last / MR_CUDA_SPLIT_KEYS - piece.first_split + 1;
    piece.begin = max(from, plan.item.split * MR_CUDA_SPLIT_KEYS);
    piece.end = min(last + 1, (plan.item.split + 1) * MR_CUDA_SPLIT_KEYS);
    return piece;
}

/* Where the lane-th block of the split lies, in groups of 8 keys. */
__device__ static inline uint32_t mr_plan_block(const mr_stream_args &a, const mr_stream_plan &plan)
{
    if (!plan.there) {
        return MR_MAP_NOWHERE;
    }
    const mr_stream_piece piece = mr_piece_of(a.split, plan);
    const uint32_t first = plan.item.split * MR_CUDA_SPLIT_KEYS + (threadIdx.x % 32 << a.shift);
    const uint32_t *table =
        a.split.block_tables + static_cast<size_t>(plan.slot) * a.split.p.max_blocks;
    const bool there = first < piece.end && first + (1u << a.shift) > piece.begin;
    return there ? (table[first >> a.shift] * a.split.p.kv.heads + plan.g) << (a.shift - 3)
                 : MR_MAP_NOWHERE;
}

/* Hands a piece to the computing warps, and starts the copy of its queries. */
template <int D>
__device__ static inline void mr_give_piece(const mr_stream_args &a, const mr_stream_piece &piece,
                                            const mr_stream_room<D> &room, uint32_t n,
                                            uint8_t *memory, uint32_t shared)
{
    mr_barrier_wait(shared + room.empty_piece(n), n / AHEAD % 2 ^ 1);
    if (threadIdx.x % 32 == 0) {
        *reinterpret_cast<mr_stream_piece *>(memory + room.pieces + n % AHEAD * room.PIECE) = piece;
        if (piece.end == 0) {
            mr_barrier_arrive(shared + room.full_piece(n));
        } else {
            const mr_cuda_attention &p = a.split.p;
            const uint64_t row =
                static_cast<uint64_t>(piece.item.token) * (p.heads + 2 * p.kv.heads) +
                piece.g * a.split.share;
            const uint32_t bytes = a.split.share * D * 2;
            mr_barrier_expect(shared + room.full_piece(n), bytes);
            mr_copy_bytes(shared + room.queries + n % AHEAD * room.QUERIES, p.qkv + row * D * 2,
                          bytes, shared + room.full_piece(n));
        }
    }
    __syncwarp();
}

/* Starts the copies of a piece's keys and values. */
template <int D>
__device__ static inline void mr_give_keys(const mr_stream_args &a, const mr_stream_maps &maps,
                                           const mr_stream_room<D> &room, uint32_t place,
                                           const mr_stream_piece &piece, uint32_t n,
                                           mr_stream_ring &ring, uint32_t shared)
{
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t base = piece.item.split * MR_CUDA_SPLIT_KEYS;
    const uint32_t size = 1u << a.shift;
    const uint32_t boxes = size < KEYS ? KEYS >> a.shift : 1;
    for (uint32_t warp = 0; warp < WARPS; warp++) {
        const uint32_t key = warp * KEYS;
        const uint32_t full = shared + room.full(n, warp);
        if (base + key + KEYS <= piece.begin || base + key >= piece.end) {
            if (lane == 0) {
                mr_barrier_arrive(full);
            }
            continue;
        }
        const uint32_t from =
            __shfl_sync(0xffffffffu, place, (key >> a.shift) + lane % boxes) + key % size / 8;
        mr_barrier_wait(shared + room.empty(ring.stage), ring.parity ^ 1);
        if (lane == 0) {
            mr_barrier_expect(full, room.STAGE);
        }
        __syncwarp();
        if (lane < 2 * boxes) {
            const uint32_t to = ring.stage * room.STAGE + lane * (room.TILE / boxes);
            mr_copy_tile4(shared + to, lane < boxes ? &maps.keys : &maps.values, full,
                          static_cast<int32_t>(from));
        }
        ring.advance(1, a.stages);
    }
}

template <int D>
__device__ static inline void mr_stream(const mr_stream_args &a, const mr_stream_maps &maps,
                                        const mr_stream_room<D> &room, uint8_t *memory,
                                        uint32_t shared)
{
    const uint32_t n_items = a.split.p.count > 0 ? a.split.p.count : a.split.header->n_items;
    const uint64_t end = static_cast<uint64_t>(n_items) * a.split.p.kv.heads;
    uint64_t number = blockIdx.x;
    mr_stream_plan plan = {};
    mr_stream_plan next = {};
    mr_plan_item(a.split, number, end, plan);
    mr_plan_token(a.split, plan);
    mr_plan_item(a.split, number + gridDim.x, end, next);
    mr_wait_for_previous();
    uint32_t place = mr_plan_block(a, plan);
    mr_stream_ring ring = {0, 0};
    uint32_t n = 0;
    for (; plan.there; number += gridDim.x) {
        mr_stream_plan after = {};
        mr_plan_token(a.split, next);
        mr_plan_item(a.split, number + 2 * static_cast<uint64_t>(gridDim.x), end, after);
        const mr_stream_piece piece = mr_piece_of(a.split, plan);
        if (plan.item.split >= piece.first_split) { /* else out of this layer's window */
            mr_give_piece<D>(a, piece, room, n, memory, shared);
            mr_give_keys<D>(a, maps, room, place, piece, n, ring, shared);
            n++;
        }
        place = mr_plan_block(a, next);
        plan = next;
        next = after;
    }
    mr_give_piece<D>(a, mr_stream_piece{}, room, n, memory, shared);
}

#endif /* __CUDA_ARCH__ >= 900 */

#endif
