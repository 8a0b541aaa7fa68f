/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reference path (compute=f32): float32 everywhere, weights as the model stores them and
 * dequantised in use. Every other path is held to it.
 */
#include "kernels/cpu/reference.h"

#include "base/checked.h"

#include <math.h>
#include <string.h>

#define ROWS_AT_ONCE 8u /* of a weight that is packed */

static mr_status weight_layout(const mr_plan_weight *from, mr_cpu_weight *to, mr_error *err)
{
    (void)err;
    to->bytes = from->bytes;
    return MR_OK;
}

static void weight_pack(mr_cpu_source *from, mr_cpu_weight *to, uint32_t thread, uint32_t threads)
{
    uint64_t begin;
    uint64_t end;
    mr_share(to->n, ROWS_AT_ONCE, thread, threads, &begin, &end);
    while (begin < end) {
        const uint64_t count = mr_min_u64(end - begin, ROWS_AT_ONCE);
        const uint8_t *rows = mr_cpu_source_rows(from, begin, count);
        if (rows == NULL) {
            return;
        }
        memcpy((uint8_t *)to->data + begin * from->row_bytes, rows, count * from->row_bytes);
        begin += count;
    }
}

/* Adds the learned embedding of a position; `row` is room for it. */
static void add_position(const mr_cpu_exec *exec, const mr_op_embed *op, uint32_t position,
                         float *row, float *out)
{
    const mr_cpu_weight *table = &exec->weights->items[op->positions];
    uint64_t row_bytes = 0;
    MR_CHECK(mr_dtype_row_bytes(table->dtype, table->k, &row_bytes));
    mr_dequantize(table->dtype,
                  (const uint8_t *)table->data + ((uint64_t)position + op->offset) * row_bytes, row,
                  table->k);
    for (uint32_t i = 0; i < table->k; i++) {
        out[i] += row[i];
    }
}

static void run_embed(mr_cpu_exec *exec, const mr_op *op, const mr_batch *batch, uint32_t thread,
                      uint32_t threads)
{
    const mr_cpu_weight *table = &exec->weights->items[op->embed.table];
    uint64_t row_bytes = 0;
    MR_CHECK(mr_dtype_row_bytes(table->dtype, table->k, &row_bytes));
    for (uint32_t t = thread; t < batch->n_tokens; t += threads) {
        float *out = mr_cpu_row(exec, op->embed.out, t);
        mr_dequantize(table->dtype, (const uint8_t *)table->data + exec->tokens[t] * row_bytes, out,
                      table->k);
        for (uint32_t i = 0; op->embed.scale != 1.0f && i < table->k; i++) {
            out[i] *= op->embed.scale;
        }
        if (op->embed.learned_positions) {
            add_position(exec, &op->embed, batch->positions[t], mr_cpu_scratch(exec, thread), out);
        }
    }
}

/* Mean in the lanes of mr_ref_dot. */
static float mean_of(const float *x, uint32_t n)
{
    float lane[MR_REF_LANES] = {0};
    for (uint32_t i = 0; i < n; i++) {
        lane[i % MR_REF_LANES] += x[i];
    }
    for (uint32_t half = MR_REF_LANES / 2; half > 0; half /= 2) {
        for (uint32_t j = 0; j < half; j++) {
            lane[j] += lane[j + half];
        }
    }
    return lane[0] / (float)n;
}

typedef struct norm_row {
    const float *x;    /* [n] */
    float *out;        /* [n], may be x */
    const float *gain; /* [n] */
    const float *bias; /* [n] or NULL */
    float epsilon;
    uint32_t n;
} norm_row;

static void rms_norm(const norm_row *r)
{
    const float square = mr_ref_dot(r->x, r->x, r->n) / (float)r->n;
    const float scale = 1.0f / sqrtf(square + r->epsilon);
    for (uint32_t i = 0; i < r->n; i++) {
        const float y = r->x[i] * scale * r->gain[i];
        r->out[i] = r->bias != NULL ? y + r->bias[i] : y;
    }
}

static void layer_norm(const norm_row *r)
{
    const float mean = mean_of(r->x, r->n);
    for (uint32_t i = 0; i < r->n; i++) {
        r->out[i] = r->x[i] - mean;
    }
    const float variance = mr_ref_dot(r->out, r->out, r->n) / (float)r->n;
    const float scale = 1.0f / sqrtf(variance + r->epsilon);
    for (uint32_t i = 0; i < r->n; i++) {
        const float y = r->out[i] * scale * r->gain[i];
        r->out[i] = r->bias != NULL ? y + r->bias[i] : y;
    }
}

