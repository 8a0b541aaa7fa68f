/* SPDX-License-Identifier: Apache-2.0 */
/* The plan's operators as calls of the table. Everything about a step that a graph keeps is decided
 * here from step->counts; the rest lies in the staging area. */
#include "kernels/cuda/internal.h"

/* Rows of a buffer in this step. */
static uint32_t rows_of(const mr_cuda_exec *exec, const mr_cuda_step *step, mr_buffer_id id)
{
    return exec->plan->buffers[id].rows == MR_ROWS_TOKENS ? step->counts.tokens : step->counts.rows;
}

static uint32_t width_of(const mr_cuda_exec *exec, mr_buffer_id id)
{
    return exec->plan->buffers[id].width;
}

static mr_cuda_ptr buffer_at(const mr_cuda_exec *exec, mr_buffer_id id)
{
    return id == MR_NO_BUFFER ? 0 : exec->buffers[id];
}

static int prepare(mr_cuda_exec *exec, const mr_cuda_step *step)
{
    const mr_cuda_stage *s = &step->stage;
    const mr_cuda_prepare p = {
        .header = exec->stage,
        .block_deltas = exec->stage + s->block_deltas,
        .history_deltas = exec->stage + s->history_deltas,
        .history_tokens = exec->stage + s->history_tokens,
        .block_tables = exec->block_tables,
        .history = exec->history,
        .max_context = exec->options.max_context,
        .tokens = step->counts.tokens,
        .token_src = exec->stage + s->token_src,
        .drawn = exec->results,
        .ids = exec->ids,
    };
    return exec->backend->api->prepare(exec->backend->context, &p);
}

static int embed(mr_cuda_exec *exec, const mr_cuda_step *step, const mr_op_embed *op)
{
    mr_cuda_embed p = {
        .table = mr_cuda_weight_at(exec->weights, op->table),
        .ids = exec->ids,
        .out = exec->buffers[op->out],
        .type = exec->backend->compute,
        .out_type = exec->types[op->out],
        .rows = step->counts.tokens,
        .width = width_of(exec, op->out),
        .scale = op->scale,
    };
    if (op->learned_positions) {
        p.learned = mr_cuda_weight_at(exec->weights, op->positions);
        p.positions = exec->stage + step->stage.positions;
        p.offset = op->offset;
    }
    return exec->backend->api->embed(exec->backend->context, &p);
}

/* Whether a product of so many rows takes them rounded: with few it reads them as they are. */
static bool takes_coded(const mr_cuda_exec *exec, uint32_t index, uint32_t rows)
{
    return exec->coded[index] && rows > MR_CUDA_CODED_ROWS;
}

/* Where the rows of the product at `index` go when they are rounded. */
static mr_cuda_coded_rows coded_rows(const mr_cuda_exec *exec, uint32_t index)
{
    return (mr_cuda_coded_rows){
        .codes = exec->codes,
        .scale = exec->row_scales,
        .fixed = mr_cuda_coded_scale(exec->plan, &exec->plan->ops[index].linear),
    };
}

/* The scales that a product of so many rows leaves to the operator behind it; `index` is of either.
 */
static mr_cuda_raw_scales raw_scales(const mr_cuda_exec *exec, uint32_t index, uint32_t rows)
{
    const uint32_t product = exec->raw[index];
    if (product == MR_CUDA_NO_OP || !takes_coded(exec, product, rows) || rows > MR_CUDA_RAW_ROWS) {
        return (mr_cuda_raw_scales){0};
    }
    const mr_op_linear *op = &exec->plan->ops[product].linear;
    return (mr_cuda_raw_scales){
        .row = exec->row_scales,
        .column = mr_cuda_weight_scales(exec->weights, op->weight[0]),
    };
}

static int norm(mr_cuda_exec *exec, const mr_cuda_step *step, uint32_t index)
{
    const mr_op_norm *op = &exec->plan->ops[index].norm;
    mr_cuda_norm p = {
        .stream = exec->buffers[op->stream],
        .in = buffer_at(exec, op->in),
        .out = exec->buffers[op->out],
        .gain = mr_cuda_weight_at(exec->weights, op->gain),
        .bias = mr_cuda_weight_at(exec->weights, op->bias),
        .type = exec->backend->compute,
        .kind = op->kind,
        .rows = rows_of(exec, step, op->stream),
        .width = width_of(exec, op->stream),
        .epsilon = op->epsilon,
    };
    if (index != exec->layers.end || !step->layers) {
        p.raw = raw_scales(exec, index, p.rows);
    }
    if (takes_coded(exec, index, p.rows)) {
        p.coded = coded_rows(exec, index + 1);
    }
    return exec->backend->api->norm(exec->backend->context, &p);
}

