/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cuts of a row of the vocabulary: every filter keeps a prefix of one total order (larger first,
 * lower id among equals), so it is a cut, the last token kept. A cut by count or by mass is found
 * by dividing the range of a float's bits, at MR_SEARCH_CUTS places a pass; nothing is sorted and
 * no sum depends on the order in which threads come. The first passes go over the vocabulary; as
 * soon as few enough values are left in the range, each thread keeps its own in shared memory and
 * goes over those.
 *
 *   block   MR_SAMPLE_THREADS threads over one row; a thread has every so manyth four of values
 */
#ifndef MILLRACE_KERNELS_CUDA_SAMPLE_CUT_CUH
#define MILLRACE_KERNELS_CUDA_SAMPLE_CUT_CUH

#include "kernels/cuda/device/common.cuh"

#include <cfloat>

#define MR_SAMPLE_THREADS 1024
#define MR_SEARCH_CUTS    8  /* of a pass */
#define MR_SEARCH_KEPT    16 /* values of a thread */
struct mr_cut {
    float value;
    uint32_t id;
};

/* Shared memory. */
struct mr_sample_block {
    float kept[MR_SEARCH_KEPT][MR_SAMPLE_THREADS]; /* of the search that goes on */
    double sums[MR_SEARCH_CUTS][33];
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

/* ---- fours of values ---- */

__device__ static inline uint32_t mr_fours(mr_sample_view view)
{
    return (view.n + 3) / 4;
}

/* Values 4q to 4q + 3; behind the last come -inf. Rows begin at multiples of 16 bytes where whole
 * vectors make them up. */
__device__ static inline float4 mr_four(mr_sample_view view, uint32_t q)
{
    if (view.n % 4 == 0) {
        return reinterpret_cast<const float4 *>(view.values)[q];
    }
    float x[4];
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        x[i] = 4 * q + i < view.n ? view.values[4 * q + i] : -CUDART_INF_F;
    }
    return make_float4(x[0], x[1], x[2], x[3]);
}

__device__ static inline void mr_put_four(float *row, uint32_t n, uint32_t q, float4 x)
{
    if (n % 4 == 0) {
        reinterpret_cast<float4 *>(row)[q] = x;
        return;
    }
    const float values[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        if (4 * q + i < n) {
            row[4 * q + i] = values[i];
        }
    }
}

/* f(value) of the thread's values that are kept. */
template <typename F>
__device__ static inline void mr_for_kept(mr_sample_view view, mr_cut last, F f)
{
#pragma unroll 2
    for (uint32_t q = threadIdx.x; q < mr_fours(view); q += MR_SAMPLE_THREADS) {
        const float4 x = mr_four(view, q);
        const float values[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            if (mr_kept(values[i], 4 * q + i, last)) {
                f(values[i]);
            }
        }
    }
}

/* ---- the largest ---- */

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
#pragma unroll 8
    for (uint32_t q = threadIdx.x; q < mr_fours(view); q += MR_SAMPLE_THREADS) {
        const float4 x = mr_four(view, q);
        mr_look_at(x.x, 4 * q, mine, nan);
        mr_look_at(x.y, 4 * q + 1, mine, nan);
        mr_look_at(x.z, 4 * q + 2, mine, nan);
        mr_look_at(x.w, 4 * q + 3, mine, nan);
    }
    *max = mr_block_first(mine, block);
    return !__syncthreads_or(nan) && isfinite(max->value);
}

/* ---- a cut by count or by mass ---- */

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

/* Looked for: the largest key such that it and those above have what is wanted. */
struct mr_search {
    uint32_t low;                /* has it */
    uint32_t high;               /* all above have not */
    double reached;              /* what `low` and all above have */
    double above;                /* what those above `high` have */
    uint32_t at[MR_SEARCH_CUTS]; /* keys, going up, of this pass; above `high`: unused */
    double sums[MR_SEARCH_CUTS]; /* what they and those above have */
    uint32_t mine; /* values of this thread from `low` to `high`; in shared memory if they fit */
};

template <bool MASS>
__device__ static inline void mr_search_value(mr_search &s, float value, mr_sample_block *block)
{
    const uint32_t key = mr_key_of(value);
    if (key < s.low || key > s.high) {
        return;
    }
    if (s.mine < MR_SEARCH_KEPT) {
        block->kept[s.mine][threadIdx.x] = value;
    }
    s.mine++;
    if (key >= s.at[0]) {
        const double has = MASS ? static_cast<double>(expf(value)) : 1.0;
#pragma unroll
        for (int j = 0; j < MR_SEARCH_CUTS; j++) {
            s.sums[j] += key >= s.at[j] ? has : 0.0;
        }
    }
}

