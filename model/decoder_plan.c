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

#include "base/checked.h"
#include "model/quant_weights.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define OUTSIDE_LAYERS UINT16_MAX
#define NAME_BYTES     sizeof(((mr_plan_weight *)0)->name)
#define NO_ROLE        MR_ROLE_COUNT

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
    const mr_decoder_source *source;
    const mr_model_config *config;
    mr_plan *plan;
    row_buffers rows[2]; /* by mr_row_space */
    mr_buffer_id qkv;    /* T rows of (H + 2G)·D */
    mr_buffer_id logits; /* R rows of V */
    mr_weight_id embedding;
    uint16_t rope; /* UINT16_MAX: none */
    mr_error *err;
} builder;

/* One matrix of a linear operator: a tensor, or some rows of one that has more in it. */
typedef struct part {
    mr_tensor_role role;
    mr_tensor_role fused; /* has these rows if the family has it; NO_ROLE: none */
    uint32_t fused_first; /* row */
    uint32_t fused_rows;  /* of the whole tensor */
    uint32_t n;
    mr_shard shard;
    uint32_t unit;
    mr_bias_use bias; /* NONE in families that have it fused */
} part;

/* What is done with a weight. */
typedef enum use {
    USE_VECTOR,
    USE_LOOKUP,
    USE_LINEAR,
    USE_HEAD,
} use;

/* A tensor, or rows [first, first + weight.n) of it, as a weight of the plan. */
typedef struct wanted {
    use use;
    char tensor[NAME_BYTES];
    uint64_t rows; /* of the tensor */
    uint64_t first;
    mr_plan_weight weight; /* name, n, k, shard, unit, random mean */
} wanted;

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

/* ---- names ---- */

/* The name of a role's tensor: "blk.3.attn_q" and "weight" give "blk.3.attn_q.weight". */
static void name_tensor(const builder *b, mr_tensor_role role, uint32_t layer, const char *suffix,
                        char out[NAME_BYTES])
{
    const char *module = b->source->names->module[role];
    const char *mark = strstr(module, "%u");
    if (mark == NULL) {
        snprintf(out, NAME_BYTES, "%s.%s", module, suffix);
    } else {
        snprintf(out, NAME_BYTES, "%.*s%u%s.%s", (int)(mark - module), module, layer, mark + 2,
                 suffix);
    }
}

/* "model.layers.0.mlp.up_proj" of that with ".weight". */
static void name_module(const char *tensor, char out[NAME_BYTES])
{
    const size_t bytes = strlen(tensor) - strlen(".weight");
    memcpy(out, tensor, bytes);
    out[bytes] = '\0';
}

/* ---- buffers ---- */

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
    if (c->ungated) {
        MR_TRY(add_buffer(b, "up", rows, c->ffn_width, &r->up));
    } else {
        MR_TRY(add_buffer(b, "gate_up", rows, 2 * c->ffn_width, &r->up));
    }
    return add_buffer(b, "act", rows, c->ffn_width, &r->act);
}

/* Scales of an F8_E4M3 cache, of checkpoints that have them. */
static mr_status add_kv_scales(const builder *b)
{
    const mr_tensor_table *tensors = b->source->tensors;
    const uint32_t layers = b->config->layers;
    const mr_tensor_role roles[2] = {MR_ROLE_K, MR_ROLE_V};
    if (tensors == NULL || mr_quant_kv_layers(tensors) == 0 ||
        b->source->names->module[MR_ROLE_K] == NULL) {
        return MR_OK;
    }
    for (uint32_t which = 0; which < 2; which++) {
        float *scales = mr_calloc(layers, sizeof(*scales));
        if (scales == NULL) {
            return check_append(b, MR_RESOURCE_EXHAUSTED);
        }
        *(which == 0 ? &b->plan->kv.key_scales : &b->plan->kv.value_scales) = scales;
        for (uint32_t layer = 0; layer < layers; layer++) {
            char tensor[NAME_BYTES];
            char module[NAME_BYTES];
            name_tensor(b, roles[which], layer, "weight", tensor);
            name_module(tensor, module);
            if (!mr_quant_kv_scale(tensors, module, which == 0, &scales[layer])) {
                scales[layer] = 1.0f;
            }
        }
    }
    return MR_OK;
}

