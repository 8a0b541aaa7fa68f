/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MILLRACE_KERNELS_CUDA_DEVICE_SWIZZLE_CUH
#define MILLRACE_KERNELS_CUDA_DEVICE_SWIZZLE_CUH

#include <cstdint>
#include <cuda_runtime.h>

/* Byte offset of chunk c (16 bytes) of row r in a tile of D-element rows of 2 bytes. */
template <int D> __device__ static inline uint32_t mr_swizzled(uint32_t r, uint32_t c)
{
    return r * (D * 2) + ((c ^ (r & 7)) << 4);
}

#endif
