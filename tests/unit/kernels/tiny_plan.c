/* SPDX-License-Identifier: Apache-2.0 */
#include "tiny_plan.h"

#include "kernels/dtype.h"
#include "random_blocks.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define OK(expr) assert_int_equal((expr), MR_OK)

uint64_t tiny_random(uint64_t *state)
{
    /* splitmix64 */
    *state += 0x9E3779B97F4A7C15ull;
    uint64_t z = *state;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    return z ^ z >> 31;
}

float tiny_uniform(uint64_t *state, float low, float high)
{
    return low + (high - low) * (float)(tiny_random(state) >> 40) * 0x1p-24f;
}

tiny_dims tiny_dims_default(void)
{
    return (tiny_dims){
        .layers = 2,
        .width = 64,
        .heads = 4,
        .kv_heads = 2,
        .head_width = 16,
        .ffn = 96,
        .vocab = 96,
        .dtype = MR_DTYPE_F32,
        .seed = 1,
        .embed_scale = 1.0f,
    };
}

tiny_dims tiny_dims_of(mr_dtype dtype)
{
    tiny_dims dims = tiny_dims_default();
    dims.dtype = dtype;
    if (mr_dtype_info_get(dtype)->block_elements > 32) {
        dims.layers = 1;
        dims.width = 256;
        dims.head_width = 64;
        dims.ffn = 256;
    }
    return dims;
}

typedef struct builder {
    tiny_plan *tiny;
    uint64_t state;
    uint32_t capacity;
} builder;

static mr_weight_id matrix(builder *b, const char *name, mr_dtype dtype, uint32_t n, uint32_t k)
{
    tiny_plan *tiny = b->tiny;
    uint64_t bytes = 0;
    assert_true(mr_dtype_row_bytes(dtype, k, &bytes));
    bytes *= n;
    void *data = malloc(bytes);
    assert_non_null(data);
    random_blocks(dtype, data, (uint64_t)n * k, 1.7f / sqrtf((float)k), &b->state);
    mr_plan_weight weight = {.dtype = dtype, .n = n, .k = k, .data = data, .bytes = bytes};
    (void)snprintf(weight.name, sizeof(weight.name), "%s.%u", name, tiny->plan->n_weights);
    mr_weight_id id = 0;
    OK(mr_plan_add_weight(tiny->plan, &weight, &id));
    if (id >= b->capacity) {
        b->capacity = 2 * b->capacity + 16;
        tiny->data = realloc(tiny->data, b->capacity * sizeof(*tiny->data));
        assert_non_null(tiny->data);
    }
    tiny->data[id] = data;
    return id;
}

static mr_weight_id vector(builder *b, const char *name, uint32_t k, float low, float high)
{
    const mr_weight_id id = matrix(b, name, MR_DTYPE_F32, 1, k);
    float *data = b->tiny->data[id];
    for (uint32_t i = 0; i < k; i++) {
        data[i] = tiny_uniform(&b->state, low, high);
    }
    return id;
}

static mr_weight_id bias(builder *b, const char *name, uint32_t k)
{
    return b->tiny->dims.biases ? vector(b, name, k, -0.3f, 0.3f) : MR_NO_WEIGHT;
}

static void make_weights(builder *b)
{
    tiny_plan *tiny = b->tiny;
    const tiny_dims *d = &tiny->dims;
    const uint32_t q = d->heads * d->head_width;
    const uint32_t kv = d->kv_heads * d->head_width;
    tiny->embed = matrix(b, "embed", d->dtype, d->vocab, d->width);
    for (uint32_t i = 0; i < d->layers; i++) {
        tiny->layers[i] = (tiny_layer){
            .attn_gain = vector(b, "attn_gain", d->width, 0.8f, 1.2f),
            .attn_bias = bias(b, "attn_bias", d->width),
            .q = matrix(b, "q", d->dtype, q, d->width),
            .k = matrix(b, "k", d->dtype, kv, d->width),
            .v = matrix(b, "v", d->dtype, kv, d->width),
            .q_bias = bias(b, "q_bias", q),
            .k_bias = bias(b, "k_bias", kv),
            .v_bias = bias(b, "v_bias", kv),
            .o = matrix(b, "o", d->dtype, d->width, q),
            .q_gain = d->head_norms ? vector(b, "q_gain", d->head_width, 0.8f, 1.2f) : MR_NO_WEIGHT,
            .k_gain = d->head_norms ? vector(b, "k_gain", d->head_width, 0.8f, 1.2f) : MR_NO_WEIGHT,
            .ffn_gain = vector(b, "ffn_gain", d->width, 0.8f, 1.2f),
            .ffn_bias = bias(b, "ffn_bias", d->width),
            .gate = matrix(b, "gate", d->dtype, d->ffn, d->width),
            .up = matrix(b, "up", d->dtype, d->ffn, d->width),
            .down = matrix(b, "down", d->dtype, d->width, d->ffn),
        };
    }
    tiny->out_gain = vector(b, "out_gain", d->width, 2.0f, 4.0f);
    tiny->out_bias = bias(b, "out_bias", d->width);
    tiny->head = d->tied ? tiny->embed : matrix(b, "head", d->dtype, d->vocab, d->width);
}