static void run_norm(mr_cpu_exec *exec, const mr_op *op, const mr_batch *batch, uint32_t thread,
                     uint32_t threads)
{
    const mr_op_norm *norm = &op->norm;
    const uint32_t rows = mr_cpu_rows(exec->plan, norm->stream, batch);
    const uint32_t width = exec->plan->buffers[norm->stream].width;
    for (uint32_t row = thread; row < rows; row += threads) {
        float *stream = mr_cpu_row(exec, norm->stream, row);
        if (norm->in != MR_NO_BUFFER) {
            const float *in = mr_cpu_row(exec, norm->in, row);
            for (uint32_t i = 0; i < width; i++) {
                stream[i] += in[i];
            }
        }
        const norm_row r = {
            .x = stream,
            .out = mr_cpu_row(exec, norm->out, row),
            .gain = mr_cpu_vector(exec, norm->gain),
            .bias = mr_cpu_vector(exec, norm->bias),
            .epsilon = norm->epsilon,
            .n = width,
        };
        MR_CHECK(r.gain != NULL);
        if (norm->kind == MR_NORM_RMS) {
            rms_norm(&r);
        } else {
            layer_norm(&r);
        }
    }
}

/* Rotates one head in place by the angles of its position. */
static void rotate(float *x, const mr_plan_rope *rope, const float *cosine, const float *sine)
{
    const uint32_t pairs = rope->dims / 2;
    const bool halves = rope->pairing == MR_ROPE_HALVES;
    for (uint32_t i = 0; i < pairs; i++) {
        float *a = halves ? x + i : x + 2 * i;
        float *b = halves ? x + i + pairs : x + 2 * i + 1;
        const float u = *a;
        const float v = *b;
        *a = u * cosine[i] - v * sine[i];
        *b = v * cosine[i] + u * sine[i];
    }
}

/* The norms and rotation of a row's query and key heads, in place. */
static void turn_heads(const mr_cpu_exec *exec, const mr_op_rope_kv *rk, const mr_batch *batch,
                       uint32_t t)
{
    const mr_plan_kv *kv = &exec->plan->kv;
    float *row = mr_cpu_row(exec, rk->qkv, t);
    const float *cosines = NULL;
    const float *sines = NULL;
    if (rk->rope != UINT16_MAX) {
        mr_cpu_angles(exec, rk->rope, batch, t, &cosines, &sines);
    }
    for (uint32_t h = 0; h < rk->heads + kv->heads; h++) {
        float *head = row + (size_t)h * kv->head_width;
        if (rk->head_norms) {
            const norm_row r = {
                .x = head,
                .out = head,
                .gain = mr_cpu_vector(exec, h < rk->heads ? rk->q_gain : rk->k_gain),
                .epsilon = rk->epsilon,
                .n = kv->head_width,
            };
            MR_CHECK(r.gain != NULL);
            rms_norm(&r);
        }
        if (rk->rope != UINT16_MAX) {
            rotate(head, &exec->plan->ropes[rk->rope], cosines, sines);
        }
    }
}

/* Keeps a key or value of n elements as the one at `offset` of its piece. */
static void store_kv(mr_cpu_kv_piece piece, uint32_t offset, const float *from, mr_dtype dtype,
                     uint32_t n)
{
    uint8_t *to = piece.elements + (size_t)offset * n * mr_dtype_info_get(dtype)->block_bytes;
    if (dtype == MR_DTYPE_F32) {
        memcpy(to, from, n * sizeof(*from));
        return;
    }
    if (dtype == MR_DTYPE_I8) {
        piece.scales[offset] = mr_kv_quantize(from, (int8_t *)to, n);
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        const uint16_t bits =
            dtype == MR_DTYPE_F16 ? mr_f32_to_f16(from[i]) : mr_f32_to_bf16(from[i]);
        memcpy(to + 2 * (size_t)i, &bits, sizeof(bits));
    }
}

static void run_rope_kv(mr_cpu_exec *exec, const mr_op *op, const mr_batch *batch, uint32_t thread,
                        uint32_t threads)
{
    const mr_op_rope_kv *rk = &op->rope_kv;
    const mr_plan_kv *kv = &exec->plan->kv;
    const uint32_t block_size = exec->options.block_size;
    const uint32_t *kv_slot = batch->kv_slot + (size_t)kv->group_of[rk->layer] * batch->n_tokens;
    for (uint32_t t = thread; t < batch->n_tokens; t += threads) {
        const float *row = mr_cpu_row(exec, rk->qkv, t);
        turn_heads(exec, rk, batch, t);
        const uint32_t block = kv_slot[t] / block_size;
        const uint32_t offset = kv_slot[t] % block_size;
        /* The null block is for padding rows, which may share a slot: nothing needs to be kept. */
        for (uint32_t g = 0; block != MR_NULL_BLOCK && g < kv->heads; g++) {
            const float *key = row + (size_t)(rk->heads + g) * kv->head_width;
            const float *value = key + (size_t)kv->heads * kv->head_width;
            store_kv(mr_cpu_kv(exec, rk->layer, 0, block, g), offset, key, exec->options.kv_dtype,
                     kv->head_width);
            store_kv(mr_cpu_kv(exec, rk->layer, 1, block, g), offset, value, exec->options.kv_dtype,
                     kv->head_width);
        }
    }
}

