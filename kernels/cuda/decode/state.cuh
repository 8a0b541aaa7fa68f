/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the decode kernel (decode.cu) share: its arguments, how the work is divided,
 * and how blocks wait for each other. */
#ifndef MILLRACE_KERNELS_CUDA_DECODE_STATE_CUH
#define MILLRACE_KERNELS_CUDA_DECODE_STATE_CUH

#include "kernels/cuda/decode/packed.cuh"
#include "kernels/cuda/decode/ring.cuh"

#define MR_DECODE_WARPS  MR_PACKED_WARPS
#define MR_DECODE_TAKERS (MR_DECODE_WARPS * 32)
#define MR_DECODE_TILE   MR_RING_TILE
#define MR_DECODE_ROWS   32 /* at most */
/* Streams up to this are narrow: their weights are not all there is to the time. */
#define MR_DECODE_NARROW 1024

/* The parts of a layer; whoever has work in one waits for all who had in the part before. */
enum mr_decode_part {
    MR_PART_QKV,
    MR_PART_ATTEND,
    MR_PART_OUT,
    MR_PART_GATED,
    MR_PART_DOWN,
    MR_PARTS,
};

struct mr_decode_args {
    mr_cuda_decode p;
    uint32_t slots;
    uint32_t act_bytes; /* shared memory of rows and of attention */
    uint32_t own_width; /* columns of the stream that a block has, at most */
    uint32_t codes;     /* of weights in 2 bytes: 1 of `type`, 2 of F8_E4M3 */
    bool down_staged;   /* the rows of the last product fit into shared memory */
    int32_t shift;      /* block_size = 1 << shift, or −1 */
};

/* ---- division of the work ---- */

/* Tiles of this block, of a part that is a product. */
struct mr_share {
    uint32_t begin;
    uint32_t end;
};

__device__ static inline uint32_t mr_outputs_of(const mr_cuda_decode &p, uint32_t part)
{
    return part == MR_PART_QKV     ? (p.heads + 2 * p.kv_heads) * p.head_width
           : part == MR_PART_GATED ? p.ffn
                                   : p.width;
}

__device__ static inline uint32_t mr_inputs_of(const mr_cuda_decode &p, uint32_t part)
{
    return part == MR_PART_OUT ? p.heads * p.head_width : part == MR_PART_DOWN ? p.ffn : p.width;
}

__device__ static inline mr_share mr_share_of(const mr_cuda_decode &p, uint32_t part)
{
    const uint32_t tiles = mr_outputs_of(p, part) / MR_DECODE_TILE;
    mr_share s;
    s.begin = static_cast<uint32_t>(static_cast<uint64_t>(tiles) * blockIdx.x / gridDim.x);
    s.end = static_cast<uint32_t>(static_cast<uint64_t>(tiles) * (blockIdx.x + 1) / gridDim.x);
    return s;
}

/* Tiles that are computed together: a gate and its up, else two, so that rows are read less. */
__device__ static inline uint32_t mr_together(const mr_share &s, bool gated, uint32_t tile)
{
    return gated || tile + 1 < s.end ? 2 : 1;
}

/* ---- what the computing warps know ---- */

struct mr_decode_state {
    mr_ring ring;
    uint8_t *act;    /* rows: [rows][pitch] of T; attention's own */
    uint32_t act_at; /* its shared address */
    uint32_t pitch;  /* bytes */
    float *sums;     /* [2][WARPS][NT][TILE][8] */
    float *scales;   /* [rows] of the norm in front */
    float *own;      /* [rows][own_width]: this block's columns of the stream */
    uint32_t *arrived;
    uint32_t layer;
    bool waits; /* nothing has taken too long */
};

__device__ static inline void mr_meet_block()
{
    asm volatile("bar.sync 1, %0;" ::"n"(MR_DECODE_TAKERS) : "memory");
}

/* ---- waiting for other blocks ---- */

/* A counter a part, on a line of its own; they only grow, and the last block to leave clears them.
 */
__device__ static inline uint32_t *mr_counter_of(const mr_decode_args &a, uint32_t part)
{
    return mr_at<uint32_t>(a.p.sync) + part * 32;
}

/* This block has done its work of `part`. */
__device__ static inline void mr_arrive(const mr_decode_args &a, uint32_t part)
{
    mr_meet_block();
    if (threadIdx.x == 0) {
        asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(mr_counter_of(a, part))
                     : "memory");
    }
}

/* All `workers` of `part` have done it `times` times, and what they wrote is seen, past the first
 * cache. */
__device__ static inline void mr_await(const mr_decode_args &a, mr_decode_state &st, uint32_t part,
                                       uint32_t workers, uint32_t times)
{
    if (threadIdx.x == 0) {
        const uint32_t *counter = mr_counter_of(a, part);
        uint64_t start = 0;
        for (uint32_t spins = 1; st.waits; spins++) {
            uint32_t seen;
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                         : "=r"(seen)
                         : "l"(counter)
                         : "memory");
            if (seen >= workers * times) {
                break;
            }
            if (spins % 1024 == 0) {
                start = start == 0 ? mr_nanoseconds() : start;
                st.waits = mr_nanoseconds() - start < MR_SPIN_NANOSECONDS;
            }
        }
    }
    mr_meet_block();
}

/* Blocks that have any of a part. */
__device__ static inline uint32_t mr_workers(const mr_decode_args &a, uint32_t part,
                                             uint32_t pieces)
{
    return min(gridDim.x,
               part == MR_PART_ATTEND ? pieces : mr_outputs_of(a.p, part) / MR_DECODE_TILE);
}

/* Whoever leaves last makes the counters what the next launch needs. A block for which something
 * has taken too long spoils all rows: sampling reports them. */
__device__ static inline void mr_leave(const mr_decode_args &a, const mr_decode_state &st)
{
    if (!st.waits) {
        for (uint32_t row = 0; row < a.p.rows; row++) {
            mr_at<uint16_t>(a.p.last)[static_cast<size_t>(row) * a.p.width] = 0xffff;
        }
    }
    if (threadIdx.x == 0) {
        uint32_t *left = mr_counter_of(a, MR_PARTS);
        if (atomicAdd(left, 1) == gridDim.x - 1) {
            for (uint32_t part = 0; part <= MR_PARTS; part++) {
                *mr_counter_of(a, part) = 0;
            }
        }
    }
}

/* Rows of the last layer's second half, as rows of the first. */
__device__ static inline const uint32_t *mr_map_of(const mr_decode_args &a,
                                                   const mr_decode_state &st)
{
    return st.layer + 1 == a.p.n_layers ? mr_at<const uint32_t>(a.p.logit_rows) : nullptr;
}

#endif
