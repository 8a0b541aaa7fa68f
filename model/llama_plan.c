/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The forward plan of a Llama. Only rows that ask for logits go through the last layer's output
 * projection and feed-forward network: behind its attention the stream and the attention output
 * are gathered, and the rest of the plan works on R rows.
 *
 *   T rows   embed ─► { norm qkv rope_kv attention o · norm gate_up gated down } × (layers − 1)
 *            norm qkv rope_kv attention ─┐ gather
 *   R rows                               └─► o · norm gate_up gated down · norm logits sample
 */
#include "model/llama.h"

#include "base/checked.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define OUTSIDE_LAYERS UINT16_MAX
#define NAME_BYTES     sizeof(((mr_plan_weight *)0)->name)

/* The buffers that exist in both row spaces. */
typedef struct row_buffers {
    mr_buffer_id stream;  /* width */
    mr_buffer_id h;       /* width: what a norm gives */
    mr_buffer_id att;     /* H·D */
    mr_buffer_id proj;    /* width: what a block adds to the stream */
    mr_buffer_id gate_up; /* 2F */
    mr_buffer_id act;     /* F */
} row_buffers;

typedef struct builder {
    const mr_model_config *config;
    const mr_tensor_table *tensors;
    mr_plan *plan;
    row_buffers rows[2]; /* by mr_row_space */
    mr_buffer_id qkv;    /* T rows of (H + 2G)·D */
    mr_buffer_id logits; /* R rows of V */
    mr_weight_id embedding;
    uint16_t rope;
    mr_error *err;
} builder;

/* One matrix of a linear operator, with the bias it may have. */
typedef struct part {
    const char *name; /* "attn_q" */
    uint32_t n;
    mr_shard shard;
    uint32_t unit;
} part;

static mr_status check_append(const builder *b, mr_status status)
{
    if (status != MR_OK) {
        return mr_fail(b->err, status, "the forward plan has too many entries or memory is short");
    }
    return MR_OK;
}

static mr_status add_op(const builder *b, const mr_op *op)
{
    return check_append(b, mr_plan_add_op(b->plan, op));
}

static mr_status add_buffer(const builder *b, const char *name, mr_row_space rows, uint32_t width,
                            mr_buffer_id *id)
{
    char full[32];
    snprintf(full, sizeof(full), "%s%s", name, rows == MR_ROWS_TOKENS ? "" : ".rows");
    return check_append(b, mr_plan_add_buffer(b->plan, full, rows, width, id));
}

static mr_status add_row_buffers(builder *b, mr_row_space rows)
{
    const mr_model_config *c = b->config;
    row_buffers *r = &b->rows[rows];
    MR_TRY(add_buffer(b, "stream", rows, c->width, &r->stream));
    MR_TRY(add_buffer(b, "h", rows, c->width, &r->h));
    MR_TRY(add_buffer(b, "att", rows, c->heads * c->head_width, &r->att));
    MR_TRY(add_buffer(b, "proj", rows, c->width, &r->proj));
    MR_TRY(add_buffer(b, "gate_up", rows, 2 * c->ffn_width, &r->gate_up));
    return add_buffer(b, "act", rows, c->ffn_width, &r->act);
}

static mr_status add_tables(builder *b)
{
    const mr_model_config *c = b->config;
    b->plan->vocab_size = c->vocab_size;
    MR_TRY(check_append(b, mr_plan_set_kv(b->plan, c->layers, c->kv_heads, c->head_width)));
    MR_TRY(check_append(b, mr_plan_add_rope(b->plan, &c->rope, &b->rope)));
    MR_TRY(add_row_buffers(b, MR_ROWS_TOKENS));
    MR_TRY(add_row_buffers(b, MR_ROWS_LOGITS));
    const uint32_t qkv = (c->heads + 2 * c->kv_heads) * c->head_width;
    MR_TRY(add_buffer(b, "qkv", MR_ROWS_TOKENS, qkv, &b->qkv));
    return check_append(
        b, mr_plan_add_buffer(b->plan, "logits", MR_ROWS_LOGITS, c->vocab_size, &b->logits));
}

/* Adds the tensor `weight` names, of the shape it has; the rest comes from the tensor. */
static mr_status add_weight(const builder *b, mr_plan_weight *weight, mr_weight_id *id)
{
    const mr_model_tensor *tensor = NULL;
    MR_TRY(
        mr_tensor_table_require(b->tensors, weight->name, weight->n, weight->k, &tensor, b->err));
    weight->dtype = tensor->dtype;
    weight->data = tensor->data;
    weight->bytes = tensor->bytes;
    return check_append(b, mr_plan_add_weight(b->plan, weight, id));
}

