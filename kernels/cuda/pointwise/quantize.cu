/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows rounded to F8_E4M3, with one scale a row: rows as they are, gated activations, and norms. A
 * row is one block's, and lies in registers between its two passes. Numbers are first rounded to
 * the type that the operator without rounding would store.
 */
#include "kernels/cuda/device/e4m3.cuh"
#include "kernels/cuda/device/vectors.cuh"

#define VECTORS 8 /* of 8 elements, a thread; norms: of 4 */

struct mr_rows_args {
    mr_cuda_coded_rows coded;
    mr_cuda_raw_scales raw; /* GATED */
    mr_activation activation;
    uint32_t vectors; /* of 8, of a row */
    const uint4 *in;  /* GATED: [gate | up] */
    uint2 *codes;
    float *scale;
};

template <typename T>
__device__ static inline void mr_scale8(mr_eight<T> &x, const mr_cuda_raw_scales &raw, size_t row,
                                        uint32_t column)
{
#pragma unroll
    for (int h = 0; h < 8; h += 4) {
        const float4 y = mr_scaled4(make_float4(mr_to_float(x.e[h]), mr_to_float(x.e[h + 1]),
                                                mr_to_float(x.e[h + 2]), mr_to_float(x.e[h + 3])),
                                    raw, row, column + h);
        x.e[h] = mr_from_float<T>(y.x);
        x.e[h + 1] = mr_from_float<T>(y.y);
        x.e[h + 2] = mr_from_float<T>(y.z);
        x.e[h + 3] = mr_from_float<T>(y.w);
    }
}

template <typename T, bool GATED>
__device__ static inline mr_eight<T> mr_eight_of(const mr_rows_args &a, size_t row, uint32_t i)
{
    mr_eight<T> x;
    if (!GATED) {
        x.v = a.in[row * a.vectors + i];
        return x;
    }
    mr_eight<T> up;
    x.v = a.in[row * 2 * a.vectors + i];
    up.v = a.in[row * 2 * a.vectors + a.vectors + i];
    if (a.raw.row != 0) {
        mr_scale8(x, a.raw, row, 8 * i);
        mr_scale8(up, a.raw, row, 8 * (a.vectors + i));
    }
#pragma unroll
    for (int j = 0; j < 8; j++) {
        x.e[j] =
            mr_from_float<T>(mr_activate(a.activation, mr_to_float(x.e[j])) * mr_to_float(up.e[j]));
    }
    return x;
}

template <typename T, bool GATED> __global__ static void mr_rows_kernel(mr_rows_args a)
{
    __shared__ float scratch[32];
    const size_t row = blockIdx.x;
    mr_eight<T> x[VECTORS];
    float largest = 0.0f;
    mr_let_next_come();
    mr_wait_for_previous();
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        const uint32_t i = threadIdx.x + v * blockDim.x;
        if (i < a.vectors) {
            x[v] = mr_eight_of<T, GATED>(a, row, i);
#pragma unroll
            for (int j = 0; j < 8; j++) {
                largest = fmaxf(largest, fabsf(mr_to_float(x[v].e[j])));
            }
        }
    }
    largest = mr_block_max(largest, scratch); /* a barrier too: raw scales lie where it goes */
    float inverse;
    const float scale = mr_e4m3_scale(largest, a.coded.fixed, &inverse);
    if (threadIdx.x == 0) {
        a.scale[row] = scale;
    }
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        const uint32_t i = threadIdx.x + v * blockDim.x;
        if (i < a.vectors) {
            float y[8];
#pragma unroll
            for (int j = 0; j < 8; j++) {
                y[j] = mr_to_float(x[v].e[j]) * inverse;
            }
            a.codes[row * a.vectors + i] = make_uint2(mr_e4m3_four(y[0], y[1], y[2], y[3]),
                                                      mr_e4m3_four(y[4], y[5], y[6], y[7]));
        }
    }
}

/* Threads of a row of so many vectors: as many as there can be where rows are few, and processors
 * have no other rows to turn to. */
static uint32_t threads_of(const mr_cuda_context *context, uint32_t vectors, uint32_t rows,
                           uint32_t most)
{
    const bool few = rows <= 4 * static_cast<uint32_t>(context->properties.multiProcessorCount);
    const uint32_t threads = mr_ceil_div(mr_ceil_div(vectors, few ? 1 : most), 32) * 32;
    return threads > 1024 ? 1024 : threads;
}

template <bool GATED>
static int launch_rows(mr_cuda_context *context, mr_dtype type, uint32_t rows,
                       const mr_rows_args &a)
{
    if (a.vectors > VECTORS * 1024 || type == MR_DTYPE_F32) {
        return cudaErrorInvalidValue; /* coded.c keeps such matrices out */
    }
    const uint32_t threads = threads_of(context, a.vectors, rows, VECTORS);
    return type == MR_DTYPE_F16
               ? mr_launch(context, mr_rows_kernel<__half, GATED>, rows, threads, 0, a)
               : mr_launch(context, mr_rows_kernel<__nv_bfloat16, GATED>, rows, threads, 0, a);
}

