/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/backend.h"

#include "base/checked.h"

uint64_t mr_kv_block_bytes(const mr_plan_kv *kv, mr_dtype kv_dtype, uint32_t block_size)
{
    uint64_t bytes;
    uint64_t vectors = (uint64_t)kv->layers * 2; /* keys and values */
    if (!mr_dtype_row_bytes(kv_dtype, kv->head_width, &bytes) ||
        !mr_mul_u64(vectors, kv->heads, &vectors) || !mr_mul_u64(vectors, block_size, &vectors) ||
        !mr_mul_u64(bytes, vectors, &bytes)) {
        return UINT64_MAX; /* more than any memory holds */
    }
    return bytes;
}
