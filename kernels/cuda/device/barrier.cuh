/* SPDX-License-Identifier: Apache-2.0 */
/* Barriers in shared memory (mbarrier), which threads and the copy engine meet at; those of a block
 * by number; and what makes memory visible across them. sm_90: what older ones have does not call
 * them. */
#ifndef MILLRACE_KERNELS_CUDA_DEVICE_BARRIER_CUH
#define MILLRACE_KERNELS_CUDA_DEVICE_BARRIER_CUH

#include "kernels/cuda/device/common.cuh"

__device__ static inline void mr_barrier_init(uint32_t barrier, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals)
                 : "memory");
}

__device__ static inline void mr_barrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* Arrives, and lets the phase last until `bytes` have been copied. */
__device__ static inline void mr_barrier_expect(uint32_t barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

/* Whether the phase of this parity has ended, after a short wait. */
__device__ static inline bool mr_barrier_try(uint32_t barrier, uint32_t parity)
{
    uint32_t done;
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n"
                 "}\n"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return done != 0;
}

/* Waits for its end. */
__device__ static inline void mr_barrier_wait(uint32_t barrier, uint32_t parity)
{
    while (!mr_barrier_try(barrier, parity)) {
    }
}

/* Barriers of the block by number: `threads` meet, some of which only arrive. */
__device__ static inline void mr_named_sync(uint32_t number, uint32_t threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

__device__ static inline void mr_named_arrive(uint32_t number, uint32_t threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

/* What this thread wrote to shared memory becomes visible to copies and products. */
__device__ static inline void mr_fence_shared()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* What was initialised may be used by every thread, after they met, and by copies. */
__device__ static inline void mr_barriers_ready()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    mr_fence_shared();
}

#endif