/* The threads' sums become the block's, in a fixed order. */
__device__ static inline void mr_search_add_up(mr_search &s, mr_sample_block *block)
{
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t warp = threadIdx.x / 32;
#pragma unroll
    for (int j = 0; j < MR_SEARCH_CUTS; j++) {
        s.sums[j] = mr_warp_sum(s.sums[j]);
    }
    __syncthreads(); /* what was added up before may still be read */
    if (lane == 0) {
#pragma unroll
        for (int j = 0; j < MR_SEARCH_CUTS; j++) {
            block->sums[j][warp] = s.sums[j];
        }
    }
    __syncthreads();
    if (warp < MR_SEARCH_CUTS) {
        const double sum = mr_warp_sum(block->sums[warp][lane]);
        if (lane == 0) {
            block->sums[warp][32] = sum;
        }
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < MR_SEARCH_CUTS; j++) {
        s.sums[j] = s.above + block->sums[j][32];
    }
}

/* Measures at s.at, over the row or (`listed`) what threads have kept of it. True: they have now.
 */
template <bool MASS>
__device__ static inline bool mr_search_pass(mr_search &s, mr_sample_view view, mr_cut last,
                                             bool listed, mr_sample_block *block)
{
    const uint32_t before = s.mine;
    s.mine = 0;
#pragma unroll
    for (int j = 0; j < MR_SEARCH_CUTS; j++) {
        s.sums[j] = 0.0;
    }
    if (listed) {
        for (uint32_t i = 0; i < before; i++) {
            mr_search_value<MASS>(s, block->kept[i][threadIdx.x], block);
        }
    } else {
        mr_for_kept(view, last, [&](float value) { mr_search_value<MASS>(s, value, block); });
    }
    mr_search_add_up(s, block);
    return listed || !__syncthreads_or(s.mine > MR_SEARCH_KEPT);
}

/* From what was measured: between which two of s.at it is. */
__device__ static inline void mr_search_narrow(mr_search &s, double wanted)
{
    bool has = true;
#pragma unroll
    for (int j = 0; j < MR_SEARCH_CUTS; j++) {
        const bool used = has && s.at[j] <= s.high;
        has = used && s.sums[j] >= wanted;
        if (has) {
            s.low = s.at[j];
            s.reached = s.sums[j];
        } else if (used) {
            s.high = s.at[j] - 1;
            s.above = s.sums[j];
        }
    }
}

/* Divides what is left into equal parts. */
__device__ static inline void mr_search_divide(mr_search &s)
{
    const uint32_t part = (s.high - s.low + MR_SEARCH_CUTS) / (MR_SEARCH_CUTS + 1);
#pragma unroll
    for (uint32_t j = 0; j < MR_SEARCH_CUTS; j++) {
        s.at[j] = s.low + (j + 1) * part;
    }
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

/* The token with which the kept ones, in order, reach `amount` tokens or (MASS) that share of their
 * mass; the largest value is 0. `last`, where there are no more than so many. */
template <bool MASS>
__device__ static inline mr_cut mr_reach(mr_sample_view view, mr_cut last, double amount,
                                         mr_sample_block *block)
{
    mr_search s = {};
    s.low = mr_key_of(-FLT_MAX);
    s.high = mr_key_of(0.0f);
    s.at[0] = s.low;
#pragma unroll
    for (int j = 1; j < MR_SEARCH_CUTS; j++) {
        s.at[j] = mr_key_of(-static_cast<float>(1 << (MR_SEARCH_CUTS - 1 - j)));
    }
    bool listed = mr_search_pass<MASS>(s, view, last, false, block);
    const double wanted = MASS ? amount * s.sums[0] : amount;
    if (!MASS && s.sums[0] <= wanted) {
        return last;
    }
    mr_search_narrow(s, wanted);
    while (s.low < s.high) {
        mr_search_divide(s);
        listed = mr_search_pass<MASS>(s, view, last, listed, block);
        mr_search_narrow(s, wanted);
    }
    const float value = mr_value_of(s.low);
    const double equal = s.reached - s.above;
    const double each = MASS ? static_cast<double>(expf(value)) : 1.0;
    const double needed = ceil((wanted - s.above) / each);
    if (!(needed * each < equal)) {
        const mr_cut at = {value, UINT32_MAX};
        return mr_before(last, at) ? last : at;
    }
    return {value, mr_nth_equal(view, last, s.low, needed < 1.0 ? 1 : static_cast<uint32_t>(needed),
                                block)};
}

#endif
