/* SPDX-License-Identifier: Apache-2.0 */
#include "service/runtime.h"

#include "base/checked.h"
#include "base/cpu.h"
#include "base/log.h"
#include "cache/block_pool.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/cuda_backend.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB      (1u << 20)
#define MIN_ROWS 64u
/* Blocks registered or forgotten that may wait to be told to other replicas. */
#define PREFIX_EVENTS 16384u

/* Defaults on a GPU. */
#define GPU_BATCH_SIZE   256u
#define GPU_BATCH_TOKENS 8192u

struct mr_runtime {
    mr_config config;
    mr_model *model;
    mr_plan *plan;
    mr_backend *backend;
    mr_weights *weights;
    mr_exec *exec;
    mr_engine *engine;            /* NULL without one */
    mr_prefix_identity *identity; /* NULL: nothing is cached */
    mr_exec_options exec_options;
    mr_backend_info backend_info;
    char name[sizeof(((mr_config *)0)->served_model_name)];
};

mr_status mr_runtime_open_model(const mr_config *config, const char *path, mr_model **out,
                                mr_error *err)
{
    if (strcmp(config->load_format, "random") == 0) {
        return mr_model_open_random(path, config->random_seed, out, err);
    }
    return mr_model_open(path, out, err);
}

/* The path that the settings name; those that this build lacks are named too. */
static mr_cpu_isa find_isa(const char *name)
{
    for (int isa = MR_CPU_ISA_PORTABLE; isa < MR_CPU_ISA_COUNT; isa++) {
        if (strcmp(mr_cpu_isa_name((mr_cpu_isa)isa), name) == 0) {
            return (mr_cpu_isa)isa;
        }
    }
    return MR_CPU_ISA_AUTO;
}

static mr_status open_cpu(mr_runtime *runtime, mr_error *err)
{
    const char *compute = runtime->config.compute;
    if (strcmp(compute, "bf16") == 0 || strcmp(compute, "f16") == 0) {
        return mr_fail_field(err, MR_FAILED_PRECONDITION, "compute",
                             "compute=%s is for GPUs, and none is used: take auto or f32", compute);
    }
    if (strcmp(runtime->config.kv_cache_dtype, "fp8") == 0) {
        return mr_fail_field(err, MR_FAILED_PRECONDITION, "kv_cache_dtype",
                             "kv_cache_dtype=fp8 is for GPUs, and none is used: take auto, f32, "
                             "f16, bf16 or int8");
    }
    const mr_cpu_options options = {
        .compute = strcmp(compute, "f32") == 0 ? MR_COMPUTE_F32 : MR_COMPUTE_AUTO,
        .isa = find_isa(runtime->config.cpu_path),
        .threads = runtime->config.threads,
    };
    return mr_cpu_backend_create(&options, &runtime->backend, err);
}

/* What a GPU has room for unless somebody asks for less. */
static void raise_limits(mr_config *config)
{
    if (!mr_config_given(config, "max_batch_size") && config->max_batch_size < GPU_BATCH_SIZE) {
        config->max_batch_size = GPU_BATCH_SIZE;
    }
    if (!mr_config_given(config, "max_batch_tokens") &&
        config->max_batch_tokens < GPU_BATCH_TOKENS) {
        config->max_batch_tokens = GPU_BATCH_TOKENS;
    }
}

static mr_dtype gpu_compute(const mr_runtime *runtime)
{
    const char *compute = runtime->config.compute;
    if (strcmp(compute, "auto") == 0) {
        return mr_cuda_default_compute(runtime->plan);
    }
    return strcmp(compute, "f32") == 0   ? MR_DTYPE_F32
           : strcmp(compute, "f16") == 0 ? MR_DTYPE_F16
                                         : MR_DTYPE_BF16;
}

static mr_status open_gpu(mr_runtime *runtime, mr_error *err)
{
    mr_config *config = &runtime->config;
    const mr_cuda_options options = {
        .compute = gpu_compute(runtime),
        .threads = config->threads > 0 ? config->threads : mr_cpu_count(),
        .memory_fraction = config->gpu_memory_utilization,
        .batch_invariant = strcmp(config->batch_invariant, "true") == 0,
    };
    MR_TRY(mr_cuda_backend_create(&options, &runtime->backend, err));
    raise_limits(config);
    if (options.compute == MR_DTYPE_F16 && !mr_config_given(config, "kv_cache_dtype")) {
        (void)snprintf(config->kv_cache_dtype, sizeof(config->kv_cache_dtype), "f16");
    }
    return MR_OK;
}

