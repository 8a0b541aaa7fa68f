/* SPDX-License-Identifier: Apache-2.0 */
/* In place of CUDA's header of this name, and of what nvcc knows by itself: as much of the language
 * and of the runtime as the emulated kernels use (fibers.h says what that emulates). There is no
 * __CUDA_ARCH__: kernels are what they are on sm_80. */
#ifndef MILLRACE_TESTS_EMULATED_CUDA_RUNTIME_H
#define MILLRACE_TESTS_EMULATED_CUDA_RUNTIME_H

#include "fibers.h"

#include <algorithm>
#include <cmath>
#include <cstring>

/* ---- the language ---- */

#define __device__
#define __host__
#define __global__
/* Of a block; blocks run one after the other. */
#define __shared__ static
#define MR_DYNAMIC_SHARED(type, alignment, name)                                                   \
    type *const name = reinterpret_cast<type *>(::shared)
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

using std::isfinite;
using std::isnan;
using std::max;
using std::min;

struct float2 {
    float x, y;
};
struct float4 {
    float x, y, z, w;
};
struct uint2 {
    uint32_t x, y;
};
struct uint4 {
    uint32_t x, y, z, w;
};

static inline float2 make_float2(float x, float y)
{
    return {x, y};
}

static inline float4 make_float4(float x, float y, float z, float w)
{
    return {x, y, z, w};
}

static inline uint2 make_uint2(uint32_t x, uint32_t y)
{
    return {x, y};
}

static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w)
{
    return {x, y, z, w};
}

static inline float emulated_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

static inline uint32_t emulated_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

/* ---- threads ---- */

static inline void __syncthreads()
{
    emulated::meet_block();
}

static inline bool __syncthreads_or(bool vote)
{
    return emulated::any_of_block(vote);
}

static inline void __syncwarp()
{
    emulated::meet_warp();
}

static inline void __threadfence() {}

static inline uint32_t atomicAdd(uint32_t *at, uint32_t by)
{
    const uint32_t before = *at;
    *at += by;
    return before;
}

static inline uint32_t atomicOr(uint32_t *at, uint32_t bits)
{
    const uint32_t before = *at;
    *at |= bits;
    return before;
}

static inline uint32_t atomicExch(uint32_t *at, uint32_t value)
{
    const uint32_t before = *at;
    *at = value;
    return before;
}

static inline void emulated_whole_warp(uint32_t mask)
{
    if (mask != 0xffffffffu) {
        emulated::fail("only whole warps are emulated");
    }
}

template <typename V> static inline V __shfl_sync(uint32_t mask, V value, uint32_t lane)
{
    static_assert(sizeof(V) <= sizeof(emulated::words), "it has its place");
    emulated_whole_warp(mask);
    const emulated::words *all =
        emulated::meet(emulated::call::shuffle, &value, sizeof(value), nullptr);
    memcpy(&value, all[lane % emulated::LANES], sizeof(value));
    return value;
}

/* The lowest lanes keep what they have. */
template <typename V> static inline V __shfl_up_sync(uint32_t mask, V value, uint32_t by)
{
    const uint32_t lane = threadIdx.x % emulated::LANES;
    return __shfl_sync(mask, value, lane >= by ? lane - by : lane);
}

template <typename V> static inline V __shfl_xor_sync(uint32_t mask, V value, uint32_t by)
{
    return __shfl_sync(mask, value, threadIdx.x % emulated::LANES ^ by);
}

static inline uint32_t __ballot_sync(uint32_t mask, bool vote)
{
    const uint32_t mine = vote;
    uint32_t votes = 0;
    emulated_whole_warp(mask);
    const emulated::words *all =
        emulated::meet(emulated::call::ballot, &mine, sizeof(mine), nullptr);
    for (uint32_t i = 0; i < emulated::LANES; i++) {
        votes |= all[i][0] << i;
    }
    return votes;
}

static inline bool __any_sync(uint32_t mask, bool vote)
{
    return __ballot_sync(mask, vote) != 0;
}

static inline uint32_t __reduce_max_sync(uint32_t mask, uint32_t value)
{
    emulated_whole_warp(mask);
    const emulated::words *all =
        emulated::meet(emulated::call::largest, &value, sizeof(value), nullptr);
    for (uint32_t i = 0; i < emulated::LANES; i++) {
        value = max(value, all[i][0]);
    }
    return value;
}

/* ---- arithmetic ---- */

static inline int __popc(uint32_t x)
{
    return __builtin_popcount(x);
}

/* The place of the n-th bit that is set from `base` on; n from 1. */
static inline uint32_t __fns(uint32_t mask, uint32_t base, int n)
{
    for (uint32_t i = base; i < 32; i++) {
        if ((mask >> i & 1) != 0 && --n == 0) {
            return i;
        }
    }
    return 0xffffffffu;
}

/* A selector's low three bits choose one of eight bytes, its fourth that byte's sign, eight times.
 */
static inline uint32_t __byte_perm(uint32_t low, uint32_t high, uint32_t selectors)
{
    const uint64_t bytes = static_cast<uint64_t>(high) << 32 | low;
    uint32_t made = 0;
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t selector = selectors >> 4 * i & 15;
        uint32_t byte = static_cast<uint32_t>(bytes >> 8 * (selector & 7)) & 0xff;
        if ((selector & 8) != 0) {
            byte = (byte & 0x80) != 0 ? 0xff : 0;
        }
        made |= byte << 8 * i;
    }
    return made;
}

static inline uint32_t __float_as_uint(float x)
{
    return emulated_bits(x);
}

static inline float __uint_as_float(uint32_t bits)
{
    return emulated_float(bits);
}

/* Each by itself: contraction is off. */
static inline float __fsub_rn(float x, float y)
{
    return x - y;
}

static inline float __fmul_rn(float x, float y)
{
    return x * y;
}

/* The C library has a function of this name that is none of its interface. */
#define __expf expf

static inline float __fdividef(float x, float y)
{
    return x / y;
}

static inline size_t __cvta_generic_to_shared(const void *at)
{
    return static_cast<size_t>(static_cast<const uint8_t *>(at) - shared);
}

/* ---- the runtime ---- */

using cudaError_t = int;
enum { cudaSuccess = 0, cudaErrorInvalidValue = 1 };
using cudaStream_t = void *;
using cudaEvent_t = void *;

enum { cudaFuncAttributeMaxDynamicSharedMemorySize };
enum { cudaLaunchAttributeProgrammaticStreamSerialization };

struct cudaDeviceProp {
    int major;
    int minor;
    int multiProcessorCount;
    size_t sharedMemPerMultiprocessor;
    size_t sharedMemPerBlockOptin;
};

struct cudaLaunchAttribute {
    int id;
    struct {
        int programmaticStreamSerializationAllowed;
    } val;
};

struct cudaLaunchConfig_t {
    dim3 gridDim;
    dim3 blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute *attrs;
    unsigned numAttrs;
};

template <typename F> static inline cudaError_t cudaFuncSetAttribute(F *, int, int)
{
    return 0;
}

template <typename... P>
static inline cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config, void (*kernel)(P...),
                                             P... arguments)
{
    return emulated::launch({config->gridDim, config->blockDim.x, config->dynamicSmemBytes,
                             [=] { kernel(arguments...); }});
}

#endif