static mr_status add_tables(builder *b)
{
    const mr_model_config *c = b->config;
    b->plan->vocab_size = c->vocab_size;
    MR_TRY(check_append(b, mr_plan_set_kv(b->plan, c->layers, c->kv_heads, c->head_width)));
    MR_TRY(add_kv_scales(b));
    b->rope = UINT16_MAX;
    if (c->learned_positions == 0) {
        MR_TRY(check_append(b, mr_plan_add_rope(b->plan, &c->rope, &b->rope)));
    }
    MR_TRY(add_row_buffers(b, MR_ROWS_TOKENS));
    MR_TRY(add_row_buffers(b, MR_ROWS_LOGITS));
    const uint32_t qkv = (c->heads + 2 * c->kv_heads) * c->head_width;
    MR_TRY(add_buffer(b, "qkv", MR_ROWS_TOKENS, qkv, &b->qkv));
    return check_append(
        b, mr_plan_add_buffer(b->plan, "logits", MR_ROWS_LOGITS, c->vocab_size, &b->logits));
}

/* ---- weights ---- */

static bool has_tensor(const builder *b, const char *name)
{
    return b->source->tensors != NULL && mr_tensor_table_find(b->source->tensors, name) != NULL;
}

/* A weight that the backend makes of nothing. */
static void make_random(const builder *b, mr_plan_weight *weight)
{
    uint64_t bytes = 0;
    weight->dtype = b->source->random_dtype;
    MR_CHECK(mr_dtype_row_bytes(weight->dtype, weight->k, &bytes));
    weight->bytes = bytes * weight->n;
    weight->random = true;
    weight->random_seed = b->source->random_seed;
    weight->random_stream = b->plan->n_weights;
}

/* The weight's codes, if it has some. */
static mr_status find_codes(const builder *b, const wanted *w, mr_weight_codes *codes, bool *found)
{
    char name[NAME_BYTES];
    *found = false;
    if (w->use == USE_VECTOR) {
        return MR_OK;
    }
    name_module(w->tensor, name);
    const mr_quant_module module = {.name = name,
                                    .rows = (uint32_t)w->rows,
                                    .k = w->weight.k,
                                    .first = (uint32_t)w->first,
                                    .n = w->weight.n,
                                    .linear = w->use != USE_LOOKUP,
                                    .head = w->use == USE_HEAD,
                                    .scale_type = b->source->random_dtype};
    return mr_quant_find(b->source->quant, b->source->tensors, &module, codes, found, b->err);
}

static mr_status add_weight(const builder *b, wanted *w, mr_weight_id *id)
{
    const mr_tensor_table *tensors = b->source->tensors;
    mr_plan_weight *weight = &w->weight;
    mr_weight_codes codes;
    bool found;
    MR_TRY(find_codes(b, w, &codes, &found));
    if (tensors == NULL) {
        make_random(b, weight);
    }
    if (found) {
        return check_append(b, mr_plan_add_codes(b->plan, weight, &codes, id));
    }
    if (tensors == NULL) {
        return check_append(b, mr_plan_add_weight(b->plan, weight, id));
    }
    const mr_model_tensor *tensor = NULL;
    uint64_t row_bytes;
    MR_TRY(mr_tensor_table_require(tensors, w->tensor, w->rows, weight->k, &tensor, b->err));
    if ((unsigned)tensor->dtype >= MR_DTYPE_COUNT ||
        !mr_dtype_row_bytes(tensor->dtype, weight->k, &row_bytes)) {
        return mr_fail(
            b->err, MR_UNIMPLEMENTED,
            "tensor '%s' is of type %s, which is none of weights: they are " MR_DTYPE_NAMES,
            w->tensor, mr_dtype_info_get(tensor->dtype)->name);
    }
    mr_tensor_table_mark_used(tensors, tensor);
    weight->dtype = tensor->dtype;
    weight->data = (const uint8_t *)tensor->data + w->first * row_bytes;
    weight->bytes = weight->n * row_bytes;
    return check_append(b, mr_plan_add_weight(b->plan, weight, id));
}

