/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What Hopper adds to the matrix units: products by a warpgroup whose operands lie in shared memory
 * (wgmma: sm_90a only, behind MR_HAS_WGMMA), and tiles that the copy engine brings (TMA: sm_90).
 */
#ifndef MILLRACE_KERNELS_CUDA_DEVICE_WGMMA_CUH
#define MILLRACE_KERNELS_CUDA_DEVICE_WGMMA_CUH

#include "kernels/cuda/device/barrier.cuh"
#include "kernels/cuda/device/mma.cuh"

#include <cuda.h>

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define MR_HAS_WGMMA 1
#else
#define MR_HAS_WGMMA 0
#endif

#if __CUDA_ARCH__ >= 900

/* ---- copies ---- */

__device__ static inline void mr_copy_tile2(uint32_t to, const CUtensorMap *map, uint32_t barrier,
                                            int32_t c0, int32_t c1)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4}], [%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(c0), "r"(c1)
                 : "memory");
}

__device__ static inline void mr_copy_tile4(uint32_t to, const CUtensorMap *map, uint32_t barrier,
                                            int32_t c3)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %3, %3, %4}], [%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(0), "r"(c3)
                 : "memory");
}

__device__ static inline void mr_prefetch_map(const CUtensorMap *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

#endif /* __CUDA_ARCH__ >= 900 */

#if MR_HAS_WGMMA

/* ---- products ---- */

/* Describes an operand in shared memory with rows of 128 bytes, swizzled: 8 rows are 1024 bytes,
 * the next 8 lie `rows` bytes further, the next 64 columns (of one that is turned) `columns`. */
__device__ static inline uint64_t mr_operand(uint32_t address, uint32_t columns, uint32_t rows)
{
    return static_cast<uint64_t>((address & 0x3ffff) >> 4) |
           static_cast<uint64_t>(columns >> 4) << 16 | static_cast<uint64_t>(rows >> 4) << 32 |
           static_cast<uint64_t>(1) << 62;
}

__device__ static inline void mr_products_begin()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ static inline void mr_products_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int N> __device__ static inline void mr_products_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* The sums are what the products left: nothing moves across. */
template <int N> __device__ static inline void mr_pin(float (&c)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        asm volatile("" : "+f"(c[i])::"memory");
    }
}

#define MR_C4(c, i)  "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define MR_C16(c, i) MR_C4(c, i), MR_C4(c, i + 4), MR_C4(c, i + 8), MR_C4(c, i + 12)
#define MR_C32(c)    MR_C16(c, 0), MR_C16(c, 16)
#define MR_C64(c)    MR_C16(c, 0), MR_C16(c, 16), MR_C16(c, 32), MR_C16(c, 48)
#define MR_LIST32                                                                                  \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"                                       \
    "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define MR_LIST64                                                                                  \
    MR_LIST32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"                  \
              "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"

/* c[64 × N] (+)= a · b over 16 elements; a thread has of c what mma.sync would give its warp's 16
 * rows. `mr_multiply_shared`: a [64][16] and b [N][16] in shared memory; not `add`: c starts at 0.
 * `mr_multiply_turned`: a in registers, b [16][N]. */
#define MR_DEFINE_PRODUCTS(T, NAME, N, COUNT, LIST, FIRST, SECOND, THIRD, FOURTH, FIFTH, SIXTH)    \
    __device__ static inline void mr_multiply_shared(T, float(&c)[COUNT], uint64_t a, uint64_t b,  \
                                                     bool add)                                     \
    {                                                                                              \
        asm volatile("{\n"                                                                         \
                     ".reg .pred p;\n"                                                             \
                     "setp.ne.b32 p, " THIRD ", 0;\n"                                              \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME " {" LIST     \
                     "}, " FIRST ", " SECOND ", p, 1, 1, 0, 0;\n"                                  \
                     "}\n"                                                                         \
                     : MR_C##COUNT(c)                                                              \
                     : "l"(a), "l"(b), "r"(static_cast<int32_t>(add)));                            \
    }                                                                                              \
    __device__ static inline void mr_multiply_turned(T, float(&c)[COUNT], const uint32_t *a,       \
                                                     uint64_t b)                                   \
    {                                                                                              \
        asm volatile("{\n"                                                                         \
                     ".reg .pred p;\n"                                                             \
                     "setp.ne.b32 p, " SIXTH ", 0;\n"                                              \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME " {" LIST     \
                     "}, {" FIRST "," SECOND "," THIRD "," FOURTH "}, " FIFTH ", p, 1, 1, 1;\n"    \
                     "}\n"                                                                         \
                     : MR_C##COUNT(c)                                                              \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(1));                \
    }

MR_DEFINE_PRODUCTS(__half, "f16", 64, 32, MR_LIST32, "%32", "%33", "%34", "%35", "%36", "%37")
MR_DEFINE_PRODUCTS(__half, "f16", 128, 64, MR_LIST64, "%64", "%65", "%66", "%67", "%68", "%69")
MR_DEFINE_PRODUCTS(__nv_bfloat16, "bf16", 64, 32, MR_LIST32, "%32", "%33", "%34", "%35", "%36",
                   "%37")
MR_DEFINE_PRODUCTS(__nv_bfloat16, "bf16", 128, 64, MR_LIST64, "%64", "%65", "%66", "%67", "%68",
                   "%69")

/* For a warpgroup's roles: registers a thread has from here on. */
template <int N> __device__ static inline void mr_registers_give()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> __device__ static inline void mr_registers_take()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

#endif /* MR_HAS_WGMMA */

#endif