/* Whether the product at `index` also does the gated operator behind it, in this step. */
static bool takes_gated(const mr_cuda_exec *exec, const mr_cuda_step *step, uint32_t index)
{
    const mr_op_linear *op = &exec->plan->ops[index].linear;
    const uint32_t rows = rows_of(exec, step, op->in);
    return exec->fused[index + 1] && !exec->backend->batch_invariant &&
           exec->backend->compute != MR_DTYPE_F32 && rows <= MR_CUDA_FEW_ROWS &&
           !takes_coded(exec, index, rows) && width_of(exec, op->in) % 8 == 0;
}

/* The rows of the product, rounded: now, unless whoever made them has. */
static int round_rows(const mr_cuda_exec *exec, uint32_t index, mr_cuda_linear *p)
{
    p->coded = coded_rows(exec, index);
    if (index > 0 && exec->coded[index - 1] && exec->plan->ops[index - 1].kind != MR_OP_LINEAR) {
        return 0;
    }
    const mr_cuda_quantize q = {
        .in = p->in, .coded = p->coded, .type = p->type, .rows = p->rows, .width = p->k};
    return exec->backend->api->quantize(exec->backend->context, &q);
}

static int linear(mr_cuda_exec *exec, const mr_cuda_step *step, uint32_t index)
{
    const mr_op_linear *op = &exec->plan->ops[index].linear;
    const mr_cuda_api *api = exec->backend->api;
    const uint64_t bias = exec->weights->biases[index];
    mr_cuda_linear p = {
        .weight = mr_cuda_weight_at(exec->weights, op->weight[0]),
        .in = exec->buffers[op->in],
        .out = exec->buffers[op->out],
        .bias = bias == MR_CUDA_NONE ? 0 : exec->weights->base + bias,
        .weight_scale = mr_cuda_weight_scales(exec->weights, op->weight[0]),
        .type = exec->backend->compute,
        .weight_type = exec->coded[index] ? MR_DTYPE_F8_E4M3 : exec->backend->compute,
        .out_type = exec->types[op->out],
        .rows = rows_of(exec, step, op->in),
        .n = width_of(exec, op->out),
        .k = width_of(exec, op->in),
        .out_stride = width_of(exec, op->out),
        .invariant = exec->backend->batch_invariant,
    };
    if (takes_gated(exec, step, index)) {
        const mr_op_gated *gated = &exec->plan->ops[index + 1].gated;
        p.gated = true;
        p.activation = gated->activation;
        p.out = exec->buffers[gated->out];
        p.out_stride = width_of(exec, gated->out);
        p.out_type = exec->types[gated->out];
    }
    p.raw = raw_scales(exec, index, p.rows).row != 0;
    int code = takes_coded(exec, index, p.rows) ? round_rows(exec, index, &p) : 0;
    if (exec->adjoin[index]) {
        return code == 0 ? api->linear(exec->backend->context, &p) : code;
    }
    for (uint32_t part = 0; code == 0 && part < op->parts; part++) {
        p.weight = mr_cuda_weight_at(exec->weights, op->weight[part]);
        p.weight_scale = mr_cuda_weight_scales(exec->weights, op->weight[part]);
        p.n = exec->plan->weights[op->weight[part]].n;
        code = api->linear(exec->backend->context, &p);
        p.out += (uint64_t)p.n * mr_cuda_size(p.out_type);
        p.bias += p.bias != 0 ? (uint64_t)p.n * 4 : 0;
    }
    return code;
}

static mr_cuda_kv kv_of(const mr_cuda_exec *exec, uint32_t layer)
{
    const mr_cuda_ptr keys = exec->kv + 2 * (uint64_t)layer * exec->sizes.kv_plane_bytes;
    return (mr_cuda_kv){
        .keys = keys,
        .values = keys + exec->sizes.kv_plane_bytes,
        .type = exec->options.kv_dtype,
        .key_scale = exec->plan->kv.key_scales != NULL ? exec->plan->kv.key_scales[layer] : 1.0f,
        .value_scale =
            exec->plan->kv.value_scales != NULL ? exec->plan->kv.value_scales[layer] : 1.0f,
        .heads = exec->plan->kv.heads,
        .width = exec->plan->kv.head_width,
        .block_size = exec->options.block_size,
    };
}

