/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Only rows that ask for logits go through the last layer's output projection and feed-forward
 * network: behind its attention the stream and the attention output are gathered, and the rest of
 * the plan works on R rows.
 *
 *   T rows   embed ─► { norm qkv rope_kv attention o · norm gate_up gated down } × (layers − 1)
 *            norm qkv rope_kv attention ─┐ gather
 *   R rows                               └─► o · norm gate_up gated down · norm logits sample
 */
#include "model/decoder_plan.h"

#include "model/decoder_weights.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define OUTSIDE_LAYERS UINT16_MAX

/* The buffers that exist in both row spaces. */
typedef struct row_buffers {
    mr_buffer_id stream; /* width */
    mr_buffer_id h;      /* width: what a norm gives */
    mr_buffer_id att;    /* H·D */
    mr_buffer_id proj;   /* width: what a block adds to the stream */
    mr_buffer_id up;     /* 2F: gate and up; F without a gate */
    mr_buffer_id act;    /* F */
} row_buffers;

typedef struct builder {
    mr_decoder_weights weights; /* of the same plan */
    const mr_model_config *config;
    mr_plan *plan;
    row_buffers rows[2]; /* by mr_row_space */
    mr_buffer_id qkv;    /* T rows of (H + 2G)·D */
    mr_buffer_id logits; /* R rows of V */
    mr_weight_id embedding;
    uint16_t rope; /* UINT16_MAX: none */
} builder;

static mr_status add_op(const builder *b, const mr_op *op)
{
    return mr_decoder_appended(&b->weights, mr_plan_add_op(b->plan, op));
}

/* ---- buffers ---- */

static mr_status add_buffer(const builder *b, const char *name, mr_row_space rows, uint32_t width,
                            mr_buffer_id *id)
{
    char full[32];
    snprintf(full, sizeof(full), "%s%s", name, rows == MR_ROWS_TOKENS ? "" : ".rows");
    return mr_decoder_appended(&b->weights, mr_plan_add_buffer(b->plan, full, rows, width, id));
}

static mr_status add_row_buffers(builder *b, mr_row_space rows)
{
    const mr_model_config *c = b->config;
    row_buffers *r = &b->rows[rows];
    MR_TRY(add_buffer(b, "stream", rows, c->width, &r->stream));
    MR_TRY(add_buffer(b, "h", rows, c->width, &r->h));
    MR_TRY(add_buffer(b, "att", rows, c->heads * c->head_width, &r->att));
    MR_TRY(add_buffer(b, "proj", rows, c->width, &r->proj));
    if (c->ungated) {
        MR_TRY(add_buffer(b, "up", rows, c->ffn_width, &r->up));
    } else {
        MR_TRY(add_buffer(b, "gate_up", rows, 2 * c->ffn_width, &r->up));
    }
    return add_buffer(b, "act", rows, c->ffn_width, &r->act);
}

static mr_status add_tables(builder *b)
{
    const mr_model_config *c = b->config;
    b->plan->vocab_size = c->vocab_size;
    MR_TRY(mr_decoder_appended(&b->weights,
                               mr_plan_set_kv(b->plan, c->layers, c->kv_heads, c->head_width)));
    MR_TRY(mr_decoder_add_kv_scales(&b->weights));
    b->rope = UINT16_MAX;
    if (c->learned_positions == 0) {
        MR_TRY(mr_decoder_appended(&b->weights, mr_plan_add_rope(b->plan, &c->rope, &b->rope)));
    }
    MR_TRY(add_row_buffers(b, MR_ROWS_TOKENS));
    MR_TRY(add_row_buffers(b, MR_ROWS_LOGITS));
    const uint32_t qkv = (c->heads + 2 * c->kv_heads) * c->head_width;
    MR_TRY(add_buffer(b, "qkv", MR_ROWS_TOKENS, qkv, &b->qkv));
    return mr_decoder_appended(&b->weights, mr_plan_add_buffer(b->plan, "logits", MR_ROWS_LOGITS,
                                                               c->vocab_size, &b->logits));
}