typedef struct buffers {
    mr_buffer_id stream, normed, qkv, attention, projected, gate_up, gated;
} buffers;

static void add_op(mr_plan *plan, const mr_op *op)
{
    OK(mr_plan_add_op(plan, op));
}

static void add_norm(const tiny_plan *tiny, const buffers *b, mr_buffer_id in, mr_weight_id gain,
                     mr_weight_id norm_bias)
{
    add_op(tiny->plan, &(mr_op){.kind = MR_OP_NORM,
                                .norm = {.kind = tiny->dims.norm,
                                         .stream = b->stream,
                                         .in = in,
                                         .out = b->normed,
                                         .gain = gain,
                                         .bias = norm_bias,
                                         .epsilon = 1e-5f}});
}

static void add_linear(const tiny_plan *tiny, mr_buffer_id in, mr_buffer_id out,
                       mr_weight_id weight, bool logits)
{
    add_op(tiny->plan, &(mr_op){.kind = MR_OP_LINEAR,
                                .linear = {.in = in,
                                           .out = out,
                                           .parts = 1,
                                           .weight = {weight},
                                           .bias = {MR_NO_WEIGHT},
                                           .logits = logits}});
}

static void add_all_reduce(const tiny_plan *tiny, mr_buffer_id id)
{
    add_op(tiny->plan, &(mr_op){.kind = MR_OP_ALL_REDUCE, .unary = {.in = id, .out = id}});
}

static void add_attention(const tiny_plan *tiny, const buffers *b, uint32_t layer)
{
    const tiny_dims *d = &tiny->dims;
    const tiny_layer *w = &tiny->layers[layer];
    add_norm(tiny, b, layer == 0 ? MR_NO_BUFFER : b->projected, w->attn_gain, w->attn_bias);
    add_op(tiny->plan, &(mr_op){.kind = MR_OP_LINEAR,
                                .linear = {.in = b->normed,
                                           .out = b->qkv,
                                           .parts = 3,
                                           .weight = {w->q, w->k, w->v},
                                           .bias = {w->q_bias, w->k_bias, w->v_bias}}});
    add_op(tiny->plan, &(mr_op){.kind = MR_OP_ROPE_KV,
                                .rope_kv = {.qkv = b->qkv,
                                            .layer = layer,
                                            .heads = d->heads,
                                            .rope = 0,
                                            .head_norms = d->head_norms,
                                            .q_gain = w->q_gain,
                                            .k_gain = w->k_gain,
                                            .epsilon = 1e-6f}});
    add_op(tiny->plan, &(mr_op){.kind = MR_OP_ATTENTION,
                                .attention = {.qkv = b->qkv,
                                              .out = b->attention,
                                              .layer = layer,
                                              .heads = d->heads,
                                              .scale = 1.0f / sqrtf((float)d->head_width),
                                              .window = tiny_window(d, layer),
                                              .soft_cap = d->soft_cap}});
}

static void add_gather(const tiny_plan *tiny, mr_buffer_id in, mr_buffer_id out)
{
    add_op(tiny->plan, &(mr_op){.kind = MR_OP_GATHER, .unary = {.in = in, .out = out}});
}

static void add_output(const tiny_plan *tiny, const buffers *b, uint32_t layer)
{
    add_linear(tiny, b->attention, b->projected, tiny->layers[layer].o, false);
    add_all_reduce(tiny, b->projected);
}