static mr_status open_backend(mr_runtime *runtime, mr_error *err)
{
    const char *wanted = runtime->config.backend;
    mr_status status = MR_FAILED_PRECONDITION;
    if (strcmp(wanted, "cpu") != 0) {
        mr_error why = {0};
        status = open_gpu(runtime, &why);
        /* "auto" goes on without a GPU, but not without one that is there and cannot be used. */
        if (status != MR_OK && (strcmp(wanted, "cuda") == 0 || status != MR_FAILED_PRECONDITION)) {
            if (err != NULL) {
                *err = why;
            }
            return status;
        }
        if (status != MR_OK) {
            mr_log(MR_LOG_DEBUG, "runtime", "computing on the CPU", "why=\"%s\"", why.message);
        }
    }
    if (status != MR_OK) {
        MR_TRY(open_cpu(runtime, err));
    }
    runtime->backend->vt->info(runtime->backend, &runtime->backend_info);
    runtime->config.threads = runtime->backend_info.threads > 0 ? runtime->backend_info.threads
                              : runtime->config.threads > 0     ? runtime->config.threads
                                                                : mr_cpu_count();
    return MR_OK;
}

static mr_dtype kv_dtype(const mr_config *config)
{
    static const struct {
        const char *name;
        mr_dtype dtype;
    } types[] = {{"f32", MR_DTYPE_F32},
                 {"f16", MR_DTYPE_F16},
                 {"int8", MR_DTYPE_I8},
                 {"fp8", MR_DTYPE_F8_E4M3}};
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        if (strcmp(config->kv_cache_dtype, types[i].name) == 0) {
            return types[i].dtype;
        }
    }
    return MR_DTYPE_BF16;
}

/* `blocks` without the null block. */
static mr_status fail_small(const mr_runtime *runtime, uint64_t blocks, uint64_t block_bytes,
                            uint32_t tokens, mr_error *err)
{
    const mr_config *config = &runtime->config;
    const uint64_t wanted = (uint64_t)mr_blocks_for(tokens, config->block_size) + 1;
    return mr_fail_field(err, MR_FAILED_PRECONDITION, "kv_cache_memory",
                         "the KV cache holds %" PRIu64
                         " tokens, fewer than one sequence of %" PRIu32
                         ": set kv_cache_memory to at least %" PRIu64 "MiB, or lower "
                         "max_seq_length if it is set",
                         blocks * config->block_size, tokens, wanted * block_bytes / MIB + 1);
}

/* Blocks of the pool, and max_seq_length where it was left to us: what is enforced is what fits. */
static mr_status size_kv(mr_runtime *runtime, mr_error *err)
{
    mr_config *config = &runtime->config;
    const mr_model_config *model = mr_model_config_get(runtime->model);
    const bool fit_length = config->max_seq_length == 0;
    if (config->max_seq_length > model->context_length) {
        return mr_fail_field(err, MR_FAILED_PRECONDITION, "max_seq_length",
                             "max_seq_length is %" PRIu32 ", and the model's context ends at "
                             "%" PRIu32 ": lower it",
                             config->max_seq_length, model->context_length);
    }
    if (fit_length) {
        config->max_seq_length = model->context_length;
    }
    runtime->exec_options.max_context = config->max_seq_length;
    const uint64_t block_bytes =
        mr_kv_block_bytes(&runtime->plan->kv, kv_dtype(config), config->block_size);
    const uint32_t per_sequence = mr_blocks_for(config->max_seq_length, config->block_size);
    uint64_t wanted;
    if (block_bytes == 0 || !mr_mul_u64(config->max_batch_size, per_sequence, &wanted)) {
        return mr_fail(err, MR_INVALID_ARGUMENT, "the KV cache would have no or too large a size");
    }
    const bool given = config->kv_cache_memory != 0;
    uint64_t available = mr_memory_available() / 2;
    if (runtime->backend->vt->kv_room != NULL) {
        MR_TRY(runtime->backend->vt->kv_room(runtime->backend, runtime->plan,
                                             &runtime->exec_options, &available, err));
    }
    const uint64_t budget = (given ? config->kv_cache_memory : available) / block_bytes;
    const uint64_t room = budget > 0 ? budget - 1 : 0; /* the null block takes its share */
    uint64_t blocks = wanted < room ? wanted : room;
    blocks = blocks < UINT32_MAX - 1 ? blocks : UINT32_MAX - 1;
    if (blocks < per_sequence && fit_length && blocks > 0) {
        config->max_seq_length = (uint32_t)blocks * config->block_size;
    } else if (blocks < per_sequence) {
        return fail_small(runtime, blocks, block_bytes,
                          fit_length ? config->block_size : config->max_seq_length, err);
    }
    config->kv_cache_memory = (blocks + 1) * block_bytes;
    runtime->exec_options.n_blocks = (uint32_t)blocks + 1;
    return MR_OK;
}

/* A row for each sequence, and more for choices that begin together and logprobs of prompts: each
 * costs a vector of logits. */