/* ---- operators ---- */

static mr_status add_linear(const builder *b, uint32_t layer, mr_buffer_id in, mr_buffer_id out,
                            const mr_decoder_part *parts, uint32_t count)
{
    mr_op op = {.kind = MR_OP_LINEAR,
                .layer = (uint16_t)layer,
                .linear = {.in = in, .out = out, .parts = count}};
    const uint32_t k = b->plan->buffers[in].width;
    for (uint32_t i = 0; i < MR_LINEAR_PARTS; i++) {
        op.linear.weight[i] = MR_NO_WEIGHT;
        op.linear.bias[i] = MR_NO_WEIGHT;
    }
    for (uint32_t i = 0; i < count; i++) {
        MR_TRY(mr_decoder_add_matrix(&b->weights, layer, k, &parts[i], &op.linear.weight[i]));
        MR_TRY(mr_decoder_add_bias(&b->weights, layer, &parts[i], &op.linear.bias[i]));
    }
    return add_op(b, &op);
}

static mr_status add_norm(const builder *b, mr_tensor_role role, uint32_t layer,
                          const row_buffers *r, bool residual)
{
    const bool outside = role == MR_ROLE_FINAL_NORM;
    mr_op op = {.kind = MR_OP_NORM,
                .layer = outside ? OUTSIDE_LAYERS : (uint16_t)layer,
                .norm = {.kind = b->config->norm,
                         .stream = r->stream,
                         .in = residual ? r->proj : MR_NO_BUFFER,
                         .out = r->h,
                         .bias = MR_NO_WEIGHT,
                         .epsilon = b->config->norm_epsilon}};
    MR_TRY(
        mr_decoder_add_vector(&b->weights, role, layer, "weight", b->config->width, &op.norm.gain));
    if (b->config->norm == MR_NORM_LAYER) {
        MR_TRY(mr_decoder_add_vector(&b->weights, role, layer, "bias", b->config->width,
                                     &op.norm.bias));
    }
    return add_op(b, &op);
}

static mr_status add_unary(const builder *b, mr_op_kind kind, mr_buffer_id in, mr_buffer_id out,
                           uint16_t layer)
{
    return add_op(b, &(mr_op){.kind = kind, .layer = layer, .unary = {.in = in, .out = out}});
}

static mr_status add_embedding(builder *b)
{
    const mr_model_config *c = b->config;
    mr_op op = {.kind = MR_OP_EMBED,
                .layer = OUTSIDE_LAYERS,
                .embed = {.out = b->rows[MR_ROWS_TOKENS].stream, .scale = 1.0f}};
    const mr_plan_weight table = {.n = c->vocab_size, .k = c->width, .shard_unit = 1};
    MR_TRY(mr_decoder_add_tensor(&b->weights, MR_ROLE_EMBEDDING, MR_DECODER_LOOKUP, &table,
                                 &b->embedding));
    op.embed.table = b->embedding;
    if (c->learned_positions > 0) {
        const mr_plan_weight positions = {
            .n = c->learned_positions, .k = c->width, .shard_unit = 1};
        op.embed.learned_positions = true;
        op.embed.offset = c->position_offset;
        MR_TRY(mr_decoder_add_tensor(&b->weights, MR_ROLE_POSITIONS, MR_DECODER_VECTOR, &positions,
                                     &op.embed.positions));
    }
    return add_op(b, &op);
}

static mr_status add_rope_kv(const builder *b, uint32_t layer)
{
    const mr_model_config *c = b->config;
    mr_op op = {.kind = MR_OP_ROPE_KV,
                .layer = (uint16_t)layer,
                .rope_kv = {.qkv = b->qkv, .layer = layer, .heads = c->heads, .rope = b->rope}};
    if (c->qk_norm) {
        op.rope_kv.head_norms = true;
        op.rope_kv.epsilon = c->norm_epsilon;
        MR_TRY(mr_decoder_add_vector(&b->weights, MR_ROLE_Q_NORM, layer, "weight", c->head_width,
                                     &op.rope_kv.q_gain));
        MR_TRY(mr_decoder_add_vector(&b->weights, MR_ROLE_K_NORM, layer, "weight", c->head_width,
                                     &op.rope_kv.k_gain));
    }
    return add_op(b, &op);
}