int mr_cuda_quantize_rows(mr_cuda_context *context, const mr_cuda_quantize *p)
{
    mr_rows_args a = {};
    a.coded = p->coded;
    a.vectors = p->width / 8;
    a.in = mr_at<const uint4>(p->in);
    a.codes = mr_at<uint2>(p->coded.codes);
    a.scale = mr_at<float>(p->coded.scale);
    return launch_rows<false>(context, p->type, p->rows, a);
}

int mr_cuda_quantize_gated(mr_cuda_context *context, const mr_cuda_gated *p)
{
    mr_rows_args a = {};
    a.coded = p->coded;
    a.raw = p->raw;
    a.activation = p->activation;
    a.vectors = p->width / 8;
    a.in = mr_at<const uint4>(p->in);
    a.codes = mr_at<uint2>(p->coded.codes);
    a.scale = mr_at<float>(p->coded.scale);
    return launch_rows<true>(context, p->type, p->rows, a);
}

/* ---- RMS norm ---- */

struct mr_norm_args {
    mr_cuda_norm p;
    float *stream;
    const void *in; /* or null */
    const float *gain;
    uint32_t *codes;
    float *scale;
};

template <typename T> __device__ static inline float mr_rounded(float x)
{
    return mr_to_float(mr_from_float<T>(x));
}

template <typename T> __global__ static void mr_norm_rows_kernel(mr_norm_args a)
{
    __shared__ float scratch[32];
    const size_t base = static_cast<size_t>(blockIdx.x) * a.p.width;
    float4 *stream = reinterpret_cast<float4 *>(a.stream + base);
    const T *in = static_cast<const T *>(a.in);
    const uint32_t vectors = a.p.width / 4;
    float4 x[VECTORS];
    float sum = 0.0f;
    mr_let_next_come();
    mr_wait_for_previous();
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        const uint32_t i = threadIdx.x + v * blockDim.x;
        x[v] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (i < vectors) {
            x[v] = stream[i];
            if (in != nullptr) {
                const float4 y =
                    mr_scaled4(mr_load4(in + base + 4 * i), a.p.raw, blockIdx.x, 4 * i);
                x[v] = make_float4(x[v].x + y.x, x[v].y + y.y, x[v].z + y.z, x[v].w + y.w);
                stream[i] = x[v];
            }
        }
        sum += x[v].x * x[v].x + x[v].y * x[v].y + x[v].z * x[v].z + x[v].w * x[v].w;
    }
    sum = mr_block_sum(sum, scratch);
    const float factor = 1.0f / sqrtf(sum / static_cast<float>(a.p.width) + a.p.epsilon);
    float largest = 0.0f;
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        const uint32_t i = threadIdx.x + v * blockDim.x;
        if (i < vectors) {
            const float4 g = reinterpret_cast<const float4 *>(a.gain)[i];
            x[v] = make_float4(
                mr_rounded<T>(x[v].x * factor * g.x), mr_rounded<T>(x[v].y * factor * g.y),
                mr_rounded<T>(x[v].z * factor * g.z), mr_rounded<T>(x[v].w * factor * g.w));
            largest = fmaxf(fmaxf(fmaxf(largest, fabsf(x[v].x)), fabsf(x[v].y)),
                            fmaxf(fabsf(x[v].z), fabsf(x[v].w)));
        }
    }
    largest = mr_block_max(largest, scratch);
    float inverse;
    const float scale = mr_e4m3_scale(largest, a.p.coded.fixed, &inverse);
    if (threadIdx.x == 0) {
        a.scale[blockIdx.x] = scale;
    }
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        const uint32_t i = threadIdx.x + v * blockDim.x;
        if (i < vectors) {
            a.codes[base / 4 + i] = mr_e4m3_four(x[v].x * inverse, x[v].y * inverse,
                                                 x[v].z * inverse, x[v].w * inverse);
        }
    }
}

int mr_cuda_quantize_norm(mr_cuda_context *context, const mr_cuda_norm *p)
{
    mr_norm_args a = {};
    a.p = *p;
    a.stream = mr_at<float>(p->stream);
    a.in = mr_at<const void>(p->in);
    a.gain = mr_at<const float>(p->gain);
    a.codes = mr_at<uint32_t>(p->coded.codes);
    a.scale = mr_at<float>(p->coded.scale);
    if (p->width > 4 * VECTORS * 1024 || p->type == MR_DTYPE_F32) {
        return cudaErrorInvalidValue; /* coded.c keeps such norms out */
    }
    const uint32_t threads = threads_of(context, p->width / 4, p->rows, VECTORS / 2);
    return p->type == MR_DTYPE_F16
               ? mr_launch(context, mr_norm_rows_kernel<__half>, p->rows, threads, 0, a)
               : mr_launch(context, mr_norm_rows_kernel<__nv_bfloat16>, p->rows, threads, 0, a);
}
