/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One step: its arrays go into pinned memory (stage.c) and to the GPU in one copy, then the plan,
 * launch by launch or as a graph, then the results in one copy back.
 *
 * A step in which every sequence has one token is a decode step; up to 256 tokens it is padded to a
 * bucket. A bucket's first step runs without a graph, so that nothing is set up while capturing;
 * its second is captured; from then on it is one launch. A bucket of few tokens has two graphs:
 * all layers in one launch, and, for long contexts, operator by operator.
 */
#include "kernels/cuda/internal.h"

#include "base/log.h"
#include "kernels/batch_check.h"

#define EVENT_DONE 2u /* and the next, of two steps; weights have 0 and 1 */

static int launch(mr_cuda_exec *exec, const mr_cuda_step *step, const char **what)
{
    const mr_cuda_api *api = exec->backend->api;
    mr_cuda_context *context = exec->backend->context;
    if (!step->graph) {
        return mr_cuda_launch(exec, step, what);
    }
    mr_cuda_captured *captured =
        &exec->captured[step->layers][mr_cuda_bucket_index(step->counts.tokens)];
    if (!captured->warm) {
        captured->warm = true;
        return mr_cuda_launch(exec, step, what);
    }
    if (captured->graph == NULL) {
        *what = "capturing a step";
        int code = api->capture_begin(context);
        if (code != 0) {
            return code;
        }
        const char *part = NULL;
        uint32_t launches = 0;
        code = mr_cuda_launch(exec, step, &part);
        const int end = api->capture_end(context, &captured->graph, &launches);
        if (code != 0 || end != 0) {
            *what = code != 0 ? part : *what;
            return code != 0 ? code : end;
        }
        mr_log(MR_LOG_DEBUG, "cuda", "step captured", "tokens=%u launches=%u", step->counts.tokens,
               launches);
    }
    *what = "running a step";
    return api->graph_launch(context, captured->graph);
}

static bool wants_top(const mr_batch *batch)
{
    bool wanted = false;
    for (uint32_t r = 0; r < batch->n_rows; r++) {
        wanted = wanted || batch->row_params[r].n_top > 0;
    }
    return wanted;
}

/* Queues the copies back, and the event that wait() waits for. */
static int fetch(mr_cuda_exec *exec, const mr_batch *batch)
{
    uint8_t *to = exec->host_results[exec->last];
    const mr_cuda_api *api = exec->backend->api;
    mr_cuda_context *context = exec->backend->context;
    int code = 0;
    if (batch->n_rows > 0) {
        code = api->to_host(context, to, exec->results, mr_cuda_result_end(exec));
    }
    if (code == 0 && wants_top(batch)) {
        const uint64_t top = mr_cuda_result_top(exec);
        code = api->to_host(context, to + top, exec->results + top,
                            (uint64_t)batch->n_rows * MR_MAX_TOP * sizeof(mr_alternative));
    }
    for (uint32_t i = 0; code == 0 && exec->host_logits != NULL && i < exec->plan->n_ops; i++) {
        const mr_op *op = &exec->plan->ops[i];
        if (op->kind == MR_OP_SAMPLE && batch->n_rows > 0) {
            code = api->to_host(context, exec->host_logits, exec->buffers[op->unary.in],
                                (uint64_t)batch->n_rows * exec->plan->vocab_size * 4);
        }
    }
    return code == 0 ? api->record(context, EVENT_DONE + exec->last) : code;
}

mr_status mr_cuda_step_submit(mr_exec *base, const mr_batch *batch, mr_error *err)
{
    mr_cuda_exec *exec = (mr_cuda_exec *)base;
    mr_cuda_backend *backend = exec->backend;
    if (backend->failed) {
        return mr_fail(err, MR_INTERNAL, "the GPU failed before; restart the server");
    }
    /* Logits have one place. */
    if (exec->n_pending == (exec->host_logits != NULL ? 1 : 2)) {
        return mr_fail(err, MR_FAILED_PRECONDITION,
                       "step %llu: the %u before it were not waited for",
                       (unsigned long long)batch->step, exec->n_pending);
    }
    const mr_batch_bounds bounds = {
        .options = &exec->options,
        .vocab_size = exec->plan->vocab_size,
        .kv_groups = exec->plan->kv.groups,
        .max_blocks = exec->sizes.max_blocks,
        .n_drawn = exec->flights[exec->last].n_rows,
    };
    MR_TRY(mr_batch_check(&bounds, batch, err));
    mr_cuda_step step;
    MR_TRY(mr_cuda_stage_count(exec, batch, &step, err));
    exec->last = 1 - exec->last;
    exec->host_stage = exec->host_stages[exec->last];
    mr_cuda_stage_put(exec, &step);

    const char *what = "copying a step's arrays";
    int code =
        backend->api->to_device(backend->context, exec->stage, exec->host_stage, step.stage.bytes);
    code = code == 0 ? launch(exec, &step, &what) : code;
    MR_TRY(mr_cuda_check(backend, code, what, err));
    MR_TRY(mr_cuda_check(backend, fetch(exec, batch), "copying results", err));
    exec->flights[exec->last] = (mr_cuda_flight){.step = batch->step, .n_rows = batch->n_rows};
    exec->times.steps++;
    exec->n_pending++;
    return MR_OK;
}

mr_status mr_cuda_step_wait(mr_exec *base, mr_step_output *out, mr_error *err)
{
    mr_cuda_exec *exec = (mr_cuda_exec *)base;
    if (exec->n_pending == 0) {
        return mr_fail(err, MR_FAILED_PRECONDITION, "wait: no step was submitted");
    }
    const uint32_t first = exec->n_pending == 2 ? 1 - exec->last : exec->last;
    exec->n_pending--;
    const mr_cuda_api *api = exec->backend->api;
    MR_TRY(mr_cuda_check(exec->backend, api->await(exec->backend->context, EVENT_DONE + first),
                         "running a step", err));
    const uint8_t *results = exec->host_results[first];
    *out = (mr_step_output){
        .step = exec->flights[first].step,
        .n_rows = exec->flights[first].n_rows,
        .tokens = (const uint32_t *)(const void *)results,
        .logprobs = (const float *)(const void *)(results + mr_cuda_result_logprobs(exec)),
        .n_top = results + mr_cuda_result_n_top(exec),
        .top = (const mr_alternative *)(const void *)(results + mr_cuda_result_top(exec)),
        .corrupt = results + mr_cuda_result_corrupt(exec),
        .logits = exec->host_logits,
    };
    return MR_OK;
}