static int rope_kv(mr_cuda_exec *exec, const mr_cuda_step *step, uint32_t index)
{
    const mr_op_rope_kv *op = &exec->plan->ops[index].rope_kv;
    const uint64_t group = exec->plan->kv.group_of[op->layer];
    mr_cuda_rope_kv p = {
        .qkv = exec->buffers[op->qkv],
        .positions = exec->stage + step->stage.positions,
        .kv_slot = exec->stage + step->stage.kv_slot + group * step->counts.tokens * 4,
        .kv = kv_of(exec, op->layer),
        .raw = raw_scales(exec, index, step->counts.tokens),
        .type = exec->backend->compute,
        .heads = op->heads,
        .tokens = step->counts.tokens,
    };
    if (op->rope != UINT16_MAX) {
        p.table = exec->ropes[op->rope];
        p.pairing = exec->plan->ropes[op->rope].pairing;
        p.pairs = exec->plan->ropes[op->rope].dims / 2;
    }
    int code = 0;
    if (op->head_norms) {
        const mr_cuda_head_norm n = {
            .qkv = p.qkv,
            .q_gain = mr_cuda_weight_at(exec->weights, op->q_gain),
            .k_gain = mr_cuda_weight_at(exec->weights, op->k_gain),
            .type = p.type,
            .heads = op->heads,
            .kv_heads = p.kv.heads,
            .width = p.kv.width,
            .tokens = p.tokens,
            .epsilon = op->epsilon,
        };
        code = exec->backend->api->head_norm(exec->backend->context, &n);
    }
    return code == 0 ? exec->backend->api->rope_kv(exec->backend->context, &p) : code;
}

/* Items of whole tokens that one launch takes, from `first` on. */
static uint32_t items_of_launch(const mr_cuda_exec *exec, const mr_cuda_item *items, uint32_t first,
                                uint32_t end)
{
    if (end - first <= exec->sizes.launch_items) {
        return end - first;
    }
    uint32_t count = exec->sizes.launch_items;
    while (count > 0 && items[first + count].token == items[first + count - 1].token) {
        count--;
    }
    return count; /* above 0: a launch has room for one token's */
}

static int split(mr_cuda_exec *exec, const mr_cuda_step *step, mr_cuda_attention *p)
{
    const mr_cuda_api *api = exec->backend->api;
    if (step->graph) {
        return api->attention_split(exec->backend->context, p);
    }
    const mr_cuda_item *items =
        (const mr_cuda_item *)(const void *)(exec->host_stage + step->stage.items);
    int code = 0;
    for (p->first = 0; code == 0 && p->first < step->n_items; p->first += p->count) {
        p->count = items_of_launch(exec, items, p->first, step->n_items);
        code = api->attention_split(exec->backend->context, p);
    }
    return code;
}

static int attention(mr_cuda_exec *exec, const mr_cuda_step *step, const mr_op_attention *op)
{
    const uint64_t group = exec->plan->kv.group_of[op->layer];
    mr_cuda_attention p = {
        .qkv = exec->buffers[op->qkv],
        .out = exec->buffers[op->out],
        .positions = exec->stage + step->stage.positions,
        .token_slot = exec->stage + step->stage.token_slot,
        .block_tables =
            exec->block_tables + group * exec->options.max_seqs * exec->sizes.max_blocks * 4,
        .kv = kv_of(exec, op->layer),
        .type = exec->backend->compute,
        .heads = op->heads,
        .tokens = step->counts.tokens,
        .max_blocks = exec->sizes.max_blocks,
        .window = op->window,
        .scale = op->scale,
        .soft_cap = op->soft_cap,
        .invariant = exec->backend->batch_invariant,
        .header = exec->stage,
        .items = exec->stage + step->stage.items,
        .partials = exec->partials,
        .counters = exec->counters,
        .tiles = exec->stage + step->stage.tiles,
        .n_tiles = step->counts.tiles,
    };
    int code = split(exec, step, &p);
    if (code == 0 && p.n_tiles > 0) {
        code = exec->backend->api->attention_tiles(exec->backend->context, &p);
    }
    return code;
}

static int gated(mr_cuda_exec *exec, const mr_cuda_step *step, uint32_t index)
{
    const mr_op_gated *op = &exec->plan->ops[index].gated;
    if (exec->fused[index] && takes_gated(exec, step, index - 1)) {
        return 0;
    }
    mr_cuda_gated p = {
        .in = exec->buffers[op->in],
        .out = exec->buffers[op->out],
        .type = exec->backend->compute,
        .activation = op->activation,
        .rows = rows_of(exec, step, op->in),
        .width = width_of(exec, op->out),
    };
    p.raw = raw_scales(exec, index, p.rows);
    if (takes_coded(exec, index, p.rows)) {
        p.coded = coded_rows(exec, index + 1);
    }
    return exec->backend->api->gated(exec->backend->context, &p);
}

