/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/batch.h"

#include "base/checked.h"

#include <stdlib.h>
#include <string.h>

struct mr_batch_storage {
    mr_batch_limits limits;
    mr_batch batch; /* points into the arrays below */
    uint32_t max_block_deltas;
    uint32_t n_bias;
    uint32_t n_history;

    int32_t *token_src;
    uint32_t *positions;
    uint32_t *seq_start;
    uint32_t *context_len;
    uint32_t *rope_length;
    uint32_t *seq_slot;
    uint32_t *kv_slot;        /* [groups][max_tokens] while it is filled */
    uint32_t *kv_slot_packed; /* [groups][T] as a batch wants it; unused with one group */
    uint32_t *logit_rows;
    mr_row_params *row_params;
    uint32_t *adapter;
    uint32_t *bias_tokens;
    float *bias_values;
    mr_block_delta *block_deltas;
    mr_history_delta *history_deltas; /* [max_history]: each carries at least one token */
    uint32_t *history_tokens;
};

static bool allocate(mr_batch_storage *s)
{
    const mr_batch_limits *limits = &s->limits;
    uint64_t slots;
    uint64_t kv_slots;
    if (!mr_mul_u64((uint64_t)limits->kv_groups * limits->max_seqs,
                    ((uint64_t)limits->max_context + limits->block_size - 1) / limits->block_size,
                    &slots) ||
        slots > UINT32_MAX || !mr_mul_u64(limits->kv_groups, limits->max_tokens, &kv_slots)) {
        return false;
    }
    s->max_block_deltas = (uint32_t)slots;
    s->token_src = mr_calloc(limits->max_tokens, sizeof(*s->token_src));
    s->positions = mr_calloc(limits->max_tokens, sizeof(*s->positions));
    s->seq_start = mr_calloc((size_t)limits->max_seqs + 1, sizeof(*s->seq_start));
    s->context_len = mr_calloc(limits->max_seqs, sizeof(*s->context_len));
    s->rope_length = mr_calloc(limits->max_seqs, sizeof(*s->rope_length));
    s->seq_slot = mr_calloc(limits->max_seqs, sizeof(*s->seq_slot));
    s->adapter = mr_calloc(limits->max_seqs, sizeof(*s->adapter));
    s->kv_slot = mr_calloc(kv_slots, sizeof(*s->kv_slot));
    s->kv_slot_packed = mr_calloc(kv_slots, sizeof(*s->kv_slot_packed));
    s->logit_rows = mr_calloc(limits->max_rows, sizeof(*s->logit_rows));
    s->row_params = mr_calloc(limits->max_rows, sizeof(*s->row_params));
    s->block_deltas = mr_calloc(slots, sizeof(*s->block_deltas));
    s->bias_tokens = mr_calloc((size_t)limits->max_bias + 1, sizeof(*s->bias_tokens));
    s->bias_values = mr_calloc((size_t)limits->max_bias + 1, sizeof(*s->bias_values));
    s->history_deltas = mr_calloc((size_t)limits->max_history + 1, sizeof(*s->history_deltas));
    s->history_tokens = mr_calloc((size_t)limits->max_history + 1, sizeof(*s->history_tokens));
    return s->token_src != NULL && s->positions != NULL && s->seq_start != NULL &&
           s->context_len != NULL && s->rope_length != NULL && s->seq_slot != NULL &&
           s->adapter != NULL && s->kv_slot != NULL && s->kv_slot_packed != NULL &&
           s->logit_rows != NULL && s->row_params != NULL && s->block_deltas != NULL &&
           s->bias_tokens != NULL && s->bias_values != NULL && s->history_deltas != NULL &&
           s->history_tokens != NULL;
}

