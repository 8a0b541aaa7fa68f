/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the fast path share. Buffers that a linear with quantised weights reads also
 * have a quantised form: one plane of codes, or two where the buffer holds gated activations, whose
 * few large values would leave the others of a block too few steps (measured on SmolLM2 Q4_1: with
 * one plane perplexity is 0.6 % above that of float32 activations, with two 0.1 %). The operator
 * that writes such a buffer makes it, row by row while the row is in the cache; where it cannot,
 * the linear does so first and waits at a barrier of its own.
 */
#ifndef MILLRACE_KERNELS_CPU_FAST_INTERNAL_H
#define MILLRACE_KERNELS_CPU_FAST_INTERNAL_H

#include "kernels/cpu/fast_kernels.h"
#include "kernels/cpu/internal.h"

typedef struct mr_fast_state {
    uint16_t *
        *half; /* [n_buffers] → [rows][mr_fast_half_width(width)] bf16, NULL: not needed; owns */
    uint8_t **quant; /* [n_buffers] → [rows][width / 32] mr_fast_block, NULL: not needed; owns */
    uint8_t *planes; /* [n_buffers] of those blocks */
    bool *quantize;  /* [n_ops]: of the output; for a linear: of its input, first */
    float *parts;    /* of attention whose splits are shared out; owns */
} mr_fast_state;

static inline const mr_fast_state *mr_fast_state_of(const mr_cpu_exec *exec)
{
    return exec->path_state;
}

static inline const mr_fast_kernels *mr_fast_kernels_of(const mr_cpu_exec *exec)
{
    return exec->path->kernels;
}

static inline bool mr_fast_quantizes(const mr_cpu_exec *exec, const mr_op *op)
{
    return mr_fast_state_of(exec)->quantize[op - exec->plan->ops];
}

/* Bytes of a row of the quantised form of a buffer. */
static inline size_t mr_fast_quant_bytes(const mr_cpu_exec *exec, mr_buffer_id id)
{
    return exec->plan->buffers[id].width / MR_FAST_BLOCK *
           mr_fast_block_bytes(mr_fast_state_of(exec)->planes[id]);
}

/* Makes the forms that linears read of elements [first, first + count) of a row of a buffer; both
 * multiples of 32 for codes. */
void mr_fast_quantize_row(const mr_cpu_exec *exec, mr_buffer_id id, uint32_t row, uint32_t first,
                          uint32_t count);

/* Operators. */
void mr_fast_op_embed(mr_cpu_exec *exec, const mr_op *op, const mr_batch *batch, uint32_t thread,
                      uint32_t threads);
void mr_fast_op_norm(mr_cpu_exec *exec, const mr_op *op, const mr_batch *batch, uint32_t thread,
                     uint32_t threads);
void mr_fast_op_linear(mr_cpu_exec *exec, const mr_op *op, const mr_batch *batch, uint32_t thread,
                       uint32_t threads);
void mr_fast_op_rope_kv(mr_cpu_exec *exec, const mr_op *op, const mr_batch *batch, uint32_t thread,
                        uint32_t threads);
void mr_fast_op_attention(mr_cpu_exec *exec, const mr_op *op, const mr_batch *batch,
                          uint32_t thread, uint32_t threads);
/* GATED and ACTIVATE. */
void mr_fast_op_gated(mr_cpu_exec *exec, const mr_op *op, const mr_batch *batch, uint32_t thread,
                      uint32_t threads);
void mr_fast_op_gather(mr_cpu_exec *exec, const mr_op *op, const mr_batch *batch, uint32_t thread,
                       uint32_t threads);

/* Bytes of scratch a thread that attention wants. */
size_t mr_fast_attention_scratch(const mr_cpu_exec *exec, const mr_op_attention *op);
/* Floats of mr_fast_state.parts that it wants. */
size_t mr_fast_attention_parts(const mr_cpu_exec *exec, const mr_op_attention *op);

#endif