/* A whole tensor [n][k]. */
static mr_status add_whole(const builder *b, wanted *w, mr_weight_id *id)
{
    w->rows = w->weight.n;
    w->first = 0;
    memcpy(w->weight.name, w->tensor, NAME_BYTES);
    return add_weight(b, w, id);
}

/* A vector that every rank has all of. */
static mr_status add_vector(const builder *b, mr_tensor_role role, uint32_t layer,
                            const char *suffix, uint32_t k, mr_weight_id *id)
{
    const float mean = strcmp(suffix, "weight") == 0 ? 1.0f : 0.0f;
    wanted w = {.weight = {.n = 1, .k = k, .shard_unit = 1, .random_mean = mean}};
    name_tensor(b, role, layer, suffix, w.tensor);
    return add_whole(b, &w, id);
}

/* A bias of a layer, if the model has it. Ranks divide it as they divide the outputs; where the
 * inputs are divided every rank has all of it. */
static mr_status add_bias(const builder *b, uint32_t layer, const part *p, mr_weight_id *id)
{
    wanted w = {.weight = {.n = 1, .k = p->n, .shard_unit = 1}};
    *id = MR_NO_WEIGHT;
    if (p->bias == MR_BIAS_NONE) {
        return MR_OK;
    }
    name_tensor(b, p->role, layer, "bias", w.tensor);
    if (p->shard == MR_SHARD_OUTPUTS) {
        w.weight.shard = MR_SHARD_INPUTS; /* a vector's elements lie along k */
        w.weight.shard_unit = p->unit;
    }
    if (p->bias == MR_BIAS_IF_PRESENT && !has_tensor(b, w.tensor)) {
        return MR_OK;
    }
    return add_whole(b, &w, id);
}

static mr_status add_matrix(const builder *b, uint32_t layer, uint32_t k, const part *p,
                            mr_weight_id *id)
{
    wanted w = {.use = USE_LINEAR,
                .weight = {.n = p->n, .k = k, .shard = p->shard, .shard_unit = p->unit}};
    const bool fused = p->fused != NO_ROLE && b->source->names->module[p->fused] != NULL;
    name_tensor(b, fused ? p->fused : p->role, layer, "weight", w.tensor);
    if (!fused) {
        return add_whole(b, &w, id);
    }
    w.rows = p->fused_rows;
    w.first = p->fused_first;
    snprintf(w.weight.name, NAME_BYTES, "%.70s:%u", w.tensor, p->fused_first);
    return add_weight(b, &w, id);
}

/* ---- operators ---- */

