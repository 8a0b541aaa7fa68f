/* SPDX-License-Identifier: Apache-2.0 */
/* One step: resident tables and tokens first, on the caller's thread, then the plan on all. */
#include "kernels/cpu/internal.h"

#include "base/clock.h"
#include "kernels/batch_check.h"

#include <string.h>

static void apply_deltas(mr_cpu_exec *exec, const mr_batch *batch)
{
    for (uint32_t i = 0; i < batch->n_block_deltas; i++) {
        const mr_block_delta *delta = &batch->block_deltas[i];
        const uint64_t table = (uint64_t)delta->group * exec->options.max_seqs + delta->slot;
        exec->block_tables[table * exec->max_blocks + delta->index] = delta->block;
    }
    for (uint32_t i = 0; i < batch->n_history_deltas; i++) {
        const mr_history_delta *delta = &batch->history_deltas[i];
        uint32_t *history = exec->history + (uint64_t)delta->slot * exec->options.max_context;
        memcpy(history + delta->start, batch->history_tokens + delta->offset,
               delta->count * sizeof(*history));
    }
}

static void resolve_tokens(mr_cpu_exec *exec, const mr_batch *batch)
{
    for (uint32_t seq = 0; seq < batch->n_seqs; seq++) {
        for (uint32_t t = batch->seq_start[seq]; t < batch->seq_start[seq + 1]; t++) {
            const int32_t src = batch->token_src[t];
            exec->tokens[t] = mr_token_src_is_row(src) ? exec->drawn[~src] : (uint32_t)src;
            exec->token_seq[t] = seq;
        }
    }
}

static void count_linear(const mr_cpu_exec *exec, const mr_op_linear *op, const mr_batch *batch,
                         mr_op_time *time)
{
    const uint64_t rows = mr_cpu_rows(exec->plan, op->in, batch);
    for (uint32_t part = 0; part < op->parts; part++) {
        const mr_cpu_weight *weight = &exec->weights->items[op->weight[part]];
        time->bytes += weight->bytes;
        time->operations += 2 * rows * weight->n * weight->k;
    }
}

static void count_attention(const mr_cpu_exec *exec, const mr_op_attention *op,
                            const mr_batch *batch, mr_op_time *time)
{
    const mr_plan_kv *kv = &exec->plan->kv;
    const uint64_t key_bytes =
        exec->kv_layout.row + exec->kv_layout.scales / exec->options.block_size;
    for (uint32_t seq = 0; seq < batch->n_seqs; seq++) {
        uint64_t first = UINT64_MAX; /* keys that some token of the sequence sees */
        uint64_t end = 0;
        for (uint32_t t = batch->seq_start[seq]; t < batch->seq_start[seq + 1]; t++) {
            const uint64_t after = (uint64_t)batch->positions[t] + 1;
            const uint64_t keys = op->window > 0 && op->window < after ? op->window : after;
            time->operations += 4 * keys * op->heads * kv->head_width;
            first = after - keys < first ? after - keys : first;
            end = after > end ? after : end;
        }
        time->bytes += end > 0 ? 2 * (end - first) * kv->heads * key_bytes : 0;
    }
}

static void count(mr_cpu_exec *exec, const mr_op *op, const mr_batch *batch, uint64_t ns)
{
    mr_op_time *time = &exec->times.by_kind[op->kind];
    time->ns += ns;
    time->calls++;
    if (op->kind == MR_OP_LINEAR) {
        count_linear(exec, &op->linear, batch, time);
    } else if (op->kind == MR_OP_ATTENTION) {
        count_attention(exec, &op->attention, batch, time);
    }
}

