/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of an executor: whether it fits, where everything lies, what it holds at first. */
#include "kernels/cuda/internal.h"

#include "base/checked.h"
#include "base/log.h"

#include <string.h>

static const char *const part_names[MR_CUDA_PARTS] = {
    [MR_CUDA_PART_KV] = "kv_cache",      [MR_CUDA_PART_BUFFERS] = "activations",
    [MR_CUDA_PART_TABLES] = "tables",    [MR_CUDA_PART_SCRATCH] = "scratch",
    [MR_CUDA_PART_STEP] = "step_arrays",
};

uint64_t mr_cuda_memory_sum(const mr_cuda_sizes *sizes)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < MR_CUDA_PARTS; i++) {
        if (!mr_add_u64(sum, sizes->parts[i], &sum)) {
            return UINT64_MAX;
        }
    }
    return sum;
}

mr_status mr_cuda_memory_check(const mr_cuda_backend *backend, const mr_cuda_sizes *sizes,
                               mr_error *err)
{
    const uint64_t left = mr_cuda_slab_left(&backend->slab);
    const uint64_t sum = mr_cuda_memory_sum(sizes);
    if (sum <= left) {
        return MR_OK;
    }
    return mr_fail_field(
        err, MR_RESOURCE_EXHAUSTED, "gpu_memory_utilization",
        "the GPU's share has %llu MiB left and this needs %llu: KV cache %llu, activations %llu, "
        "tables %llu, scratch %llu, step arrays %llu; raise gpu_memory_utilization, or lower "
        "kv_cache_memory, max_batch_tokens, max_batch_size or max_seq_length",
        (unsigned long long)(left >> 20), (unsigned long long)(sum >> 20) + 1,
        (unsigned long long)(sizes->parts[MR_CUDA_PART_KV] >> 20),
        (unsigned long long)(sizes->parts[MR_CUDA_PART_BUFFERS] >> 20),
        (unsigned long long)(sizes->parts[MR_CUDA_PART_TABLES] >> 20),
        (unsigned long long)(sizes->parts[MR_CUDA_PART_SCRATCH] >> 20),
        (unsigned long long)(sizes->parts[MR_CUDA_PART_STEP] >> 20));
}

/* mr_cuda_memory_check has seen that all of it fits: a failure here is one of ours. */
static mr_cuda_ptr take(mr_cuda_exec *exec, uint64_t bytes)
{
    mr_cuda_ptr ptr = 0;
    MR_CHECK(mr_cuda_slab_take(&exec->backend->slab, bytes, &ptr));
    return ptr;
}

static uint64_t buffer_bytes(const mr_cuda_exec *exec, uint32_t id)
{
    const mr_plan_buffer *buffer = &exec->plan->buffers[id];
    const uint64_t rows =
        buffer->rows == MR_ROWS_TOKENS ? exec->options.max_tokens : exec->options.max_rows;
    return rows * buffer->width * mr_cuda_size(exec->types[id]);
}

static void carve(mr_cuda_exec *exec)
{
    const mr_plan *plan = exec->plan;
    const mr_cuda_sizes *s = &exec->sizes;
    const mr_exec_options *o = &exec->options;
    const uint64_t heads = s->heads;
    exec->kv = take(exec, s->parts[MR_CUDA_PART_KV]);
    for (uint32_t i = 0; i < plan->n_buffers; i++) {
        exec->buffers[i] = take(exec, buffer_bytes(exec, i));
    }
    exec->codes = take(exec, (uint64_t)o->max_tokens * s->coded_width);
    exec->row_scales = take(exec, s->coded_width > 0 ? (uint64_t)o->max_tokens * 4 : 0);
    exec->block_tables = take(exec, s->table_bytes);
    exec->history = take(exec, (uint64_t)o->max_seqs * o->max_context * 4);
    exec->partials = take(exec, (uint64_t)s->launch_items * heads * (plan->kv.head_width + 2) * 4);
    exec->counters = take(exec, o->max_tokens * heads * 4);
    exec->layers_at = take(exec, plan->kv.layers * sizeof(mr_cuda_decode_layer));
    exec->sync = take(exec, MR_CUDA_DECODE_SYNC * sizeof(uint32_t));
    exec->scaled = take(exec, (uint64_t)s->workers * plan->vocab_size * 4);
    exec->counts = take(exec, (uint64_t)s->workers * plan->vocab_size * 4);
    exec->stage = take(exec, s->stage.bytes);
    exec->ids = take(exec, (uint64_t)o->max_tokens * 4);
    exec->results = take(exec, (uint64_t)o->max_rows * (16 + MR_MAX_TOP * sizeof(mr_alternative)));
}

