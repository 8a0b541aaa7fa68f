/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernels share: conversions, 16-byte accesses, reductions, and the context. */
#ifndef MILLRACE_KERNELS_CUDA_DEVICE_COMMON_CUH
#define MILLRACE_KERNELS_CUDA_DEVICE_COMMON_CUH

#include "kernels/cuda/api.h"

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <math_constants.h>

/* A kernel's shared memory, of which the launch says how much there is. */
#ifndef MR_DYNAMIC_SHARED
#define MR_DYNAMIC_SHARED(type, alignment, name)                                                   \
    extern __shared__ __align__(alignment)                                                         \
    type name[]
#endif

/* Scores are kept in powers of two. */
#define MR_LOG2E 1.4426950408889634f

struct mr_cuda_gemm_cache;

struct mr_cuda_context {
    int device;
    cudaStream_t stream;
    cudaStream_t transfer_stream;
    cudaEvent_t events[MR_CUDA_EVENTS];
    cudaEvent_t transfer_start; /* what the next transfer comes after */
    cudaEvent_t transfers[MR_CUDA_TRANSFERS];
    cudaDeviceProp properties;
    cublasLtHandle_t blas;
    void *workspace; /* of cuBLASLt */
    size_t workspace_bytes;
    mr_cuda_gemm_cache *gemms;
    float tuning_ms;     /* spent on finding the fastest of algorithms */
    void *encode_tensor; /* of the driver; null where it has none */
};

/* Implementations of the table, by family. */
int mr_cuda_random_run(mr_cuda_context *context, const mr_cuda_random *p);
int mr_cuda_pointwise_prepare(mr_cuda_context *context, const mr_cuda_prepare *p);
int mr_cuda_pointwise_embed(mr_cuda_context *context, const mr_cuda_embed *p);
int mr_cuda_pointwise_norm(mr_cuda_context *context, const mr_cuda_norm *p);
int mr_cuda_pointwise_gated(mr_cuda_context *context, const mr_cuda_gated *p);
int mr_cuda_quantize_rows(mr_cuda_context *context, const mr_cuda_quantize *p);
int mr_cuda_quantize_norm(mr_cuda_context *context, const mr_cuda_norm *p);   /* p->coded */
int mr_cuda_quantize_gated(mr_cuda_context *context, const mr_cuda_gated *p); /* p->coded */
int mr_cuda_pointwise_activate(mr_cuda_context *context, const mr_cuda_activate *p);
int mr_cuda_pointwise_gather(mr_cuda_context *context, const mr_cuda_gather *p);
int mr_cuda_pointwise_block_move(mr_cuda_context *context, const mr_cuda_block_move *p);
int mr_cuda_rope_make_table(mr_cuda_context *context, const mr_cuda_rope_table *p);
int mr_cuda_rope_head_norm(mr_cuda_context *context, const mr_cuda_head_norm *p);
int mr_cuda_rope_run(mr_cuda_context *context, const mr_cuda_rope_kv *p);
int mr_cuda_linear_run(mr_cuda_context *context, const mr_cuda_linear *p);
int mr_cuda_linear_few(mr_cuda_context *context, const mr_cuda_linear *p); /* 1 … FEW_ROWS rows */
int mr_cuda_linear_any(mr_cuda_context *context, const mr_cuda_linear *p); /* every shape, slow */
int mr_cuda_linear_add_bias(mr_cuda_context *context, const mr_cuda_linear *p);
int mr_cuda_gemm_open(mr_cuda_context *context);
void mr_cuda_gemm_close(mr_cuda_context *context);
int mr_cuda_gemm_run(mr_cuda_context *context, const mr_cuda_linear *p, bool *done);
/* One product by an algorithm; CUBLAS_STATUS_NOT_SUPPORTED or _INVALID_VALUE: it does not do it. */
cublasStatus_t mr_cuda_gemm_with(mr_cuda_context *context, const mr_cuda_linear *p,
                                 const cublasLtMatmulAlgo_t *algo);
/* The index of the fastest of `count` algorithms for p, whose outputs are overwritten; 0 while
 * capturing, or when there was time enough spent. */
