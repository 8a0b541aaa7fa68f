/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys and values of one byte. F8_E4M3 is widened without rounding, and what it is times goes into
 * the scale of scores and of results (mr_fold_scales); I8 has a scale a token and head, before the
 * elements of a piece (kernels/kv_layout.h).
 */
#ifndef MILLRACE_KERNELS_CUDA_ATTENTION_CODES_CUH
#define MILLRACE_KERNELS_CUDA_ATTENTION_CODES_CUH

#include "kernels/cuda/device/e4m3.cuh"

/* Elements of one byte, as types. */
struct mr_code_i8 {
    int8_t code;
};

__device__ static inline float mr_to_float(mr_code_i8 x)
{
    return static_cast<float>(x.code);
}

static inline bool mr_is_coded(const mr_cuda_kv &kv)
{
    return kv.type == MR_DTYPE_F8_E4M3 || kv.type == MR_DTYPE_I8;
}

/* Makes the scale of scores that of the codes' products; gives what results are times. */
static inline float mr_fold_scales(mr_cuda_attention &p)
{
    if (p.kv.type != MR_DTYPE_F8_E4M3) {
        return 1.0f;
    }
    p.scale *= p.kv.key_scale;
    return p.kv.value_scale;
}

/* Four codes of a word as pairs in order: (0, 1), (2, 3). An integer's low seven bits are put
 * behind a number whose last place is one, and the same with the sign's bit is taken away. */
template <typename T>
__device__ static inline void mr_i8_widen(uint32_t word, uint32_t &low, uint32_t &high);
template <>
__device__ inline void mr_i8_widen<__nv_bfloat16>(uint32_t word, uint32_t &low, uint32_t &high)
{
    const uint32_t x[2] = {__byte_perm(word, 0x43434343u, 0x4140),
                           __byte_perm(word, 0x43434343u, 0x4342)};
    uint32_t y[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t value = x[i] & 0xff7fff7fu;
        const uint32_t sign = x[i] & 0xff80ff80u;
        const __nv_bfloat162 d = __hsub2(*reinterpret_cast<const __nv_bfloat162 *>(&value),
                                         *reinterpret_cast<const __nv_bfloat162 *>(&sign));
        y[i] = *reinterpret_cast<const uint32_t *>(&d);
    }
    low = y[0];
    high = y[1];
}
template <> __device__ inline void mr_i8_widen<__half>(uint32_t word, uint32_t &low, uint32_t &high)
{
    const uint32_t raised = word ^ 0x80808080u; /* 0 … 255 */
    const uint32_t x[2] = {__byte_perm(raised, 0x64646464u, 0x4140),
                           __byte_perm(raised, 0x64646464u, 0x4342)};
    const __half2 middle = __halves2half2(__float2half(1152.0f), __float2half(1152.0f));
    const __half2 a = __hsub2(*reinterpret_cast<const __half2 *>(&x[0]), middle);
    const __half2 b = __hsub2(*reinterpret_cast<const __half2 *>(&x[1]), middle);
    low = *reinterpret_cast<const uint32_t *>(&a);
    high = *reinterpret_cast<const uint32_t *>(&b);
}

/* Eight codes as four pairs of T. */
template <typename T, bool I8> __device__ static inline uint4 mr_widen8(uint2 codes)
{
    uint4 x;
    if (I8) {
        mr_i8_widen<T>(codes.x, x.x, x.y);
        mr_i8_widen<T>(codes.y, x.z, x.w);
    } else {
        mr_e4m3_widen<T>(codes.x, x.x, x.y);
        mr_e4m3_widen<T>(codes.y, x.z, x.w);
    }
    return x;
}

/* Bytes of an I8 piece: scales, then elements, a multiple of 4. */
__device__ static inline size_t mr_i8_piece(uint32_t width, uint32_t block_size)
{
    return (static_cast<size_t>(block_size) * (width + 4) + 3) / 4 * 4;
}

/* Where row `row` (of the tokens of all pieces, in order) of `width` elements lies: elements, of I8
 * bytes. */
template <bool I8>
__device__ static inline size_t mr_code_row(uint32_t row, uint32_t width, uint32_t block_size)
{
    if (!I8) {
        return static_cast<size_t>(row) * width;
    }
    const uint32_t index = row / block_size;
    const uint32_t within = row - index * block_size;
    return index * mr_i8_piece(width, block_size) + static_cast<size_t>(block_size) * 4 +
           static_cast<size_t>(within) * width;
}

/* The scale of an I8 row, in bytes from the plane's beginning. */
__device__ static inline size_t mr_code_scale_at(uint32_t row, uint32_t width, uint32_t block_size)
{
    const uint32_t index = row / block_size;
    return index * mr_i8_piece(width, block_size) +
           static_cast<size_t>(row - index * block_size) * 4;
}

__device__ static inline float mr_code_scale(const void *plane, uint32_t row, uint32_t width,
                                             uint32_t block_size)
{
    return *reinterpret_cast<const float *>(static_cast<const uint8_t *>(plane) +
                                            mr_code_scale_at(row, width, block_size));
}

#endif
