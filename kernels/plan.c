/* SPDX-License-Identifier: Apache-2.0 */
/* Building a plan. Its checks are in plan_check.c. */
#include "kernels/plan.h"

#include "base/checked.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ENTRIES (UINT16_MAX - 1) /* the id 65,535 means "none" */

mr_status mr_plan_create(mr_plan **out)
{
    mr_plan *plan = mr_calloc(1, sizeof(*plan));
    if (plan == NULL) {
        return MR_RESOURCE_EXHAUSTED;
    }
    *out = plan;
    return MR_OK;
}

void mr_plan_destroy(mr_plan *plan)
{
    if (plan == NULL) {
        return;
    }
    for (uint32_t i = 0; i < plan->n_ropes; i++) {
        free((void *)(uintptr_t)plan->ropes[i].inv_freq);
        free((void *)(uintptr_t)plan->ropes[i].long_inv_freq);
    }
    for (uint32_t i = 0; i < plan->n_weights; i++) {
        free((void *)(uintptr_t)plan->weights[i].codes);
    }
    free(plan->buffers);
    free(plan->weights);
    free(plan->ops);
    free(plan->ropes);
    free(plan->kv.group_of);
    free(plan->kv.key_scales);
    free(plan->kv.value_scales);
    free(plan);
}

/* Makes room for one more entry of `size` bytes in *array. */
static mr_status grow(void **array, uint32_t count, uint32_t *capacity, size_t size)
{
    if (count >= MAX_ENTRIES) {
        return MR_INVALID_ARGUMENT;
    }
    if (count < *capacity) {
        return MR_OK;
    }
    const uint32_t wanted = *capacity == 0 ? 16 : *capacity * 2;
    void *grown = mr_reallocarray(*array, wanted, size);
    if (grown == NULL) {
        return MR_RESOURCE_EXHAUSTED;
    }
    *array = grown;
    *capacity = wanted;
    return MR_OK;
}

mr_status mr_plan_add_buffer(mr_plan *plan, const char *name, mr_row_space rows, uint32_t width,
                             mr_buffer_id *id)
{
    void *array = plan->buffers;
    MR_TRY(grow(&array, plan->n_buffers, &plan->capacity_buffers, sizeof(*plan->buffers)));
    plan->buffers = array;
    mr_plan_buffer *buffer = &plan->buffers[plan->n_buffers];
    *buffer = (mr_plan_buffer){.rows = rows, .width = width};
    memcpy(buffer->name, name, strnlen(name, sizeof(buffer->name) - 1));
    *id = (mr_buffer_id)plan->n_buffers++;
    return MR_OK;
}

mr_status mr_plan_add_weight(mr_plan *plan, const mr_plan_weight *weight, mr_weight_id *id)
{
    void *array = plan->weights;
    MR_TRY(grow(&array, plan->n_weights, &plan->capacity_weights, sizeof(*plan->weights)));
    plan->weights = array;
    plan->weights[plan->n_weights] = *weight;
    *id = (mr_weight_id)plan->n_weights++;
    return MR_OK;
}

mr_status mr_plan_add_codes(mr_plan *plan, const mr_plan_weight *weight,
                            const mr_weight_codes *codes, mr_weight_id *id)
{
    uint64_t row_bytes = 0;
    mr_plan_weight own = *weight;
    own.dtype = mr_weight_codes_dtype(codes, weight->k);
    MR_CHECK(mr_dtype_row_bytes(own.dtype, own.k, &row_bytes));
    if (!mr_mul_u64(row_bytes, own.n, &own.bytes)) {
        return MR_INVALID_ARGUMENT;
    }
    mr_weight_codes *copy = mr_calloc(1, sizeof(*copy));
    if (copy == NULL) {
        return MR_RESOURCE_EXHAUSTED;
    }
    *copy = *codes;
    own.codes = copy;
    const mr_status status = mr_plan_add_weight(plan, &own, id);
    if (status != MR_OK) {
        free(copy);
    }
    return status;
}

void mr_plan_release(const mr_plan *plan, const mr_plan_weight *weight)
{
    if (plan->release == NULL || weight->random) {
        return;
    }
    const mr_weight_codes *codes = weight->codes;
    if (codes == NULL) {
        plan->release(plan->release_ctx, weight->data, weight->bytes);
        return;
    }
    plan->release(plan->release_ctx, codes->codes.data, codes->codes.bytes);
    plan->release(plan->release_ctx, codes->scales, codes->scale_bytes);
    if (codes->zeros.data != NULL) {
        plan->release(plan->release_ctx, codes->zeros.data, codes->zeros.bytes);
    }
}

/* NULL for NULL, and when memory is short. */
static float *copy_floats(const float *from, size_t count)
{
    float *copy = from != NULL ? mr_calloc(count > 0 ? count : 1, sizeof(*copy)) : NULL;
    if (copy != NULL) {
        memcpy(copy, from, count * sizeof(*copy));
    }
    return copy;
}

