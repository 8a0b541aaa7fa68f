/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which of a plan's operators one launch can run (mr_cuda_decode): a run of whole layers
 *
 *   norm, linear (qkv), rope_kv, attention, [gather stream, gather attention,]
 *   linear (out), norm, linear (gate, up), gated, linear (down)
 *
 * that are alike, one behind the other, up to the norm that adds what the last product gave. Only
 * in the last layer may rows be gathered. The module says for how many rows, and how much of
 * attention, it takes such layers; other steps, and other plans, run operator by operator.
 */
#include "kernels/cuda/internal.h"

#include "base/checked.h"

#include <stdlib.h>
#include <string.h>

typedef struct matcher {
    const mr_cuda_exec *exec;
    uint32_t at;                  /* the next operator */
    mr_cuda_decode call;          /* what all layers have in common, by the first */
    mr_cuda_decode_layer *layers; /* [plan->kv.layers] */
    mr_buffer_id stream;
    mr_buffer_id proj; /* of the layer before; MR_NO_BUFFER: there is none */
    uint16_t rope;
    bool gathered;
} matcher;

/* At one rank these do nothing. */
static void skip_reduces(matcher *m)
{
    const mr_plan *plan = m->exec->plan;
    while (m->at < plan->n_ops && plan->ops[m->at].kind == MR_OP_ALL_REDUCE) {
        m->at++;
    }
}

/* The next operator, if it is of this kind. */
static const mr_op *take(matcher *m, mr_op_kind kind)
{
    const mr_plan *plan = m->exec->plan;
    skip_reduces(m);
    return m->at < plan->n_ops && plan->ops[m->at].kind == kind ? &plan->ops[m->at++] : NULL;
}

static uint32_t width_of(const matcher *m, mr_buffer_id id)
{
    return m->exec->plan->buffers[id].width;
}

/* A norm of the stream that adds `in`: what it gives, or MR_NO_BUFFER. */
static mr_buffer_id take_norm(matcher *m, mr_buffer_id in, mr_cuda_ptr *gain)
{
    const mr_op *op = take(m, MR_OP_NORM);
    if (op == NULL || op->norm.kind != MR_NORM_RMS || op->norm.bias != MR_NO_WEIGHT ||
        op->norm.stream != m->stream || op->norm.in != in || op->norm.epsilon != m->call.epsilon) {
        return MR_NO_BUFFER;
    }
    *gain = mr_cuda_weight_at(m->exec->weights, op->norm.gain);
    return op->norm.out;
}

/* One product without biases of `in`, which is there: what it gives, or MR_NO_BUFFER. */
static mr_buffer_id take_linear(matcher *m, mr_buffer_id in, mr_cuda_ptr *weight,
                                mr_cuda_ptr *scales)
{
    const mr_op *op = in == MR_NO_BUFFER ? NULL : take(m, MR_OP_LINEAR);
    if (op == NULL || op->linear.in != in || !m->exec->adjoin[m->at - 1] ||
        m->exec->coded[m->at - 1] != (m->call.weight_type == MR_DTYPE_F8_E4M3) ||
        m->exec->weights->biases[m->at - 1] != MR_CUDA_NONE) {
        return MR_NO_BUFFER;
    }
    *weight = mr_cuda_weight_at(m->exec->weights, op->linear.weight[0]);
    *scales = mr_cuda_weight_scales(m->exec->weights, op->linear.weight[0]);
    return op->linear.out;
}

static bool match_rope(matcher *m, mr_buffer_id qkv, uint32_t layer, mr_cuda_decode_layer *out)
{
    const mr_op *op = qkv == MR_NO_BUFFER ? NULL : take(m, MR_OP_ROPE_KV);
    if (op == NULL || op->rope_kv.qkv != qkv || op->rope_kv.layer != layer ||
        op->rope_kv.heads != m->call.heads || op->rope_kv.rope != m->rope) {
        return false;
    }
    if (op->rope_kv.head_norms) {
        out->q_gain = mr_cuda_weight_at(m->exec->weights, op->rope_kv.q_gain);
        out->k_gain = mr_cuda_weight_at(m->exec->weights, op->rope_kv.k_gain);
    }
    return !op->rope_kv.head_norms || op->rope_kv.epsilon == m->call.head_epsilon;
}

/* Gives the buffer of its result, or MR_NO_BUFFER. */
static mr_buffer_id match_attention(matcher *m, mr_buffer_id qkv, uint32_t layer)
{
    const mr_op *op = take(m, MR_OP_ATTENTION);
    if (op == NULL || op->attention.qkv != qkv || op->attention.layer != layer ||
        op->attention.heads != m->call.heads || op->attention.window != 0 ||
        op->attention.scale != m->call.scale || op->attention.soft_cap != m->call.soft_cap) {
        return MR_NO_BUFFER;
    }
    return op->attention.out;
}

