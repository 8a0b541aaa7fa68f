/* SPDX-License-Identifier: Apache-2.0 */
/* Every index, width and row space of a plan, in one pass in execution order. */
#include "kernels/plan.h"

#include "base/checked.h"
#include "kernels/random_weight.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct checker {
    const mr_plan *plan;
    bool *written;    /* [n_buffers] an operator wrote it before this one */
    bool *kv_written; /* [kv.layers] */
    uint32_t index;   /* of the operator */
    mr_error *err;
} checker;

/* The status of a fault in the operator being checked, its message begun with the operator. */
#define OP_FAULT(c, ...) (mr_fail((c)->err, MR_INVALID_ARGUMENT, __VA_ARGS__), op_context(c))

static mr_status op_context(const checker *c)
{
    (void)mr_fail_context(c->err, "plan op %u (%s)", c->index,
                          mr_op_name(c->plan->ops[c->index].kind));
    return MR_INVALID_ARGUMENT;
}

static const mr_plan_buffer *buffer_of(const checker *c, mr_buffer_id id)
{
    return &c->plan->buffers[id];
}

/* `id` names a buffer of the plan that some operator has written. */
static mr_status check_input(const checker *c, const char *role, mr_buffer_id id)
{
    if (id >= c->plan->n_buffers) {
        return OP_FAULT(c, "%s: buffer %u does not exist; the plan has %u", role, id,
                        c->plan->n_buffers);
    }
    if (!c->written[id]) {
        return OP_FAULT(c, "%s: buffer \"%s\" is read before any operator writes it", role,
                        buffer_of(c, id)->name);
    }
    return MR_OK;
}

static mr_status check_output(checker *c, const char *role, mr_buffer_id id)
{
    if (id >= c->plan->n_buffers) {
        return OP_FAULT(c, "%s: buffer %u does not exist; the plan has %u", role, id,
                        c->plan->n_buffers);
    }
    c->written[id] = true;
    return MR_OK;
}

static mr_status check_width(const checker *c, const char *role, mr_buffer_id id, uint64_t width)
{
    if (buffer_of(c, id)->width != width) {
        return OP_FAULT(c, "%s: buffer \"%s\" has width %u, not %llu", role, buffer_of(c, id)->name,
                        buffer_of(c, id)->width, (unsigned long long)width);
    }
    return MR_OK;
}

static mr_status check_rows(const checker *c, const char *role, mr_buffer_id id, mr_row_space rows)
{
    if (buffer_of(c, id)->rows != rows) {
        return OP_FAULT(c, "%s: buffer \"%s\" must have %s rows", role, buffer_of(c, id)->name,
                        rows == MR_ROWS_TOKENS ? "token" : "logit");
    }
    return MR_OK;
}

static mr_status check_distinct(const checker *c, mr_buffer_id in, mr_buffer_id out)
{
    if (in == out) {
        return OP_FAULT(c, "reads and writes the same buffer \"%s\"", buffer_of(c, in)->name);
    }
    return MR_OK;
}

static mr_status check_weight(const checker *c, const char *role, mr_weight_id id, uint64_t n,
                              uint64_t k)
{
    if (id >= c->plan->n_weights) {
        return OP_FAULT(c, "%s: weight %u does not exist; the plan has %u", role, id,
                        c->plan->n_weights);
    }
    const mr_plan_weight *weight = &c->plan->weights[id];
    if (weight->n != n || weight->k != k) {
        return OP_FAULT(c, "%s: weight \"%s\" is %u x %u, not %llu x %llu", role, weight->name,
                        weight->n, weight->k, (unsigned long long)n, (unsigned long long)k);
    }
    return MR_OK;
}

static mr_status check_embed(checker *c, const mr_op_embed *op)
{
    MR_TRY(check_output(c, "out", op->out));
    MR_TRY(check_rows(c, "out", op->out, MR_ROWS_TOKENS));
    MR_TRY(check_weight(c, "table", op->table, c->plan->vocab_size, buffer_of(c, op->out)->width));
    if (!isfinite(op->scale)) {
        return OP_FAULT(c, "scale is not finite");
    }
    if (!op->learned_positions) {
        return MR_OK;
    }
    const uint32_t rows =
        op->positions < c->plan->n_weights ? c->plan->weights[op->positions].n : 0;
    MR_TRY(check_weight(c, "positions", op->positions, rows, buffer_of(c, op->out)->width));
    if (op->offset >= rows) {
        return OP_FAULT(c, "position 0 is row %u of a table of %u", op->offset, rows);
    }
    return MR_OK;
}

