/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/cuda_backend.h"

#include "base/checked.h"
#include "base/log.h"
#include "kernels/cuda/internal.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

static const char *compute_name(mr_dtype type)
{
    return type == MR_DTYPE_F32 ? "f32" : type == MR_DTYPE_F16 ? "f16" : "bf16";
}

mr_status mr_cuda_check(mr_cuda_backend *backend, int code, const char *what, mr_error *err)
{
    if (code == 0) {
        return MR_OK;
    }
    backend->failed = true;
    return mr_fail(err, MR_INTERNAL,
                   "the GPU failed while %s: %s (%d); restart the server, and look at dmesg for "
                   "the driver's reason if it comes back",
                   what, backend->api->error_text(code), code);
}

static void info(const mr_backend *base, mr_backend_info *out)
{
    const mr_cuda_backend *backend = (const mr_cuda_backend *)base;
    const mr_cuda_properties *p = &backend->properties;
    *out = (mr_backend_info){
        .threads = 0,
        .memory_bytes = mr_cuda_slab_left(&backend->slab),
        .asynchronous = true,
        .takes_two = true,
    };
    (void)snprintf(out->name, sizeof(out->name), "cuda-sm%u%u", p->major, p->minor);
    (void)snprintf(out->numerics, sizeof(out->numerics), "cuda-sm%u%u/%s/2%s", p->major, p->minor,
                   compute_name(backend->compute), backend->batch_invariant ? "/invariant" : "");
}

static mr_status upload(mr_backend *base, const mr_plan *plan, mr_progress_fn progress,
                        void *progress_ctx, mr_weights **out, mr_error *err)
{
    MR_TRY(mr_plan_check(plan, err));
    mr_cuda_weights *weights = NULL;
    MR_TRY(mr_cuda_weights_create((mr_cuda_backend *)base, plan, progress, progress_ctx, &weights,
                                  err));
    *out = (mr_weights *)weights;
    return MR_OK;
}

static void weights_destroy(mr_backend *base, mr_weights *weights)
{
    mr_cuda_weights_destroy((mr_cuda_backend *)base, (mr_cuda_weights *)weights);
}

static mr_status compile(mr_backend *base, const mr_plan *plan, const mr_weights *weights,
                         const mr_exec_options *options, mr_exec **out, mr_error *err)
{
    MR_TRY(mr_plan_check(plan, err));
    return mr_cuda_exec_create((mr_cuda_backend *)base, plan, (const mr_cuda_weights *)weights,
                               options, out, err);
}

static mr_status kv_room(const mr_backend *base, const mr_plan *plan,
                         const mr_exec_options *options, uint64_t *bytes, mr_error *err)
{
    return mr_cuda_kv_room((const mr_cuda_backend *)base, plan, options, bytes, err);
}

/* Not measured here: bench/gpu.py has them. */
static mr_status ceilings(mr_backend *base, uint64_t bytes, mr_ceilings *out, mr_error *err)
{
    (void)base;
    (void)bytes;
    (void)err;
    *out = (mr_ceilings){0};
    return MR_OK;
}

static void destroy(mr_backend *base)
{
    mr_cuda_backend *backend = (mr_cuda_backend *)base;
    if (backend == NULL) {
        return;
    }
    if (backend->context != NULL) {
        if (backend->slab.base != 0) {
            backend->api->release(backend->context, backend->slab.base);
        }
        backend->api->close(backend->context);
    }
    if (backend->module != NULL) {
        dlclose(backend->module);
    }
    free(backend);
}

static const mr_backend_vtable vtable = {
    .info = info,
    .upload = upload,
    .weights_destroy = weights_destroy,
    .compile = compile,
    .ceilings = ceilings,
    .kv_room = kv_room,
    .destroy = destroy,
};

static mr_status open_device(mr_cuda_backend *backend, mr_error *err)
{
    const mr_cuda_api *api = backend->api;
    int count = 0;
    const int code = api->device_count(&count);
    if (code != 0) {
        return mr_fail(err, MR_FAILED_PRECONDITION, "no GPU: the driver says \"%s\" (%d)",
                       api->error_text(code), code);
    }
    if (count == 0) {
        return mr_fail(err, MR_FAILED_PRECONDITION,
                       "no GPU: this machine has no NVIDIA driver or no GPU that it shows");
    }
    MR_TRY(mr_cuda_check(backend, api->open(0, &backend->context), "opening it", err));
    api->properties(backend->context, &backend->properties);
    if (backend->properties.major < 8) {
        return mr_fail(err, MR_FAILED_PRECONDITION,
                       "%s has compute capability %u.%u; 8.0 and later are supported",
                       backend->properties.name, backend->properties.major,
                       backend->properties.minor);
    }
    return MR_OK;
}

