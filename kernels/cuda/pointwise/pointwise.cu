/* SPDX-License-Identifier: Apache-2.0 */
/* Operators that read and write each element about once. Float32 inside, one rounding at the end;
 * reductions in a fixed order, so that a row depends on nothing but itself. */
#include "kernels/cuda/device/vectors.cuh"

#define THREADS 256

/* ---- tables and token ids ---- */

/* Block 0 applies history, whose deltas may overlap and go in order; the others the rest. */
__global__ static void mr_prepare_kernel(mr_cuda_prepare p, const mr_cuda_step_header *header,
                                         const mr_cuda_block_entry *blocks,
                                         const mr_history_delta *deltas, const uint32_t *tokens,
                                         uint32_t *tables, uint32_t *history, const int32_t *src,
                                         const uint32_t *drawn, uint32_t *ids)
{
    mr_let_next_come();
    mr_wait_for_previous();
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
    return mr_launch(context, mr_prepare_kernel, blocks, THREADS, 0, *p,
                     mr_at<const mr_cuda_step_header>(p->header),
                     mr_at<const mr_cuda_block_entry>(p->block_deltas),
                     mr_at<const mr_history_delta>(p->history_deltas),
                     mr_at<const uint32_t>(p->history_tokens), mr_at<uint32_t>(p->block_tables),
                     mr_at<uint32_t>(p->history), mr_at<const int32_t>(p->token_src),
                     mr_at<const uint32_t>(p->drawn), mr_at<uint32_t>(p->ids));
}

template <typename T>
__global__ static void mr_embed_kernel(mr_cuda_embed p, const T *table, const T *learned,
                                       const uint32_t *positions, const uint32_t *ids, void *out)
{
    mr_let_next_come();
    mr_wait_for_previous();
    const size_t row = blockIdx.x;
    const T *from = table + static_cast<size_t>(ids[row]) * p.width;
    const T *place = learned != nullptr
                         ? learned + (static_cast<size_t>(positions[row]) + p.offset) * p.width
                         : nullptr;
    for (uint32_t i = threadIdx.x; i < p.width; i += blockDim.x) {
        const float x = p.scale * mr_to_float(from[i]);
        mr_store_as(out, p.out_type, row * p.width + i,
                    place != nullptr ? x + mr_to_float(place[i]) : x);
    }
}

int mr_cuda_pointwise_embed(mr_cuda_context *context, const mr_cuda_embed *p)
{
    MR_CUDA_DISPATCH(p->type, T,
                     return mr_launch(context, mr_embed_kernel<T>, p->rows, THREADS, 0, *p,
                                      mr_at<const T>(p->table), mr_at<const T>(p->learned),
                                      mr_at<const uint32_t>(p->positions),
                                      mr_at<const uint32_t>(p->ids), mr_at<void>(p->out)));
}

/* ---- norm ---- */

/* One block a row; a thread has up to VECTORS times 4 elements of it in registers. */
#define VECTORS 4

__device__ static inline float4 mr_minus(float4 x, float y)
{
    return make_float4(x.x - y, x.y - y, x.z - y, x.w - y);
}

__device__ static inline float mr_squares(float4 x)
{
    return x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w;
}

/* Width a multiple of 4, at most 4 · VECTORS · blockDim. */
template <typename T>
__global__ static void mr_norm_wide_kernel(mr_cuda_norm p, float *stream, const T *in, T *out,
                                           const float *gain, const float *bias)
{
    __shared__ float scratch[32];
    const size_t base = static_cast<size_t>(blockIdx.x) * p.width;
    float4 x[VECTORS];
    float4 g[VECTORS];
    mr_let_next_come();
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        const uint32_t i = 4 * (threadIdx.x + v * blockDim.x);
        g[v] = i < p.width ? mr_load4(gain + i) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    mr_wait_for_previous();
    float sum = 0.0f;
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        const uint32_t i = 4 * (threadIdx.x + v * blockDim.x);
        x[v] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (i < p.width) {
            x[v] = mr_load4(stream + base + i);
            if (in != nullptr) {
                const float4 y = mr_scaled4(mr_load4(in + base + i), p.raw, blockIdx.x, i);
                x[v] = make_float4(x[v].x + y.x, x[v].y + y.y, x[v].z + y.z, x[v].w + y.w);
                mr_store4(stream + base + i, x[v]);
            }
        }
        sum += p.kind == MR_NORM_RMS ? mr_squares(x[v]) : x[v].x + x[v].y + x[v].z + x[v].w;
    }
    const float width = static_cast<float>(p.width);
    sum = mr_block_sum(sum, scratch);
    if (p.kind == MR_NORM_LAYER) {
        const float mean = sum / width;
        float squares = 0.0f;
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            const bool inside = 4 * (threadIdx.x + v * blockDim.x) < p.width;
            x[v] = mr_minus(x[v], mean);
            squares += inside ? mr_squares(x[v]) : 0.0f;
        }
        sum = mr_block_sum(squares, scratch);
    }
    const float scale = 1.0f / sqrtf(sum / width + p.epsilon);
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        const uint32_t i = 4 * (threadIdx.x + v * blockDim.x);
        if (i < p.width) {
            float4 y = make_float4(x[v].x * scale * g[v].x, x[v].y * scale * g[v].y,
                                   x[v].z * scale * g[v].z, x[v].w * scale * g[v].w);
            if (bias != nullptr) {
                const float4 b = mr_load4(bias + i);
                y = make_float4(y.x + b.x, y.y + b.y, y.z + b.z, y.w + b.w);
            }
            mr_store4(out + base + i, y);
        }
    }
}

