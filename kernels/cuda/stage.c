/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A step's arrays: how much there is of each, and their place in the staging area. A decode step
 * that fits in a bucket has the bucket's counts; its padding rows have position 0 and write into
 * the null block.
 */
#include "kernels/cuda/internal.h"

#include "base/checked.h"
#include "kernels/sample.h"

#include <string.h>

/* ---- counts ---- */

static uint32_t splits_of(uint32_t position)
{
    return position / MR_CUDA_SPLIT_KEYS + 1;
}

/* Whether prompt attention takes sequence `seq`: many tokens, at consecutive positions. */
static bool is_tiled(const mr_cuda_exec *exec, const mr_batch *batch, uint32_t seq)
{
    const uint32_t begin = batch->seq_start[seq];
    const uint32_t end = batch->seq_start[seq + 1];
    if (end - begin <= MR_CUDA_SPLIT_TOKENS ||
        !mr_cuda_takes_tiles(exec->backend, exec->plan, &exec->options)) {
        return false;
    }
    for (uint32_t t = begin + 1; t < end; t++) {
        if (batch->positions[t] != batch->positions[t - 1] + 1) {
            return false;
        }
    }
    return true;
}

static void count_attention(const mr_cuda_exec *exec, const mr_batch *batch, uint64_t *items,
                            uint64_t *tiles)
{
    *items = 0;
    *tiles = 0;
    for (uint32_t seq = 0; seq < batch->n_seqs; seq++) {
        const uint32_t begin = batch->seq_start[seq];
        const uint32_t end = batch->seq_start[seq + 1];
        if (is_tiled(exec, batch, seq)) {
            *tiles += (end - begin - 1) / MR_CUDA_TILE_ROWS + 1;
            continue;
        }
        for (uint32_t t = begin; t < end; t++) {
            *items += splits_of(batch->positions[t]);
        }
    }
}

static uint32_t bias_of(const mr_batch *batch)
{
    uint32_t most = 0;
    for (uint32_t r = 0; r < batch->n_rows; r++) {
        const mr_row_params *p = &batch->row_params[r];
        const uint32_t end = p->bias_count > 0 ? p->bias_offset + p->bias_count : 0;
        most = end > most ? end : most;
    }
    return most;
}

static mr_status count_step(const mr_cuda_exec *exec, const mr_batch *batch, mr_cuda_counts *out,
                            mr_error *err)
{
    const mr_cuda_counts *most = &exec->sizes.most;
    uint64_t items;
    uint64_t tiles;
    uint64_t history = 0;
    count_attention(exec, batch, &items, &tiles);
    for (uint32_t i = 0; i < batch->n_history_deltas; i++) {
        const mr_history_delta *d = &batch->history_deltas[i];
        const uint64_t end = (uint64_t)d->offset + d->count;
        history = end > history ? end : history;
    }
    if (items > most->items || tiles > most->tiles || history > most->history_tokens ||
        batch->n_history_deltas > most->history_deltas || bias_of(batch) > most->bias) {
        (void)mr_fail(
            err, MR_INVALID_ARGUMENT,
            "%llu items and %llu tiles of attention, %llu history tokens in %u pieces and "
            "%u bias entries; at most %u, %u, %u, %u and %u are possible",
            (unsigned long long)items, (unsigned long long)tiles, (unsigned long long)history,
            batch->n_history_deltas, bias_of(batch), most->items, most->tiles, most->history_tokens,
            most->history_deltas, most->bias);
        (void)mr_fail_context(err, "step %llu", (unsigned long long)batch->step);
        return MR_INVALID_ARGUMENT;
    }
    *out = (mr_cuda_counts){
        .tokens = batch->n_tokens,
        .rows = batch->n_rows,
        .items = (uint32_t)items,
        .tiles = (uint32_t)tiles,
        .block_deltas = mr_min_u32(batch->n_block_deltas, most->block_deltas),
        .history_deltas = batch->n_history_deltas,
        .history_tokens = (uint32_t)history,
        .bias = bias_of(batch),
    };
    return MR_OK;
}

