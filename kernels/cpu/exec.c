/* SPDX-License-Identifier: Apache-2.0 */
/* Making and freeing an executor; its steps are in step.c. */
#include "kernels/cpu/internal.h"

#include "base/checked.h"
#include "base/cpu.h"
#include "base/pages.h"

#include <stdlib.h>
#include <string.h>

#define ALIGNMENT 64

static mr_cpu_exec *exec_of(mr_exec *base)
{
    return (mr_cpu_exec *)base;
}

/* `count` zeroed elements of `size` bytes, counted as activations; NULL when memory is short. */
static void *take(mr_cpu_exec *exec, uint64_t count, uint64_t size)
{
    uint64_t bytes;
    if (!mr_mul_u64(count, size, &bytes) || bytes > PTRDIFF_MAX - ALIGNMENT) {
        return NULL;
    }
    exec->activation_bytes += bytes;
    return mr_alloc_aligned(bytes > 0 ? bytes : 1);
}

static mr_status check_kv_dtype(const mr_exec_options *o, mr_error *err)
{
    if (!mr_kv_dtype_known(o->kv_dtype) || o->kv_dtype == MR_DTYPE_F8_E4M3) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, "kv_cache_dtype",
                             "compile: the CPU keeps keys and values as f32, f16, bf16 or int8");
    }
    return MR_OK;
}

static mr_status check_weights(const mr_plan *plan, const mr_cpu_weights *weights, mr_error *err)
{
    bool same = plan->n_weights == weights->count;
    for (uint32_t i = 0; same && i < weights->count; i++) {
        same =
            plan->weights[i].n == weights->items[i].n && plan->weights[i].k == weights->items[i].k;
    }
    if (!same) {
        return mr_fail(err, MR_INVALID_ARGUMENT,
                       "compile: the weights were uploaded from another plan");
    }
    return MR_OK;
}

static mr_status make_kv(mr_cpu_exec *exec, mr_error *err)
{
    const mr_plan_kv *kv = &exec->plan->kv;
    const mr_exec_options *o = &exec->options;
    const bool fits = mr_kv_layout_make(kv, o->kv_dtype, o->block_size, &exec->kv_layout);
    const uint64_t block = fits ? exec->kv_layout.all : UINT64_MAX;
    const uint64_t available = mr_memory_available();
    if (!mr_mul_u64(block, o->n_blocks, &exec->kv_bytes) || exec->kv_bytes > available) {
        return mr_fail_field(err, MR_RESOURCE_EXHAUSTED, "kv_cache_memory",
                             "KV cache: %u blocks of %llu bytes are wanted; the %llu MiB of memory "
                             "available hold %llu",
                             o->n_blocks, (unsigned long long)block,
                             (unsigned long long)(available >> 20),
                             (unsigned long long)(available / (block > 0 ? block : 1)));
    }
    exec->kv_plane_bytes = exec->kv_layout.block * o->n_blocks;
    exec->kv = mr_pages_alloc(exec->kv_bytes);
    if (exec->kv == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED,
                       "KV cache: out of memory at %llu MiB; lower max_seq_length or "
                       "kv_cache_memory, or free memory (ulimit -v bounds it too)",
                       (unsigned long long)(exec->kv_bytes >> 20));
    }
    return MR_OK;
}

static bool make_buffers(mr_cpu_exec *exec)
{
    const mr_plan *plan = exec->plan;
    exec->buffers = mr_calloc((size_t)plan->n_buffers + 1, sizeof(*exec->buffers));
    for (uint32_t i = 0; exec->buffers != NULL && i < plan->n_buffers; i++) {
        const mr_plan_buffer *buffer = &plan->buffers[i];
        const uint32_t rows =
            buffer->rows == MR_ROWS_TOKENS ? exec->options.max_tokens : exec->options.max_rows;
        exec->buffers[i] = take(exec, (uint64_t)rows * buffer->width, sizeof(float));
        if (exec->buffers[i] == NULL) {
            return false;
        }
    }
    return exec->buffers != NULL;
}

static bool make_tables(mr_cpu_exec *exec)
{
    const mr_exec_options *o = &exec->options;
    const uint64_t groups = exec->plan->kv.groups > 0 ? exec->plan->kv.groups : 1;
    exec->max_blocks = (o->max_context - 1) / o->block_size + 1;
    exec->block_tables =
        take(exec, groups * o->max_seqs, (uint64_t)exec->max_blocks * sizeof(*exec->block_tables));
    exec->history = take(exec, (uint64_t)o->max_seqs * o->max_context, sizeof(*exec->history));
    exec->tokens = take(exec, o->max_tokens, sizeof(*exec->tokens));
    exec->token_seq = take(exec, o->max_tokens, sizeof(*exec->token_seq));
    exec->drawn = take(exec, o->max_rows, sizeof(*exec->drawn));
    exec->logprobs = take(exec, o->max_rows, sizeof(*exec->logprobs));
    exec->n_top = take(exec, o->max_rows, sizeof(*exec->n_top));
    exec->top = take(exec, (uint64_t)o->max_rows * MR_MAX_TOP, sizeof(*exec->top));
    exec->corrupt = take(exec, o->max_rows, sizeof(*exec->corrupt));
    if (o->keep_logits) {
        exec->logits = take(exec, (uint64_t)o->max_rows * exec->plan->vocab_size, sizeof(float));
    }
    return exec->block_tables != NULL && exec->history != NULL && exec->tokens != NULL &&
           exec->token_seq != NULL && exec->drawn != NULL && exec->logprobs != NULL &&
           exec->n_top != NULL && exec->top != NULL && exec->corrupt != NULL &&
           (exec->logits != NULL || !o->keep_logits);
}

