/* SPDX-License-Identifier: Apache-2.0 */
/* Sines and cosines of rotary positions. */
#include "kernels/cpu/internal.h"

#include "base/checked.h"

#include <math.h>
#include <stdlib.h>

/* The row of one position. */
static void fill_row(const mr_plan_rope *rope, const float *inv_freq, uint64_t position,
                     float *cosines, float *sines)
{
    for (uint32_t i = 0; i < rope->dims / 2; i++) {
        const double angle = (double)position * (double)inv_freq[i];
        cosines[i] = (float)(cos(angle) * (double)rope->attention_factor);
        sines[i] = (float)(sin(angle) * (double)rope->attention_factor);
    }
}

static bool make_table(mr_cpu_exec *exec, const mr_plan_rope *rope, mr_cpu_rope *table,
                       mr_cpu_take_fn take)
{
    const uint64_t pairs = rope->dims / 2;
    const bool fixed = rope->rule == MR_ROPE_FIXED;
    const uint64_t rows = fixed ? exec->options.max_context : exec->options.max_tokens;
    table->cos = take(exec, rows * pairs, sizeof(float));
    table->sin = take(exec, rows * pairs, sizeof(float));
    table->freq = fixed ? NULL : take(exec, pairs, sizeof(float));
    if (table->cos == NULL || table->sin == NULL || (!fixed && table->freq == NULL)) {
        return false;
    }
    for (uint64_t p = 0; fixed && p < rows; p++) {
        fill_row(rope, rope->inv_freq, p, table->cos + p * pairs, table->sin + p * pairs);
    }
    return true;
}

bool mr_cpu_ropes_create(mr_cpu_exec *exec, mr_cpu_take_fn take)
{
    const mr_plan *plan = exec->plan;
    exec->ropes = mr_calloc((size_t)plan->n_ropes + 1, sizeof(*exec->ropes));
    for (uint32_t i = 0; exec->ropes != NULL && i < plan->n_ropes; i++) {
        if (!make_table(exec, &plan->ropes[i], &exec->ropes[i], take)) {
            return false;
        }
    }
    return exec->ropes != NULL;
}

void mr_cpu_ropes_destroy(mr_cpu_exec *exec)
{
    for (uint32_t i = 0; exec->ropes != NULL && i < exec->plan->n_ropes; i++) {
        free(exec->ropes[i].cos);
        free(exec->ropes[i].sin);
        free(exec->ropes[i].freq);
    }
    free(exec->ropes);
}

/* The frequencies of a sequence of `length` tokens. */
static const float *frequencies(const mr_plan_rope *rope, uint32_t length, float *scratch)
{
    if (rope->rule == MR_ROPE_TWO) {
        return length > rope->original ? rope->long_inv_freq : rope->inv_freq;
    }
    if (length <= rope->original) {
        return rope->inv_freq;
    }
    mr_rope_dynamic(rope, length, scratch);
    return scratch;
}

void mr_cpu_ropes_step(const mr_cpu_exec *exec, const mr_batch *batch)
{
    const uint32_t *lengths = batch->rope_length != NULL ? batch->rope_length : batch->context_len;
    for (uint32_t i = 0; i < exec->plan->n_ropes; i++) {
        const mr_plan_rope *rope = &exec->plan->ropes[i];
        const mr_cpu_rope *table = &exec->ropes[i];
        const size_t pairs = rope->dims / 2;
        for (uint32_t seq = 0; rope->rule != MR_ROPE_FIXED && seq < batch->n_seqs; seq++) {
            const float *inv_freq = frequencies(rope, lengths[seq], table->freq);
            for (uint32_t t = batch->seq_start[seq]; t < batch->seq_start[seq + 1]; t++) {
                fill_row(rope, inv_freq, batch->positions[t], table->cos + t * pairs,
                         table->sin + t * pairs);
            }
        }
    }
}
