/* SPDX-License-Identifier: Apache-2.0 */
/* Making and freeing an executor; its steps are in step.c. */
#include "kernels/cuda/internal.h"

#include "base/checked.h"
#include "kernels/kv_layout.h"

#include <stdlib.h>

static mr_cuda_exec *exec_of(mr_exec *base)
{
    return (mr_cuda_exec *)base;
}

static mr_status check_options(const mr_plan *plan, const mr_exec_options *o, mr_error *err)
{
    MR_TRY(mr_exec_options_check(plan, o, err));
    if (!mr_kv_dtype_known(o->kv_dtype)) {
        return mr_fail_field(err, MR_UNIMPLEMENTED, "kv_cache_dtype",
                             "the CUDA backend keeps keys and values as f32, f16, bf16, fp8 or "
                             "int8");
    }
    return MR_OK;
}

static mr_status check_weights(const mr_plan *plan, const mr_cuda_weights *weights, mr_error *err)
{
    bool same = plan->n_weights == weights->count && plan->n_ops == weights->n_ops;
    for (uint32_t i = 0; same && i < weights->count; i++) {
        const mr_cuda_weight *item = &weights->items[i];
        same = !item->used || (plan->weights[i].n == item->n && plan->weights[i].k == item->k);
    }
    if (!same) {
        return mr_fail(err, MR_INVALID_ARGUMENT,
                       "compile: the weights were uploaded from another plan");
    }
    return MR_OK;
}

/* Whether the gated operator behind linear operator `index` is the only reader of what it gives. */
static bool fuses(const mr_cuda_exec *exec, uint32_t index)
{
    const mr_plan *plan = exec->plan;
    const mr_op_linear *linear = &plan->ops[index].linear;
    if (index + 1 >= plan->n_ops || plan->ops[index + 1].kind != MR_OP_GATED ||
        plan->ops[index + 1].gated.in != linear->out || linear->parts != 2 ||
        !exec->adjoin[index] || exec->weights->biases[index] != MR_CUDA_NONE ||
        plan->weights[linear->weight[0]].n != plan->weights[linear->weight[1]].n) {
        return false;
    }
    /* A buffer has a reader only behind a writer, so other pairs of its kind do no harm. */
    for (uint32_t i = 0; i < plan->n_ops; i++) {
        const mr_op *op = &plan->ops[i];
        const mr_op *before = i > 0 ? &plan->ops[i - 1] : NULL;
        const bool pair = op->kind == MR_OP_GATED && before != NULL &&
                          before->kind == MR_OP_LINEAR && before->linear.out == linear->out;
        if (mr_op_reads(op, linear->out) && !pair) {
            return false;
        }
    }
    return true;
}

static void find_fusions(mr_cuda_exec *exec)
{
    mr_cuda_coded_ops(exec->plan, exec->weights, exec->coded);
    mr_cuda_raw_ops(exec->plan, exec->weights, exec->coded, exec->raw);
    for (uint32_t i = 0; i < exec->plan->n_ops; i++) {
        if (exec->plan->ops[i].kind == MR_OP_LINEAR) {
            exec->adjoin[i] = mr_cuda_weights_adjoin(exec->weights, &exec->plan->ops[i].linear);
            if (fuses(exec, i)) {
                exec->fused[i + 1] = true;
            }
        }
    }
}

static mr_status copy_blocks(mr_exec *base, const mr_block_copy *copies, size_t count,
                             mr_error *err)
{
    mr_cuda_exec *exec = exec_of(base);
    for (size_t i = 0; i < count; i++) {
        if (copies[i].from >= exec->options.n_blocks || copies[i].to >= exec->options.n_blocks ||
            copies[i].to == MR_NULL_BLOCK) {
            return mr_fail(err, MR_INVALID_ARGUMENT,
                           "block copy %zu: from %u to %u; blocks 1 to %u can be written", i,
                           copies[i].from, copies[i].to, exec->options.n_blocks - 1);
        }
    }
    const mr_cuda_api *api = exec->backend->api;
    for (size_t i = 0; i < count; i++) {
        const mr_cuda_block_move move = {
            .kv = exec->kv,
            .plane_bytes = exec->sizes.kv_plane_bytes,
            .bytes = exec->sizes.kv_block_bytes,
            .planes = 2 * exec->plan->kv.layers,
            .from = copies[i].from,
            .to = copies[i].to,
        };
        MR_TRY(mr_cuda_check(exec->backend, api->block_move(exec->backend->context, &move),
                             "copying KV blocks", err));
    }
    return MR_OK;
}

static void memory(const mr_exec *base, mr_exec_memory *out)
{
    const mr_cuda_exec *exec = (const mr_cuda_exec *)base;
    *out = (mr_exec_memory){
        .weights_bytes = exec->weights->bytes,
        .kv_bytes = exec->sizes.parts[MR_CUDA_PART_KV],
        .activation_bytes = mr_cuda_memory_sum(&exec->sizes) - exec->sizes.parts[MR_CUDA_PART_KV],
    };
}

static void times(const mr_exec *base, mr_exec_times *out)
{
    *out = ((const mr_cuda_exec *)base)->times;
}

