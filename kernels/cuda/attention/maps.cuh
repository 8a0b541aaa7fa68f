/* SPDX-License-Identifier: Apache-2.0 */
/* How the copy engine (TMA) sees the paged cache: for kernels that are sm_90's only. */
#ifndef MILLRACE_KERNELS_CUDA_ATTENTION_MAPS_CUH
#define MILLRACE_KERNELS_CUDA_ATTENTION_MAPS_CUH

#include "kernels/cuda/device/common.cuh"

#include <cuda.h>

/* Groups of 8 keys in a plane, at most: the end of a plane is not known here. What is copied from
 * here on is zeroes. */
#define MR_MAP_NOWHERE (1u << 27)

struct mr_map_shape {
    cuuint32_t rank;
    cuuint64_t sizes[4];
    cuuint64_t strides[3]; /* bytes, of all but the first */
    cuuint32_t box[4];
};

/* False where the driver cannot, or will not. */
bool mr_map_describe(const mr_cuda_context *context, CUtensorMap *map, mr_dtype type,
                     mr_cuda_ptr at, const mr_map_shape &shape);

/* Keys or values at `plane` of a cache of 2-byte elements, `keys` of a block at a time (8 … 256):
 * [8 keys][64 elements] are 1024 bytes, swizzled by 128, then the other 64 elements of these keys,
 * then the next 8 keys. */
bool mr_map_plane(const mr_cuda_context *context, CUtensorMap *map, const mr_cuda_kv &kv,
                  mr_cuda_ptr plane, uint32_t keys);

/* Whether there are maps of such a cache. */
static inline bool mr_map_takes(const mr_cuda_context *context, const mr_cuda_kv &kv)
{
    const uint32_t size = kv.block_size;
    return context->properties.major == 9 && context->properties.minor == 0 &&
           context->encode_tensor != nullptr && (kv.width == 64 || kv.width == 128) && size >= 8 &&
           size <= 128 && (size & (size - 1)) == 0 && kv.keys % 128 == 0 && kv.values % 128 == 0;
}

#endif