static mr_status add_linear(const builder *b, uint32_t layer, mr_buffer_id in, mr_buffer_id out,
                            const part *parts, uint32_t count)
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
        MR_TRY(add_matrix(b, layer, k, &parts[i], &op.linear.weight[i]));
        MR_TRY(add_bias(b, layer, &parts[i], &op.linear.bias[i]));
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
    MR_TRY(add_vector(b, role, layer, "weight", b->config->width, &op.norm.gain));
    if (b->config->norm == MR_NORM_LAYER) {
        MR_TRY(add_vector(b, role, layer, "bias", b->config->width, &op.norm.bias));
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
    wanted table = {.use = USE_LOOKUP,
                    .weight = {.n = c->vocab_size, .k = c->width, .shard_unit = 1}};
    name_tensor(b, MR_ROLE_EMBEDDING, 0, "weight", table.tensor);
    MR_TRY(add_whole(b, &table, &b->embedding));
    op.embed.table = b->embedding;
    if (c->learned_positions > 0) {
        wanted positions = {.weight = {.n = c->learned_positions, .k = c->width, .shard_unit = 1}};
        name_tensor(b, MR_ROLE_POSITIONS, 0, "weight", positions.tensor);
        op.embed.learned_positions = true;
        op.embed.offset = c->position_offset;
        MR_TRY(add_whole(b, &positions, &op.embed.positions));
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
        MR_TRY(add_vector(b, MR_ROLE_Q_NORM, layer, "weight", c->head_width, &op.rope_kv.q_gain));
        MR_TRY(add_vector(b, MR_ROLE_K_NORM, layer, "weight", c->head_width, &op.rope_kv.k_gain));
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
    const part all = {.fused = MR_ROLE_QKV,
                      .fused_rows = q + 2 * kv,
                      .shard = MR_SHARD_OUTPUTS,
                      .unit = c->head_width,
                      .bias = c->qkv_bias};
    part parts[] = {all, all, all};
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

/* The multiple of `unit` that is also whole blocks of the tensor's type, or whole groups of a
 * module with codes for its k inputs; `unit` if it is missing, which add_weight then reports. */
static uint32_t whole_blocks(const builder *b, uint32_t layer, mr_tensor_role role, uint32_t unit,
                             uint32_t k)
{
    char name[NAME_BYTES];
    char module[NAME_BYTES];
    name_tensor(b, role, layer, "weight", name);
    name_module(name, module);
    uint32_t block = mr_quant_unit(b->source->quant, b->source->tensors, module, k);
    if (has_tensor(b, name)) {
        const mr_dtype dtype = mr_tensor_table_find(b->source->tensors, name)->dtype;
        const uint32_t stored = mr_dtype_info_get(dtype)->block_elements;
        block = block > stored ? block : stored;
    }
    uint32_t multiple = block;
    while (multiple % unit != 0 && multiple < unit * block) {
        multiple += block;
    }
    return multiple;
}

/* gate, up → activation, or up → activation. `unit`: ranks take the same stretches of their
 * outputs as of down's inputs. */
static mr_status add_ffn_inner(const builder *b, const row_buffers *r, uint32_t layer,
                               uint32_t unit)
{
    const mr_model_config *c = b->config;
    const part all = {.n = c->ffn_width,
                      .fused = MR_ROLE_GATE_UP,
                      .fused_rows = 2 * c->ffn_width,
                      .shard = MR_SHARD_OUTPUTS,
                      .unit = unit,
                      .bias = c->ffn_bias};
    part parts[] = {all, all};
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
    const uint32_t ffn_unit = whole_blocks(b, layer, MR_ROLE_DOWN, 1, c->ffn_width);
    const part o = {.role = MR_ROLE_O,
                    .fused = NO_ROLE,
                    .n = c->width,
                    .shard = MR_SHARD_INPUTS,
                    .unit =
                        whole_blocks(b, layer, MR_ROLE_O, c->head_width, c->heads * c->head_width),
                    .bias = c->o_bias};
    const part down = {.role = MR_ROLE_DOWN,
                       .fused = NO_ROLE,
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
        wanted w = {
            .use = USE_HEAD,
            .weight = {
                .n = c->vocab_size, .k = c->width, .shard = MR_SHARD_OUTPUTS, .shard_unit = 1}};
        name_tensor(b, MR_ROLE_HEAD, 0, "weight", w.tensor);
        MR_TRY(add_whole(b, &w, &projection));
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
    builder b = {.source = source, .config = source->config, .err = err};
    MR_TRY(check_append(&b, mr_plan_create(&b.plan)));
    const mr_status status = build(&b);
    if (status != MR_OK) {
        mr_plan_destroy(b.plan);
        return status;
    }
    *out = b.plan;
    return MR_OK;
}