static void destroy(mr_exec *base)
{
    mr_cuda_exec *exec = exec_of(base);
    if (exec == NULL) {
        return;
    }
    const mr_cuda_api *api = exec->backend->api;
    mr_cuda_context *context = exec->backend->context;
    (void)api->synchronize(context);
    for (uint32_t i = 0; i < 2 * MR_CUDA_BUCKETS; i++) {
        mr_cuda_graph *graph = exec->captured[i / MR_CUDA_BUCKETS][i % MR_CUDA_BUCKETS].graph;
        if (graph != NULL) {
            api->graph_destroy(context, graph);
        }
    }
    void *const areas[] = {exec->host_stages[0], exec->host_stages[1], exec->host_results[0],
                           exec->host_results[1], exec->host_logits};
    for (size_t i = 0; i < sizeof(areas) / sizeof(areas[0]); i++) {
        if (areas[i] != NULL) {
            api->release_host(context, areas[i]);
        }
    }
    if (exec->end != 0) {
        mr_cuda_slab_reset(&exec->backend->slab, exec->mark, exec->end);
    }
    free(exec->types);
    free(exec->buffers);
    free(exec->ropes);
    free(exec->fused);
    free(exec->adjoin);
    free(exec->coded);
    free(exec->raw);
    free(exec->delta_step);
    free(exec);
}

static const mr_exec_vtable vtable = {
    .submit = mr_cuda_step_submit,
    .wait = mr_cuda_step_wait,
    .copy_blocks = copy_blocks,
    .host_alloc = mr_cuda_host_alloc,
    .host_free = mr_cuda_host_free,
    .transfer_start = mr_cuda_transfer_start,
    .transfer_poll = mr_cuda_transfer_poll,
    .transfer_cancel = mr_cuda_transfer_cancel,
    .memory = memory,
    .times = times,
    .destroy = destroy,
};

static bool make_arrays(mr_cuda_exec *exec)
{
    const mr_plan *plan = exec->plan;
    exec->types = mr_calloc((size_t)plan->n_buffers + 1, sizeof(*exec->types));
    exec->buffers = mr_calloc((size_t)plan->n_buffers + 1, sizeof(*exec->buffers));
    exec->ropes = mr_calloc((size_t)plan->n_ropes + 1, sizeof(*exec->ropes));
    exec->fused = mr_calloc((size_t)plan->n_ops + 1, sizeof(*exec->fused));
    exec->adjoin = mr_calloc((size_t)plan->n_ops + 1, sizeof(*exec->adjoin));
    exec->coded = mr_calloc((size_t)plan->n_ops + 1, sizeof(*exec->coded));
    exec->raw = mr_calloc((size_t)plan->n_ops + 1, sizeof(*exec->raw));
    return exec->types != NULL && exec->buffers != NULL && exec->ropes != NULL &&
           exec->fused != NULL && exec->adjoin != NULL && exec->coded != NULL && exec->raw != NULL;
}

static mr_status build(mr_cuda_exec *exec, mr_error *err)
{
    mr_cuda_backend *backend = exec->backend;
    if (!make_arrays(exec)) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "compile: out of memory");
    }
    MR_TRY(mr_cuda_buffer_types(exec->plan, backend->compute, exec->types, err));
    MR_TRY(mr_cuda_sizes_get(backend, exec->plan, exec->types, &exec->options, &exec->sizes, err));
    MR_TRY(mr_cuda_memory_check(backend, &exec->sizes, err));
    exec->delta_step = mr_calloc(exec->sizes.table_bytes / 4 + 1, sizeof(*exec->delta_step));
    if (exec->delta_step == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "compile: out of memory");
    }
    find_fusions(exec);
    exec->mark = backend->slab.used;
    mr_status status = mr_cuda_memory_make(exec, err);
    status = status == MR_OK ? mr_cuda_layers_find(exec, err) : status;
    exec->end = backend->slab.used;
    MR_TRY(status);
    mr_cuda_memory_log(exec);
    return MR_OK;
}

mr_status mr_cuda_exec_create(mr_cuda_backend *backend, const mr_plan *plan,
                              const mr_cuda_weights *weights, const mr_exec_options *options,
                              mr_exec **out, mr_error *err)
{
    MR_TRY(check_options(plan, options, err));
    MR_TRY(mr_exec_options_check_blocks(options, err));
    MR_TRY(check_weights(plan, weights, err));
    mr_cuda_exec *exec = mr_calloc(1, sizeof(*exec));
    if (exec == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "compile: out of memory");
    }
    exec->base.vt = &vtable;
    exec->backend = backend;
    exec->plan = plan;
    exec->weights = weights;
    exec->options = *options;
    const mr_status status = build(exec, err);
    if (status != MR_OK) {
        destroy(&exec->base);
        return status;
    }
    *out = &exec->base;
    return MR_OK;
}

mr_status mr_cuda_kv_room(const mr_cuda_backend *backend, const mr_plan *plan,
                          const mr_exec_options *options, uint64_t *bytes, mr_error *err)
{
    MR_TRY(check_options(plan, options, err));
    mr_exec_options without = *options;
    without.n_blocks = 0;
    mr_cuda_sizes sizes;
    mr_dtype *types = mr_calloc((size_t)plan->n_buffers + 1, sizeof(*types));
    if (types == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "compile: out of memory");
    }
    mr_status status = mr_cuda_buffer_types(plan, backend->compute, types, err);
    if (status == MR_OK) {
        status = mr_cuda_sizes_get(backend, plan, types, &without, &sizes, err);
    }
    free(types);
    MR_TRY(status);
    MR_TRY(mr_cuda_memory_check(backend, &sizes, err));
    *bytes = mr_cuda_slab_left(&backend->slab) - mr_cuda_memory_sum(&sizes);
    return MR_OK;
}