/* Every width. A thread reads back only what it wrote itself. */
template <typename T>
__global__ static void mr_norm_any_kernel(mr_cuda_norm p, float *stream, const T *in, T *out,
                                          const float *gain, const float *bias)
{
    __shared__ float scratch[32];
    const size_t base = static_cast<size_t>(blockIdx.x) * p.width;
    mr_let_next_come();
    mr_wait_for_previous();
    float sum = 0.0f;
    for (uint32_t i = threadIdx.x; i < p.width; i += blockDim.x) {
        float v = stream[base + i];
        if (in != nullptr) {
            v += mr_to_float(in[base + i]) * mr_raw_scale(p.raw, blockIdx.x, i);
            stream[base + i] = v;
        }
        sum += p.kind == MR_NORM_RMS ? v * v : v;
    }
    const float width = static_cast<float>(p.width);
    sum = mr_block_sum(sum, scratch);
    float mean = 0.0f;
    if (p.kind == MR_NORM_LAYER) {
        mean = sum / width;
        float squares = 0.0f;
        for (uint32_t i = threadIdx.x; i < p.width; i += blockDim.x) {
            const float d = stream[base + i] - mean;
            squares += d * d;
        }
        sum = mr_block_sum(squares, scratch);
    }
    const float scale = 1.0f / sqrtf(sum / width + p.epsilon);
    for (uint32_t i = threadIdx.x; i < p.width; i += blockDim.x) {
        const float y = (stream[base + i] - mean) * scale * gain[i];
        out[base + i] = mr_from_float<T>(bias != nullptr ? y + bias[i] : y);
    }
}

int mr_cuda_pointwise_norm(mr_cuda_context *context, const mr_cuda_norm *p)
{
    if (p->coded.codes != 0) {
        return mr_cuda_quantize_norm(context, p);
    }
    float *stream = mr_at<float>(p->stream);
    const float *gain = mr_at<const float>(p->gain);
    const float *bias = mr_at<const float>(p->bias);
    if (p->width % 4 != 0 || p->width > 4 * VECTORS * 1024) {
        MR_CUDA_DISPATCH(p->type, T,
                         return mr_launch(context, mr_norm_any_kernel<T>, p->rows, THREADS, 0, *p,
                                          stream, mr_at<const T>(p->in), mr_at<T>(p->out), gain,
                                          bias));
    }
    /* As many threads as there are vectors, when they are few rows: then latency is all there is.
     */
    uint32_t threads = mr_ceil_div(p->width / 4, 32) * 32;
    if (p->rows > static_cast<uint32_t>(context->properties.multiProcessorCount)) {
        threads = mr_ceil_div(threads / 32, VECTORS) * 32;
    }
    threads = threads > 1024 ? 1024 : threads;
    MR_CUDA_DISPATCH(p->type, T,
                     return mr_launch(context, mr_norm_wide_kernel<T>, p->rows, threads, 0, *p,
                                      stream, mr_at<const T>(p->in), mr_at<T>(p->out), gain, bias));
}

/* ---- gated activation ---- */

template <typename T> __global__ static void mr_gated_kernel(mr_cuda_gated p, const T *in, T *out)
{
    mr_let_next_come();
    mr_wait_for_previous();
    const size_t row = blockIdx.x;
    const T *gate = in + row * 2 * p.width;
    const T *up = gate + p.width;
    const uint32_t i = blockIdx.y * blockDim.x + threadIdx.x;
    if (i < p.width) {
        out[row * p.width + i] =
            mr_from_float<T>(mr_activate(p.activation, mr_to_float(gate[i])) * mr_to_float(up[i]));
    }
}

template <typename T>
__device__ static inline void mr_gate8(mr_activation activation, const T *gate, const T *up, T *out)
{
#pragma unroll
    for (int j = 0; j < 8; j++) {
        out[j] =
            mr_from_float<T>(mr_activate(activation, mr_to_float(gate[j])) * mr_to_float(up[j]));
    }
}

/* Eight elements a thread; width must be a multiple of 8 and T of 2 bytes. A row's blocks lie side
 * by side, as it does in memory. */
