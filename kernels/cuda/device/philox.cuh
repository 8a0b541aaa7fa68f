/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MILLRACE_KERNELS_CUDA_DEVICE_PHILOX_CUH
#define MILLRACE_KERNELS_CUDA_DEVICE_PHILOX_CUH

#include <cstdint>
#include <cuda_runtime.h>

/* Philox4x32-10, as base/philox.c. */
__device__ static inline void mr_philox(uint32_t (&c)[4], uint64_t key)
{
    uint32_t k0 = static_cast<uint32_t>(key);
    uint32_t k1 = static_cast<uint32_t>(key >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = static_cast<uint64_t>(0xD2511F53u) * c[0];
        const uint64_t p1 = static_cast<uint64_t>(0xCD9E8D57u) * c[2];
        c[0] = static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0;
        c[1] = static_cast<uint32_t>(p1);
        c[2] = static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1;
        c[3] = static_cast<uint32_t>(p0);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

#endif
