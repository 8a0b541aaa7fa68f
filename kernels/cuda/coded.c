/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products in F8_E4M3. Matrices of a checkpoint whose elements are F8_E4M3 codes with one scale an
 * output stay what they are; their products take rows that are rounded likewise, a scale a row.
 * Where rows are made for one such product alone, whoever makes them rounds them.
 */
#include "kernels/cuda/internal.h"

#define MOST_INPUTS 65536u /* of a row that a block rounds */
#define MOST_NORMED 32768u
#define UNIT        16u /* inputs and outputs are multiples of it: what cuBLASLt takes */

/* Whether the matrix can stay in codes: one scale is shared by all inputs of an output. */
static bool takes(const mr_plan_weight *weight)
{
    return weight->dtype == MR_DTYPE_CODES_F8 && weight->codes != NULL &&
           weight->codes->group >= weight->k && weight->n % UNIT == 0 && weight->k % UNIT == 0 &&
           weight->k <= MOST_INPUTS;
}

/* Clears what shares an operator with a matrix that does not stay in codes; whether any did. */
static bool level(const mr_plan *plan, bool *coded)
{
    bool changed = false;
    for (uint32_t i = 0; i < plan->n_ops; i++) {
        const mr_op_linear *op = &plan->ops[i].linear;
        bool all = plan->ops[i].kind == MR_OP_LINEAR && !op->logits;
        for (uint32_t part = 0; all && part < op->parts; part++) {
            all = coded[op->weight[part]];
        }
        for (uint32_t part = 0; plan->ops[i].kind == MR_OP_LINEAR && !all && part < op->parts;
             part++) {
            changed = changed || coded[op->weight[part]];
            coded[op->weight[part]] = false;
        }
        if (plan->ops[i].kind == MR_OP_EMBED) {
            changed = changed || coded[plan->ops[i].embed.table];
            coded[plan->ops[i].embed.table] = false;
        }
    }
    return changed;
}

void mr_cuda_coded_weights(const mr_plan *plan, bool *coded)
{
    for (uint32_t i = 0; i < plan->n_weights; i++) {
        coded[i] = takes(&plan->weights[i]);
    }
    while (level(plan, coded)) {
    }
}

/* ---- rows ---- */

/* Whether a later operator reads the buffer, as long as it is not written again. */
static bool read_later(const mr_plan *plan, uint32_t index, mr_buffer_id id)
{
    for (uint32_t i = index; i < plan->n_ops; i++) {
        if (mr_op_reads(&plan->ops[i], id)) {
            return true;
        }
        if (mr_op_writes(&plan->ops[i], id)) {
            return false;
        }
    }
    return false;
}

/* The buffer that an operator fills with rows which it can also round; MR_NO_BUFFER. */
static mr_buffer_id rounds(const mr_plan *plan, const mr_op *op)
{
    if (op->kind == MR_OP_NORM && op->norm.kind == MR_NORM_RMS && op->norm.bias == MR_NO_WEIGHT &&
        plan->buffers[op->norm.out].width <= MOST_NORMED) {
        return op->norm.out;
    }
    return op->kind == MR_OP_GATED ? op->gated.out : MR_NO_BUFFER;
}

/* Whether rows of operator `index` are the next operator's only, a product with coded weights. */
static bool only_next(const mr_plan *plan, const bool *coded, uint32_t index)
{
    const mr_buffer_id id = rounds(plan, &plan->ops[index]);
    if (id == MR_NO_BUFFER || index + 1 >= plan->n_ops || !coded[index + 1] ||
        plan->ops[index + 1].linear.in != id) {
        return false;
    }
    return !read_later(plan, index + 2, id);
}

void mr_cuda_coded_ops(const mr_plan *plan, const mr_cuda_weights *weights, bool *coded)
{
    for (uint32_t i = 0; i < plan->n_ops; i++) {
        const mr_op *op = &plan->ops[i];
        coded[i] = op->kind == MR_OP_LINEAR && weights->items[op->linear.weight[0]].coded;
    }
    for (uint32_t i = 0; i < plan->n_ops; i++) {
        if (plan->ops[i].kind != MR_OP_LINEAR) {
            coded[i] = only_next(plan, coded, i);
        }
    }
}

/* The next operator that does something (a sum over one rank does not); n_ops behind the last. */
static uint32_t next_of(const mr_plan *plan, uint32_t index)
{
    do {
        index++;
    } while (index < plan->n_ops && plan->ops[index].kind == MR_OP_ALL_REDUCE);
    return index;
}

/* Whether operator `index` is the one that reads the product `out`, and can apply the scales. */
static bool applies(const mr_plan *plan, const bool *coded, uint32_t index, mr_buffer_id out)
{
    if (index >= plan->n_ops) {
        return false;
    }
    const mr_op *next = &plan->ops[index];
    switch (next->kind) {
    case MR_OP_NORM:
        return next->norm.in == out;
    case MR_OP_ROPE_KV:
        return next->rope_kv.qkv == out && !next->rope_kv.head_norms;
    case MR_OP_GATED:
        return next->gated.in == out && coded[index];
    default:
        return false;
    }
}

void mr_cuda_raw_ops(const mr_plan *plan, const mr_cuda_weights *weights, const bool *coded,
                     uint32_t *raw)
{
    for (uint32_t i = 0; i < plan->n_ops; i++) {
        raw[i] = MR_CUDA_NO_OP;
    }
    for (uint32_t i = 0; i < plan->n_ops; i++) {
        const mr_op *op = &plan->ops[i];
        const uint32_t next = next_of(plan, i);
        /* Rotation applies them in place to what attention reads. */
        if (op->kind == MR_OP_LINEAR && coded[i] && weights->compute == MR_DTYPE_BF16 &&
            weights->biases[i] == MR_CUDA_NONE && mr_cuda_weights_adjoin(weights, &op->linear) &&
            applies(plan, coded, next, op->linear.out) &&
            (plan->ops[next].kind == MR_OP_ROPE_KV ||
             !read_later(plan, next + 1, op->linear.out))) {
            raw[i] = i;
            raw[next] = i;
        }
    }
}

uint32_t mr_cuda_coded_width(const mr_plan *plan)
{
    uint32_t width = 0;
    for (uint32_t i = 0; i < plan->n_ops; i++) {
        const mr_op *op = &plan->ops[i];
        if (op->kind == MR_OP_LINEAR && !op->linear.logits &&
            takes(&plan->weights[op->linear.weight[0]])) {
            const uint32_t k = plan->buffers[op->linear.in].width;
            width = k > width ? k : width;
        }
    }
    return width;
}

float mr_cuda_coded_scale(const mr_plan *plan, const mr_op_linear *op)
{
    float scale = 0.0f;
    for (uint32_t part = 0; part < op->parts; part++) {
        const float given = plan->weights[op->weight[part]].codes->input_scale;
        if (given == 0.0f) {
            return 0.0f;
        }
        scale = given > scale ? given : scale;
    }
    return scale;
}
