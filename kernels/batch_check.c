/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/batch_check.h"

#define BATCH_FAULT(err, batch, fmt, ...)                                                          \
    mr_fail(err, MR_INVALID_ARGUMENT, "step %llu: " fmt, (unsigned long long)(batch)->step,        \
            __VA_ARGS__)

static mr_status check_counts(const mr_batch_bounds *bounds, const mr_batch *b, mr_error *err)
{
    const mr_exec_options *o = bounds->options;
    if (b->n_tokens == 0 || b->n_tokens > o->max_tokens || b->n_seqs == 0 ||
        b->n_seqs > o->max_seqs || b->n_rows > o->max_rows) {
        return BATCH_FAULT(err, b,
                           "%u tokens, %u sequences, %u rows; compiled for 1 to %u, 1 to %u, 0 to "
                           "%u",
                           b->n_tokens, b->n_seqs, b->n_rows, o->max_tokens, o->max_seqs,
                           o->max_rows);
    }
    if (b->token_src == NULL || b->positions == NULL || b->seq_start == NULL ||
        b->context_len == NULL || b->seq_slot == NULL || b->kv_slot == NULL ||
        (b->n_rows > 0 && (b->logit_rows == NULL || b->row_params == NULL)) ||
        (b->n_block_deltas > 0 && b->block_deltas == NULL) ||
        (b->n_history_deltas > 0 && (b->history_deltas == NULL || b->history_tokens == NULL))) {
        return BATCH_FAULT(err, b, "%s", "an array is missing");
    }
    return MR_OK;
}

static mr_status check_token(const mr_batch_bounds *bounds, const mr_batch *b, uint32_t seq,
                             uint32_t t, mr_error *err)
{
    const int32_t src = b->token_src[t];
    if (mr_token_src_is_row(src) && (uint32_t)~src >= bounds->n_drawn) {
        return BATCH_FAULT(err, b, "token_src[%u] names row %d of the last step, which had %u", t,
                           ~src, bounds->n_drawn);
    }
    if (!mr_token_src_is_row(src) && (uint32_t)src >= bounds->vocab_size) {
        return BATCH_FAULT(err, b, "token_src[%u] is %d; the vocabulary has %u", t, src,
                           bounds->vocab_size);
    }
    if (b->positions[t] >= b->context_len[seq]) {
        return BATCH_FAULT(err, b, "positions[%u] is %u; its sequence's context is %u", t,
                           b->positions[t], b->context_len[seq]);
    }
    return MR_OK;
}

static mr_status check_seqs(const mr_batch_bounds *bounds, const mr_batch *b, mr_error *err)
{
    const mr_exec_options *o = bounds->options;
    if (b->seq_start[0] != 0 || b->seq_start[b->n_seqs] != b->n_tokens) {
        return BATCH_FAULT(err, b, "seq_start runs from %u to %u, not from 0 to %u",
                           b->seq_start[0], b->seq_start[b->n_seqs], b->n_tokens);
    }
    for (uint32_t seq = 0; seq < b->n_seqs; seq++) {
        if (b->seq_start[seq + 1] < b->seq_start[seq] || b->seq_start[seq + 1] > b->n_tokens) {
            return BATCH_FAULT(err, b, "seq_start[%u] is %u, out of order", seq + 1,
                               b->seq_start[seq + 1]);
        }
        if (b->seq_slot[seq] >= o->max_seqs) {
            return BATCH_FAULT(err, b, "seq_slot[%u] is %u; there are %u", seq, b->seq_slot[seq],
                               o->max_seqs);
        }
        if (b->context_len[seq] > o->max_context) {
            return BATCH_FAULT(err, b, "context_len[%u] is %u; compiled for %u", seq,
                               b->context_len[seq], o->max_context);
        }
        if (b->adapter != NULL && b->adapter[seq] != 0) {
            return mr_fail(err, MR_UNIMPLEMENTED, "adapters are not supported by this backend");
        }
        for (uint32_t t = b->seq_start[seq]; t < b->seq_start[seq + 1]; t++) {
            MR_TRY(check_token(bounds, b, seq, t, err));
        }
    }
    return MR_OK;
}

