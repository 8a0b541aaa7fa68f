/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/backend.h"

uint64_t mr_kv_block_bytes(const mr_plan_kv *kv, mr_dtype kv_dtype, uint32_t block_size)
{
    mr_kv_layout layout;
    /* What does not fit is more than any memory holds. */
    return mr_kv_layout_make(kv, kv_dtype, block_size, &layout) ? layout.all : UINT64_MAX;
}

/* Every position that a sequence may have is a row of the learned ones. */
static mr_status check_positions(const mr_plan *plan, const mr_exec_options *o, mr_error *err)
{
    for (uint32_t i = 0; i < plan->n_ops; i++) {
        const mr_op *op = &plan->ops[i];
        if (op->kind != MR_OP_EMBED || !op->embed.learned_positions) {
            continue;
        }
        const uint32_t rows = plan->weights[op->embed.positions].n - op->embed.offset;
        if (o->max_context > rows) {
            return mr_fail_field(err, MR_INVALID_ARGUMENT, "max_seq_length",
                                 "compile: %u positions are wanted and the model has learned %u",
                                 o->max_context, rows);
        }
    }
    return MR_OK;
}

mr_status mr_exec_options_check(const mr_plan *plan, const mr_exec_options *o, mr_error *err)
{
    const uint32_t sizes[] = {o->max_tokens, o->max_seqs, o->max_rows, o->max_context,
                              o->block_size};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        if (sizes[i] == 0 || sizes[i] > INT32_MAX) {
            return mr_fail(err, MR_INVALID_ARGUMENT,
                           "compile: tokens, sequences, rows, context and block size must be from "
                           "1 to 2^31 - 1");
        }
    }
    return check_positions(plan, o, err);
}

mr_status mr_exec_options_check_blocks(const mr_exec_options *o, mr_error *err)
{
    if (o->n_blocks < 2 || (uint64_t)o->n_blocks * o->block_size > UINT32_MAX) {
        return mr_fail(err, MR_INVALID_ARGUMENT,
                       "compile: %u KV blocks of %u tokens; at least 2 blocks and at most 2^32 - 1 "
                       "tokens are possible",
                       o->n_blocks, o->block_size);
    }
    return MR_OK;
}
