/* SPDX-License-Identifier: Apache-2.0 */
/* Operators that read and write each element about once. Float32 inside, one rounding at the end;
 * reductions in a fixed order, so that a row depends on nothing but itself. */
#include "kernels/cuda/device/common.cuh"

#define THREADS 256

/* ---- tables and token ids ---- */

/* Block 0 applies history, whose deltas may overlap and go in order; the others the rest. */
__global__ static void mr_prepare_kernel(mr_cuda_prepare p, const mr_cuda_step_header *header,
                                         const mr_cuda_block_entry *blocks,
                                         const mr_history_delta *deltas, const uint32_t *tokens,
                                         uint32_t *tables, uint32_t *history, const int32_t *src,
                                         const uint32_t *drawn, uint32_t *ids)
{
    if (blockIdx.x == 0) {
        for (uint32_t i = 0; i < header->n_history_deltas; i++) {
            const mr_history_delta d = deltas[i];
            uint32_t *to = history + static_cast<size_t>(d.slot) * p.max_context + d.start;
            for (uint32_t j = threadIdx.x; j < d.count; j += blockDim.x) {
                to[j] = tokens[d.offset + j];
            }
            __syncthreads();
        }
        return;
    }
    const uint32_t thread = (blockIdx.x - 1) * blockDim.x + threadIdx.x;
    const uint32_t threads = (gridDim.x - 1) * blockDim.x;
    for (uint32_t i = thread; i < header->n_block_deltas; i += threads) {
        tables[blocks[i].index] = blocks[i].block;
    }
    for (uint32_t t = thread; t < p.tokens; t += threads) {
        ids[t] = src[t] < 0 ? drawn[~src[t]] : static_cast<uint32_t>(src[t]);
    }
}

int mr_cuda_pointwise_prepare(mr_cuda_context *context, const mr_cuda_prepare *p)
{
    const uint32_t blocks = 1 + (p->tokens > 4096 ? 16 : mr_ceil_div(p->tokens, THREADS));
    mr_prepare_kernel<<<blocks, THREADS, 0, context->stream>>>(
        *p, mr_at<const mr_cuda_step_header>(p->header),
        mr_at<const mr_cuda_block_entry>(p->block_deltas),
        mr_at<const mr_history_delta>(p->history_deltas), mr_at<const uint32_t>(p->history_tokens),
        mr_at<uint32_t>(p->block_tables), mr_at<uint32_t>(p->history),
        mr_at<const int32_t>(p->token_src), mr_at<const uint32_t>(p->drawn),
        mr_at<uint32_t>(p->ids));
    return cudaGetLastError();
}

template <typename T>
__global__ static void mr_embed_kernel(mr_cuda_embed p, const T *table, const uint32_t *ids,
                                       void *out)
{
    const size_t row = blockIdx.x;
    const T *from = table + static_cast<size_t>(ids[row]) * p.width;
    for (uint32_t i = threadIdx.x; i < p.width; i += blockDim.x) {
        mr_store_as(out, p.out_type, row * p.width + i, p.scale * mr_to_float(from[i]));
    }
}

int mr_cuda_pointwise_embed(mr_cuda_context *context, const mr_cuda_embed *p)
{
    MR_CUDA_DISPATCH(
        p->type, T,
        (mr_embed_kernel<T><<<p->rows, THREADS, 0, context->stream>>>(
            *p, mr_at<const T>(p->table), mr_at<const uint32_t>(p->ids), mr_at<void>(p->out))));
    return cudaGetLastError();
}

/* ---- norm ---- */

/* One block a row. The row is kept in shared memory where it fits (cached), else read again. */
template <typename T>
__global__ static void mr_norm_kernel(mr_cuda_norm p, float *stream, const T *in, T *out,
                                      const float *gain, const float *bias, bool cached)
{
    extern __shared__ float row_cache[];
    __shared__ float scratch[33];
    const size_t base = static_cast<size_t>(blockIdx.x) * p.width;
    float *x = cached ? row_cache : stream + base;
    float sum = 0.0f;
    for (uint32_t i = threadIdx.x; i < p.width; i += blockDim.x) {
        float v = stream[base + i];
        if (in != nullptr) {
            v += mr_to_float(in[base + i]);
            stream[base + i] = v;
        }
        if (cached) {
            x[i] = v;
        }
        sum += p.kind == MR_NORM_RMS ? v * v : v;
    }
    /* A thread reads back only what it wrote itself. */
    const float width = static_cast<float>(p.width);
    sum = mr_block_sum(sum, scratch);
    float mean = 0.0f;
    if (p.kind == MR_NORM_LAYER) {
        mean = sum / width;
        float square = 0.0f;
        for (uint32_t i = threadIdx.x; i < p.width; i += blockDim.x) {
            const float d = x[i] - mean;
            square += d * d;
        }
        sum = mr_block_sum(square, scratch);
    }
    const float scale = 1.0f / sqrtf(sum / width + p.epsilon);
    for (uint32_t i = threadIdx.x; i < p.width; i += blockDim.x) {
        const float y = (x[i] - mean) * scale * gain[i];
        out[base + i] = mr_from_float<T>(bias != nullptr ? y + bias[i] : y);
    }
}