static mr_status add_gain(const builder *b, const char *name, mr_weight_id *id)
{
    mr_plan_weight weight = {.n = 1, .k = b->config->width, .shard_unit = 1};
    snprintf(weight.name, NAME_BYTES, "%s", name);
    return add_weight(b, &weight, id);
}

/* A bias of a layer, if the model has it. Ranks divide it as they divide the outputs; where the
 * inputs are divided every rank has all of it. */
static mr_status add_bias(const builder *b, uint32_t layer, const part *p, mr_weight_id *id)
{
    mr_plan_weight weight = {.n = 1, .k = p->n, .shard_unit = 1};
    snprintf(weight.name, NAME_BYTES, "blk.%u.%s.bias", layer, p->name);
    if (p->shard == MR_SHARD_OUTPUTS) {
        weight.shard = MR_SHARD_INPUTS; /* a vector's elements lie along k */
        weight.shard_unit = p->unit;
    }
    *id = MR_NO_WEIGHT;
    if (mr_tensor_table_find(b->tensors, weight.name) == NULL) {
        return MR_OK;
    }
    return add_weight(b, &weight, id);
}

static mr_status add_linear(const builder *b, uint32_t layer, mr_buffer_id in, mr_buffer_id out,
                            const part *parts, uint32_t count)
{
    mr_op op = {.kind = MR_OP_LINEAR,
                .layer = (uint16_t)layer,
                .linear = {.in = in, .out = out, .parts = count}};
    for (uint32_t i = 0; i < MR_LINEAR_PARTS; i++) {
        op.linear.weight[i] = MR_NO_WEIGHT;
        op.linear.bias[i] = MR_NO_WEIGHT;
    }
    for (uint32_t i = 0; i < count; i++) {
        mr_plan_weight weight = {.n = parts[i].n,
                                 .k = b->plan->buffers[in].width,
                                 .shard = parts[i].shard,
                                 .shard_unit = parts[i].unit};
        snprintf(weight.name, NAME_BYTES, "blk.%u.%s.weight", layer, parts[i].name);
        MR_TRY(add_weight(b, &weight, &op.linear.weight[i]));
        MR_TRY(add_bias(b, layer, &parts[i], &op.linear.bias[i]));
    }
    return add_op(b, &op);
}

static mr_status add_norm(const builder *b, const char *name, const row_buffers *r, bool residual,
                          uint16_t layer)
{
    mr_op op = {.kind = MR_OP_NORM,
                .layer = layer,
                .norm = {.kind = MR_NORM_RMS,
                         .stream = r->stream,
                         .in = residual ? r->proj : MR_NO_BUFFER,
                         .out = r->h,
                         .bias = MR_NO_WEIGHT,
                         .epsilon = b->config->norm_epsilon}};
    MR_TRY(add_gain(b, name, &op.norm.gain));
    return add_op(b, &op);
}

static mr_status add_unary(const builder *b, mr_op_kind kind, mr_buffer_id in, mr_buffer_id out,
                           uint16_t layer)
{
    return add_op(b, &(mr_op){.kind = kind, .layer = layer, .unary = {.in = in, .out = out}});
}

static mr_status add_embedding(builder *b)
{
    mr_plan_weight weight = {
        .name = "token_embd.weight", .n = b->config->vocab_size, .k = b->config->width};
    weight.shard_unit = 1;
    MR_TRY(add_weight(b, &weight, &b->embedding));
    return add_op(b, &(mr_op){.kind = MR_OP_EMBED,
                              .layer = OUTSIDE_LAYERS,
                              .embed = {.table = b->embedding,
                                        .out = b->rows[MR_ROWS_TOKENS].stream,
                                        .scale = 1.0f}});
}

/* norm → q, k, v → rotation and KV write → attention, on all T rows. */
static mr_status add_attention(const builder *b, uint32_t layer)
{
    const mr_model_config *c = b->config;
    const row_buffers *r = &b->rows[MR_ROWS_TOKENS];
    const uint16_t tag = (uint16_t)layer;
    const part parts[] = {
        {"attn_q", c->heads * c->head_width, MR_SHARD_OUTPUTS, c->head_width},
        {"attn_k", c->kv_heads * c->head_width, MR_SHARD_OUTPUTS, c->head_width},
        {"attn_v", c->kv_heads * c->head_width, MR_SHARD_OUTPUTS, c->head_width},
    };
    char name[NAME_BYTES];
    snprintf(name, sizeof(name), "blk.%u.attn_norm.weight", layer);
    MR_TRY(add_norm(b, name, r, layer > 0, tag));
    MR_TRY(add_linear(b, layer, r->h, b->qkv, parts, 3));
    MR_TRY(add_op(
        b,
        &(mr_op){.kind = MR_OP_ROPE_KV,
                 .layer = tag,
                 .rope_kv = {.qkv = b->qkv, .layer = layer, .heads = c->heads, .rope = b->rope}}));
    return add_op(b, &(mr_op){.kind = MR_OP_ATTENTION,
                              .layer = tag,
                              .attention = {.qkv = b->qkv,
                                            .out = r->att,
                                            .layer = layer,
                                            .heads = c->heads,
                                            .scale = 1.0f / sqrtf((float)c->head_width)}});
}