/* The whole share at once: what fits now fits for good. */
static mr_status take_memory(mr_cuda_backend *backend, const mr_cuda_options *options,
                             mr_error *err)
{
    const mr_cuda_api *api = backend->api;
    uint64_t left = 0;
    uint64_t total = 0;
    MR_TRY(mr_cuda_check(backend, api->memory(backend->context, &left, &total),
                         "asking for its memory", err));
    uint64_t wanted = options->memory_bytes;
    if (wanted == 0) {
        const uint64_t others = total - left;
        const uint64_t share = (uint64_t)((double)total * options->memory_fraction);
        wanted = share > others ? share - others : 0;
    }
    wanted = wanted / MR_CUDA_ALIGNMENT * MR_CUDA_ALIGNMENT;
    if (wanted == 0 || wanted > left ||
        api->alloc(backend->context, wanted, &backend->slab.base) != 0) {
        backend->slab.base = 0;
        return mr_fail_field(err, MR_RESOURCE_EXHAUSTED, "gpu_memory_utilization",
                             "%s has %llu MiB, of which %llu are free, and %llu MiB are wanted at "
                             "once: end what else uses the GPU, or lower gpu_memory_utilization "
                             "(now %.2f)",
                             backend->properties.name, (unsigned long long)(total >> 20),
                             (unsigned long long)(left >> 20), (unsigned long long)(wanted >> 20),
                             options->memory_fraction);
    }
    backend->slab.bytes = wanted;
    return MR_OK;
}

static mr_status check_options(const mr_cuda_options *o, mr_error *err)
{
    if ((o->compute != MR_DTYPE_F32 && o->compute != MR_DTYPE_F16 && o->compute != MR_DTYPE_BF16) ||
        o->threads == 0 ||
        (o->memory_bytes == 0 && !(o->memory_fraction > 0.0 && o->memory_fraction <= 1.0))) {
        return mr_fail(
            err, MR_INVALID_ARGUMENT,
            "cuda backend: compute must be f32, f16 or bf16, threads at least 1, and the "
            "share of memory above 0 and at most 1");
    }
    return MR_OK;
}

mr_status mr_cuda_backend_create(const mr_cuda_options *options, mr_backend **out, mr_error *err)
{
    MR_TRY(check_options(options, err));
    mr_cuda_backend *backend = mr_calloc(1, sizeof(*backend));
    if (backend == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "cuda backend: out of memory");
    }
    backend->base.vt = &vtable;
    backend->compute = options->compute;
    backend->threads = options->threads;
    backend->memory_fraction = options->memory_fraction;
    backend->batch_invariant = options->batch_invariant;
    backend->api = options->api;
    mr_status status = MR_OK;
    if (backend->api == NULL) {
        MR_TRY_CLEANUP(status, mr_cuda_module_open(options->module_path, &backend->module,
                                                   &backend->api, err));
    }
    MR_TRY_CLEANUP(status, open_device(backend, err));
    MR_TRY_CLEANUP(status, take_memory(backend, options, err));
    mr_log(MR_LOG_INFO, "cuda", "GPU opened",
           "name=\"%s\" compute_capability=%u.%u memory_mib=%llu reserved_mib=%llu compute=%s",
           backend->properties.name, backend->properties.major, backend->properties.minor,
           (unsigned long long)(backend->properties.memory_bytes >> 20),
           (unsigned long long)(backend->slab.bytes >> 20), compute_name(backend->compute));
    *out = &backend->base;
    backend = NULL;
cleanup:
    if (backend != NULL) {
        destroy(&backend->base);
    }
    return status;
}

mr_dtype mr_cuda_default_compute(const mr_plan *plan)
{
    uint64_t f16 = 0;
    uint64_t rest = 0;
    for (uint32_t i = 0; i < plan->n_weights; i++) {
        const mr_plan_weight *weight = &plan->weights[i];
        if (weight->n > 1) {
            *(weight->dtype == MR_DTYPE_F16 ? &f16 : &rest) += (uint64_t)weight->n * weight->k;
        }
    }
    return f16 > rest ? MR_DTYPE_F16 : MR_DTYPE_BF16;
}