int mr_cuda_pointwise_norm(mr_cuda_context *context, const mr_cuda_norm *p)
{
    const size_t bytes = p->width * sizeof(float);
    const bool cached = bytes <= 40 * 1024;
    const uint32_t threads = p->width >= 2048 ? 1024 : THREADS;
    MR_CUDA_DISPATCH(p->type, T,
                     (mr_norm_kernel<T><<<p->rows, threads, cached ? bytes : 0, context->stream>>>(
                         *p, mr_at<float>(p->stream), mr_at<const T>(p->in), mr_at<T>(p->out),
                         mr_at<const float>(p->gain), mr_at<const float>(p->bias), cached)));
    return cudaGetLastError();
}

/* ---- gated activation ---- */

template <typename T> __global__ static void mr_gated_kernel(mr_cuda_gated p, const T *in, T *out)
{
    const size_t row = blockIdx.x;
    const T *gate = in + row * 2 * p.width;
    const T *up = gate + p.width;
    const uint32_t i = blockIdx.y * blockDim.x + threadIdx.x;
    if (i < p.width) {
        out[row * p.width + i] =
            mr_from_float<T>(mr_activate(p.activation, mr_to_float(gate[i])) * mr_to_float(up[i]));
    }
}

/* Eight elements a thread; width must be a multiple of 8 and T of 2 bytes. */
template <typename T>
__global__ static void mr_gated_wide_kernel(mr_cuda_gated p, const uint4 *in, uint4 *out)
{
    const size_t row = blockIdx.x;
    const uint32_t vectors = p.width / 8;
    const uint32_t i = blockIdx.y * blockDim.x + threadIdx.x;
    if (i >= vectors) {
        return;
    }
    union {
        uint4 v;
        T e[8];
    } gate, up, result;
    gate.v = in[row * 2 * vectors + i];
    up.v = in[row * 2 * vectors + vectors + i];
#pragma unroll
    for (int j = 0; j < 8; j++) {
        result.e[j] = mr_from_float<T>(mr_activate(p.activation, mr_to_float(gate.e[j])) *
                                       mr_to_float(up.e[j]));
    }
    out[row * vectors + i] = result.v;
}

int mr_cuda_pointwise_gated(mr_cuda_context *context, const mr_cuda_gated *p)
{
    if (p->type == MR_DTYPE_F32 || p->width % 8 != 0) {
        const dim3 grid(p->rows, mr_ceil_div(p->width, THREADS));
        MR_CUDA_DISPATCH(p->type, T,
                         (mr_gated_kernel<T><<<grid, THREADS, 0, context->stream>>>(
                             *p, mr_at<const T>(p->in), mr_at<T>(p->out))));
        return cudaGetLastError();
    }
    const dim3 grid(p->rows, mr_ceil_div(p->width / 8, THREADS));
    if (p->type == MR_DTYPE_F16) {
        mr_gated_wide_kernel<__half><<<grid, THREADS, 0, context->stream>>>(
            *p, mr_at<const uint4>(p->in), mr_at<uint4>(p->out));
    } else {
        mr_gated_wide_kernel<__nv_bfloat16><<<grid, THREADS, 0, context->stream>>>(
            *p, mr_at<const uint4>(p->in), mr_at<uint4>(p->out));
    }
    return cudaGetLastError();
}

/* ---- copies ---- */

template <typename U>
__global__ static void mr_gather_kernel(const U *in, U *out, const uint32_t *index, uint32_t units)
{
    const U *from = in + static_cast<size_t>(index[blockIdx.x]) * units;
    U *to = out + static_cast<size_t>(blockIdx.x) * units;
    for (uint32_t i = threadIdx.x; i < units; i += blockDim.x) {
        to[i] = from[i];
    }
}

int mr_cuda_pointwise_gather(mr_cuda_context *context, const mr_cuda_gather *p)
{
    if (p->row_bytes % 16 == 0) {
        mr_gather_kernel<<<p->rows, THREADS, 0, context->stream>>>(
            mr_at<const uint4>(p->in), mr_at<uint4>(p->out), mr_at<const uint32_t>(p->index),
            p->row_bytes / 16);
    } else {
        mr_gather_kernel<<<p->rows, THREADS, 0, context->stream>>>(
            mr_at<const uint16_t>(p->in), mr_at<uint16_t>(p->out), mr_at<const uint32_t>(p->index),
            p->row_bytes / 2);
    }
    return cudaGetLastError();
}

template <typename U>
__global__ static void mr_block_move_kernel(U *kv, uint64_t plane, uint64_t from, uint64_t to,
                                            uint64_t units)
{
    U *base = kv + blockIdx.x * plane;
    for (uint64_t i = threadIdx.x; i < units; i += blockDim.x) {
        base[to + i] = base[from + i];
    }
}

int mr_cuda_pointwise_block_move(mr_cuda_context *context, const mr_cuda_block_move *p)
{
    const uint64_t unit = p->bytes % 16 == 0 ? 16 : 1;
    const uint64_t units = p->bytes / unit;
    if (unit == 16) {
        mr_block_move_kernel<<<p->planes, THREADS, 0, context->stream>>>(
            mr_at<uint4>(p->kv), p->plane_bytes / unit, p->from * units, p->to * units, units);
    } else {
        mr_block_move_kernel<<<p->planes, THREADS, 0, context->stream>>>(
            mr_at<uint8_t>(p->kv), p->plane_bytes, p->from * units, p->to * units, units);
    }
    return cudaGetLastError();
}
