/* SPDX-License-Identifier: Apache-2.0 */
#include "scripted.h"

#include "base/checked.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Notes the first violation only: what follows from it would hide it. */
static void MR_PRINTF(3, 4) expect(scripted_exec *exec, bool holds, const char *fmt, ...)
{
    if (holds || exec->violation[0] != '\0') {
        return;
    }
    va_list args;
    va_start(args, fmt);
    vsnprintf(exec->violation, sizeof(exec->violation), fmt, args);
    va_end(args);
}

static bool is_in(uint32_t token, const uint32_t *list, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (list[i] == token) {
            return true;
        }
    }
    return false;
}

static uint64_t hash_of(const uint32_t *tokens, uint32_t n)
{
    uint64_t hash = 14695981039346656037u;
    for (uint32_t i = 0; i < n; i++) {
        hash = (hash ^ (tokens[i] + 1)) * 1099511628211u;
    }
    return hash;
}

uint32_t scripted_next(const uint32_t *tokens, uint32_t n, uint32_t choice, uint32_t vocab_size,
                       const uint32_t *banned, uint32_t n_banned)
{
    const uint64_t hash = hash_of(tokens, n) + choice * 0x9e3779b97f4a7c15u;
    uint32_t token = (uint32_t)(hash >> 32) % vocab_size;
    while (is_in(token, banned, n_banned)) {
        token = (token + 1) % vocab_size;
    }
    return token;
}

void scripted_distribution(const uint32_t *tokens, uint32_t n, uint32_t vocab_size,
                           const uint32_t *banned, uint32_t n_banned, float *out)
{
    scripted_random random = {.state = hash_of(tokens, n)};
    double sum = 0.0;
    for (uint32_t v = 0; v < vocab_size; v++) {
        const double weight = exp(scripted_draw(&random, 1u << 20) * (4.0 / (1u << 20)));
        out[v] = is_in(v, banned, n_banned) ? -INFINITY : (float)log(weight);
        sum += is_in(v, banned, n_banned) ? 0.0 : weight;
    }
    for (uint32_t v = 0; v < vocab_size; v++) {
        out[v] -= (float)log(sum);
    }
}

uint32_t scripted_draw(scripted_random *random, uint32_t below)
{
    random->state = random->state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random->state >> 33) % below;
}

#define SHARED UINT32_MAX /* owner of a block that is only read */

static void apply_deltas(scripted_exec *exec, const mr_batch *batch)
{
    for (uint32_t i = 0; i < batch->n_block_deltas; i++) {
        const mr_block_delta *delta = &batch->block_deltas[i];
        if (delta->slot >= exec->limits.max_seqs || delta->index >= exec->max_blocks ||
            delta->block == MR_NULL_BLOCK || delta->block >= exec->n_blocks || delta->group != 0) {
            expect(exec, false, "block delta %u is out of range", i);
            continue;
        }
        exec->tables[delta->slot * exec->max_blocks + delta->index] = delta->block;
    }
    for (uint32_t i = 0; i < batch->n_history_deltas; i++) {
        const mr_history_delta *delta = &batch->history_deltas[i];
        memcpy(exec->history + (size_t)delta->slot * exec->limits.max_context + delta->start,
               batch->history_tokens + delta->offset, delta->count * sizeof(uint32_t));
    }
}

/* Who writes into a block is the only one that has it: full blocks may be shared. */
static void check_blocks(scripted_exec *exec, const mr_batch *batch, uint32_t b)
{
    const uint32_t slot = batch->seq_slot[b];
    const uint32_t block_size = exec->limits.block_size;
    const uint32_t first = batch->positions[batch->seq_start[b]] / block_size;
    const uint32_t n = mr_blocks_for(batch->context_len[b], block_size);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t block = exec->tables[slot * exec->max_blocks + i];
        const bool writes = i >= first;
        uint32_t *owner = &exec->owners[block];
        expect(exec, block != MR_NULL_BLOCK, "slot %u has no block %u", slot, i);
        expect(exec, *owner == 0 || (*owner == SHARED && !writes),
               "block %u of slot %u belongs to another too (%u)", block, slot, *owner);
        *owner = writes ? slot + 1 : SHARED;
    }
}

static uint32_t token_of(scripted_exec *exec, int32_t src)
{
    if (!mr_token_src_is_row(src)) {
        return (uint32_t)src;
    }
    const uint32_t row = (uint32_t)~src;
    expect(exec, row < exec->n_drawn, "row %u of the step before, which had %u", row,
           exec->n_drawn);
    return row < exec->n_drawn ? exec->drawn[row] : 0;
}