/* Zeroes what is read before it is written, and makes the tables of rotation. */
static mr_status fill(mr_cuda_exec *exec, mr_error *err)
{
    mr_cuda_backend *backend = exec->backend;
    const mr_cuda_api *api = backend->api;
    const mr_exec_options *o = &exec->options;
    const struct {
        mr_cuda_ptr at;
        uint64_t bytes;
    } zeroes[] = {
        {exec->block_tables, exec->sizes.table_bytes},
        {exec->history, (uint64_t)o->max_seqs * o->max_context * 4},
        {exec->counters, (uint64_t)o->max_tokens * exec->sizes.heads * 4},
        {exec->counts, (uint64_t)exec->sizes.workers * exec->plan->vocab_size * 4},
        {exec->results, (uint64_t)o->max_rows * 16},
    };
    int code = 0;
    for (size_t i = 0; code == 0 && i < sizeof(zeroes) / sizeof(zeroes[0]); i++) {
        code = api->fill(backend->context, zeroes[i].at, 0, zeroes[i].bytes);
    }
    for (uint32_t i = 0; code == 0 && i < exec->plan->n_ropes; i++) {
        const mr_plan_rope *rope = &exec->plan->ropes[i];
        const mr_cuda_ptr inv_freq = take(exec, rope->dims / 2 * sizeof(float));
        exec->ropes[i] = take(exec, (uint64_t)o->max_context * rope->dims * sizeof(float));
        const mr_cuda_rope_table table = {
            .inv_freq = inv_freq,
            .out = exec->ropes[i],
            .positions = o->max_context,
            .pairs = rope->dims / 2,
            .factor = rope->attention_factor,
        };
        code = api->to_device(backend->context, inv_freq, rope->inv_freq,
                              rope->dims / 2 * sizeof(float));
        code = code == 0 ? api->rope_table(backend->context, &table) : code;
    }
    code = code == 0 ? api->synchronize(backend->context) : code;
    return mr_cuda_check(backend, code, "preparing tables", err);
}

static mr_status make_host(mr_cuda_exec *exec, mr_error *err)
{
    const mr_cuda_api *api = exec->backend->api;
    const mr_exec_options *o = &exec->options;
    const uint64_t logits = (uint64_t)o->max_rows * exec->plan->vocab_size * sizeof(float);
    const uint64_t results = (uint64_t)o->max_rows * (16 + MR_MAX_TOP * sizeof(mr_alternative));
    void *areas[5] = {NULL, NULL, NULL, NULL, NULL};
    const uint64_t bytes[5] = {exec->sizes.stage.bytes, exec->sizes.stage.bytes, results, results,
                               o->keep_logits ? logits : 0};
    bool there = true;
    for (int i = 0; i < 5 && there; i++) {
        there = bytes[i] == 0 || api->alloc_host(exec->backend->context, bytes[i], &areas[i]) == 0;
    }
    for (int i = 0; i < 2; i++) {
        exec->host_stages[i] = areas[i];
        exec->host_results[i] = areas[2 + i];
    }
    exec->host_stage = exec->host_stages[0];
    exec->host_logits = areas[4];
    if (!there || exec->host_results[1] == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED,
                       "compile: no host memory that the GPU can read (ulimit -l bounds it); fewer "
                       "tokens or rows a step need less");
    }
    memset(exec->host_results[0], 0, results);
    memset(exec->host_results[1], 0, results);
    return MR_OK;
}

mr_status mr_cuda_memory_make(mr_cuda_exec *exec, mr_error *err)
{
    carve(exec);
    MR_TRY(fill(exec, err));
    return make_host(exec, err);
}

/* The table of the GPU's memory, a line a part. */
void mr_cuda_memory_log(const mr_cuda_exec *exec)
{
    mr_log(MR_LOG_INFO, "cuda", "memory", "part=weights mib=%.1f",
           (double)exec->weights->bytes / (1 << 20));
    for (uint32_t i = 0; i < MR_CUDA_PARTS; i++) {
        mr_log(MR_LOG_INFO, "cuda", "memory", "part=%s mib=%.1f", part_names[i],
               (double)exec->sizes.parts[i] / (1 << 20));
    }
    mr_log(MR_LOG_INFO, "cuda", "memory", "part=unused mib=%.1f of_mib=%.1f",
           (double)mr_cuda_slab_left(&exec->backend->slab) / (1 << 20),
           (double)exec->backend->slab.bytes / (1 << 20));
}