mr_status mr_plan_add_rope(mr_plan *plan, const mr_plan_rope *rope, uint16_t *id)
{
    void *array = plan->ropes;
    MR_TRY(grow(&array, plan->n_ropes, &plan->capacity_ropes, sizeof(*plan->ropes)));
    plan->ropes = array;
    float *inv_freq = copy_floats(rope->inv_freq, rope->dims / 2);
    float *long_inv_freq = copy_floats(rope->long_inv_freq, rope->dims / 2);
    if (inv_freq == NULL || (rope->long_inv_freq != NULL && long_inv_freq == NULL)) {
        free(inv_freq);
        free(long_inv_freq);
        return MR_RESOURCE_EXHAUSTED;
    }
    plan->ropes[plan->n_ropes] = *rope;
    plan->ropes[plan->n_ropes].inv_freq = inv_freq;
    plan->ropes[plan->n_ropes].long_inv_freq = long_inv_freq;
    *id = (uint16_t)plan->n_ropes++;
    return MR_OK;
}

mr_status mr_plan_add_op(mr_plan *plan, const mr_op *op)
{
    void *array = plan->ops;
    MR_TRY(grow(&array, plan->n_ops, &plan->capacity_ops, sizeof(*plan->ops)));
    plan->ops = array;
    plan->ops[plan->n_ops++] = *op;
    return MR_OK;
}

mr_status mr_plan_set_kv(mr_plan *plan, uint32_t layers, uint32_t heads, uint32_t head_width)
{
    uint8_t *group_of = mr_calloc(layers > 0 ? layers : 1, sizeof(*group_of));
    if (group_of == NULL) {
        return MR_RESOURCE_EXHAUSTED;
    }
    free(plan->kv.group_of);
    free(plan->kv.key_scales);
    free(plan->kv.value_scales);
    plan->kv = (mr_plan_kv){.layers = layers,
                            .heads = heads,
                            .head_width = head_width,
                            .groups = 1,
                            .group_of = group_of};
    return MR_OK;
}

void mr_rope_dynamic(const mr_plan_rope *rope, uint32_t length, float *inv_freq)
{
    const double dims = rope->dims;
    double base = rope->theta;
    if (length > rope->original && rope->dims > 2) {
        const double stretch = rope->factor * length / rope->original - (rope->factor - 1.0);
        base *= pow(stretch, dims / (dims - 2.0));
    }
    for (uint32_t i = 0; i < rope->dims / 2; i++) {
        inv_freq[i] = (float)pow(base, -2.0 * i / dims);
    }
}

uint32_t mr_rope_class(const mr_plan_rope *rope, uint32_t prompt_tokens)
{
    if (rope->rule == MR_ROPE_FIXED || prompt_tokens <= rope->original) {
        return 0;
    }
    return rope->rule == MR_ROPE_TWO ? 1 : prompt_tokens;
}

const char *mr_op_name(mr_op_kind kind)
{
    static const char *const names[] = {
        [MR_OP_EMBED] = "embed",         [MR_OP_NORM] = "norm",
        [MR_OP_LINEAR] = "linear",       [MR_OP_ROPE_KV] = "rope_kv",
        [MR_OP_ATTENTION] = "attention", [MR_OP_GATED] = "gated",
        [MR_OP_ACTIVATE] = "activate",   [MR_OP_ALL_REDUCE] = "all_reduce",
        [MR_OP_GATHER] = "gather",       [MR_OP_SAMPLE] = "sample",
    };
    return (unsigned)kind <= MR_OP_SAMPLE ? names[kind] : "unknown";
}

/* MR_NO_BUFFER: none. */
typedef struct op_buffers {
    mr_buffer_id read[2];
    mr_buffer_id written[2];
} op_buffers;

static op_buffers buffers_of(const mr_op *op)
{
    const mr_buffer_id none = MR_NO_BUFFER;
    switch (op->kind) {
    case MR_OP_EMBED:
        return (op_buffers){{none, none}, {op->embed.out, none}};
    case MR_OP_NORM:
        return (op_buffers){{op->norm.in, op->norm.stream}, {op->norm.out, op->norm.stream}};
    case MR_OP_LINEAR:
        return (op_buffers){{op->linear.in, none}, {op->linear.out, none}};
    case MR_OP_ROPE_KV:
        return (op_buffers){{op->rope_kv.qkv, none}, {op->rope_kv.qkv, none}};
    case MR_OP_ATTENTION:
        return (op_buffers){{op->attention.qkv, none}, {op->attention.out, none}};
    case MR_OP_GATED:
        return (op_buffers){{op->gated.in, none}, {op->gated.out, none}};
    case MR_OP_ACTIVATE:
        return (op_buffers){{op->activate.in, none}, {op->activate.out, none}};
    case MR_OP_ALL_REDUCE:
    case MR_OP_GATHER:
    case MR_OP_SAMPLE:
        return (op_buffers){{op->unary.in, none}, {op->unary.out, none}};
    }
    return (op_buffers){{none, none}, {none, none}};
}

bool mr_op_reads(const mr_op *op, mr_buffer_id id)
{
    const op_buffers b = buffers_of(op);
    return id != MR_NO_BUFFER && (b.read[0] == id || b.read[1] == id);
}

bool mr_op_writes(const mr_op *op, mr_buffer_id id)
{
    const op_buffers b = buffers_of(op);
    return id != MR_NO_BUFFER && (b.written[0] == id || b.written[1] == id);
}