static void add_ffn(const tiny_plan *tiny, const buffers *b, uint32_t layer)
{
    const tiny_layer *w = &tiny->layers[layer];
    add_norm(tiny, b, b->projected, w->ffn_gain, w->ffn_bias);
    add_op(tiny->plan, &(mr_op){.kind = MR_OP_LINEAR,
                                .linear = {.in = b->normed,
                                           .out = b->gate_up,
                                           .parts = 2,
                                           .weight = {w->gate, w->up},
                                           .bias = {MR_NO_WEIGHT, MR_NO_WEIGHT}}});
    add_op(tiny->plan,
           &(mr_op){
               .kind = MR_OP_GATED,
               .gated = {.in = b->gate_up, .out = b->gated, .activation = tiny->dims.activation}});
    add_linear(tiny, b->gated, b->projected, w->down, false);
    add_all_reduce(tiny, b->projected);
}

static buffers make_buffers(const tiny_plan *tiny, mr_row_space rows)
{
    const tiny_dims *d = &tiny->dims;
    mr_plan *plan = tiny->plan;
    buffers b;
    const uint32_t inner = d->heads * d->head_width;
    OK(mr_plan_add_buffer(plan, "stream", rows, d->width, &b.stream));
    OK(mr_plan_add_buffer(plan, "normed", rows, d->width, &b.normed));
    OK(mr_plan_add_buffer(plan, "qkv", rows, inner + 2 * d->kv_heads * d->head_width, &b.qkv));
    OK(mr_plan_add_buffer(plan, "attention", rows, inner, &b.attention));
    OK(mr_plan_add_buffer(plan, "projected", rows, d->width, &b.projected));
    OK(mr_plan_add_buffer(plan, "gate_up", rows, 2 * d->ffn, &b.gate_up));
    OK(mr_plan_add_buffer(plan, "gated", rows, d->ffn, &b.gated));
    return b;
}

static void make_ops(tiny_plan *tiny)
{
    const tiny_dims *d = &tiny->dims;
    mr_plan *plan = tiny->plan;
    mr_buffer_id last;
    mr_buffer_id logits;
    buffers b = make_buffers(tiny, MR_ROWS_TOKENS);
    OK(mr_plan_add_buffer(plan, "last", MR_ROWS_LOGITS, d->width, &last));
    OK(mr_plan_add_buffer(plan, "logits", MR_ROWS_LOGITS, d->vocab, &logits));
    add_op(plan,
           &(mr_op){.kind = MR_OP_EMBED,
                    .embed = {.table = tiny->embed, .out = b.stream, .scale = d->embed_scale}});
    for (uint32_t i = 0; i < d->layers; i++) {
        add_attention(tiny, &b, i);
        if (d->late && i == d->layers - 1) {
            const buffers late = make_buffers(tiny, MR_ROWS_LOGITS);
            add_gather(tiny, b.stream, late.stream);
            add_gather(tiny, b.attention, late.attention);
            b = late;
        }
        add_output(tiny, &b, i);
        add_ffn(tiny, &b, i);
    }
    add_norm(tiny, &b, b.projected, tiny->out_gain, tiny->out_bias);
    if (!d->late) {
        add_gather(tiny, b.normed, last);
    }
    add_linear(tiny, d->late ? b.normed : last, logits, tiny->head, true);
    add_op(plan, &(mr_op){.kind = MR_OP_SAMPLE, .unary = {.in = logits, .out = MR_NO_BUFFER}});
}

void tiny_plan_create(const tiny_dims *dims, tiny_plan *out)
{
    *out = (tiny_plan){.dims = *dims};
    OK(mr_plan_create(&out->plan));
    out->layers = calloc(dims->layers, sizeof(*out->layers));
    assert_non_null(out->layers);
    out->plan->vocab_size = dims->vocab;
    OK(mr_plan_set_kv(out->plan, dims->layers, dims->kv_heads, dims->head_width));
    builder b = {.tiny = out, .state = dims->seed};
    make_weights(&b);

    float inv_freq[256];
    const uint32_t pairs = dims->head_width / 2;
    assert_true(pairs <= 256);
    for (uint32_t i = 0; i < pairs; i++) {
        inv_freq[i] = powf(10000.0f, -(float)i / (float)pairs);
    }
    uint16_t rope = 0;
    OK(mr_plan_add_rope(out->plan,
                        &(mr_plan_rope){.pairing = dims->pairing,
                                        .dims = dims->head_width,
                                        .inv_freq = inv_freq,
                                        .attention_factor = 1.0f},
                        &rope));
    make_ops(out);
    mr_error err = {0};
    if (mr_plan_check(out->plan, &err) != MR_OK) {
        fail_msg("%s", err.message);
    }
}

