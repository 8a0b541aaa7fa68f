/* SPDX-License-Identifier: Apache-2.0 */
/* What a backend checks of every batch before it uses any of it. */
#ifndef MILLRACE_KERNELS_BATCH_CHECK_H
#define MILLRACE_KERNELS_BATCH_CHECK_H

#include "kernels/backend.h"

/* What an executor was compiled for, and its last step. */
typedef struct mr_batch_bounds {
    const mr_exec_options *options;
    uint32_t vocab_size;
    uint32_t kv_groups;
    uint32_t max_blocks; /* of a sequence: ⌈max_context / block_size⌉ */
    uint32_t n_drawn;    /* rows of the step before, which token_src may name */
} mr_batch_bounds;

/* Every count and index of the batch; INVALID_ARGUMENT naming the entry, UNIMPLEMENTED for masks
 * and adapters. */
MR_MUST_USE mr_status mr_batch_check(const mr_batch_bounds *bounds, const mr_batch *batch,
                                     mr_error *err);

#endif