mr_status mr_batch_storage_create(const mr_batch_limits *limits, mr_batch_storage **out)
{
    if (limits->max_tokens == 0 || limits->max_seqs == 0 || limits->max_rows == 0 ||
        limits->max_context == 0 || limits->block_size == 0 || limits->kv_groups == 0 ||
        limits->max_tokens > INT32_MAX || limits->max_rows > INT32_MAX) {
        return MR_INVALID_ARGUMENT;
    }
    mr_batch_storage *s = mr_calloc(1, sizeof(*s));
    if (s == NULL) {
        return MR_RESOURCE_EXHAUSTED;
    }
    s->limits = *limits;
    if (!allocate(s)) {
        mr_batch_storage_destroy(s);
        return MR_RESOURCE_EXHAUSTED;
    }
    s->batch = (mr_batch){
        .kv_groups = limits->kv_groups,
        .token_src = s->token_src,
        .positions = s->positions,
        .seq_start = s->seq_start,
        .context_len = s->context_len,
        .rope_length = s->rope_length,
        .seq_slot = s->seq_slot,
        .kv_slot = limits->kv_groups == 1 ? s->kv_slot : s->kv_slot_packed,
        .logit_rows = s->logit_rows,
        .row_params = s->row_params,
        .bias_tokens = s->bias_tokens,
        .bias_values = s->bias_values,
        .block_deltas = s->block_deltas,
        .history_deltas = s->history_deltas,
        .history_tokens = s->history_tokens,
    };
    *out = s;
    return MR_OK;
}

void mr_batch_storage_destroy(mr_batch_storage *s)
{
    if (s == NULL) {
        return;
    }
    free(s->token_src);
    free(s->positions);
    free(s->seq_start);
    free(s->context_len);
    free(s->rope_length);
    free(s->seq_slot);
    free(s->adapter);
    free(s->kv_slot);
    free(s->kv_slot_packed);
    free(s->logit_rows);
    free(s->row_params);
    free(s->block_deltas);
    free(s->bias_tokens);
    free(s->bias_values);
    free(s->history_deltas);
    free(s->history_tokens);
    free(s);
}

void mr_batch_reset(mr_batch_storage *s)
{
    s->batch.step++;
    s->batch.n_tokens = 0;
    s->batch.n_seqs = 0;
    s->batch.n_rows = 0;
    s->batch.n_block_deltas = 0;
    s->batch.n_history_deltas = 0;
    s->batch.adapter = NULL;
    s->n_bias = 0;
    s->n_history = 0;
    s->seq_start[0] = 0;
}

void mr_batch_follow(mr_batch_storage *s, uint64_t step)
{
    s->batch.step = step;
}

const mr_batch *mr_batch_get(const mr_batch_storage *s)
{
    const uint32_t n = s->batch.n_tokens;
    for (uint32_t g = 0; s->limits.kv_groups > 1 && g < s->limits.kv_groups; g++) {
        memcpy(s->kv_slot_packed + (size_t)g * n, s->kv_slot + (size_t)g * s->limits.max_tokens,
               n * sizeof(*s->kv_slot));
    }
    return &s->batch;
}

mr_status mr_batch_add_seq(mr_batch_storage *s, uint32_t slot, uint32_t context_len,
                           uint32_t adapter)
{
    if (slot >= s->limits.max_seqs || context_len > s->limits.max_context) {
        return MR_INVALID_ARGUMENT;
    }
    const uint32_t seq = s->batch.n_seqs;
    if (seq == s->limits.max_seqs) {
        return MR_RESOURCE_EXHAUSTED;
    }
    s->seq_slot[seq] = slot;
    s->context_len[seq] = context_len;
    s->rope_length[seq] = context_len;
    s->adapter[seq] = adapter;
    s->seq_start[seq + 1] = s->batch.n_tokens;
    s->batch.n_seqs++;
    if (adapter != 0) {
        s->batch.adapter = s->adapter;
    }
    return MR_OK;
}

void mr_batch_set_rope_length(mr_batch_storage *s, uint32_t tokens)
{
    MR_CHECK(s->batch.n_seqs > 0);
    s->rope_length[s->batch.n_seqs - 1] = tokens;
}