static mr_status check_kv_slots(const mr_batch_bounds *bounds, const mr_batch *b, mr_error *err)
{
    const uint32_t slots = bounds->options->n_blocks * bounds->options->block_size;
    if (b->kv_groups != bounds->kv_groups) {
        return BATCH_FAULT(err, b, "kv_slot is of %u KV groups; the plan has %u", b->kv_groups,
                           bounds->kv_groups);
    }
    const uint64_t count = (uint64_t)bounds->kv_groups * b->n_tokens;
    for (uint64_t i = 0; i < count; i++) {
        if (b->kv_slot[i] >= slots) {
            return BATCH_FAULT(err, b, "kv_slot[%llu] is %u; the pool has %u",
                               (unsigned long long)i, b->kv_slot[i], slots);
        }
    }
    return MR_OK;
}

static mr_status check_row(const mr_batch_bounds *bounds, const mr_batch *b, uint32_t r,
                           mr_error *err)
{
    const mr_row_params *p = &b->row_params[r];
    const uint32_t vocab = bounds->vocab_size;
    if (b->logit_rows[r] >= b->n_tokens || (r > 0 && b->logit_rows[r] < b->logit_rows[r - 1])) {
        return BATCH_FAULT(err, b, "logit_rows[%u] is %u, out of order or not below %u", r,
                           b->logit_rows[r], b->n_tokens);
    }
    if (p->target != MR_NO_TARGET && p->target >= vocab) {
        return BATCH_FAULT(err, b, "row_params[%u].target is %u; the vocabulary has %u", r,
                           p->target, vocab);
    }
    if (p->n_top > MR_MAX_TOP) {
        return BATCH_FAULT(err, b, "row_params[%u].n_top is %u; at most %d are possible", r,
                           p->n_top, MR_MAX_TOP);
    }
    if (p->history_len > bounds->options->max_context || p->prompt_len > p->history_len) {
        return BATCH_FAULT(err, b, "row_params[%u]: history of %u with a prompt of %u", r,
                           p->history_len, p->prompt_len);
    }
    if (p->bias_count > 0 && (b->bias_tokens == NULL || b->bias_values == NULL)) {
        return BATCH_FAULT(err, b, "row_params[%u]: its bias list is missing", r);
    }
    for (uint32_t i = 0; i < p->bias_count; i++) {
        if (b->bias_tokens[p->bias_offset + i] >= vocab) {
            return BATCH_FAULT(err, b, "row_params[%u]: bias for token %u; the vocabulary has %u",
                               r, b->bias_tokens[p->bias_offset + i], vocab);
        }
    }
    if (b->mask_ref != NULL && b->mask_ref[r] != 0) {
        return mr_fail(err, MR_UNIMPLEMENTED, "grammar masks are not supported by this backend");
    }
    return MR_OK;
}

static mr_status check_deltas(const mr_batch_bounds *bounds, const mr_batch *b, mr_error *err)
{
    const mr_exec_options *o = bounds->options;
    for (uint32_t i = 0; i < b->n_block_deltas; i++) {
        const mr_block_delta *d = &b->block_deltas[i];
        if (d->slot >= o->max_seqs || d->group >= bounds->kv_groups ||
            d->index >= bounds->max_blocks || d->block >= o->n_blocks) {
            return BATCH_FAULT(err, b,
                               "block_deltas[%u]: slot %u, group %u, index %u, block %u is out of "
                               "range",
                               i, d->slot, d->group, d->index, d->block);
        }
    }
    for (uint32_t i = 0; i < b->n_history_deltas; i++) {
        const mr_history_delta *d = &b->history_deltas[i];
        if (d->slot >= o->max_seqs || d->start > o->max_context ||
            d->count > o->max_context - d->start) {
            return BATCH_FAULT(err, b, "history_deltas[%u]: slot %u, %u tokens from %u on", i,
                               d->slot, d->count, d->start);
        }
        for (uint32_t j = 0; j < d->count; j++) {
            if (b->history_tokens[d->offset + j] >= bounds->vocab_size) {
                return BATCH_FAULT(err, b, "history_deltas[%u]: token %u is no token", i,
                                   b->history_tokens[d->offset + j]);
            }
        }
    }
    return MR_OK;
}

mr_status mr_batch_check(const mr_batch_bounds *bounds, const mr_batch *batch, mr_error *err)
{
    MR_TRY(check_counts(bounds, batch, err));
    MR_TRY(check_seqs(bounds, batch, err));
    MR_TRY(check_kv_slots(bounds, batch, err));
    for (uint32_t r = 0; r < batch->n_rows; r++) {
        MR_TRY(check_row(bounds, batch, r, err));
    }
    return check_deltas(bounds, batch, err);
}
