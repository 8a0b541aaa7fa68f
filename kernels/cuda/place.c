/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where weights lie in the GPU's memory, decided before there is any. The parts of one linear
 * operator lie side by side where they can, so that one product computes them.
 */
#include "kernels/cuda/internal.h"

#include "base/checked.h"

#include <stdlib.h>

#define ADJOIN_UNIT 16u /* vectors of 16 bytes must not straddle parts */

static mr_status use(mr_cuda_weights *w, const mr_plan *plan, mr_weight_id id, bool vector,
                     mr_error *err)
{
    if (id == MR_NO_WEIGHT) {
        return MR_OK;
    }
    mr_cuda_weight *item = &w->items[id];
    if (item->used && item->vector != vector) {
        return mr_fail(err, MR_INVALID_ARGUMENT,
                       "plan weight \"%s\" is used as a vector and as a matrix",
                       plan->weights[id].name);
    }
    item->used = true;
    item->vector = vector;
    item->n = plan->weights[id].n;
    item->k = plan->weights[id].k;
    item->bytes = (uint64_t)item->n * item->k * mr_cuda_size(mr_cuda_weight_type(w, item));
    return MR_OK;
}

static mr_status find_uses(mr_cuda_weights *w, const mr_plan *plan, mr_error *err)
{
    for (uint32_t i = 0; i < plan->n_ops; i++) {
        const mr_op *op = &plan->ops[i];
        if (op->kind == MR_OP_EMBED) {
            MR_TRY(use(w, plan, op->embed.table, false, err));
            if (op->embed.learned_positions) {
                MR_TRY(use(w, plan, op->embed.positions, false, err));
            }
        } else if (op->kind == MR_OP_NORM) {
            MR_TRY(use(w, plan, op->norm.gain, true, err));
            MR_TRY(use(w, plan, op->norm.bias, true, err));
        } else if (op->kind == MR_OP_ROPE_KV && op->rope_kv.head_norms) {
            MR_TRY(use(w, plan, op->rope_kv.q_gain, true, err));
            MR_TRY(use(w, plan, op->rope_kv.k_gain, true, err));
        } else if (op->kind == MR_OP_LINEAR) {
            for (uint32_t part = 0; part < op->linear.parts; part++) {
                MR_TRY(use(w, plan, op->linear.weight[part], false, err));
            }
        }
    }
    return MR_OK;
}

static bool place(mr_cuda_weights *w, mr_cuda_weight *item, uint64_t alignment)
{
    return mr_align_u64(w->bytes, alignment, &item->offset) &&
           mr_add_u64(item->offset, item->bytes, &w->bytes);
}

static bool place_scales(mr_cuda_weights *w, mr_cuda_weight *item, uint64_t alignment)
{
    return !item->coded || (mr_align_u64(w->bytes, alignment, &item->scales) &&
                            mr_add_u64(item->scales, (uint64_t)item->n * 4, &w->bytes));
}

/* Parts that nothing else has placed lie without a gap. */
static bool place_parts(mr_cuda_weights *w, const mr_op_linear *op, bool *placed)
{
    bool together = op->parts > 1;
    for (uint32_t part = 0; part < op->parts; part++) {
        together = together && !placed[op->weight[part]] &&
                   w->items[op->weight[part]].bytes % ADJOIN_UNIT == 0;
        for (uint32_t other = 0; other < part; other++) {
            together = together && op->weight[other] != op->weight[part];
        }
    }
    for (uint32_t part = 0; together && part < op->parts; part++) {
        mr_cuda_weight *item = &w->items[op->weight[part]];
        if (!place(w, item, part == 0 ? MR_CUDA_ALIGNMENT : ADJOIN_UNIT)) {
            return false;
        }
        placed[op->weight[part]] = true;
    }
    bool fits = true;
    for (uint32_t part = 0; together && fits && part < op->parts; part++) {
        fits = place_scales(w, &w->items[op->weight[part]], part == 0 ? MR_CUDA_ALIGNMENT : 4);
    }
    return fits;
}

static bool has_bias(const mr_op_linear *op)
{
    bool found = false;
    for (uint32_t part = 0; part < op->parts; part++) {
        found = found || op->bias[part] != MR_NO_WEIGHT;
    }
    return found;
}

static bool place_all(mr_cuda_weights *w, const mr_plan *plan, bool *placed)
{
    bool fits = true;
    for (uint32_t i = 0; fits && i < plan->n_ops; i++) {
        const mr_op *op = &plan->ops[i];
        w->biases[i] = MR_CUDA_NONE;
        if (op->kind != MR_OP_LINEAR) {
            continue;
        }
        fits = place_parts(w, &op->linear, placed);
        if (fits && has_bias(&op->linear)) {
            mr_cuda_weight bias = {.bytes = mr_cuda_outputs_of(plan, &op->linear) * 4};
            fits = place(w, &bias, MR_CUDA_ALIGNMENT);
            w->biases[i] = bias.offset;
        }
    }
    for (uint32_t i = 0; fits && i < w->count; i++) {
        if (w->items[i].used && !placed[i]) {
            fits = place(w, &w->items[i], MR_CUDA_ALIGNMENT) &&
                   place_scales(w, &w->items[i], MR_CUDA_ALIGNMENT);
        }
    }
    return fits;
}

static mr_status find_coded(mr_cuda_weights *w, const mr_plan *plan, mr_error *err)
{
    bool *coded = mr_calloc((size_t)plan->n_weights + 1, sizeof(*coded));
    if (coded == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "weights: out of memory");
    }
    mr_cuda_coded_weights(plan, coded);
    for (uint32_t i = 0; i < plan->n_weights; i++) {
        w->items[i].coded = coded[i];
    }
    free(coded);
    return MR_OK;
}

mr_status mr_cuda_weights_place(const mr_plan *plan, mr_dtype compute, bool codes,
                                mr_cuda_weights **out, mr_error *err)
{
    mr_status status = MR_RESOURCE_EXHAUSTED;
    mr_cuda_weights *w = mr_calloc(1, sizeof(*w));
    bool *placed = mr_calloc((size_t)plan->n_weights + 1, sizeof(*placed));
    if (w != NULL) {
        w->compute = compute;
        w->count = plan->n_weights;
        w->n_ops = plan->n_ops;
        w->items = mr_calloc((size_t)plan->n_weights + 1, sizeof(*w->items));
        w->biases = mr_calloc((size_t)plan->n_ops + 1, sizeof(*w->biases));
    }
    if (w == NULL || placed == NULL || w->items == NULL || w->biases == NULL) {
        (void)mr_fail(err, status, "weights: out of memory");
        goto cleanup;
    }
    if (codes) {
        MR_TRY_CLEANUP(status, find_coded(w, plan, err));
    }
    MR_TRY_CLEANUP(status, find_uses(w, plan, err));
    if (!place_all(w, plan, placed)) {
        status = mr_fail(err, MR_RESOURCE_EXHAUSTED, "weights: more than 2^64 bytes");
        goto cleanup;
    }
    *out = w;
    w = NULL;
cleanup:
    free(placed);
    if (w != NULL) {
        free(w->items);
        free(w->biases);
        free(w);
    }
    return status;
}

bool mr_cuda_weights_adjoin(const mr_cuda_weights *weights, const mr_op_linear *op)
{
    bool adjoin = true;
    for (uint32_t part = 1; part < op->parts; part++) {
        const mr_cuda_weight *before = &weights->items[op->weight[part - 1]];
        const mr_cuda_weight *item = &weights->items[op->weight[part]];
        adjoin = adjoin && item->offset == before->offset + before->bytes;
    }
    return adjoin;
}
