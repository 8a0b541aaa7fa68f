/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two passes for each (token, key/value head): scores of the heads that share it, then their
 * softmax and the weighted sum of values, over positions in ascending order. Nothing depends on
 * the other tokens of the step: their keys and values are read back from the cache as stored.
 */
#include "kernels/cpu/reference.h"

#include <math.h>
#include <string.h>

size_t mr_cpu_ref_attention_scratch(const mr_cpu_exec *exec, const mr_op_attention *op)
{
    const mr_plan_kv *kv = &exec->plan->kv;
    const size_t scores = (size_t)(op->heads / kv->heads) * exec->options.max_context;
    return (scores + kv->head_width) * sizeof(float);
}

typedef struct work {
    const mr_cpu_exec *exec;
    const mr_op_attention *op;
    const uint32_t *table; /* blocks of the sequence */
    const float *q;        /* [share][D] queries of the heads that share the key/value head */
    float *out;            /* [share][D] */
    float *scores;         /* [share][max_context], from `first` on */
    float *row;            /* [D] a key or value in float32, where it is not stored so */
    uint32_t share;        /* H / G */
    uint32_t kv_head;
    uint32_t first; /* positions first … last are seen */
    uint32_t last;
} work;

/* Key or value of a position, converted unless it is float32 already. */
static const float *load(const work *w, uint32_t value, uint32_t position)
{
    const mr_cpu_exec *exec = w->exec;
    const uint32_t width = exec->plan->kv.head_width;
    const uint32_t block = w->table[position / exec->options.block_size];
    const uint32_t offset = position % exec->options.block_size;
    const mr_cpu_kv_piece piece = mr_cpu_kv(exec, w->op->layer, value, block, w->kv_head);
    const uint8_t *stored = piece.elements + offset * exec->kv_layout.row;
    if (exec->options.kv_dtype == MR_DTYPE_F32) {
        return (const float *)(const void *)stored;
    }
    if (exec->options.kv_dtype == MR_DTYPE_I8) {
        for (uint32_t i = 0; i < width; i++) {
            w->row[i] = piece.scales[offset] * (float)((const int8_t *)stored)[i];
        }
        return w->row;
    }
    mr_dequantize(exec->options.kv_dtype, stored, w->row, width);
    return w->row;
}

static void compute_scores(const work *w)
{
    const uint32_t width = w->exec->plan->kv.head_width;
    const float cap = w->op->soft_cap;
    for (uint32_t p = w->first; p <= w->last; p++) {
        const float *key = load(w, 0, p);
        for (uint32_t h = 0; h < w->share; h++) {
            float score = mr_ref_dot(w->q + (size_t)h * width, key, width) * w->op->scale;
            score = cap > 0.0f ? cap * tanhf(score / cap) : score;
            w->scores[(size_t)h * w->exec->options.max_context + (p - w->first)] = score;
        }
    }
}

static void softmax(float *scores, uint32_t n)
{
    float max = scores[0];
    for (uint32_t i = 1; i < n; i++) {
        max = scores[i] > max ? scores[i] : max;
    }
    float sum = 0.0f;
    for (uint32_t i = 0; i < n; i++) {
        scores[i] = expf(scores[i] - max);
        sum += scores[i];
    }
    for (uint32_t i = 0; i < n; i++) {
        scores[i] /= sum;
    }
}

static void add_scaled(float *restrict out, const float *restrict value, float scale, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        out[i] += scale * value[i];
    }
}

static void run(const work *w)
{
    const uint32_t width = w->exec->plan->kv.head_width;
    const size_t stride = w->exec->options.max_context;
    compute_scores(w);
    for (uint32_t h = 0; h < w->share; h++) {
        softmax(w->scores + h * stride, w->last - w->first + 1);
    }
    memset(w->out, 0, (size_t)w->share * width * sizeof(*w->out));
    for (uint32_t p = w->first; p <= w->last; p++) {
        const float *value = load(w, 1, p);
        for (uint32_t h = 0; h < w->share; h++) {
            add_scaled(w->out + (size_t)h * width, value, w->scores[h * stride + (p - w->first)],
                       width);
        }
    }
}

void mr_cpu_ref_attention(mr_cpu_exec *exec, const mr_op *op, const mr_batch *batch,
                          uint32_t thread, uint32_t threads)
{
    const mr_op_attention *attention = &op->attention;
    const mr_plan_kv *kv = &exec->plan->kv;
    work w = {.exec = exec, .op = attention, .share = attention->heads / kv->heads};
    w.scores = mr_cpu_scratch(exec, thread);
    w.row = w.scores + (size_t)w.share * exec->options.max_context;
    /* Dealt out in turn, because later tokens of a chunk see more keys. */
    const uint64_t items = (uint64_t)batch->n_tokens * kv->heads;
    for (uint64_t i = thread; i < items; i += threads) {
        const uint32_t t = (uint32_t)(i / kv->heads);
        w.kv_head = (uint32_t)(i % kv->heads);
        const size_t heads_before = (size_t)w.kv_head * w.share * kv->head_width;
        w.table = mr_cpu_block_table(exec, attention->layer, exec->token_seq[t]);
        w.q = mr_cpu_row(exec, attention->qkv, t) + heads_before;
        w.out = mr_cpu_row(exec, attention->out, t) + heads_before;
        w.last = batch->positions[t];
        w.first = attention->window > 0 && w.last >= attention->window
                      ? w.last - attention->window + 1
                      : 0;
        run(&w);
    }
}
