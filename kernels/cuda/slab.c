/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/internal.h"

#include "base/checked.h"

bool mr_cuda_slab_take(mr_cuda_slab *slab, uint64_t bytes, mr_cuda_ptr *out)
{
    uint64_t size;
    uint64_t end;
    if (!mr_align_u64(bytes, MR_CUDA_ALIGNMENT, &size) || !mr_add_u64(slab->used, size, &end) ||
        end > slab->bytes) {
        return false;
    }
    *out = slab->base + slab->used;
    slab->used = end;
    return true;
}

uint64_t mr_cuda_slab_left(const mr_cuda_slab *slab)
{
    return (slab->bytes - slab->used) / MR_CUDA_ALIGNMENT * MR_CUDA_ALIGNMENT;
}

void mr_cuda_slab_reset(mr_cuda_slab *slab, uint64_t mark, uint64_t end)
{
    if (slab->used == end) {
        slab->used = mark;
    }
}
