/* SPDX-License-Identifier: Apache-2.0 */
/* Elements that are read and written side by side. */
#ifndef MILLRACE_KERNELS_CUDA_DEVICE_VECTORS_CUH
#define MILLRACE_KERNELS_CUDA_DEVICE_VECTORS_CUH

#include "kernels/cuda/device/common.cuh"

/* Eight elements of 2 bytes. */
template <typename T> union mr_eight {
    uint4 v;
    T e[8];
};

/* Four elements, which begin at a multiple of their size. */
__device__ static inline float4 mr_load4(const float *p)
{
    return *reinterpret_cast<const float4 *>(p);
}

template <typename T> __device__ static inline float4 mr_load4(const T *p)
{
    union {
        uint2 v;
        T e[4];
    } raw;
    raw.v = *reinterpret_cast<const uint2 *>(p);
    return make_float4(mr_to_float(raw.e[0]), mr_to_float(raw.e[1]), mr_to_float(raw.e[2]),
                       mr_to_float(raw.e[3]));
}

__device__ static inline void mr_store4(float *p, float4 x)
{
    *reinterpret_cast<float4 *>(p) = x;
}

template <typename T> __device__ static inline void mr_store4(T *p, float4 x)
{
    union {
        uint2 v;
        T e[4];
    } raw;
    raw.e[0] = mr_from_float<T>(x.x);
    raw.e[1] = mr_from_float<T>(x.y);
    raw.e[2] = mr_from_float<T>(x.z);
    raw.e[3] = mr_from_float<T>(x.w);
    *reinterpret_cast<uint2 *>(p) = raw.v;
}

#endif