template <typename T>
__global__ static void mr_gated_wide_kernel(mr_cuda_gated p, uint32_t parts, const uint4 *in,
                                            uint4 *out)
{
    mr_let_next_come();
    mr_wait_for_previous();
    const size_t row = blockIdx.x / parts;
    const uint32_t vectors = p.width / 8;
    const uint32_t i = blockIdx.x % parts * blockDim.x + threadIdx.x;
    if (i >= vectors) {
        return;
    }
    mr_eight<T> gate;
    mr_eight<T> up;
    mr_eight<T> result;
    gate.v = in[row * 2 * vectors + i];
    up.v = in[row * 2 * vectors + vectors + i];
    if (p.activation == MR_ACT_SILU) { /* decided once, not eight times */
        mr_gate8<T>(MR_ACT_SILU, gate.e, up.e, result.e);
    } else {
        mr_gate8<T>(p.activation, gate.e, up.e, result.e);
    }
    out[row * vectors + i] = result.v;
}

int mr_cuda_pointwise_gated(mr_cuda_context *context, const mr_cuda_gated *p)
{
    if (p->coded.codes != 0) {
        return mr_cuda_quantize_gated(context, p);
    }
    if (p->type == MR_DTYPE_F32 || p->width % 8 != 0) {
        const dim3 grid(p->rows, mr_ceil_div(p->width, THREADS));
        MR_CUDA_DISPATCH(p->type, T,
                         return mr_launch(context, mr_gated_kernel<T>, grid, THREADS, 0, *p,
                                          mr_at<const T>(p->in), mr_at<T>(p->out)));
    }
    const uint32_t parts = mr_ceil_div(p->width / 8, THREADS);
    const uint32_t grid = p->rows * parts;
    if (p->type == MR_DTYPE_F16) {
        return mr_launch(context, mr_gated_wide_kernel<__half>, grid, THREADS, 0, *p, parts,
                         mr_at<const uint4>(p->in), mr_at<uint4>(p->out));
    } else {
        return mr_launch(context, mr_gated_wide_kernel<__nv_bfloat16>, grid, THREADS, 0, *p, parts,
                         mr_at<const uint4>(p->in), mr_at<uint4>(p->out));
    }
}

template <typename T>
__global__ static void mr_activate_kernel(mr_cuda_activate p, const T *in, T *out)
{
    mr_let_next_come();
    mr_wait_for_previous();
    const uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < p.count) {
        out[i] = mr_from_float<T>(mr_activate(p.activation, mr_to_float(in[i])));
    }
}

int mr_cuda_pointwise_activate(mr_cuda_context *context, const mr_cuda_activate *p)
{
    const uint32_t blocks = static_cast<uint32_t>((p->count + THREADS - 1) / THREADS);
    MR_CUDA_DISPATCH(p->type, T,
                     return mr_launch(context, mr_activate_kernel<T>, blocks, THREADS, 0, *p,
                                      mr_at<const T>(p->in), mr_at<T>(p->out)));
}

/* ---- copies ---- */

template <typename U>
__global__ static void mr_gather_kernel(const U *in, U *out, const uint32_t *index, uint32_t units)
{
    mr_let_next_come();
    mr_wait_for_previous();
    const U *from = in + static_cast<size_t>(index[blockIdx.x]) * units;
    U *to = out + static_cast<size_t>(blockIdx.x) * units;
    for (uint32_t i = threadIdx.x; i < units; i += blockDim.x) {
        to[i] = from[i];
    }
}

int mr_cuda_pointwise_gather(mr_cuda_context *context, const mr_cuda_gather *p)
{
    if (p->row_bytes % 16 == 0) {
        return mr_launch(context, mr_gather_kernel<uint4>, p->rows, THREADS, 0,
                         mr_at<const uint4>(p->in), mr_at<uint4>(p->out),
                         mr_at<const uint32_t>(p->index), p->row_bytes / 16);
    } else {
        return mr_launch(context, mr_gather_kernel<uint16_t>, p->rows, THREADS, 0,
                         mr_at<const uint16_t>(p->in), mr_at<uint16_t>(p->out),
                         mr_at<const uint32_t>(p->index), p->row_bytes / 2);
    }
}

template <typename U>
__global__ static void mr_block_move_kernel(U *kv, uint64_t plane, uint64_t from, uint64_t to,
                                            uint64_t units)
{
    mr_let_next_come();
    mr_wait_for_previous();
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
        return mr_launch(context, mr_block_move_kernel<uint4>, p->planes, THREADS, 0,
                         mr_at<uint4>(p->kv), p->plane_bytes / unit, p->from * units, p->to * units,
                         units);
    } else {
        return mr_launch(context, mr_block_move_kernel<uint8_t>, p->planes, THREADS, 0,
                         mr_at<uint8_t>(p->kv), p->plane_bytes, p->from * units, p->to * units,
                         units);
    }
}