/* Gathers of the stream and of `att`, if they come next: what the second gives, else `att`. */
static mr_buffer_id match_gathers(matcher *m, mr_buffer_id att)
{
    const mr_op *stream = take(m, MR_OP_GATHER);
    if (stream == NULL) {
        return att;
    }
    const mr_op *rows = take(m, MR_OP_GATHER);
    if (rows == NULL || stream->unary.in != m->stream || rows->unary.in != att) {
        return MR_NO_BUFFER;
    }
    m->stream = stream->unary.out;
    m->gathered = true;
    return rows->unary.out;
}

/* What all layers must have in common, from the operators that the first would be. */
static bool begin(matcher *m)
{
    const mr_plan *plan = m->exec->plan;
    const uint32_t at = m->at;
    const mr_op *norm = take(m, MR_OP_NORM);
    const mr_op *qkv = norm != NULL ? take(m, MR_OP_LINEAR) : NULL;
    const mr_op *rope = qkv != NULL ? take(m, MR_OP_ROPE_KV) : NULL;
    const mr_op *attention = rope != NULL ? take(m, MR_OP_ATTENTION) : NULL;
    if (attention == NULL) {
        return false;
    }
    m->at = at;
    m->stream = norm->norm.stream;
    m->proj = MR_NO_BUFFER;
    m->rope = rope->rope_kv.rope;
    m->call = (mr_cuda_decode){
        .stream = m->exec->buffers[m->stream],
        .qkv = m->exec->buffers[attention->attention.qkv],
        .att = m->exec->buffers[attention->attention.out],
        .type = m->exec->backend->compute,
        .weight_type =
            m->exec->coded[qkv - plan->ops] ? MR_DTYPE_F8_E4M3 : m->exec->backend->compute,
        .kv_type = m->exec->options.kv_dtype,
        .width = width_of(m, m->stream),
        .heads = rope->rope_kv.heads,
        .kv_heads = plan->kv.heads,
        .head_width = plan->kv.head_width,
        .block_size = m->exec->options.block_size,
        .max_blocks = m->exec->sizes.max_blocks,
        .epsilon = norm->norm.epsilon,
        .head_epsilon = rope->rope_kv.epsilon,
        .scale = attention->attention.scale,
        .soft_cap = attention->attention.soft_cap,
    };
    if (m->rope != UINT16_MAX) {
        m->call.table = m->exec->ropes[m->rope];
        m->call.pairing = plan->ropes[m->rope].pairing;
        m->call.pairs = plan->ropes[m->rope].dims / 2;
    }
    return true;
}

/* norm to attention, and the gathers. Gives attention's rows. */
static mr_buffer_id match_first_half(matcher *m, uint32_t layer, mr_cuda_decode_layer *out)
{
    const mr_buffer_id normed = take_norm(m, m->proj, &out->attention_gain);
    const mr_buffer_id qkv = take_linear(m, normed, &out->qkv, &out->scales[0]);
    if (!match_rope(m, qkv, layer, out)) {
        return MR_NO_BUFFER;
    }
    const mr_buffer_id att = match_attention(m, qkv, layer);
    return att == MR_NO_BUFFER ? att : match_gathers(m, att);
}

static bool match_second_half(matcher *m, mr_buffer_id att, mr_cuda_decode_layer *out)
{
    const mr_buffer_id proj = take_linear(m, att, &out->out, &out->scales[1]);
    if (proj == MR_NO_BUFFER) {
        return false;
    }
    const mr_buffer_id normed = take_norm(m, proj, &out->gated_gain);
    const mr_buffer_id both = take_linear(m, normed, &out->gate_up, &out->scales[2]);
    const mr_op *gated = both != MR_NO_BUFFER ? take(m, MR_OP_GATED) : NULL;
    if (gated == NULL || !m->exec->fused[m->at - 1] || gated->gated.in != both) {
        return false;
    }
    if (m->call.ffn == 0) {
        m->call.ffn = width_of(m, gated->gated.out);
        m->call.act = m->exec->buffers[gated->gated.out];
        m->call.normed = m->exec->buffers[normed];
        m->call.squares = m->exec->buffers[both]; /* nothing else is in it then */
        m->call.activation = gated->gated.activation;
    }
    m->proj = take_linear(m, gated->gated.out, &out->down, &out->scales[3]);
    return m->proj == proj && width_of(m, gated->gated.out) == m->call.ffn &&
           m->call.width / 16 <= m->call.ffn && /* as many squares as there is room for */
           gated->gated.activation == m->call.activation;
}

