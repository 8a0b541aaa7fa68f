/* SPDX-License-Identifier: Apache-2.0 */
/* Weights made of nothing: what kernels/random_weight.c makes, element by element. */
#include "kernels/cuda/device/common.cuh"
#include "kernels/cuda/device/philox.cuh"

#include "base/philox.h"

#define THREADS 256
#define A_DRAW  8 /* elements of one Philox call */

template <typename U> union mr_drawn {
    uint2 parts[sizeof(U)];
    U e[A_DRAW];
};

template <typename U>
__device__ static inline void mr_store_drawn(U *out, uint64_t count, const mr_drawn<U> &drawn)
{
    if (count < A_DRAW) {
        for (uint32_t i = 0; i < count; i++) {
            out[i] = drawn.e[i];
        }
        return;
    }
#pragma unroll
    for (uint32_t i = 0; i < sizeof(U); i++) {
        reinterpret_cast<uint2 *>(out)[i] = drawn.parts[i];
    }
}

template <typename U> __global__ static void mr_random_kernel(mr_cuda_random p)
{
    mr_let_next_come();
    mr_wait_for_previous();
    const U *table = mr_at<const U>(p.table);
    U *out = mr_at<U>(p.out);
    const uint64_t step = static_cast<uint64_t>(gridDim.x) * THREADS;
    for (uint64_t draw = static_cast<uint64_t>(blockIdx.x) * THREADS + threadIdx.x;
         draw * A_DRAW < p.count; draw += step) {
        uint32_t words[4] = {static_cast<uint32_t>(draw), static_cast<uint32_t>(draw >> 32),
                             MR_DRAW_WEIGHT, p.stream};
        mr_philox(words, p.seed);
        mr_drawn<U> drawn;
#pragma unroll
        for (uint32_t i = 0; i < A_DRAW; i++) {
            drawn.e[i] = table[words[i / 2] >> (i % 2 * 16) & 0xffffu];
        }
        mr_store_drawn(out + draw * A_DRAW, p.count - draw * A_DRAW, drawn);
    }
}

int mr_cuda_random_run(mr_cuda_context *context, const mr_cuda_random *p)
{
    const uint64_t wanted = (p->count + A_DRAW * THREADS - 1) / (A_DRAW * THREADS);
    const uint64_t most = static_cast<uint64_t>(context->properties.multiProcessorCount) * 8;
    const uint32_t blocks = static_cast<uint32_t>(wanted < most ? wanted : most);
    if (p->bytes == 1) {
        return mr_launch(context, mr_random_kernel<uint8_t>, blocks, THREADS, 0, *p);
    }
    return p->bytes == 2 ? mr_launch(context, mr_random_kernel<uint16_t>, blocks, THREADS, 0, *p)
                         : mr_launch(context, mr_random_kernel<uint32_t>, blocks, THREADS, 0, *p);
}