static uint32_t max_rows(const mr_config *config)
{
    const uint32_t wanted = config->max_batch_size > MIN_ROWS ? config->max_batch_size : MIN_ROWS;
    return wanted < config->max_batch_tokens ? wanted : config->max_batch_tokens;
}

/* A cache of a given size that does not fit beside the weights is told before they are loaded. */
static mr_status check_memory(const mr_runtime *runtime, mr_error *err)
{
    const mr_config *config = &runtime->config;
    const mr_model_config *model = mr_model_config_get(runtime->model);
    const uint32_t length =
        config->max_seq_length > 0 ? config->max_seq_length : model->context_length;
    const uint64_t available = mr_memory_available();
    const uint64_t weights = model->weights_bytes;
    uint64_t most; /* that the batch can use */
    if (!mr_mul_u64(mr_kv_block_bytes(&runtime->plan->kv, kv_dtype(config), config->block_size),
                    (uint64_t)config->max_batch_size * mr_blocks_for(length, config->block_size),
                    &most)) {
        most = UINT64_MAX;
    }
    const uint64_t cache = mr_min_u64(config->kv_cache_memory, most);
    if (cache == 0 || (cache <= available && weights <= available - cache)) {
        return MR_OK;
    }
    return mr_fail_field(err, MR_FAILED_PRECONDITION, "kv_cache_memory",
                         "weights of %" PRIu64 " MiB and a kv_cache_memory of %" PRIu64
                         " MiB are more than the %" PRIu64 " MiB of memory available: lower "
                         "kv_cache_memory, or take a smaller or more quantised model",
                         weights / MIB, cache / MIB, available / MIB);
}

static mr_status load(mr_runtime *runtime, const mr_runtime_options *options, mr_error *err)
{
    mr_backend *backend = runtime->backend;
    MR_TRY(check_memory(runtime, err));
    MR_TRY(backend->vt->upload(backend, runtime->plan, options->progress, options->progress_ctx,
                               &runtime->weights, err));

    const mr_config *config = &runtime->config;
    mr_exec_options *exec = &runtime->exec_options;
    exec->max_tokens = config->max_batch_tokens;
    exec->max_seqs = config->max_batch_size;
    exec->max_rows = options->score_rows ? config->max_batch_tokens : max_rows(config);
    exec->block_size = config->block_size;
    exec->kv_dtype = kv_dtype(config);
    exec->keep_logits = options->keep_logits;
    MR_TRY(size_kv(runtime, err));
    exec->max_context = config->max_seq_length;
    return backend->vt->compile(backend, runtime->plan, runtime->weights, exec, &runtime->exec,
                                err);
}

static mr_status start_engine(mr_runtime *runtime, mr_event *failed, mr_error *err)
{
    const mr_config *config = &runtime->config;
    if (config->kv_host_memory > mr_memory_available()) {
        return mr_fail_field(err, MR_RESOURCE_EXHAUSTED, "kv_host_memory",
                             "kv_host_memory is %" PRIu64 " MiB, and %" PRIu64
                             " MiB of memory are free: lower it",
                             config->kv_host_memory / MIB, mr_memory_available() / MIB);
    }
    const mr_model_config *model = mr_model_config_get(runtime->model);
    const mr_engine_options options = {
        .scheduler =
            {
                .max_batch_size = config->max_batch_size,
                .max_batch_tokens = config->max_batch_tokens,
                .max_seq_length = config->max_seq_length,
                .max_queue = config->max_queue_requests,
                .max_preemptions = config->max_preemptions,
                .fair =
                    {
                        .ageing_ns = config->priority_ageing_ms * MR_NS_PER_MS,
                        .max_overtakes = config->max_overtakes,
                        .overtake_ns = config->overtake_timeout_ms * MR_NS_PER_MS,
                    },
                .prefill_interval = config->prefill_interval,
                .batch_timeout_ns = config->batch_timeout_ms * MR_NS_PER_MS,
                .slow_reader_timeout_ns = config->slow_reader_timeout_ms * MR_NS_PER_MS,
                .eos = model->eos,
                .n_eos = model->n_eos,
                .vocab_size = model->vocab_size,
                .max_rows = runtime->exec_options.max_rows,
                .tokenizer = mr_model_tokenizer(runtime->model),
            },
        .block_size = config->block_size,
        .n_blocks = runtime->exec_options.n_blocks,
        .host_memory = config->kv_host_memory,
        .asynchronous = runtime->backend_info.asynchronous,
        .takes_two = runtime->backend_info.takes_two,
        .failed = failed,
        .block_bytes = mr_kv_block_bytes(&runtime->plan->kv, kv_dtype(config), config->block_size),
        .prefix_caching = config->enable_prefix_caching,
        .prefix_events = config->redis_url[0] != '\0' ? PREFIX_EVENTS : 0,
        .clock = mr_clock_monotonic(),
    };
    MR_TRY(mr_engine_create(&options, runtime->exec, &runtime->engine, err));
    const mr_prefix_identity_options identity = {
        .config = config,
        .model = runtime->model,
        .plan = runtime->plan,
        .backend = &runtime->backend_info,
        .engine = runtime->engine,
    };
    return options.prefix_caching ? mr_prefix_identity_create(&identity, &runtime->identity, err)
                                  : MR_OK;
}