static mr_status check_norm(checker *c, const mr_op_norm *op)
{
    MR_TRY(check_input(c, "stream", op->stream));
    const mr_plan_buffer *stream = buffer_of(c, op->stream);
    if (op->in != MR_NO_BUFFER) {
        MR_TRY(check_input(c, "in", op->in));
        MR_TRY(check_distinct(c, op->in, op->stream));
        MR_TRY(check_width(c, "in", op->in, stream->width));
        MR_TRY(check_rows(c, "in", op->in, stream->rows));
    }
    MR_TRY(check_output(c, "out", op->out));
    MR_TRY(check_width(c, "out", op->out, stream->width));
    MR_TRY(check_rows(c, "out", op->out, stream->rows));
    MR_TRY(check_weight(c, "gain", op->gain, 1, stream->width));
    if (op->bias != MR_NO_WEIGHT) {
        MR_TRY(check_weight(c, "bias", op->bias, 1, stream->width));
    }
    if (op->kind != MR_NORM_RMS && op->kind != MR_NORM_LAYER) {
        return OP_FAULT(c, "norm kind %d is not known", (int)op->kind);
    }
    if (!isfinite(op->epsilon) || op->epsilon < 0.0f) {
        return OP_FAULT(c, "epsilon must be finite and not negative");
    }
    return MR_OK;
}

static mr_status check_linear(checker *c, const mr_op_linear *op)
{
    MR_TRY(check_input(c, "in", op->in));
    MR_TRY(check_output(c, "out", op->out));
    MR_TRY(check_distinct(c, op->in, op->out));
    MR_TRY(check_rows(c, "out", op->out, buffer_of(c, op->in)->rows));
    if (op->parts < 1 || op->parts > MR_LINEAR_PARTS) {
        return OP_FAULT(c, "%u parts; 1 to %d are possible", op->parts, MR_LINEAR_PARTS);
    }
    uint64_t width = 0;
    for (uint32_t i = 0; i < op->parts; i++) {
        const mr_weight_id id = op->weight[i];
        const uint32_t n = id < c->plan->n_weights ? c->plan->weights[id].n : 0;
        MR_TRY(check_weight(c, "weight", id, n, buffer_of(c, op->in)->width));
        if (op->bias[i] != MR_NO_WEIGHT) {
            MR_TRY(check_weight(c, "bias", op->bias[i], 1, n));
        }
        width += n;
    }
    MR_TRY(check_width(c, "out", op->out, width));
    if (op->logits) {
        MR_TRY(check_width(c, "out of the vocabulary projection", op->out, c->plan->vocab_size));
    }
    return MR_OK;
}

/* What rope_kv and attention share. */
static mr_status check_qkv(const checker *c, mr_buffer_id qkv, uint32_t layer, uint32_t heads)
{
    const mr_plan_kv *kv = &c->plan->kv;
    MR_TRY(check_input(c, "qkv", qkv));
    MR_TRY(check_rows(c, "qkv", qkv, MR_ROWS_TOKENS));
    if (layer >= kv->layers) {
        return OP_FAULT(c, "KV layer %u does not exist; the plan has %u", layer, kv->layers);
    }
    if (heads == 0 || heads % kv->heads != 0) {
        return OP_FAULT(c, "%u query heads are no multiple of the %u key/value heads", heads,
                        kv->heads);
    }
    return check_width(c, "qkv", qkv, ((uint64_t)heads + 2 * (uint64_t)kv->heads) * kv->head_width);
}