static int activate(mr_cuda_exec *exec, const mr_cuda_step *step, const mr_op_activate *op)
{
    const mr_cuda_activate p = {
        .in = exec->buffers[op->in],
        .out = exec->buffers[op->out],
        .type = exec->backend->compute,
        .activation = op->activation,
        .count = (uint64_t)rows_of(exec, step, op->in) * width_of(exec, op->in),
    };
    return exec->backend->api->activate(exec->backend->context, &p);
}

static int gather(mr_cuda_exec *exec, const mr_cuda_step *step, const mr_op_unary *op)
{
    const mr_cuda_gather p = {
        .in = exec->buffers[op->in],
        .out = exec->buffers[op->out],
        .index = exec->stage + step->stage.logit_rows,
        .rows = step->counts.rows,
        .row_bytes = width_of(exec, op->in) * mr_cuda_size(exec->types[op->in]),
    };
    return exec->backend->api->gather(exec->backend->context, &p);
}

static int sample(mr_cuda_exec *exec, const mr_cuda_step *step, const mr_op_unary *op)
{
    const mr_cuda_sample p = {
        .header = exec->stage,
        .logits = exec->buffers[op->in],
        .rows = exec->stage + step->stage.rows,
        .bias_tokens = exec->stage + step->stage.bias_tokens,
        .bias_values = exec->stage + step->stage.bias_values,
        .history = exec->history,
        .scaled = exec->scaled,
        .counts = exec->counts,
        .tokens = exec->results,
        .logprobs = exec->results + mr_cuda_result_logprobs(exec),
        .n_top = exec->results + mr_cuda_result_n_top(exec),
        .corrupt = exec->results + mr_cuda_result_corrupt(exec),
        .top = exec->results + mr_cuda_result_top(exec),
        .vocab = exec->plan->vocab_size,
        .max_context = exec->options.max_context,
        .max_rows = step->counts.rows,
        .workers = exec->sizes.workers,
    };
    return exec->backend->api->sample(exec->backend->context, &p);
}

static bool has_rows(const mr_cuda_exec *exec, const mr_cuda_step *step, const mr_op *op)
{
    mr_buffer_id id = MR_NO_BUFFER;
    switch (op->kind) {
    case MR_OP_NORM:
        id = op->norm.stream;
        break;
    case MR_OP_LINEAR:
        id = op->linear.in;
        break;
    case MR_OP_GATED:
        id = op->gated.in;
        break;
    case MR_OP_ACTIVATE:
        id = op->activate.in;
        break;
    case MR_OP_GATHER:
    case MR_OP_SAMPLE:
        return step->counts.rows > 0;
    default:
        break;
    }
    return id == MR_NO_BUFFER || rows_of(exec, step, id) > 0;
}

static int launch_op(mr_cuda_exec *exec, const mr_cuda_step *step, uint32_t index)
{
    const mr_op *op = &exec->plan->ops[index];
    if (!has_rows(exec, step, op)) {
        return 0;
    }
    switch (op->kind) {
    case MR_OP_EMBED:
        return embed(exec, step, &op->embed);
    case MR_OP_NORM:
        return norm(exec, step, index);
    case MR_OP_LINEAR:
        return linear(exec, step, index);
    case MR_OP_ROPE_KV:
        return rope_kv(exec, step, index);
    case MR_OP_ATTENTION:
        return attention(exec, step, &op->attention);
    case MR_OP_GATED:
        return gated(exec, step, index);
    case MR_OP_ACTIVATE:
        return activate(exec, step, &op->activate);
    case MR_OP_GATHER:
        return gather(exec, step, &op->unary);
    case MR_OP_SAMPLE:
        return sample(exec, step, &op->unary);
    default:
        return 0; /* all_reduce: one rank */
    }
}

int mr_cuda_launch(mr_cuda_exec *exec, const mr_cuda_step *step, const char **what)
{
    *what = "starting a step";
    int code = prepare(exec, step);
    for (uint32_t i = 0; code == 0 && i < exec->plan->n_ops; i++) {
        if (step->layers && i == exec->layers.begin) {
            *what = "layers";
            code = mr_cuda_layers_launch(exec, step);
            i = exec->layers.end - 1;
            continue;
        }
        *what = mr_op_name(exec->plan->ops[i].kind);
        code = launch_op(exec, step, i);
    }
    return code;
}