static float activate(mr_activation activation, float x)
{
    switch (activation) {
    case MR_ACT_SILU:
        return x / (1.0f + expf(-x));
    case MR_ACT_GELU_TANH:
        /* sqrt(2 / pi) */
        return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
    case MR_ACT_GELU:
        return 0.5f * x * (1.0f + erff(x * 0.7071067812f)); /* sqrt(1 / 2) */
    case MR_ACT_RELU:
        break;
    }
    return x > 0.0f ? x : 0.0f;
}

static void run_gated(mr_cpu_exec *exec, const mr_op *op, const mr_batch *batch, uint32_t thread,
                      uint32_t threads)
{
    const mr_op_gated *gated = &op->gated;
    const uint32_t width = exec->plan->buffers[gated->out].width;
    const uint32_t rows = mr_cpu_rows(exec->plan, gated->in, batch);
    uint64_t begin;
    uint64_t end;
    mr_share(width, 16, thread, threads, &begin, &end);
    for (uint32_t row = 0; row < rows; row++) {
        const float *gate = mr_cpu_row(exec, gated->in, row);
        const float *up = gate + width;
        float *out = mr_cpu_row(exec, gated->out, row);
        for (uint64_t i = begin; i < end; i++) {
            out[i] = activate(gated->activation, gate[i]) * up[i];
        }
    }
}

static void run_activate(mr_cpu_exec *exec, const mr_op *op, const mr_batch *batch, uint32_t thread,
                         uint32_t threads)
{
    const mr_op_activate *act = &op->activate;
    const uint32_t width = exec->plan->buffers[act->out].width;
    const uint32_t rows = mr_cpu_rows(exec->plan, act->in, batch);
    uint64_t begin;
    uint64_t end;
    mr_share(width, 16, thread, threads, &begin, &end);
    for (uint32_t row = 0; row < rows; row++) {
        const float *in = mr_cpu_row(exec, act->in, row);
        float *out = mr_cpu_row(exec, act->out, row);
        for (uint64_t i = begin; i < end; i++) {
            out[i] = activate(act->activation, in[i]);
        }
    }
}

static void run_gather(mr_cpu_exec *exec, const mr_op *op, const mr_batch *batch, uint32_t thread,
                       uint32_t threads)
{
    const size_t bytes = exec->plan->buffers[op->unary.in].width * sizeof(float);
    for (uint32_t row = thread; row < batch->n_rows; row += threads) {
        memcpy(mr_cpu_row(exec, op->unary.out, row),
               mr_cpu_row(exec, op->unary.in, batch->logit_rows[row]), bytes);
    }
}

static size_t scratch_bytes(const mr_cpu_exec *exec)
{
    size_t most = 0;
    for (uint32_t i = 0; i < exec->plan->n_ops; i++) {
        const mr_op *op = &exec->plan->ops[i];
        size_t bytes = 0;
        if (op->kind == MR_OP_LINEAR) {
            bytes = mr_cpu_ref_linear_scratch(exec, &op->linear);
        } else if (op->kind == MR_OP_ATTENTION) {
            bytes = mr_cpu_ref_attention_scratch(exec, &op->attention);
        } else if (op->kind == MR_OP_EMBED) {
            bytes = exec->plan->buffers[op->embed.out].width * sizeof(float);
        }
        most = bytes > most ? bytes : most;
    }
    return most;
}

const mr_cpu_path mr_cpu_path_reference = {
    .name = "reference",
    .numerics = "cpu-reference/f32/1",
    .weight_layout = weight_layout,
    .weight_pack = weight_pack,
    .scratch_bytes = scratch_bytes,
    .ops =
        {
            [MR_OP_EMBED] = run_embed,
            [MR_OP_NORM] = run_norm,
            [MR_OP_LINEAR] = mr_cpu_ref_linear,
            [MR_OP_ROPE_KV] = run_rope_kv,
            [MR_OP_ATTENTION] = mr_cpu_ref_attention,
            [MR_OP_GATED] = run_gated,
            [MR_OP_ACTIVATE] = run_activate,
            [MR_OP_GATHER] = run_gather,
            [MR_OP_SAMPLE] = mr_cpu_op_sample,
        },
};