static void walk(void *ctx, uint32_t thread, uint32_t threads)
{
    mr_cpu_exec *exec = ctx;
    const mr_clock clock = mr_clock_monotonic();
    uint64_t before = mr_clock_now(&clock);
    for (uint32_t i = 0; i < exec->plan->n_ops; i++) {
        const mr_op *op = &exec->plan->ops[i];
        const mr_cpu_op_fn run = exec->path->ops[op->kind];
        if (run == NULL) {
            continue;
        }
        run(exec, op, exec->batch, thread, threads);
        mr_thread_pool_barrier(exec->pool);
        if (thread == 0) {
            const uint64_t now = mr_clock_now(&clock);
            count(exec, op, exec->batch, now - before);
            before = now;
        }
    }
}

mr_status mr_cpu_step_submit(mr_exec *base, const mr_batch *batch, mr_error *err)
{
    mr_cpu_exec *exec = (mr_cpu_exec *)base;
    if (exec->pending) {
        return mr_fail(err, MR_FAILED_PRECONDITION,
                       "step %llu: the step before it was not waited for",
                       (unsigned long long)batch->step);
    }
    const mr_batch_bounds bounds = {
        .options = &exec->options,
        .vocab_size = exec->plan->vocab_size,
        .kv_groups = exec->plan->kv.groups,
        .max_blocks = exec->max_blocks,
        .n_drawn = exec->n_drawn,
    };
    MR_TRY(mr_batch_check(&bounds, batch, err));
    apply_deltas(exec, batch);
    resolve_tokens(exec, batch);
    mr_cpu_ropes_step(exec, batch);
    exec->batch = batch;
    mr_thread_pool_run(exec->pool, walk, exec);
    exec->batch = NULL;
    exec->step = batch->step;
    exec->n_drawn = batch->n_rows;
    exec->times.steps++;
    exec->pending = true;
    return MR_OK;
}

mr_status mr_cpu_step_wait(mr_exec *base, mr_step_output *out, mr_error *err)
{
    mr_cpu_exec *exec = (mr_cpu_exec *)base;
    if (!exec->pending) {
        return mr_fail(err, MR_FAILED_PRECONDITION, "wait: no step was submitted");
    }
    exec->pending = false;
    *out = (mr_step_output){
        .step = exec->step,
        .n_rows = exec->n_drawn,
        .tokens = exec->drawn,
        .logprobs = exec->logprobs,
        .n_top = exec->n_top,
        .top = exec->top,
        .corrupt = exec->corrupt,
        .logits = exec->logits,
    };
    return MR_OK;
}

static void sample_row(mr_cpu_exec *exec, float *logits, const mr_batch *batch, uint32_t row,
                       uint32_t thread)
{
    const uint32_t vocab = exec->plan->vocab_size;
    const mr_row_params *params = &batch->row_params[row];
    const uint32_t slot = batch->seq_slot[exec->token_seq[batch->logit_rows[row]]];
    if (exec->logits != NULL) {
        memcpy(exec->logits + (size_t)row * vocab, logits, vocab * sizeof(*logits));
    }
    mr_sample_row input = {
        .logits = logits,
        .params = params,
        .history = exec->history + (uint64_t)slot * exec->options.max_context,
    };
    if (params->bias_count > 0) {
        input.bias_tokens = batch->bias_tokens + params->bias_offset;
        input.bias_values = batch->bias_values + params->bias_offset;
    }
    mr_sample_result result;
    mr_sample(exec->samplers[thread], &input, &result);
    exec->drawn[row] = result.token;
    exec->logprobs[row] = result.logprob;
    exec->n_top[row] = result.n_top;
    exec->corrupt[row] = result.corrupt;
    memcpy(exec->top + (size_t)row * MR_MAX_TOP, result.top, sizeof(result.top));
}

void mr_cpu_op_sample(mr_cpu_exec *exec, const mr_op *op, const mr_batch *batch, uint32_t thread,
                      uint32_t threads)
{
    for (uint32_t row = thread; row < batch->n_rows; row += threads) {
        sample_row(exec, mr_cpu_row(exec, op->unary.in, row), batch, row, thread);
    }
}