/* Turns the counts into those of a bucket if the step can run in one. */
static bool fit_bucket(const mr_cuda_exec *exec, const mr_batch *batch, mr_cuda_counts *counts)
{
    const uint32_t bucket = mr_cuda_bucket(batch->n_tokens);
    const mr_cuda_counts fixed = {
        .tokens = bucket,
        .rows = bucket,
        .items = counts->items,
        .block_deltas = 2 * bucket + 64,
        .history_deltas = bucket,
        .history_tokens = 4 * bucket + 64,
        .bias = 1024,
    };
    mr_cuda_stage stage;
    mr_cuda_stage_lay_out(&fixed, exec->plan->kv.groups, &stage);
    if (bucket == 0 || batch->n_seqs != batch->n_tokens || batch->n_rows > batch->n_tokens ||
        bucket > exec->options.max_tokens || bucket > exec->options.max_rows ||
        counts->items > exec->sizes.launch_items || counts->block_deltas > fixed.block_deltas ||
        counts->history_deltas > fixed.history_deltas ||
        counts->history_tokens > fixed.history_tokens || counts->bias > fixed.bias ||
        counts->tiles > 0 || stage.bytes > exec->sizes.stage.bytes) {
        return false;
    }
    *counts = fixed;
    return true;
}

mr_status mr_cuda_stage_count(const mr_cuda_exec *exec, const mr_batch *batch, mr_cuda_step *out,
                              mr_error *err)
{
    *out = (mr_cuda_step){.batch = batch};
    MR_TRY(count_step(exec, batch, &out->counts, err));
    out->n_items = out->counts.items;
    out->graph = fit_bucket(exec, batch, &out->counts);
    out->layers = mr_cuda_layers_take(exec, out);
    mr_cuda_stage_lay_out(&out->counts, exec->plan->kv.groups, &out->stage);
    MR_CHECK(out->stage.bytes <= exec->sizes.stage.bytes);
    return MR_OK;
}

/* ---- arrays ---- */

static void *at(const mr_cuda_exec *exec, uint64_t offset)
{
    return exec->host_stage + offset;
}

/* Zeroes behind what is there: padding. */
static void put(const mr_cuda_exec *exec, uint64_t offset, const void *from, uint32_t count,
                uint32_t room)
{
    uint8_t *to = at(exec, offset);
    memcpy(to, from, (size_t)count * 4);
    memset(to + (size_t)count * 4, 0, (size_t)(room - count) * 4);
}

static void put_tokens(const mr_cuda_exec *exec, const mr_cuda_step *step)
{
    const mr_batch *b = step->batch;
    const mr_cuda_stage *s = &step->stage;
    const uint32_t room = step->counts.tokens;
    put(exec, s->token_src, b->token_src, b->n_tokens, room);
    put(exec, s->positions, b->positions, b->n_tokens, room);
    for (uint64_t g = 0; g < exec->plan->kv.groups; g++) {
        put(exec, s->kv_slot + g * room * 4, b->kv_slot + g * b->n_tokens, b->n_tokens, room);
    }
    uint32_t *slot = at(exec, s->token_slot);
    for (uint32_t seq = 0; seq < b->n_seqs; seq++) {
        for (uint32_t t = b->seq_start[seq]; t < b->seq_start[seq + 1]; t++) {
            slot[t] = b->seq_slot[seq];
        }
    }
    memset(slot + b->n_tokens, 0, (size_t)(room - b->n_tokens) * 4);
}

mr_cuda_row mr_cuda_stage_row(const mr_row_params *p, uint32_t slot)
{
    return (mr_cuda_row){
        .params = *p,
        .slot = slot,
        .min_p_cut = p->min_p > 0.0f ? mr_sample_min_p_bound(p->min_p) : 0.0f,
        .penalties =
            p->history_len > 0 && (p->repetition_penalty != 1.0f || p->presence_penalty != 0.0f ||
                                   p->frequency_penalty != 0.0f),
    };
}

