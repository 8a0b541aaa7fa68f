/* SPDX-License-Identifier: Apache-2.0 */
/* Split attention, every warp for itself (warp_split.cu): the pieces of work that a warp goes
 * through, and the ring of stages that it copies their keys and values into. */
#ifndef MILLRACE_KERNELS_CUDA_ATTENTION_WARP_SPLIT_RING_CUH
#define MILLRACE_KERNELS_CUDA_ATTENTION_WARP_SPLIT_RING_CUH

#include "kernels/cuda/attention/split.cuh"
#include "kernels/cuda/device/mma.cuh"

#define MR_WARP_SPLIT_HEADS 8u /* of a piece: columns of a product */
#define MR_WARP_SPLIT_TILE  4096u

struct mr_warp_split_args : mr_split_args {
    uint32_t piece16;  /* units of 16 bytes of one head in one block, */
    uint32_t scales16; /* and of the scales before its elements */
    uint32_t blocks;   /* of the launch that computes */
};

/* How keys and values are stored. */
enum mr_warp_split_kv { MR_WARP_SPLIT_SAME, MR_WARP_SPLIT_E4M3, MR_WARP_SPLIT_I8 };

/* What lies where in a stage: keys, values, and the scales of both. Rows of 128 bytes and more lie
 * in eights, swizzled by 128 bytes; shorter ones two a line. */
template <int D, mr_warp_split_kv KV> struct mr_warp_split_stage {
    static constexpr uint32_t ROW = D * (KV == MR_WARP_SPLIT_SAME ? 2 : 1); /* bytes */
    static constexpr uint32_t KEYS = MR_WARP_SPLIT_TILE / ROW;              /* a multiple of 16 */
    static constexpr uint32_t VALUES = MR_WARP_SPLIT_TILE;
    static constexpr uint32_t KEY_SCALES = 2 * MR_WARP_SPLIT_TILE;
    static constexpr uint32_t VALUE_SCALES = KEY_SCALES + KEYS * 4;
    static constexpr uint32_t BYTES = KEY_SCALES + (KV == MR_WARP_SPLIT_I8 ? KEYS * 8 : 0);
    static_assert(BYTES % 128 == 0, "every stage begins in the first bank");

    /* Byte offset of chunk c (16 bytes) of row r: eight rows of one chunk lie in all banks. */
    __device__ static uint32_t at(uint32_t r, uint32_t c)
    {
        if (ROW >= 128) {
            return r / 8 * (ROW * 8) + c / 8 * 1024 + r % 8 * 128 + ((c % 8 ^ r % 8) << 4);
        }
        return r / 2 * 128 + (((r % 2 * 4 + c) ^ (r / 2 & 7)) << 4);
    }
    /* Of chunk 2k + c of row 16m + r, from where chunk c (0 or 1) of row r lies. */
    __device__ static uint32_t further(uint32_t from, int m, int k)
    {
        return (from ^ (k % 4 << 5)) + k / 4 * 1024 + m * (16 * ROW);
    }
};

/* ---- pieces ---- */

struct mr_warp_split_piece {
    uint32_t index; /* of the item */
    uint32_t token;
    uint32_t g;     /* key/value head */
    uint32_t head;  /* the first query head */
    uint32_t heads; /* at most 8 */
    uint32_t base;  /* index of the token's first split that the layer's window reaches */
    uint32_t splits;
    uint32_t begin; /* keys that count */
    uint32_t end;
    const uint32_t *table; /* of the token's blocks */
};

__device__ static inline uint32_t mr_warp_split_items(const mr_warp_split_args &a)
{
    return a.p.count > 0 ? a.p.count : a.header->n_items;
}

/* Goes through a warp's pieces: the blocks take turns, then the warps of each. Or a block is a team
 * that has one piece, of which a warp has every fourth part of a split. */
struct mr_warp_split_cursor {
    uint32_t index; /* of the item, from 0 */
    uint32_t rest;  /* of its pieces */
    uint32_t n_items;
    bool team;

    __device__ mr_warp_split_cursor(const mr_warp_split_args &a, bool is_team)
    {
        n_items = mr_warp_split_items(a);
        team = is_team;
        index = 0;
        rest = 0;
        move(a, blockIdx.x + (team ? 0 : gridDim.x * (threadIdx.x / 32)));
    }
    __device__ void advance(const mr_warp_split_args &a)
    {
        if (team) {
            index = n_items;
        } else {
            move(a, gridDim.x * (blockDim.x / 32));
        }
    }
    /* The piece here, or the next one that the layer's window reaches; false at the end. A warp of
     * a team may have no keys of it. */
    __device__ bool find(const mr_warp_split_args &a, mr_warp_split_piece &piece)
    {
        for (; index < n_items; advance(a)) {
            const mr_cuda_item item = a.items[a.p.first + index];
            const mr_split_range range = mr_range_of(a, item);
            if (item.split < range.first_split) {
                continue;
            }
            const uint32_t chunk = rest % a.chunks;
            piece.index = a.p.first + index;
            piece.token = item.token;
            piece.g = rest / a.chunks;
            piece.head = piece.g * a.share + chunk * MR_WARP_SPLIT_HEADS;
            piece.heads = min(a.share - chunk * MR_WARP_SPLIT_HEADS, MR_WARP_SPLIT_HEADS);
            piece.base = item.base + range.first_split;
            piece.splits = range.splits;
            piece.begin = range.begin;
            piece.end = range.end;
            piece.table =
                a.block_tables + static_cast<size_t>(a.token_slot[item.token]) * a.p.max_blocks;
            if (team) {
                const uint32_t part = MR_CUDA_SPLIT_KEYS / (blockDim.x / 32);
                const uint32_t from = item.split * MR_CUDA_SPLIT_KEYS + threadIdx.x / 32 * part;
                piece.begin = max(range.begin, from);
                piece.end = max(min(range.end, from + part), piece.begin);
            }
            return true;
        }
        return false;
    }