/* Takes the tokens of a sequence into the cache, in order. That nothing is missing before them
 * shows when a row reads the cache. */
static void run_sequence(scripted_exec *exec, const mr_batch *batch, uint32_t b)
{
    const uint32_t slot = batch->seq_slot[b];
    const uint32_t start = batch->seq_start[b];
    const uint32_t n = batch->seq_start[b + 1] - start;
    const uint32_t first = batch->positions[start];
    expect(exec, n > 0 && batch->seq_start[b + 1] <= batch->n_tokens, "sequence %u is empty", b);
    expect(exec, batch->context_len[b] == first + n, "sequence %u: context %u after %u + %u", b,
           batch->context_len[b], first, n);
    check_blocks(exec, batch, b);
    for (uint32_t t = start; t < start + n; t++) {
        const uint32_t position = batch->positions[t];
        const uint32_t block_size = exec->limits.block_size;
        const uint32_t at =
            exec->tables[slot * exec->max_blocks + position / block_size] * block_size +
            position % block_size;
        expect(exec, position == first + (t - start), "positions of slot %u jump", slot);
        expect(exec, batch->kv_slot[t] == at, "slot %u position %u: K/V goes to %u, not %u", slot,
               position, batch->kv_slot[t], at);
        exec->kv_tokens[at] = token_of(exec, batch->token_src[t]);
        exec->kv_positions[at] = position;
    }
}

/* The tokens of a sequence as the cache holds them. */
static void read_context(scripted_exec *exec, uint32_t slot, uint32_t n)
{
    const uint32_t block_size = exec->limits.block_size;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t at =
            exec->tables[slot * exec->max_blocks + i / block_size] * block_size + i % block_size;
        expect(exec, exec->kv_positions[at] == i, "slot %u: the cache holds position %u for %u",
               slot, exec->kv_positions[at], i);
        exec->context[i] = exec->kv_tokens[at];
    }
}

static void check_history(scripted_exec *exec, uint32_t slot, const mr_row_params *params)
{
    const uint32_t *history = exec->history + (size_t)slot * exec->limits.max_context;
    expect(exec, params->history_len == 0 || params->history_len == params->position,
           "slot %u: the history ends at %u, the row is %u", slot, params->history_len,
           params->position);
    expect(exec,
           memcmp(history, exec->context, params->history_len * sizeof(*history)) == 0 &&
               params->prompt_len <= params->history_len,
           "slot %u: the history differs from the tokens", slot);
}

/* Alternatives of the script's distribution, best first, lower ids first among equals. */
static void real_top(scripted_exec *exec, uint32_t row, uint32_t n, uint8_t wanted,
                     const uint32_t *banned, uint32_t n_banned)
{
    float *d = exec->distribution;
    scripted_distribution(exec->context, n, exec->vocab_size, banned, n_banned, d);
    exec->logprobs[row] = d[exec->tokens[row]];
    exec->n_top[row] = 0;
    for (uint32_t i = 0; i < wanted; i++) {
        uint32_t best = 0;
        for (uint32_t v = 1; v < exec->vocab_size; v++) {
            best = d[v] > d[best] ? v : best;
        }
        if (d[best] == -INFINITY) {
            break;
        }
        exec->top[row * MR_MAX_TOP + i] = (mr_alternative){.token = best, .logprob = d[best]};
        exec->n_top[row]++;
        d[best] = -INFINITY;
    }
}

static void run_row(scripted_exec *exec, const mr_batch *batch, uint32_t row, uint32_t b)
{
    const mr_row_params *params = &batch->row_params[row];
    const uint32_t slot = batch->seq_slot[b];
    const uint32_t n = batch->positions[batch->logit_rows[row]] + 1;
    const uint32_t *banned = batch->bias_tokens + params->bias_offset;
    expect(exec, params->position == n, "row %u draws position %u after %u tokens", row,
           params->position, n);
    read_context(exec, slot, n);
    check_history(exec, slot, params);
    uint32_t token = params->target;
    if (token == MR_NO_TARGET) {
        token = scripted_next(exec->context, n, params->choice, exec->vocab_size, banned,
                              params->bias_count);
    }
    exec->tokens[row] = token;
    exec->corrupt[row] = exec->corrupt_at != 0 && params->position == exec->corrupt_at;
    exec->logprobs[row] = -0.5f * (float)token;
    exec->n_top[row] = params->n_top;
    for (uint32_t i = 0; i < params->n_top; i++) {
        exec->top[row * MR_MAX_TOP + i] =
            (mr_alternative){.token = token + i, .logprob = -(float)i};
    }
    if (exec->real_top && params->want_logprob) {
        real_top(exec, row, n, params->n_top, banned, params->bias_count);
    }
}