static mr_status open_all(mr_runtime *runtime, const mr_runtime_options *options, mr_error *err)
{
    MR_TRY(mr_runtime_open_model(&runtime->config, options->model_path, &runtime->model, err));
    MR_TRY(mr_model_plan(runtime->model, &runtime->plan, err));
    /* The scheduler plans one table of blocks a sequence. */
    if (options->with_engine && runtime->plan->kv.groups != 1) {
        return mr_fail(err, MR_UNIMPLEMENTED,
                       "the model's layers need %" PRIu32 " block tables a sequence, one is "
                       "supported: use a model whose layers all share one",
                       runtime->plan->kv.groups);
    }
    MR_TRY(open_backend(runtime, err));
    MR_TRY(load(runtime, options, err));

    const char *name = runtime->config.served_model_name;
    if (name[0] == '\0') {
        name = mr_model_config_get(runtime->model)->name;
    }
    memcpy(runtime->name, name, strnlen(name, sizeof(runtime->name) - 1));
    memcpy(runtime->config.served_model_name, runtime->name, sizeof(runtime->name));
    return options->with_engine ? start_engine(runtime, options->failed, err) : MR_OK;
}

mr_status mr_runtime_open(const mr_runtime_options *options, mr_runtime **out, mr_error *err)
{
    mr_runtime *runtime = mr_calloc(1, sizeof(*runtime));
    if (runtime == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "%s: out of memory", options->model_path);
    }
    runtime->config = *options->config;
    const mr_status status = open_all(runtime, options, err);
    if (status != MR_OK) {
        if (err != NULL && strstr(err->message, options->model_path) == NULL) {
            (void)mr_fail_context(err, "%s", options->model_path);
        }
        mr_runtime_close(runtime);
        return status;
    }
    *out = runtime;
    return MR_OK;
}

void mr_runtime_close(mr_runtime *runtime)
{
    if (runtime == NULL) {
        return;
    }
    mr_prefix_identity_destroy(runtime->identity);
    if (runtime->engine != NULL) {
        mr_engine_destroy(runtime->engine);
    }
    if (runtime->exec != NULL) {
        runtime->exec->vt->destroy(runtime->exec);
    }
    if (runtime->weights != NULL) {
        runtime->backend->vt->weights_destroy(runtime->backend, runtime->weights);
    }
    if (runtime->backend != NULL) {
        runtime->backend->vt->destroy(runtime->backend);
    }
    if (runtime->plan != NULL) {
        mr_plan_destroy(runtime->plan);
    }
    if (runtime->model != NULL) {
        mr_model_close(runtime->model);
    }
    free(runtime);
}

const mr_config *mr_runtime_config(const mr_runtime *runtime)
{
    return &runtime->config;
}

const mr_model *mr_runtime_model(const mr_runtime *runtime)
{
    return runtime->model;
}

const char *mr_runtime_model_name(const mr_runtime *runtime)
{
    return runtime->name;
}

mr_engine *mr_runtime_engine(mr_runtime *runtime)
{
    return runtime->engine;
}

mr_exec *mr_runtime_exec(mr_runtime *runtime)
{
    return runtime->exec;
}

const mr_plan *mr_runtime_plan(const mr_runtime *runtime)
{
    return runtime->plan;
}

const mr_exec_options *mr_runtime_exec_options(const mr_runtime *runtime)
{
    return &runtime->exec_options;
}

mr_prefix_identity *mr_runtime_prefix_identity(mr_runtime *runtime)
{
    return runtime->identity;
}

bool mr_runtime_prefix_root(mr_runtime *runtime, const mr_prefix_asker *asker, mr_prefix_root *out)
{
    if (runtime->identity == NULL) {
        return false;
    }
    mr_prefix_identity_root(runtime->identity, asker, out);
    return true;
}

const mr_backend_info *mr_runtime_backend(const mr_runtime *runtime)
{
    return &runtime->backend_info;
}

mr_status mr_runtime_ceilings(mr_runtime *runtime, uint64_t bytes, mr_ceilings *out, mr_error *err)
{
    return runtime->backend->vt->ceilings(runtime->backend, bytes > 0 ? bytes : 1, out, err);
}