static void put_rows(const mr_cuda_exec *exec, const mr_cuda_step *step)
{
    const mr_batch *b = step->batch;
    const uint32_t *slot = at(exec, step->stage.token_slot);
    mr_cuda_row *rows = at(exec, step->stage.rows);
    if (step->counts.rows > 0) {
        put(exec, step->stage.logit_rows, b->logit_rows, b->n_rows, step->counts.rows);
    }
    for (uint32_t r = 0; r < b->n_rows; r++) {
        rows[r] = mr_cuda_stage_row(&b->row_params[r], slot[b->logit_rows[r]]);
    }
    const uint32_t bias = bias_of(b);
    if (bias > 0) {
        memcpy(at(exec, step->stage.bias_tokens), b->bias_tokens, (size_t)bias * 4);
        memcpy(at(exec, step->stage.bias_values), b->bias_values, (size_t)bias * 4);
    }
}

/* The last delta of an entry wins: on the GPU they go all at once. */
static uint32_t put_deltas(const mr_cuda_exec *exec, const mr_cuda_step *step)
{
    const mr_batch *b = step->batch;
    mr_cuda_block_entry *entries = at(exec, step->stage.block_deltas);
    const uint32_t stamp = (uint32_t)(exec->times.steps + 1);
    uint32_t count = 0;
    for (uint32_t i = b->n_block_deltas; i-- > 0;) {
        const mr_block_delta *d = &b->block_deltas[i];
        const uint64_t table = (uint64_t)d->group * exec->options.max_seqs + d->slot;
        const uint32_t index = (uint32_t)(table * exec->sizes.max_blocks + d->index);
        if (exec->delta_step[index] != stamp) {
            exec->delta_step[index] = stamp;
            entries[count++] = (mr_cuda_block_entry){.index = index, .block = d->block};
        }
    }
    if (b->n_history_deltas > 0) {
        uint32_t end = 0;
        for (uint32_t i = 0; i < b->n_history_deltas; i++) {
            const mr_history_delta *d = &b->history_deltas[i];
            end = d->offset + d->count > end ? d->offset + d->count : end;
        }
        memcpy(at(exec, step->stage.history_deltas), b->history_deltas,
               b->n_history_deltas * sizeof(*b->history_deltas));
        memcpy(at(exec, step->stage.history_tokens), b->history_tokens, (size_t)end * 4);
    }
    return count;
}

static void put_attention(const mr_cuda_exec *exec, const mr_cuda_step *step)
{
    const mr_batch *b = step->batch;
    mr_cuda_item *items = at(exec, step->stage.items);
    mr_cuda_tile *tiles = at(exec, step->stage.tiles);
    uint32_t n = 0;
    for (uint32_t seq = 0; seq < b->n_seqs; seq++) {
        const uint32_t end = b->seq_start[seq + 1];
        const bool tiled = is_tiled(exec, b, seq);
        for (uint32_t t = b->seq_start[seq]; tiled && t < end; t += MR_CUDA_TILE_ROWS) {
            *tiles++ = (mr_cuda_tile){.token = t, .count = mr_min_u32(end - t, MR_CUDA_TILE_ROWS)};
        }
        for (uint32_t t = b->seq_start[seq]; !tiled && t < end; t++) {
            const uint32_t base = n;
            for (uint32_t split = 0; split < splits_of(b->positions[t]); split++) {
                items[n++] = (mr_cuda_item){.token = t, .split = split, .base = base};
            }
        }
    }
}

void mr_cuda_stage_put(const mr_cuda_exec *exec, const mr_cuda_step *step)
{
    put_tokens(exec, step);
    put_rows(exec, step);
    put_attention(exec, step);
    const mr_cuda_step_header header = {
        .n_tokens = step->batch->n_tokens,
        .n_rows = step->batch->n_rows,
        .n_items = step->n_items,
        .n_block_deltas = put_deltas(exec, step),
        .n_history_deltas = step->batch->n_history_deltas,
    };
    memcpy(exec->host_stage, &header, sizeof(header));
}