static void check_batch(scripted_exec *exec, const mr_batch *batch)
{
    const mr_batch_limits *limits = &exec->limits;
    expect(exec, batch->n_tokens >= 1 && batch->n_tokens <= limits->max_tokens, "T is %u",
           batch->n_tokens);
    expect(exec, batch->n_seqs >= 1 && batch->n_seqs <= limits->max_seqs, "B is %u", batch->n_seqs);
    expect(exec, batch->n_rows <= limits->max_rows, "R is %u", batch->n_rows);
    expect(exec, batch->seq_start[0] == 0 && batch->seq_start[batch->n_seqs] == batch->n_tokens,
           "seq_start does not cover the tokens");
    for (uint32_t b = 0; b < batch->n_seqs; b++) {
        for (uint32_t other = 0; other < b; other++) {
            expect(exec, batch->seq_slot[b] != batch->seq_slot[other], "slot %u twice in a step",
                   batch->seq_slot[b]);
        }
    }
}

static mr_status scripted_submit(mr_exec *base, const mr_batch *batch, mr_error *err)
{
    scripted_exec *exec = (scripted_exec *)base;
    if (exec->fail_at_step != 0 && batch->step >= exec->fail_at_step) {
        return mr_fail(err, MR_INTERNAL, "the script says that the device fails");
    }
    if (exec->n_batches == 2) {
        return mr_fail(err, MR_FAILED_PRECONDITION, "two steps are not waited for");
    }
    exec->batches[exec->n_batches++] = batch;
    if (exec->n_batches > exec->most_batches) {
        exec->most_batches = exec->n_batches;
    }
    return MR_OK;
}

static mr_status scripted_wait(mr_exec *base, mr_step_output *out, mr_error *err)
{
    (void)err;
    scripted_exec *exec = (scripted_exec *)base;
    const mr_batch *batch = exec->batches[0];
    expect(exec, exec->n_batches > 0, "no step was submitted");
    exec->batches[0] = exec->batches[1];
    exec->n_batches--;
    check_batch(exec, batch);
    apply_deltas(exec, batch);
    memset(exec->owners, 0, exec->n_blocks * sizeof(*exec->owners));
    uint32_t row = 0;
    for (uint32_t b = 0; b < batch->n_seqs && exec->violation[0] == '\0'; b++) {
        run_sequence(exec, batch, b);
        const uint32_t before = row;
        while (row < batch->n_rows && batch->logit_rows[row] < batch->seq_start[b + 1]) {
            run_row(exec, batch, row++, b);
        }
        if (row - before > exec->max_seq_rows) {
            exec->max_seq_rows = row - before;
        }
    }
    expect(exec, row == batch->n_rows, "%u rows asked for, %u belong to a sequence", batch->n_rows,
           row);
    memcpy(exec->drawn, exec->tokens, batch->n_rows * sizeof(*exec->drawn));
    exec->n_drawn = batch->n_rows;
    *out = (mr_step_output){
        .step = batch->step,
        .n_rows = batch->n_rows,
        .tokens = exec->tokens,
        .logprobs = exec->logprobs,
        .n_top = exec->n_top,
        .top = exec->top,
        .corrupt = exec->corrupt,
    };
    return MR_OK;
}

static mr_status scripted_copy_blocks(mr_exec *base, const mr_block_copy *copies, size_t count,
                                      mr_error *err)
{
    (void)err;
    scripted_exec *exec = (scripted_exec *)base;
    const uint32_t size = exec->limits.block_size;
    for (size_t i = 0; i < count; i++) {
        const uint32_t from = copies[i].from;
        const uint32_t to = copies[i].to;
        expect(exec,
               from > 0 && from < exec->n_blocks && to > 0 && to < exec->n_blocks && from != to,
               "copy of block %u to %u", from, to);
        if (exec->violation[0] == '\0') {
            memcpy(exec->kv_tokens + to * size, exec->kv_tokens + from * size,
                   size * sizeof(*exec->kv_tokens));
            memcpy(exec->kv_positions + to * size, exec->kv_positions + from * size,
                   size * sizeof(*exec->kv_positions));
        }
        exec->n_copies++;
    }
    return MR_OK;
}

/* A block on its way: its tokens, then their positions. */

