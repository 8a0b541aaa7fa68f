/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/backend.h"

uint64_t mr_kv_block_bytes(const mr_plan_kv *kv, mr_dtype kv_dtype, uint32_t block_size)
{
    mr_kv_layout layout;
    /* What does not fit is more than any memory holds. */
    return mr_kv_layout_make(kv, kv_dtype, block_size, &layout) ? layout.all : UINT64_MAX;
}