static mr_status check_rope_kv(checker *c, const mr_op_rope_kv *op)
{
    MR_TRY(check_qkv(c, op->qkv, op->layer, op->heads));
    if (op->rope != UINT16_MAX && op->rope >= c->plan->n_ropes) {
        return OP_FAULT(c, "rope table %u does not exist; the plan has %u", op->rope,
                        c->plan->n_ropes);
    }
    if (op->head_norms) {
        MR_TRY(check_weight(c, "gain of query heads", op->q_gain, 1, c->plan->kv.head_width));
        MR_TRY(check_weight(c, "gain of key heads", op->k_gain, 1, c->plan->kv.head_width));
    }
    if (!isfinite(op->epsilon) || op->epsilon < 0.0f) {
        return OP_FAULT(c, "epsilon must be finite and not negative");
    }
    c->kv_written[op->layer] = true;
    return MR_OK;
}

static mr_status check_attention(checker *c, const mr_op_attention *op)
{
    MR_TRY(check_qkv(c, op->qkv, op->layer, op->heads));
    MR_TRY(check_output(c, "out", op->out));
    MR_TRY(check_distinct(c, op->qkv, op->out));
    MR_TRY(check_rows(c, "out", op->out, MR_ROWS_TOKENS));
    MR_TRY(check_width(c, "out", op->out, (uint64_t)op->heads * c->plan->kv.head_width));
    if (!c->kv_written[op->layer]) {
        return OP_FAULT(c, "KV layer %u is read before any rope_kv writes it", op->layer);
    }
    if (!isfinite(op->scale) || !isfinite(op->soft_cap) || op->soft_cap < 0.0f) {
        return OP_FAULT(c, "scale and soft cap must be finite, the cap not negative");
    }
    return MR_OK;
}

static mr_status check_gated(checker *c, const mr_op_gated *op)
{
    MR_TRY(check_input(c, "in", op->in));
    MR_TRY(check_output(c, "out", op->out));
    MR_TRY(check_distinct(c, op->in, op->out));
    MR_TRY(check_rows(c, "out", op->out, buffer_of(c, op->in)->rows));
    MR_TRY(check_width(c, "in", op->in, 2 * (uint64_t)buffer_of(c, op->out)->width));
    if ((unsigned)op->activation > MR_ACT_RELU) {
        return OP_FAULT(c, "activation %d is not known", (int)op->activation);
    }
    return MR_OK;
}

static mr_status check_activate(checker *c, const mr_op_activate *op)
{
    MR_TRY(check_input(c, "in", op->in));
    MR_TRY(check_output(c, "out", op->out));
    MR_TRY(check_distinct(c, op->in, op->out));
    MR_TRY(check_rows(c, "out", op->out, buffer_of(c, op->in)->rows));
    MR_TRY(check_width(c, "in", op->in, buffer_of(c, op->out)->width));
    if ((unsigned)op->activation > MR_ACT_RELU) {
        return OP_FAULT(c, "activation %d is not known", (int)op->activation);
    }
    return MR_OK;
}

static mr_status check_unary(checker *c, mr_op_kind kind, const mr_op_unary *op)
{
    MR_TRY(check_input(c, "in", op->in));
    if (kind == MR_OP_SAMPLE) {
        MR_TRY(check_rows(c, "in", op->in, MR_ROWS_LOGITS));
        MR_TRY(check_width(c, "in", op->in, c->plan->vocab_size));
        if (op->out != MR_NO_BUFFER) {
            return OP_FAULT(c, "out: sampling has no output buffer");
        }
        return MR_OK;
    }
    MR_TRY(check_output(c, "out", op->out));
    if (kind == MR_OP_ALL_REDUCE) {
        if (op->in != op->out) {
            return OP_FAULT(c, "out: must be the input buffer");
        }
        return MR_OK;
    }
    MR_TRY(check_rows(c, "in", op->in, MR_ROWS_TOKENS));
    MR_TRY(check_rows(c, "out", op->out, MR_ROWS_LOGITS));
    return check_width(c, "out", op->out, buffer_of(c, op->in)->width);
}