static void read_block(void *ctx, uint32_t block, uint8_t *out)
{
    const scripted_exec *exec = ctx;
    const size_t count = exec->limits.block_size;
    const size_t bytes = count * sizeof(*exec->kv_tokens);
    memcpy(out, exec->kv_tokens + block * count, bytes);
    memcpy(out + bytes, exec->kv_positions + block * count, bytes);
}

static void write_block(void *ctx, uint32_t block, const uint8_t *in)
{
    scripted_exec *exec = ctx;
    const size_t count = exec->limits.block_size;
    const size_t bytes = count * sizeof(*exec->kv_tokens);
    memcpy(exec->kv_tokens + block * count, in, bytes);
    memcpy(exec->kv_positions + block * count, in + bytes, bytes);
}

static void *host_alloc(mr_exec *base, uint64_t bytes)
{
    return scripted_host_alloc(&((scripted_exec *)base)->transfers, bytes);
}

static void host_free(mr_exec *base, void *memory, uint64_t bytes)
{
    (void)bytes;
    scripted_host_free(&((scripted_exec *)base)->transfers, memory);
}

static mr_status transfer_start(mr_exec *base, const mr_transfer *transfer, uint64_t *ticket,
                                mr_error *err)
{
    return scripted_transfer_start(&((scripted_exec *)base)->transfers, transfer, ticket, err);
}

static mr_transfer_state transfer_poll(mr_exec *base, uint64_t ticket)
{
    return scripted_transfer_poll(&((scripted_exec *)base)->transfers, ticket);
}

static bool transfer_cancel(mr_exec *base, uint64_t ticket)
{
    return scripted_transfer_cancel(&((scripted_exec *)base)->transfers, ticket);
}

static const mr_exec_vtable scripted_vtable = {
    .submit = scripted_submit,
    .wait = scripted_wait,
    .copy_blocks = scripted_copy_blocks,
    .host_alloc = host_alloc,
    .host_free = host_free,
    .transfer_start = transfer_start,
    .transfer_poll = transfer_poll,
    .transfer_cancel = transfer_cancel,
};

static void *zeroed(size_t count, size_t size)
{
    void *memory = mr_calloc(count + 1, size);
    MR_CHECK(memory != NULL);
    return memory;
}

void scripted_exec_init(scripted_exec *exec, const mr_scheduler_options *options,
                        uint32_t block_size, uint32_t n_blocks)
{
    *exec = (scripted_exec){
        .base.vt = &scripted_vtable, .n_blocks = n_blocks, .vocab_size = options->vocab_size};
    mr_scheduler_batch_limits(options, block_size, &exec->limits);
    const size_t slots = exec->limits.max_seqs;
    const size_t rows = exec->limits.max_rows;
    const size_t kv = (size_t)n_blocks * block_size;
    exec->max_blocks = mr_blocks_for(options->max_seq_length, block_size);
    exec->tables = zeroed(slots * exec->max_blocks, sizeof(uint32_t));
    exec->distribution = zeroed(options->vocab_size, sizeof(float));
    exec->kv_tokens = zeroed(kv, sizeof(uint32_t));
    exec->kv_positions = zeroed(kv, sizeof(uint32_t));
    exec->owners = zeroed(n_blocks, sizeof(uint32_t));
    exec->history = zeroed(slots * exec->limits.max_context, sizeof(uint32_t));
    exec->context = zeroed(exec->limits.max_context, sizeof(uint32_t));
    exec->tokens = zeroed(rows, sizeof(uint32_t));
    exec->drawn = zeroed(rows, sizeof(uint32_t));
    exec->logprobs = zeroed(rows, sizeof(float));
    exec->n_top = zeroed(rows, sizeof(uint8_t));
    exec->corrupt = zeroed(rows, sizeof(uint8_t));
    exec->top = zeroed(rows * MR_MAX_TOP, sizeof(mr_alternative));
    exec->transfers = (scripted_transfers){.block_bytes = scripted_block_bytes(block_size),
                                           .read = read_block,
                                           .write = write_block,
                                           .ctx = exec};
}

void scripted_exec_deinit(scripted_exec *exec)
{
    free(exec->tables);
    free(exec->distribution);
    free(exec->kv_tokens);
    free(exec->kv_positions);
    free(exec->owners);
    free(exec->history);
    free(exec->context);
    free(exec->tokens);
    free(exec->drawn);
    free(exec->logprobs);
    free(exec->n_top);
    free(exec->corrupt);
    free(exec->top);
}