int mr_cuda_tune(mr_cuda_context *context, const mr_cuda_linear *p,
                 const cublasLtMatmulHeuristicResult_t *found, int count, int *best);
/* Whether `algo` gives a row the same bits whatever the number of rows and its place among them. */
int mr_cuda_pinned_holds(mr_cuda_context *context, const mr_cuda_linear *p,
                         const cublasLtMatmulAlgo_t *algo, bool *holds);
/* What an invariant product's algorithm is chosen for: decoding with much company. */
#define MR_PINNED_ROWS 64u
/* Rows of one call of it: no more than were looked at. */
#define MR_PINNED_MOST 2048u
int mr_cuda_attention_open(mr_cuda_context *context);
int mr_cuda_attention_split_run(mr_cuda_context *context, const mr_cuda_attention *p);
int mr_cuda_attention_tiles_run(mr_cuda_context *context, const mr_cuda_attention *p);
mr_cuda_decode_most mr_cuda_decode_takes(mr_cuda_context *context, const mr_cuda_decode *p);
int mr_cuda_decode_make_maps(mr_cuda_context *context, const mr_cuda_decode *p,
                             mr_cuda_decode_layer *layers);
int mr_cuda_decode_run(mr_cuda_context *context, const mr_cuda_decode *p);
int mr_cuda_sample_run(mr_cuda_context *context, const mr_cuda_sample *p);

/* Those that every GPU has, into the table. */
static inline void mr_cuda_put_kernels(mr_cuda_api &api)
{
    api.random = mr_cuda_random_run;
    api.prepare = mr_cuda_pointwise_prepare;
    api.embed = mr_cuda_pointwise_embed;
    api.norm = mr_cuda_pointwise_norm;
    api.linear = mr_cuda_linear_run;
    api.rope_table = mr_cuda_rope_make_table;
    api.head_norm = mr_cuda_rope_head_norm;
    api.rope_kv = mr_cuda_rope_run;
    api.attention_split = mr_cuda_attention_split_run;
    api.attention_tiles = mr_cuda_attention_tiles_run;
    api.gated = mr_cuda_pointwise_gated;
    api.quantize = mr_cuda_quantize_rows;
    api.activate = mr_cuda_pointwise_activate;
    api.gather = mr_cuda_pointwise_gather;
    api.sample = mr_cuda_sample_run;
    api.block_move = mr_cuda_pointwise_block_move;
}

template <typename T> __host__ __device__ static inline T *mr_at(mr_cuda_ptr ptr)
{
    return reinterpret_cast<T *>(static_cast<uintptr_t>(ptr));
}

static inline uint32_t mr_ceil_div(uint32_t a, uint32_t b)
{
    return (a + b - 1) / b;
}

/* ---- device side ---- */

__device__ static inline float mr_to_float(float x)
{
    return x;
}
__device__ static inline float mr_to_float(__half x)
{
    return __half2float(x);
}
__device__ static inline float mr_to_float(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}

template <typename T> __device__ static inline T mr_from_float(float x);
template <> __device__ inline float mr_from_float<float>(float x)
{
    return x;
}
template <> __device__ inline __half mr_from_float<__half>(float x)
{
    return __float2half_rn(x);
}
template <> __device__ inline __nv_bfloat16 mr_from_float<__nv_bfloat16>(float x)
{
    return __float2bfloat16_rn(x);
}

/* One element of an array whose type is known at run time only. */
__device__ static inline float mr_load_as(const void *p, mr_dtype type, size_t i)
{
    if (type == MR_DTYPE_F32) {
        return static_cast<const float *>(p)[i];
    }
    return type == MR_DTYPE_F16 ? mr_to_float(static_cast<const __half *>(p)[i])
                                : mr_to_float(static_cast<const __nv_bfloat16 *>(p)[i]);
}

__device__ static inline void mr_store_as(void *p, mr_dtype type, size_t i, float x)
{
    if (type == MR_DTYPE_F32) {
        static_cast<float *>(p)[i] = x;
    } else if (type == MR_DTYPE_F16) {
        static_cast<__half *>(p)[i] = mr_from_float<__half>(x);
    } else {
        static_cast<__nv_bfloat16 *>(p)[i] = mr_from_float<__nv_bfloat16>(x);
    }
}