  private:
    __device__ void move(const mr_warp_split_args &a, uint32_t by)
    {
        const uint32_t per_item = a.p.kv.heads * a.chunks;
        rest += by;
        index += rest / per_item;
        rest %= per_item;
    }
};

/* ---- the ring ---- */

/* Brings a warp's stages, one after the other, through its pieces without a stop. Rows that do not
 * count are zeroes. */
template <int D, mr_warp_split_kv KV> class mr_warp_split_loader
{
    using stage = mr_warp_split_stage<D, KV>;
    static constexpr uint32_t CHUNKS = stage::ROW / 16;
    static constexpr uint32_t ROWS = 32 / CHUNKS; /* that the warp copies at a time */
    static constexpr uint32_t TIMES = stage::KEYS / ROWS;

    mr_warp_split_cursor cursor;
    mr_warp_split_piece piece;
    uint32_t key; /* the next stage's first */
    uint32_t of;  /* number of the piece of its block; the lanes have those that follow it */
    bool more;

    /* The table is asked a stage ahead, so that none waits for it. */
    __device__ void find_blocks(const mr_warp_split_args &a)
    {
        const uint32_t lane = threadIdx.x % 32;
        const uint32_t first = key + (lane << a.shift);
        of = 0;
        if (more && first < piece.end && lane << a.shift < stage::KEYS) {
            of = piece.table[first >> a.shift] * a.p.kv.heads + piece.g;
        }
    }
    __device__ void look(const mr_warp_split_args &a)
    {
        more = cursor.find(a, piece) && piece.begin < piece.end;
        key = piece.begin / stage::KEYS * stage::KEYS;
    }
    /* ROWS rows to where the stage has them; the t-th of them is row t · ROWS. */
    template <bool WHOLE>
    __device__ void copy_rows(const uint8_t *keys, const uint8_t *values, uint32_t to,
                              uint32_t t) const
    {
        const uint32_t lane = threadIdx.x % 32;
        const uint32_t at = key + t * ROWS + lane / CHUNKS;
        const bool there = WHOLE || (at >= piece.begin && at < piece.end);
        const uint32_t place = to + stage::at(t * ROWS + lane / CHUNKS, lane % CHUNKS);
        mr_copy16(place, keys, there);
        mr_copy16(place + stage::VALUES, values, there);
    }
    template <bool WHOLE> __device__ void copy(const mr_warp_split_args &a, uint32_t to) const
    {
        const uint8_t *keys = mr_at<const uint8_t>(a.p.kv.keys) + threadIdx.x % 32 * 16;
        const uint8_t *values = mr_at<const uint8_t>(a.p.kv.values) + threadIdx.x % 32 * 16;
        const uint32_t within = key & ((1u << a.shift) - 1);
        if (stage::KEYS >> a.shift <= 1) { /* all in one block: what follows each other there */
            const uint32_t first = __shfl_sync(0xffffffffu, of, 0);
            const size_t from =
                (static_cast<size_t>(first) * a.piece16 + a.scales16 + within * CHUNKS) * 16;
#pragma unroll
            for (uint32_t t = 0; t < TIMES; t++) {
                copy_rows<WHOLE>(keys + from + t * 512, values + from + t * 512, to, t);
            }
            return;
        }
#pragma unroll
        for (uint32_t t = 0; t < TIMES; t++) {
            const uint32_t block = t * ROWS >> a.shift;
            const uint32_t mine = __shfl_sync(0xffffffffu, of, block);
            const uint32_t row = t * ROWS - (block << a.shift);
            const size_t from =
                (static_cast<size_t>(mine) * a.piece16 + a.scales16 + row * CHUNKS) * 16;
            copy_rows<WHOLE>(keys + from, values + from, to, t);
        }
    }
    __device__ void copy_scales(const mr_warp_split_args &a, uint32_t to) const
    {
#pragma unroll
        for (uint32_t r = threadIdx.x % 32; r < (stage::KEYS + 31) / 32 * 32; r += 32) {
            const uint32_t block = (key + r >> a.shift) - (key >> a.shift);
            const uint32_t mine = __shfl_sync(0xffffffffu, of, block);
            if (r < stage::KEYS && key + r >= piece.begin && key + r < piece.end) {
                const size_t from = static_cast<size_t>(mine) * a.piece16 * 16 +
                                    (key + r & ((1u << a.shift) - 1)) * 4;
                mr_copy4(to + stage::KEY_SCALES + r * 4, mr_at<const uint8_t>(a.p.kv.keys) + from);
                mr_copy4(to + stage::VALUE_SCALES + r * 4,
                         mr_at<const uint8_t>(a.p.kv.values) + from);
            }
        }
    }

  public:
    __device__ mr_warp_split_loader(const mr_warp_split_args &a, bool team) : cursor(a, team)
    {
        look(a);
        find_blocks(a);
    }
    /* Asks for the next stage, if there is one: one group of copies in any case. */
    __device__ void ask(const mr_warp_split_args &a, uint32_t to)
    {
        if (more) {
            if (key >= piece.begin && key + stage::KEYS <= piece.end) {
                copy<true>(a, to);
            } else {
                copy<false>(a, to);
            }
            if (KV == MR_WARP_SPLIT_I8) {
                copy_scales(a, to);
            }
            key += stage::KEYS;
            if (key >= piece.end) {
                cursor.advance(a);
                look(a);
            }
            find_blocks(a);
        }
        mr_commit();
    }
};

#endif
