/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The weights of a persistent kernel on their way from memory: one warp copies them, in the order
 * in which they are needed, into a ring of slots in shared memory; the other warps take them out.
 *
 *   slot   16 outputs by MR_RING_INPUTS inputs: [block of 64 inputs][output][64], one copy of a
 *          tensor map; what lies behind the last input is zeroes. Piece p of 16 bytes of an
 * output's line lies at p ^ (output % 8), as the map's swizzle of 128 bytes has it, so that no two
 *          of a warp's reads meet in a bank
 *   full   a barrier a slot, on which the bytes are counted
 *   empty  a barrier a slot, on which each taking warp arrives
 *
 * Weights depend on nothing, so the ring fills while the others wait for each other. sm_90.
 */
#ifndef MILLRACE_KERNELS_CUDA_DECODE_RING_CUH
#define MILLRACE_KERNELS_CUDA_DECODE_RING_CUH

#include "kernels/cuda/device/barrier.cuh"
#include "kernels/cuda/device/mma.cuh"

#define MR_RING_TILE   16 /* outputs of a slot */
#define MR_RING_INPUTS 512
#define MR_RING_BLOCK  64 /* inputs side by side in a slot */
#define MR_RING_LINE   (MR_RING_BLOCK * 2)
#define MR_RING_SLOT   (MR_RING_TILE * MR_RING_INPUTS * 2)
#define MR_RING_ALIGN  1024 /* of the first slot: the swizzle goes by addresses */

/* A wait that takes this long is a fault of ours: whoever waits goes on, and says so. */
#define MR_SPIN_NANOSECONDS 2000000000ull

__device__ static inline uint64_t mr_nanoseconds()
{
    uint64_t t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

/* False: it took too long. */
__device__ static inline bool mr_bar_wait(uint32_t bar, uint32_t parity)
{
    if (mr_barrier_try(bar, parity)) {
        return true;
    }
    const uint64_t start = mr_nanoseconds();
    while (!mr_barrier_try(bar, parity)) {
        if (mr_nanoseconds() - start > MR_SPIN_NANOSECONDS) {
            return false;
        }
    }
    return true;
}

/* The slot from `input` and `output` on. */
__device__ static inline void mr_copy_slot(uint32_t to, const void *map, uint32_t input,
                                           uint32_t output, uint32_t bar, uint64_t policy)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
                 "l"(map), "r"(0), "r"(output), "r"(input / MR_RING_BLOCK), "r"(bar), "l"(policy)
                 : "memory");
}

/* Asks for contiguous bytes into the second cache. */
__device__ static inline void mr_ask_for(const void *from, uint32_t bytes)
{
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

/* Weights pass by once. */
__device__ static inline uint64_t mr_evict_first()
{
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

__device__ static inline uint4 mr_shared_load(uint32_t at)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at));
    return v;
}

/* Where the two sides are in a ring of `slots`. */
struct mr_ring {
    uint32_t bars; /* shared address: full [slots], empty [slots] */
    uint32_t data;
    uint32_t slots;
    uint32_t slot;
    uint32_t parity;
};

__device__ static inline void mr_ring_next(mr_ring &r)
{
    r.slot++;
    if (r.slot == r.slots) {
        r.slot = 0;
        r.parity ^= 1;
    }
}

/* By one thread, before the others come. */
__device__ static inline void mr_ring_init(const mr_ring &r, uint32_t takers)
{
    for (uint32_t i = 0; i < r.slots; i++) {
        mr_barrier_init(r.bars + i * 8, 1);
        mr_barrier_init(r.bars + (r.slots + i) * 8, takers);
    }
    mr_barriers_ready();
}

#endif