static mr_status check_op(checker *c, const mr_op *op)
{
    if (c->index > 0 && op->segment < c->plan->ops[c->index - 1].segment) {
        return OP_FAULT(c, "segment %u after segment %u", op->segment,
                        c->plan->ops[c->index - 1].segment);
    }
    switch (op->kind) {
    case MR_OP_EMBED:
        return check_embed(c, &op->embed);
    case MR_OP_NORM:
        return check_norm(c, &op->norm);
    case MR_OP_LINEAR:
        return check_linear(c, &op->linear);
    case MR_OP_ROPE_KV:
        return check_rope_kv(c, &op->rope_kv);
    case MR_OP_ATTENTION:
        return check_attention(c, &op->attention);
    case MR_OP_GATED:
        return check_gated(c, &op->gated);
    case MR_OP_ACTIVATE:
        return check_activate(c, &op->activate);
    case MR_OP_ALL_REDUCE:
    case MR_OP_GATHER:
    case MR_OP_SAMPLE:
        return check_unary(c, op->kind, &op->unary);
    }
    return OP_FAULT(c, "operator kind %d is not known", (int)op->kind);
}

static mr_status check_weight_entry(const mr_plan *plan, uint32_t index, mr_error *err)
{
    const mr_plan_weight *weight = &plan->weights[index];
    if (memchr(weight->name, '\0', sizeof(weight->name)) == NULL) {
        return mr_fail(err, MR_INVALID_ARGUMENT, "plan weight %u: its name has no end", index);
    }
    if (!mr_dtype_is_weight(weight->dtype)) {
        return mr_fail(err, MR_INVALID_ARGUMENT, "plan weight \"%s\": type %d is none of weights",
                       weight->name, (int)weight->dtype);
    }
    uint64_t bytes = 0;
    const bool coded = weight->codes != NULL;
    const bool made = coded || (weight->random && mr_random_weight_has(weight->dtype));
    if (coded ? mr_weight_codes_dtype(weight->codes, weight->k) != weight->dtype
              : weight->dtype >= MR_DTYPE_COUNT) {
        return mr_fail(err, MR_INVALID_ARGUMENT,
                       "plan weight \"%s\": type %s and its codes do not belong together",
                       weight->name, mr_dtype_info_get(weight->dtype)->name);
    }
    if (weight->n == 0 || weight->k == 0 || (weight->data == NULL && !made) ||
        !mr_dtype_row_bytes(weight->dtype, weight->k, &bytes) ||
        !mr_mul_u64(bytes, weight->n, &bytes)) {
        return mr_fail(err, MR_INVALID_ARGUMENT,
                       "plan weight \"%s\": a %u x %u %s weight needs data, and rows that are a "
                       "whole number of blocks",
                       weight->name, weight->n, weight->k, mr_dtype_info_get(weight->dtype)->name);
    }
    if (bytes != weight->bytes) {
        return mr_fail(err, MR_INVALID_ARGUMENT,
                       "plan weight \"%s\": %llu bytes, but %u x %u %s is %llu bytes", weight->name,
                       (unsigned long long)weight->bytes, weight->n, weight->k,
                       mr_dtype_info_get(weight->dtype)->name, (unsigned long long)bytes);
    }
    const bool sharded = weight->shard == MR_SHARD_OUTPUTS || weight->shard == MR_SHARD_INPUTS;
    if (weight->shard != MR_SHARD_NONE && (!sharded || weight->shard_unit == 0)) {
        return mr_fail(err, MR_INVALID_ARGUMENT,
                       "plan weight \"%s\": shard axis %d with unit %u is not possible",
                       weight->name, (int)weight->shard, weight->shard_unit);
    }
    return MR_OK;
}

static mr_status check_kv(const mr_plan *plan, mr_error *err)
{
    const mr_plan_kv *kv = &plan->kv;
    if (kv->layers == 0) {
        return MR_OK;
    }
    if (kv->heads == 0 || kv->head_width == 0 || kv->groups == 0 || kv->group_of == NULL) {
        return mr_fail(err, MR_INVALID_ARGUMENT,
                       "plan KV cache: heads, head width and groups must be at least 1");
    }
    for (uint32_t i = 0; i < kv->layers; i++) {
        if (kv->group_of[i] >= kv->groups) {
            return mr_fail(err, MR_INVALID_ARGUMENT,
                           "plan KV cache: layer %u is in group %u; there are %u groups", i,
                           kv->group_of[i], kv->groups);
        }
    }
    return MR_OK;
}

