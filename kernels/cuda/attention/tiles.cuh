/* SPDX-License-Identifier: Apache-2.0 */
/* What the two kernels of prompt attention share. */
#ifndef MILLRACE_KERNELS_CUDA_ATTENTION_TILES_CUH
#define MILLRACE_KERNELS_CUDA_ATTENTION_TILES_CUH

#include "kernels/cuda/device/common.cuh"

struct mr_tiles_args {
    mr_cuda_attention p;
    const mr_cuda_tile *tiles;
    const uint32_t *positions;
    const uint32_t *token_slot;
    const uint32_t *block_tables;
    uint32_t share;
    int32_t shift;     /* block_size = 1 << shift, or −1 */
    float factor;      /* from a score to its power of 2 */
    float value_scale; /* that results are times */
};

/* *done: whether Hopper's kernel takes it; else nothing was launched. */
int mr_cuda_attention_warpgroups_run(mr_cuda_context *context, const mr_tiles_args *tiles,
                                     bool *done);

#endif