void tiny_plan_destroy(tiny_plan *tiny)
{
    for (uint32_t i = 0; i < tiny->plan->n_weights; i++) {
        free(tiny->data[i]);
    }
    free(tiny->data);
    free(tiny->layers);
    mr_plan_destroy(tiny->plan);
}

/* ---- session ---- */

mr_exec_options tiny_options(void)
{
    const uint32_t seqs = 4;
    const uint32_t context = 80;
    const uint32_t block_size = 8;
    return (mr_exec_options){
        .max_tokens = 64,
        .max_seqs = seqs,
        .max_rows = 64,
        .max_context = context,
        .block_size = block_size,
        .n_blocks = 1 + seqs * (context / block_size),
        .kv_dtype = MR_DTYPE_F32,
        .keep_logits = true,
    };
}

void tiny_session_create(const tiny_plan *tiny, mr_backend *backend, const mr_exec_options *options,
                         tiny_session *out)
{
    mr_error err = {0};
    *out = (tiny_session){.backend = backend, .options = *options, .groups = tiny->plan->kv.groups};
    if (backend->vt->upload(backend, tiny->plan, NULL, NULL, &out->weights, &err) != MR_OK ||
        backend->vt->compile(backend, tiny->plan, out->weights, options, &out->exec, &err) !=
            MR_OK) {
        fail_msg("%s", err.message);
    }
    const mr_batch_limits limits = {
        .max_tokens = options->max_tokens,
        .max_seqs = options->max_seqs,
        .max_rows = options->max_rows,
        .max_context = options->max_context,
        .block_size = options->block_size,
        .kv_groups = out->groups,
        .max_bias = 16,
        .max_history = 256,
    };
    OK(mr_batch_storage_create(&limits, &out->storage));
}

void tiny_session_destroy(tiny_session *session)
{
    session->exec->vt->destroy(session->exec);
    session->backend->vt->weights_destroy(session->backend, session->weights);
    mr_batch_storage_destroy(session->storage);
}

mr_row_params tiny_greedy(void)
{
    return (mr_row_params){.top_p = 1.0f,
                           .repetition_penalty = 1.0f,
                           .target = MR_NO_TARGET,
                           .n_top = 3,
                           .want_logprob = true};
}

static uint32_t block_of(const tiny_session *session, uint32_t slot, uint32_t index)
{
    const uint32_t per_slot = session->options.max_context / session->options.block_size;
    return slot * per_slot + per_slot - index;
}

void tiny_feed(tiny_session *session, uint32_t slot, const int32_t *tokens, uint32_t start,
               uint32_t count, bool all_rows)
{
    const uint32_t size = session->options.block_size;
    const mr_row_params greedy = tiny_greedy();
    OK(mr_batch_add_seq(session->storage, slot, start + count, 0));
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t position = start + i;
        uint32_t kv_slots[8];
        assert_true(session->groups <= 8);
        for (uint32_t group = 0; group < session->groups; group++) {
            const uint32_t first = block_of(session, slot, position / size);
            const uint32_t block = group == 0 ? first : session->options.n_blocks - first;
            kv_slots[group] = block * size + position % size;
            if (position % size == 0) {
                OK(mr_batch_add_block(session->storage, &(mr_block_delta){.slot = slot,
                                                                          .group = group,
                                                                          .index = position / size,
                                                                          .block = block}));
            }
        }
        OK(mr_batch_add_token(session->storage, tokens[i], position, kv_slots));
        if (all_rows || i + 1 == count) {
            OK(mr_batch_add_row(session->storage, &greedy, NULL, NULL));
        }
    }
}

void tiny_run(tiny_session *session, mr_step_output *out)
{
    mr_error err = {0};
    if (mr_exec_run(session->exec, mr_batch_get(session->storage), out, &err) != MR_OK) {
        fail_msg("%s", err.message);
    }
}