static mr_status check_rope(const mr_plan *plan, uint32_t index, mr_error *err)
{
    const mr_plan_rope *rope = &plan->ropes[index];
    if (rope->pairing != MR_ROPE_INTERLEAVED && rope->pairing != MR_ROPE_HALVES) {
        return mr_fail(err, MR_INVALID_ARGUMENT, "plan rope %u: pairing %d is not known", index,
                       (int)rope->pairing);
    }
    if (rope->dims == 0 || rope->dims % 2 != 0 || rope->dims > plan->kv.head_width ||
        rope->inv_freq == NULL) {
        return mr_fail(err, MR_INVALID_ARGUMENT,
                       "plan rope %u: %u rotated elements of a head of %u; an even number from 2 "
                       "on is needed, with its frequencies",
                       index, rope->dims, plan->kv.head_width);
    }
    const bool two = rope->rule == MR_ROPE_TWO;
    const bool dynamic = rope->rule == MR_ROPE_DYNAMIC;
    bool good = rope->rule == MR_ROPE_FIXED || two || dynamic;
    good = good && (!dynamic || (rope->theta > 0.0 && isfinite(rope->theta) &&
                                 rope->factor >= 1.0 && isfinite(rope->factor)));
    if (!good || (two && rope->long_inv_freq == NULL) || ((two || dynamic) && !rope->original)) {
        return mr_fail(err, MR_INVALID_ARGUMENT,
                       "plan rope %u: rule %d lacks a length, a factor or frequencies", index,
                       (int)rope->rule);
    }
    bool finite = isfinite(rope->attention_factor);
    for (uint32_t i = 0; i < rope->dims / 2; i++) {
        finite =
            finite && isfinite(rope->inv_freq[i]) && (!two || isfinite(rope->long_inv_freq[i]));
    }
    if (!finite) {
        return mr_fail(err, MR_INVALID_ARGUMENT,
                       "plan rope %u: a frequency or the attention factor is not finite", index);
    }
    return MR_OK;
}

static mr_status check_tables(const mr_plan *plan, mr_error *err)
{
    if (plan->vocab_size == 0 || plan->n_ops == 0) {
        return mr_fail(err, MR_INVALID_ARGUMENT,
                       "plan: needs a vocabulary and at least one operator");
    }
    for (uint32_t i = 0; i < plan->n_buffers; i++) {
        const mr_plan_buffer *buffer = &plan->buffers[i];
        if (buffer->width == 0 || (unsigned)buffer->rows > MR_ROWS_LOGITS ||
            memchr(buffer->name, '\0', sizeof(buffer->name)) == NULL) {
            return mr_fail(err, MR_INVALID_ARGUMENT,
                           "plan buffer %u: width %u and row space %d are not possible", i,
                           buffer->width, (int)buffer->rows);
        }
    }
    for (uint32_t i = 0; i < plan->n_weights; i++) {
        MR_TRY(check_weight_entry(plan, i, err));
    }
    MR_TRY(check_kv(plan, err));
    for (uint32_t i = 0; i < plan->n_ropes; i++) {
        MR_TRY(check_rope(plan, i, err));
    }
    return MR_OK;
}

mr_status mr_plan_check(const mr_plan *plan, mr_error *err)
{
    MR_TRY(check_tables(plan, err));
    checker c = {.plan = plan, .err = err};
    mr_status status = MR_OK;
    c.written = mr_calloc((size_t)plan->n_buffers + 1, sizeof(*c.written));
    c.kv_written = mr_calloc((size_t)plan->kv.layers + 1, sizeof(*c.kv_written));
    if (c.written == NULL || c.kv_written == NULL) {
        status = mr_fail(err, MR_RESOURCE_EXHAUSTED, "plan check: out of memory");
        goto cleanup;
    }
    for (c.index = 0; c.index < plan->n_ops; c.index++) {
        MR_TRY_CLEANUP(status, check_op(&c, &plan->ops[c.index]));
    }
cleanup:
    free(c.written);
    free(c.kv_written);
    return status;
}