/* norm → q, k, v → rotation and KV write → attention, on all T rows. */
static mr_status add_attention(const builder *b, uint32_t layer)
{
    const mr_model_config *c = b->config;
    const row_buffers *r = &b->rows[MR_ROWS_TOKENS];
    const uint32_t q = c->heads * c->head_width;
    const uint32_t kv = c->kv_heads * c->head_width;
    const mr_decoder_part all = {.fused = MR_ROLE_QKV,
                                 .fused_rows = q + 2 * kv,
                                 .shard = MR_SHARD_OUTPUTS,
                                 .unit = c->head_width,
                                 .bias = c->qkv_bias};
    mr_decoder_part parts[] = {all, all, all};
    parts[0].role = MR_ROLE_Q;
    parts[0].n = q;
    parts[1].role = MR_ROLE_K;
    parts[1].n = kv;
    parts[1].fused_first = q;
    parts[2].role = MR_ROLE_V;
    parts[2].n = kv;
    parts[2].fused_first = q + kv;
    MR_TRY(add_norm(b, MR_ROLE_ATTENTION_NORM, layer, r, layer > 0));
    MR_TRY(add_linear(b, layer, r->h, b->qkv, parts, 3));
    MR_TRY(add_rope_kv(b, layer));
    const bool windowed = (c->windowed[layer / 64] >> layer % 64 & 1u) != 0;
    return add_op(b, &(mr_op){.kind = MR_OP_ATTENTION,
                              .layer = (uint16_t)layer,
                              .attention = {.qkv = b->qkv,
                                            .out = r->att,
                                            .layer = layer,
                                            .heads = c->heads,
                                            .scale = 1.0f / sqrtf((float)c->head_width),
                                            .window = windowed ? c->window : 0}});
}

static mr_status add_gather(const builder *b, uint32_t layer)
{
    const row_buffers *from = &b->rows[MR_ROWS_TOKENS];
    const row_buffers *to = &b->rows[MR_ROWS_LOGITS];
    MR_TRY(add_unary(b, MR_OP_GATHER, from->stream, to->stream, (uint16_t)layer));
    return add_unary(b, MR_OP_GATHER, from->att, to->att, (uint16_t)layer);
}

/* gate, up → activation, or up → activation. `unit`: ranks take the same stretches of their
 * outputs as of down's inputs. */
static mr_status add_ffn_inner(const builder *b, const row_buffers *r, uint32_t layer,
                               uint32_t unit)
{
    const mr_model_config *c = b->config;
    const mr_decoder_part all = {.n = c->ffn_width,
                                 .fused = MR_ROLE_GATE_UP,
                                 .fused_rows = 2 * c->ffn_width,
                                 .shard = MR_SHARD_OUTPUTS,
                                 .unit = unit,
                                 .bias = c->ffn_bias};
    mr_decoder_part parts[] = {all, all};
    parts[0].role = c->ungated ? MR_ROLE_UP : MR_ROLE_GATE;
    parts[1].role = MR_ROLE_UP;
    parts[1].fused_first = c->ffn_width;
    if (c->ungated) {
        MR_TRY(add_linear(b, layer, r->h, r->up, parts, 1));
        return add_op(
            b, &(mr_op){.kind = MR_OP_ACTIVATE,
                        .layer = (uint16_t)layer,
                        .activate = {.in = r->up, .out = r->act, .activation = c->activation}});
    }
    MR_TRY(add_linear(b, layer, r->h, r->up, parts, 2));
    return add_op(b, &(mr_op){.kind = MR_OP_GATED,
                              .layer = (uint16_t)layer,
                              .gated = {.in = r->up, .out = r->act, .activation = c->activation}});
}