static bool match_layer(matcher *m, uint32_t layer)
{
    mr_cuda_decode_layer *out = &m->layers[layer];
    const uint64_t plane = m->exec->sizes.kv_plane_bytes;
    out->keys = m->exec->kv + 2 * (uint64_t)layer * plane;
    out->values = out->keys + plane;
    const mr_buffer_id att = m->gathered ? MR_NO_BUFFER : match_first_half(m, layer, out);
    return att != MR_NO_BUFFER && match_second_half(m, att, out);
}

/* Whether nothing behind the run reads what only the separate operators leave: the norm comes
 * first, and what the others read was written behind the run. */
static bool ends_well(const matcher *m)
{
    const mr_plan *plan = m->exec->plan;
    const mr_op *norm = &plan->ops[m->at < plan->n_ops ? m->at : 0];
    if (norm->kind != MR_OP_NORM || norm->norm.stream != m->stream || norm->norm.in != m->proj) {
        return false;
    }
    mr_buffer_id there = norm->norm.out;
    bool alone = true;
    for (uint32_t i = m->at + 1; alone && i < plan->n_ops; i++) {
        const mr_op *op = &plan->ops[i];
        const bool linear = op->kind == MR_OP_LINEAR;
        alone = (linear || op->kind == MR_OP_GATHER || op->kind == MR_OP_SAMPLE) &&
                (linear ? op->linear.in : op->unary.in) == there;
        there = linear ? op->linear.out : op->unary.out;
    }
    return alone;
}

/* The run that begins at m->at; 0 layers: none does. */
static uint32_t match(matcher *m)
{
    const uint32_t layers = m->exec->plan->kv.layers;
    if (m->exec->plan->kv.groups != 1 || m->exec->backend->batch_invariant || !begin(m)) {
        return 0;
    }
    for (uint32_t layer = 0; layer < layers; layer++) {
        if (!match_layer(m, layer)) {
            return 0;
        }
    }
    skip_reduces(m);
    return ends_well(m) ? layers : 0;
}

/* Gives the layers to the GPU, if the module takes them. */
static int keep(mr_cuda_exec *exec, const matcher *m, uint32_t first)
{
    const mr_cuda_api *api = exec->backend->api;
    mr_cuda_context *context = exec->backend->context;
    mr_cuda_layers *run = &exec->layers;
    run->call = m->call;
    run->call.n_layers = exec->plan->kv.layers;
    run->call.last = exec->buffers[m->proj];
    run->call.last_stream = exec->buffers[m->stream];
    run->call.partials = exec->partials;
    run->call.counters = exec->counters;
    run->call.block_tables = exec->block_tables;
    run->call.layers = exec->layers_at;
    run->call.sync = exec->sync;
    run->gathered = m->gathered;
    run->begin = first;
    run->end = m->at;
    run->most = api->decode_most(context, &run->call);
    if (run->most.rows == 0) {
        return 0;
    }
    int code = api->decode_maps(context, &run->call, m->layers);
    code = code == 0 ? api->fill(context, exec->sync, 0, MR_CUDA_DECODE_SYNC * sizeof(uint32_t))
                     : code;
    code = code == 0 ? api->to_device(context, exec->layers_at, m->layers,
                                      run->call.n_layers * sizeof(*m->layers))
                     : code;
    return code == 0 ? api->synchronize(context) : code;
}

mr_status mr_cuda_layers_find(mr_cuda_exec *exec, mr_error *err)
{
    const mr_plan *plan = exec->plan;
    uint32_t first = 0;
    while (first < plan->n_ops && plan->ops[first].kind != MR_OP_NORM) {
        first++;
    }
    matcher m = {.exec = exec, .at = first};
    m.layers = mr_calloc((size_t)plan->kv.layers + 1, sizeof(*m.layers));
    if (m.layers == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "compile: out of memory");
    }
    const int code = match(&m) > 0 ? keep(exec, &m, first) : 0;
    free(m.layers);
    return mr_cuda_check(exec->backend, code, "placing the layers", err);
}

bool mr_cuda_layers_take(const mr_cuda_exec *exec, const mr_cuda_step *step)
{
    const mr_cuda_decode_most *most = &exec->layers.most;
    return step->graph && step->counts.tokens <= most->rows &&
           step->counts.rows == step->counts.tokens &&
           (uint64_t)step->n_items * exec->plan->kv.heads <= most->pieces;
}

int mr_cuda_layers_launch(mr_cuda_exec *exec, const mr_cuda_step *step)
{
    const mr_cuda_stage *s = &step->stage;
    mr_cuda_decode p = exec->layers.call;
    p.rows = step->counts.tokens;
    p.header = exec->stage;
    p.positions = exec->stage + s->positions;
    p.kv_slot = exec->stage + s->kv_slot;
    p.token_slot = exec->stage + s->token_slot;
    p.items = exec->stage + s->items;
    p.logit_rows = exec->layers.gathered ? exec->stage + s->logit_rows : 0;
    return exec->backend->api->decode(exec->backend->context, &p);
}
