/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cuts of a row of the vocabulary: every filter keeps a prefix of one total order (larger first,
 * lower id among equals), so it is a cut, the last token kept. A cut by count or by mass is found
 * by halving the range of a float's bits, with one pass over the vocabulary each time; nothing is
 * sorted and no sum depends on the order in which threads come.
 *
 *   block   MR_SAMPLE_THREADS threads over one row
 */
#ifndef MILLRACE_KERNELS_CUDA_SAMPLE_CUT_CUH
#define MILLRACE_KERNELS_CUDA_SAMPLE_CUT_CUH

#include "kernels/cuda/device/common.cuh"

#include <cfloat>

#define MR_SAMPLE_THREADS 1024

struct mr_cut {
    float value;
    uint32_t id;
};

struct mr_sample_block {
    double sums[33];
    mr_cut cuts[33];
    uint32_t counts[33];
};

struct mr_sample_view {
    const float *values;
    uint32_t n;
};

__device__ static inline bool mr_before(mr_cut a, mr_cut b)
{
    return a.value > b.value || (a.value == b.value && a.id < b.id);
}

__device__ static inline bool mr_kept(float value, uint32_t v, mr_cut last)
{
    return value > last.value || (value == last.value && v <= last.id);
}

__device__ static inline mr_cut mr_keep_all()
{
    return {-FLT_MAX, UINT32_MAX};
}

/* The first of the threads' cuts, given to all of them. */
__device__ static inline mr_cut mr_block_first(mr_cut mine, mr_sample_block *block)
{
    for (int d = 16; d > 0; d /= 2) {
        const mr_cut other = {__shfl_xor_sync(0xffffffffu, mine.value, d),
                              __shfl_xor_sync(0xffffffffu, mine.id, d)};
        mine = mr_before(other, mine) ? other : mine;
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        block->cuts[threadIdx.x / 32] = mine;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (uint32_t w = 1; w < MR_SAMPLE_THREADS / 32; w++) {
            mine = mr_before(block->cuts[w], mine) ? block->cuts[w] : mine;
        }
        block->cuts[32] = mine;
    }
    __syncthreads();
    return block->cuts[32];
}

__device__ static inline void mr_look_at(float value, uint32_t v, mr_cut &best, bool &nan)
{
    nan = nan || isnan(value);
    if (value > best.value) {
        best = {value, v};
    }
}

/* The largest value and its lowest id; false for a NaN, or a largest value that is not finite. */
__device__ static inline bool mr_find_max(mr_sample_view view, mr_sample_block *block, mr_cut *max)
{
    mr_cut mine = {-CUDART_INF_F, 0};
    bool nan = false;
    /* Rows begin at multiples of 16 bytes where whole vectors make them up. */
    const uint32_t vectors = view.n % 4 == 0 ? view.n / 4 : 0;
    const float4 *wide = reinterpret_cast<const float4 *>(view.values);
#pragma unroll 8
    for (uint32_t i = threadIdx.x; i < vectors; i += MR_SAMPLE_THREADS) {
        const float4 x = wide[i];
        mr_look_at(x.x, 4 * i, mine, nan);
        mr_look_at(x.y, 4 * i + 1, mine, nan);
        mr_look_at(x.z, 4 * i + 2, mine, nan);
        mr_look_at(x.w, 4 * i + 3, mine, nan);
    }
    for (uint32_t v = 4 * vectors + threadIdx.x; v < view.n; v += MR_SAMPLE_THREADS) {
        mr_look_at(view.values[v], v, mine, nan);
    }
    *max = mr_block_first(mine, block);
    return !__syncthreads_or(nan) && isfinite(max->value);
}

/* Orders as floats do; −0 counts as 0. */
__device__ static inline uint32_t mr_key_of(float value)
{
    const uint32_t bits = __float_as_uint(value + 0.0f);
    return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

__device__ static inline float mr_value_of(uint32_t key)
{
    return __uint_as_float((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
}

/* Tokens (or their probability mass) among the kept ones whose key is at least `key`. */
__device__ static inline double mr_measure(mr_sample_view view, mr_cut last, bool mass,
                                           uint32_t key, mr_sample_block *block)
{
    double sum = 0.0;
    for (uint32_t v = threadIdx.x; v < view.n; v += MR_SAMPLE_THREADS) {
        const float value = view.values[v];
        if (mr_kept(value, v, last) && mr_key_of(value) >= key) {
            sum += mass ? static_cast<double>(expf(value)) : 1.0;
        }
    }
    return mr_block_sum(sum, block->sums);
}

/* The lowest id such that `wanted` of the tokens with that key have ids up to it. */
__device__ static inline uint32_t mr_nth_equal(mr_sample_view view, mr_cut last, uint32_t key,
                                               uint32_t wanted, mr_sample_block *block)
{
    const uint32_t share = (view.n + MR_SAMPLE_THREADS - 1) / MR_SAMPLE_THREADS;
    const uint32_t begin = min(threadIdx.x * share, view.n);
    const uint32_t end = min(begin + share, view.n);
    uint32_t mine = 0;
    for (uint32_t v = begin; v < end; v++) {
        mine += mr_kept(view.values[v], v, last) && mr_key_of(view.values[v]) == key;
    }
    uint32_t before = mine;
    for (int d = 1; d < 32; d *= 2) {
        const uint32_t other = __shfl_up_sync(0xffffffffu, before, d);
        before += threadIdx.x % 32 >= static_cast<uint32_t>(d) ? other : 0;
    }
    __syncthreads();
    if (threadIdx.x % 32 == 31) {
        block->counts[threadIdx.x / 32] = before;
    }
    if (threadIdx.x == 0) {
        block->counts[32] = UINT32_MAX;
    }
    __syncthreads();
    before -= mine;
    for (uint32_t w = 0; w < threadIdx.x / 32; w++) {
        before += block->counts[w];
    }
    if (before < wanted && wanted <= before + mine) {
        for (uint32_t v = begin; v < end; v++) {
            before += mr_kept(view.values[v], v, last) && mr_key_of(view.values[v]) == key;
            if (before == wanted) {
                block->counts[32] = v;
                break;
            }
        }
    }
    __syncthreads();
    return block->counts[32];
}

/* The token with which the kept ones, in order, reach `wanted`. They do. */
__device__ static inline mr_cut mr_reach(mr_sample_view view, mr_cut last, bool mass, double wanted,
                                         mr_sample_block *block)
{
    uint32_t low = mr_key_of(-FLT_MAX);
    uint32_t high = mr_key_of(0.0f); /* the largest is shifted to 0 */
    while (low < high) {
        const uint32_t middle = low + (high - low + 1) / 2;
        if (mr_measure(view, last, mass, middle, block) >= wanted) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    const float value = mr_value_of(low);
    const double above = mr_measure(view, last, mass, low + 1, block);
    const double equal = mr_measure(view, last, mass, low, block) - above;
    const double each = mass ? static_cast<double>(expf(value)) : 1.0;
    const double needed = ceil((wanted - above) / each);
    if (!(needed * each < equal)) {
        const mr_cut at = {value, UINT32_MAX};
        return mr_before(last, at) ? last : at;
    }
    return {value,
            mr_nth_equal(view, last, low, needed < 1.0 ? 1 : static_cast<uint32_t>(needed), block)};
}

#endif