__device__ static inline float mr_activate(mr_activation activation, float x)
{
    switch (activation) {
    case MR_ACT_SILU:
        return __fdividef(x, 1.0f + __expf(-x)); /* a dozen instructions less than / and expf */
    case MR_ACT_GELU_TANH:
        return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
    case MR_ACT_GELU:
        return 0.5f * x * (1.0f + erff(x * 0.7071067812f));
    case MR_ACT_RELU:
        break;
    }
    return x > 0.0f ? x : 0.0f;
}

/* What element (row, column) of a product is times. */
__device__ static inline float mr_raw_scale(const mr_cuda_raw_scales &raw, size_t row,
                                            uint32_t column)
{
    if (raw.row == 0) {
        return 1.0f;
    }
    return mr_at<const float>(raw.row)[row] * mr_at<const float>(raw.column)[column];
}

/* Four elements from a column on that is a multiple of 4. */
__device__ static inline float4 mr_scaled4(float4 x, const mr_cuda_raw_scales &raw, size_t row,
                                           uint32_t column)
{
    if (raw.row == 0) {
        return x;
    }
    const float r = mr_at<const float>(raw.row)[row];
    const float4 c = mr_at<const float4>(raw.column)[column / 4];
    return make_float4(x.x * (r * c.x), x.y * (r * c.y), x.z * (r * c.z), x.w * (r * c.w));
}

struct mr_plus {
    template <typename V> __device__ V operator()(V a, V b) const
    {
        return a + b;
    }
};

struct mr_larger {
    __device__ float operator()(float a, float b) const
    {
        return fmaxf(a, b);
    }
};

template <typename V, typename F> __device__ static inline V mr_warp_fold(V value, F f)
{
    for (int d = 16; d > 0; d /= 2) {
        value = f(value, __shfl_xor_sync(0xffffffffu, value, d));
    }
    return value;
}

/* Over the block in a fixed order, with 0, given to every thread. `scratch` has 32 values; the
 * block is whole warps. */
template <typename V, typename F> __device__ static inline V mr_block_fold(V value, V *scratch, F f)
{
    const uint32_t lane = threadIdx.x % 32;
    value = mr_warp_fold(value, f);
    __syncthreads(); /* what was folded before may still be read */
    if (lane == 0) {
        scratch[threadIdx.x / 32] = value;
    }
    __syncthreads();
    return mr_warp_fold(lane < blockDim.x / 32 ? scratch[lane] : V(0), f);
}

template <typename V> __device__ static inline V mr_warp_sum(V value)
{
    return mr_warp_fold(value, mr_plus());
}

template <typename V> __device__ static inline V mr_block_sum(V value, V *scratch)
{
    return mr_block_fold(value, scratch, mr_plus());
}

/* Of magnitudes. */
__device__ static inline float mr_block_max(float value, float *scratch)
{
    return mr_block_fold(value, scratch, mr_larger());
}

/* ---- dependent launch ---- */

/* Kernels are launched while the one before still runs (mr_launch). Every kernel lets the next one
 * come as soon as its own blocks are there, and waits before it touches what a kernel before it
 * writes or reads. All must wait: that is what makes "the one before is done" mean "all before". */
__device__ static inline void mr_let_next_come()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

__device__ static inline void mr_wait_for_previous()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

template <typename... P, typename... A>
static int mr_launch(mr_cuda_context *context, void (*kernel)(P...), dim3 grid, uint32_t threads,
                     size_t shared, A... arguments)
{
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared;
    config.stream = context->stream;
    config.attrs = &attribute;
    config.numAttrs = context->properties.major >= 9 ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, static_cast<P>(arguments)...);
}

/* Calls fn with a value of the C++ type of `type`. */
#define MR_CUDA_DISPATCH(type, T, ...)                                                             \
    do {                                                                                           \
        if ((type) == MR_DTYPE_F32) {                                                              \
            using T = float;                                                                       \
            __VA_ARGS__;                                                                           \
        } else if ((type) == MR_DTYPE_F16) {                                                       \
            using T = __half;                                                                      \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            using T = __nv_bfloat16;                                                               \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    } while (0)

#endif