mr_status mr_batch_add_token(mr_batch_storage *s, int32_t src, uint32_t position,
                             const uint32_t *kv_slot)
{
    if (s->batch.n_seqs == 0 || position >= s->limits.max_context) {
        return MR_INVALID_ARGUMENT;
    }
    const uint32_t t = s->batch.n_tokens;
    if (t == s->limits.max_tokens) {
        return MR_RESOURCE_EXHAUSTED;
    }
    s->token_src[t] = src;
    s->positions[t] = position;
    for (uint32_t g = 0; g < s->limits.kv_groups; g++) {
        s->kv_slot[(size_t)g * s->limits.max_tokens + t] = kv_slot[g];
    }
    s->batch.n_tokens++;
    s->seq_start[s->batch.n_seqs] = s->batch.n_tokens;
    return MR_OK;
}

mr_status mr_batch_add_span(mr_batch_storage *s, const uint32_t *tokens, uint32_t count,
                            uint32_t position, uint32_t kv_slot)
{
    if (s->batch.n_seqs == 0 || s->limits.kv_groups != 1 || position >= s->limits.max_context ||
        count > s->limits.max_context - position) {
        return MR_INVALID_ARGUMENT;
    }
    const uint32_t t = s->batch.n_tokens;
    if (count > s->limits.max_tokens - t) {
        return MR_RESOURCE_EXHAUSTED;
    }
    int32_t *const src = s->token_src + t;
    uint32_t *const positions = s->positions + t;
    uint32_t *const slots = s->kv_slot + t;
    for (uint32_t i = 0; i < count; i++) {
        src[i] = (int32_t)tokens[i];
        positions[i] = position + i;
        slots[i] = kv_slot + i;
    }
    s->batch.n_tokens += count;
    s->seq_start[s->batch.n_seqs] = s->batch.n_tokens;
    return MR_OK;
}

mr_status mr_batch_add_row(mr_batch_storage *s, const mr_row_params *params,
                           const uint32_t *bias_tokens, const float *bias_values)
{
    if (s->batch.n_tokens == 0) {
        return MR_INVALID_ARGUMENT;
    }
    const uint32_t row = s->batch.n_rows;
    const bool shares = bias_tokens == NULL && params->bias_count > 0;
    if (shares && (row == 0 || s->row_params[row - 1].bias_count != params->bias_count)) {
        return MR_INVALID_ARGUMENT;
    }
    if (row == s->limits.max_rows ||
        (!shares && params->bias_count > s->limits.max_bias - s->n_bias)) {
        return MR_RESOURCE_EXHAUSTED;
    }
    s->batch.n_rows++;
    s->logit_rows[row] = s->batch.n_tokens - 1;
    s->row_params[row] = *params;
    s->row_params[row].bias_offset = shares ? s->row_params[row - 1].bias_offset : s->n_bias;
    if (params->bias_count > 0 && !shares) {
        memcpy(s->bias_tokens + s->n_bias, bias_tokens, params->bias_count * sizeof(*bias_tokens));
        memcpy(s->bias_values + s->n_bias, bias_values, params->bias_count * sizeof(*bias_values));
        s->n_bias += params->bias_count;
    }
    return MR_OK;
}

mr_status mr_batch_add_block(mr_batch_storage *s, const mr_block_delta *delta)
{
    if (s->batch.n_block_deltas == s->max_block_deltas) {
        return MR_RESOURCE_EXHAUSTED;
    }
    s->block_deltas[s->batch.n_block_deltas++] = *delta;
    return MR_OK;
}

mr_status mr_batch_add_history(mr_batch_storage *s, uint32_t slot, uint32_t start,
                               const uint32_t *tokens, uint32_t count)
{
    if (count == 0) {
        return MR_OK;
    }
    if (count > s->limits.max_history - s->n_history) {
        return MR_RESOURCE_EXHAUSTED;
    }
    s->history_deltas[s->batch.n_history_deltas++] =
        (mr_history_delta){.slot = slot, .start = start, .offset = s->n_history, .count = count};
    memcpy(s->history_tokens + s->n_history, tokens, count * sizeof(*tokens));
    s->n_history += count;
    return MR_OK;
}
