/* SPDX-License-Identifier: Apache-2.0 */
/* What the two kernels of split attention share: their arguments, and how splits become one. */
#ifndef MILLRACE_KERNELS_CUDA_ATTENTION_SPLIT_CUH
#define MILLRACE_KERNELS_CUDA_ATTENTION_SPLIT_CUH

#include "kernels/cuda/attention/codes.cuh"

#define MR_SPLIT_THREADS 128

struct mr_split_args {
    mr_cuda_attention p;
    const mr_cuda_step_header *header;
    const mr_cuda_item *items;
    const uint32_t *positions;
    const uint32_t *token_slot;
    const uint32_t *block_tables;
    const void *qkv;
    void *out;
    float *partials;
    uint32_t *counters;
    uint32_t share;    /* H / G */
    uint32_t chunks;   /* of a share, of so many heads as a kernel takes together */
    float value_scale; /* that results are times */
    int32_t shift;     /* block_size = 1 << shift, or −1 */
};

/* Whether the kernel on matrix units (warp_split.cu) takes it. */
bool mr_cuda_attention_takes_warp_splits(const mr_cuda_context *context,
                                         const mr_cuda_attention *p);
int mr_cuda_attention_warp_split_run(mr_cuda_context *context, const mr_split_args *split);

static inline mr_split_args mr_split_args_of(const mr_cuda_attention *p)
{
    mr_split_args a = {};
    a.p = *p;
    a.value_scale = mr_fold_scales(a.p);
    a.header = mr_at<const mr_cuda_step_header>(p->header);
    a.items = mr_at<const mr_cuda_item>(p->items);
    a.positions = mr_at<const uint32_t>(p->positions);
    a.token_slot = mr_at<const uint32_t>(p->token_slot);
    a.block_tables = mr_at<const uint32_t>(p->block_tables);
    a.qkv = mr_at<const void>(p->qkv);
    a.out = mr_at<void>(p->out);
    a.partials = mr_at<float>(p->partials);
    a.counters = mr_at<uint32_t>(p->counters);
    a.share = p->heads / p->kv.heads;
    const uint32_t size = p->kv.block_size;
    a.shift = (size & (size - 1)) == 0 ? __builtin_ctz(size) : -1;
    return a;
}

/* Blocks of a launch: one a piece of work, as far as `resident` fit on a processor; they take the
 * rest in turn. A graph does not know how much there will be, and has enough for 64 splits a token.
 */
static inline uint32_t mr_split_blocks(const mr_cuda_context *context, const mr_split_args &a,
                                       uint32_t resident)
{
    const uint64_t most = static_cast<uint64_t>(context->properties.multiProcessorCount) * resident;
    const uint64_t items = a.p.count > 0 ? a.p.count : 64 * static_cast<uint64_t>(a.p.tokens);
    const uint64_t work = items * a.p.kv.heads * a.chunks;
    return static_cast<uint32_t>(work < most ? work : most);
}

/* What a piece of work covers. */
struct mr_split_range {
    uint32_t first_split; /* that the token sees any of */
    uint32_t splits;
    uint32_t begin; /* keys */
    uint32_t end;
};

__device__ static inline mr_split_range mr_range_of(const mr_split_args &a, const mr_cuda_item &it)
{
    const uint32_t last = a.positions[it.token];
    const uint32_t from = a.p.window > 0 && last >= a.p.window ? last - a.p.window + 1 : 0;
    mr_split_range r;
    r.first_split = from / MR_CUDA_SPLIT_KEYS;
    r.splits = last / MR_CUDA_SPLIT_KEYS - r.first_split + 1;
    r.begin = max(from, it.split * MR_CUDA_SPLIT_KEYS);
    r.end = min(last + 1, (it.split + 1) * MR_CUDA_SPLIT_KEYS);
    return r;
}

/* Adds up parts [n][stride] of {acc[width] at 0, max, sum behind it}, in order: element d of the
 * numerator, and what is common. Loads do not wait for each other. */
__device__ static inline float mr_merge(const float *parts, size_t stride, uint32_t n,
                                        uint32_t width, uint32_t d, float *max, float *sum)
{
    float top = -CUDART_INF_F;
#pragma unroll 8
    for (uint32_t i = 0; i < n; i++) {
        top = fmaxf(top, parts[i * stride + width]);
    }
    float acc = 0.0f;
    float total = 0.0f;
#pragma unroll 8
    for (uint32_t i = 0; i < n; i++) {
        const float *part = parts + i * stride;
        /* A part without keys has no weight; NaN scores must stay NaN: no test may swallow them. */
        const float mine = part[width];
        const float fade = mine == -CUDART_INF_F ? 0.0f : exp2f(mine - top);
        acc += part[d] * fade;
        total += part[width + 1] * fade;
    }
    *max = top;
    *sum = total;
    return acc;
}

/* Where a split's result for `head` goes: [width] numerators, maximum, sum. */
__device__ static inline float *mr_partial_at(const mr_split_args &a, uint32_t item, uint32_t head)
{
    const size_t part = a.p.kv.width + 2;
    return a.partials + ((item - a.p.first) * static_cast<size_t>(a.p.heads) + head) * part;
}

/* All threads have written the split's results of heads [head, head + heads): the block that comes
 * last of the token's adds them up. */
__device__ static inline void mr_finish_item(const mr_split_args &a, const mr_cuda_item &it,
                                             uint32_t head, uint32_t heads, uint32_t first_split,
                                             uint32_t splits, uint32_t *arrived)
{
    if (splits == 1) {
        return;
    }
    const uint32_t width = a.p.kv.width;
    const size_t part = width + 2;
    const size_t stride = static_cast<size_t>(a.p.heads) * part; /* from split to split */
    __threadfence();
    __syncthreads();
    uint32_t *counter = a.counters + static_cast<size_t>(it.token) * a.p.heads + head;
    if (threadIdx.x == 0) {
        *arrived = atomicAdd(counter, 1);
    }
    __syncthreads();
    if (*arrived != splits - 1) {
        return;
    }
    __threadfence();
    if (threadIdx.x == 0) {
        *counter = 0;
    }
    const float *parts = mr_partial_at(a, it.base + first_split, head);
    const size_t out = (static_cast<size_t>(it.token) * a.p.heads + head) * width;
    for (uint32_t i = threadIdx.x; i < heads * width; i += blockDim.x) {
        float max;
        float sum;
        const float acc =
            mr_merge(parts + i / width * part, stride, splits, width, i % width, &max, &sum);
        mr_store_as(a.out, a.p.type, out + i, acc / sum * a.value_scale);
    }
}

#endif