static mr_status add_gather(const builder *b, uint32_t layer)
{
    const row_buffers *from = &b->rows[MR_ROWS_TOKENS];
    const row_buffers *to = &b->rows[MR_ROWS_LOGITS];
    MR_TRY(add_unary(b, MR_OP_GATHER, from->stream, to->stream, (uint16_t)layer));
    return add_unary(b, MR_OP_GATHER, from->att, to->att, (uint16_t)layer);
}

/* The multiple of `unit` that is also whole blocks of the tensor's type; `unit` if it is missing,
 * which add_weight then reports. */
static uint32_t whole_blocks(const builder *b, uint32_t layer, const char *name, uint32_t unit)
{
    char full[NAME_BYTES];
    snprintf(full, sizeof(full), "blk.%u.%s.weight", layer, name);
    const mr_model_tensor *tensor = mr_tensor_table_find(b->tensors, full);
    if (tensor == NULL) {
        return unit;
    }
    const uint32_t block = mr_dtype_info_get(tensor->dtype)->block_elements;
    uint32_t multiple = block;
    while (multiple % unit != 0 && multiple < unit * block) {
        multiple += block;
    }
    return multiple;
}

/* o → all-reduce → norm → gate, up → activation → down → all-reduce, on the rows of `r`. */
static mr_status add_output_and_ffn(const builder *b, const row_buffers *r, uint32_t layer)
{
    const mr_model_config *c = b->config;
    const uint16_t tag = (uint16_t)layer;
    /* Ranks take the same stretches of gate's and up's outputs as of down's inputs. */
    const uint32_t ffn_unit = whole_blocks(b, layer, "ffn_down", 1);
    const part o = {"attn_output", c->width, MR_SHARD_INPUTS,
                    whole_blocks(b, layer, "attn_output", c->head_width)};
    const part gate_up[] = {
        {"ffn_gate", c->ffn_width, MR_SHARD_OUTPUTS, ffn_unit},
        {"ffn_up", c->ffn_width, MR_SHARD_OUTPUTS, ffn_unit},
    };
    const part down = {"ffn_down", c->width, MR_SHARD_INPUTS, ffn_unit};

    MR_TRY(add_linear(b, layer, r->att, r->proj, &o, 1));
    MR_TRY(add_unary(b, MR_OP_ALL_REDUCE, r->proj, r->proj, tag));
    char name[NAME_BYTES];
    snprintf(name, sizeof(name), "blk.%u.ffn_norm.weight", layer);
    MR_TRY(add_norm(b, name, r, true, tag));
    MR_TRY(add_linear(b, layer, r->h, r->gate_up, gate_up, 2));
    MR_TRY(
        add_op(b, &(mr_op){.kind = MR_OP_GATED,
                           .layer = tag,
                           .gated = {.in = r->gate_up, .out = r->act, .activation = MR_ACT_SILU}}));
    MR_TRY(add_linear(b, layer, r->act, r->proj, &down, 1));
    return add_unary(b, MR_OP_ALL_REDUCE, r->proj, r->proj, tag);
}

/* The vocabulary projection is a matrix of its own or the embedding. A tied one stays whole on
 * every rank, because embedding rows are looked up in it. */
static mr_status add_head(const builder *b)
{
    const row_buffers *r = &b->rows[MR_ROWS_LOGITS];
    MR_TRY(add_norm(b, "output_norm.weight", r, true, OUTSIDE_LAYERS));
    mr_weight_id projection = b->embedding;
    if (mr_tensor_table_find(b->tensors, "output.weight") != NULL) {
        mr_plan_weight weight = {
            .name = "output.weight", .n = b->config->vocab_size, .k = b->config->width};
        weight.shard = MR_SHARD_OUTPUTS;
        weight.shard_unit = 1;
        MR_TRY(add_weight(b, &weight, &projection));
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

mr_status mr_llama_plan(const mr_model_config *config, const mr_tensor_table *tensors,
                        mr_plan **out, mr_error *err)
{
    *out = NULL;
    builder b = {.config = config, .tensors = tensors, .err = err};
    MR_TRY(check_append(&b, mr_plan_create(&b.plan)));
    const mr_status status = build(&b);
    if (status != MR_OK) {
        mr_plan_destroy(b.plan);
        return status;
    }
    *out = b.plan;
    return MR_OK;
}