/* o → all-reduce → norm → gate, up → activation → down → all-reduce, on the rows of `r`. */
static mr_status add_output_and_ffn(const builder *b, const row_buffers *r, uint32_t layer)
{
    const mr_model_config *c = b->config;
    const uint16_t tag = (uint16_t)layer;
    const uint32_t ffn_unit = mr_decoder_unit(&b->weights, layer, MR_ROLE_DOWN, 1, c->ffn_width);
    const mr_decoder_part o = {.role = MR_ROLE_O,
                               .fused = MR_DECODER_NO_ROLE,
                               .n = c->width,
                               .shard = MR_SHARD_INPUTS,
                               .unit = mr_decoder_unit(&b->weights, layer, MR_ROLE_O, c->head_width,
                                                       c->heads * c->head_width),
                               .bias = c->o_bias};
    const mr_decoder_part down = {.role = MR_ROLE_DOWN,
                                  .fused = MR_DECODER_NO_ROLE,
                                  .n = c->width,
                                  .shard = MR_SHARD_INPUTS,
                                  .unit = ffn_unit,
                                  .bias = c->ffn_bias};
    MR_TRY(add_linear(b, layer, r->att, r->proj, &o, 1));
    MR_TRY(add_unary(b, MR_OP_ALL_REDUCE, r->proj, r->proj, tag));
    MR_TRY(add_norm(b, MR_ROLE_FFN_NORM, layer, r, true));
    MR_TRY(add_ffn_inner(b, r, layer, ffn_unit));
    MR_TRY(add_linear(b, layer, r->act, r->proj, &down, 1));
    return add_unary(b, MR_OP_ALL_REDUCE, r->proj, r->proj, tag);
}

/* A tied projection stays whole on every rank, because embedding rows are looked up in it. */
static mr_status add_head(const builder *b)
{
    const mr_model_config *c = b->config;
    const row_buffers *r = &b->rows[MR_ROWS_LOGITS];
    MR_TRY(add_norm(b, MR_ROLE_FINAL_NORM, 0, r, true));
    mr_weight_id projection = b->embedding;
    if (!c->tied) {
        const mr_plan_weight head = {
            .n = c->vocab_size, .k = c->width, .shard = MR_SHARD_OUTPUTS, .shard_unit = 1};
        MR_TRY(
            mr_decoder_add_tensor(&b->weights, MR_ROLE_HEAD, MR_DECODER_HEAD, &head, &projection));
    }
    MR_TRY(add_op(b, &(mr_op){.kind = MR_OP_LINEAR,
                              .layer = OUTSIDE_LAYERS,
                              .linear = {.in = r->h,
                                         .out = b->logits,
                                         .parts = 1,
                                         .weight = {projection, MR_NO_WEIGHT, MR_NO_WEIGHT},
                                         .bias = {MR_NO_WEIGHT, MR_NO_WEIGHT, MR_NO_WEIGHT},
                                         .logits = true}}));
    return add_unary(b, MR_OP_SAMPLE, b->logits, MR_NO_BUFFER, OUTSIDE_LAYERS);
}

static mr_status build(builder *b)
{
    MR_TRY(add_tables(b));
    MR_TRY(add_embedding(b));
    const uint32_t last = b->config->layers - 1;
    for (uint32_t layer = 0; layer <= last; layer++) {
        MR_TRY(add_attention(b, layer));
        mr_row_space rows = MR_ROWS_TOKENS;
        if (layer == last) {
            MR_TRY(add_gather(b, layer));
            rows = MR_ROWS_LOGITS;
        }
        MR_TRY(add_output_and_ffn(b, &b->rows[rows], layer));
    }
    return add_head(b);
}

mr_status mr_decoder_plan(const mr_decoder_source *source, mr_plan **out, mr_error *err)
{
    *out = NULL;
    builder b = {.weights = {.source = source, .err = err}, .config = source->config};
    MR_TRY(mr_decoder_appended(&b.weights, mr_plan_create(&b.plan)));
    b.weights.plan = b.plan;
    const mr_status status = build(&b);
    if (status != MR_OK) {
        mr_plan_destroy(b.plan);
        return status;
    }
    *out = b.plan;
    return MR_OK;
}