static bool make_scratch(mr_cpu_exec *exec)
{
    exec->samplers = mr_calloc(exec->threads, sizeof(*exec->samplers));
    for (uint32_t i = 0; exec->samplers != NULL && i < exec->threads; i++) {
        if (mr_sampler_create(exec->plan->vocab_size, &exec->samplers[i]) != MR_OK) {
            return false;
        }
    }
    exec->scratch_bytes =
        (exec->path->scratch_bytes(exec) + ALIGNMENT - 1) & ~(size_t)(ALIGNMENT - 1);
    exec->scratch = take(exec, exec->threads, exec->scratch_bytes);
    return exec->samplers != NULL && exec->scratch != NULL;
}

/* ---- the table ---- */

static mr_status copy_blocks(mr_exec *base, const mr_block_copy *copies, size_t count,
                             mr_error *err)
{
    mr_cpu_exec *exec = exec_of(base);
    for (size_t i = 0; i < count; i++) {
        if (copies[i].from >= exec->options.n_blocks || copies[i].to >= exec->options.n_blocks ||
            copies[i].to == MR_NULL_BLOCK) {
            return mr_fail(err, MR_INVALID_ARGUMENT,
                           "block copy %zu: from %u to %u; blocks 1 to %u can be written", i,
                           copies[i].from, copies[i].to, exec->options.n_blocks - 1);
        }
    }
    for (size_t i = 0; i < count; i++) {
        for (uint64_t plane = 0; plane < 2 * (uint64_t)exec->plan->kv.layers; plane++) {
            uint8_t *blocks = exec->kv + plane * exec->kv_plane_bytes;
            memmove(blocks + copies[i].to * exec->kv_layout.block,
                    blocks + copies[i].from * exec->kv_layout.block, exec->kv_layout.block);
        }
    }
    return MR_OK;
}

static void memory(const mr_exec *base, mr_exec_memory *out)
{
    const mr_cpu_exec *exec = (const mr_cpu_exec *)base;
    *out = (mr_exec_memory){.weights_bytes = exec->weights->bytes,
                            .kv_bytes = exec->kv_bytes,
                            .activation_bytes = exec->activation_bytes};
}

static void times(const mr_exec *base, mr_exec_times *out)
{
    *out = ((const mr_cpu_exec *)base)->times;
}

static void destroy(mr_exec *base)
{
    mr_cpu_exec *exec = exec_of(base);
    if (exec == NULL) {
        return;
    }
    if (exec->path->exec_deinit != NULL) {
        exec->path->exec_deinit(exec);
    }
    for (uint32_t i = 0; exec->buffers != NULL && i < exec->plan->n_buffers; i++) {
        free(exec->buffers[i]);
    }
    mr_cpu_ropes_destroy(exec);
    for (uint32_t i = 0; exec->samplers != NULL && i < exec->threads; i++) {
        mr_sampler_destroy(exec->samplers[i]);
    }
    free(exec->buffers);
    mr_pages_free(exec->kv, exec->kv_bytes);
    free(exec->block_tables);
    free(exec->history);
    free(exec->tokens);
    free(exec->token_seq);
    free(exec->drawn);
    free(exec->logprobs);
    free(exec->n_top);
    free(exec->top);
    free(exec->corrupt);
    free(exec->logits);
    free(exec->samplers);
    free(exec->scratch);
    free(exec);
}

static const mr_exec_vtable vtable = {
    .submit = mr_cpu_step_submit,
    .wait = mr_cpu_step_wait,
    .copy_blocks = copy_blocks,
    .host_alloc = mr_cpu_host_alloc,
    .host_free = mr_cpu_host_free,
    .transfer_start = mr_cpu_transfer_start,
    .transfer_poll = mr_cpu_transfer_poll,
    .transfer_cancel = mr_cpu_transfer_cancel,
    .memory = memory,
    .times = times,
    .destroy = destroy,
};

mr_status mr_cpu_exec_create(mr_thread_pool *pool, const mr_plan *plan,
                             const mr_cpu_weights *weights, const mr_exec_options *options,
                             mr_exec **out, mr_error *err)
{
    MR_TRY(mr_exec_options_check(plan, options, err));
    MR_TRY(mr_exec_options_check_blocks(options, err));
    MR_TRY(check_kv_dtype(options, err));
    MR_TRY(check_weights(plan, weights, err));
    mr_cpu_exec *exec = mr_calloc(1, sizeof(*exec));
    if (exec == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "compile: out of memory");
    }
    exec->base.vt = &vtable;
    exec->plan = plan;
    exec->weights = weights;
    exec->path = weights->path;
    exec->options = *options;
    exec->pool = pool;
    exec->threads = mr_thread_pool_size(pool);

    mr_status status;
    MR_TRY_CLEANUP(status, make_kv(exec, err));
    if (!make_buffers(exec) || !mr_cpu_ropes_create(exec, take) || !make_tables(exec) ||
        !make_scratch(exec)) {
        status = mr_fail(err, MR_RESOURCE_EXHAUSTED,
                         "activations: out of memory at %llu MiB; fewer tokens or rows a step, or "
                         "a shorter context, need less",
                         (unsigned long long)(exec->activation_bytes >> 20));
        goto cleanup;
    }
    if (exec->path->exec_init != NULL) {
        MR_TRY_CLEANUP(status, exec->path->exec_init(exec, err));
    }
    *out = &exec->base;
    exec = NULL;
cleanup:
    if (exec != NULL) {
        destroy(&exec->base);
    }
    return status;
}
