/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/cpu_backend.h"

#include "base/checked.h"
#include "base/cpu.h"
#include "kernels/cpu/ceiling.h"
#include "kernels/cpu/fast_amx.h"
#include "kernels/cpu/fast_avx512bf16.h"
#include "kernels/cpu/internal.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct cpu_backend {
    mr_backend base;
    const mr_cpu_path *path;
    mr_thread_pool *pool;
} cpu_backend;

static void info(const mr_backend *base, mr_backend_info *out)
{
    const cpu_backend *backend = (const cpu_backend *)base;
    *out = (mr_backend_info){
        .threads = mr_thread_pool_size(backend->pool),
        .memory_bytes = mr_memory_available(),
        .asynchronous = false,
    };
    (void)snprintf(out->name, sizeof(out->name), "cpu-%s", backend->path->name);
    (void)snprintf(out->numerics, sizeof(out->numerics), "%s", backend->path->numerics);
}

static mr_status upload(mr_backend *base, const mr_plan *plan, mr_progress_fn progress,
                        void *progress_ctx, mr_weights **out, mr_error *err)
{
    const cpu_backend *backend = (const cpu_backend *)base;
    MR_TRY(mr_plan_check(plan, err));
    mr_cpu_weights *weights = NULL;
    MR_TRY(mr_cpu_weights_create(backend->path, backend->pool, plan, progress, progress_ctx,
                                 &weights, err));
    *out = (mr_weights *)weights;
    return MR_OK;
}

static void weights_destroy(mr_backend *base, mr_weights *weights)
{
    (void)base;
    mr_cpu_weights_destroy((mr_cpu_weights *)weights);
}

static mr_status compile(mr_backend *base, const mr_plan *plan, const mr_weights *weights,
                         const mr_exec_options *options, mr_exec **out, mr_error *err)
{
    const cpu_backend *backend = (const cpu_backend *)base;
    MR_TRY(mr_plan_check(plan, err));
    return mr_cpu_exec_create(backend->pool, plan, (const mr_cpu_weights *)weights, options, out,
                              err);
}

static mr_status ceilings(mr_backend *base, uint64_t bytes, mr_ceilings *out, mr_error *err)
{
    const cpu_backend *backend = (const cpu_backend *)base;
    return mr_cpu_ceilings(backend->pool, backend->path, bytes, out, err);
}

static void destroy(mr_backend *base)
{
    cpu_backend *backend = (cpu_backend *)base;
    if (backend == NULL) {
        return;
    }
    mr_thread_pool_destroy(backend->pool);
    free(backend);
}

static const mr_backend_vtable vtable = {
    .info = info,
    .upload = upload,
    .weights_destroy = weights_destroy,
    .compile = compile,
    .ceilings = ceilings,
    .destroy = destroy,
};

static bool cpu_runs(mr_cpu_isa isa)
{
    const mr_cpu_features features = mr_cpu_detect();
    switch (isa) {
    case MR_CPU_ISA_AVX2:
        return features.avx2_fma;
    case MR_CPU_ISA_AVX512_VNNI:
        return features.avx512_vnni;
#if defined(__x86_64__)
    case MR_CPU_ISA_AVX512_BF16:
        return mr_fast_avx512bf16_ready();
    case MR_CPU_ISA_AMX:
        return mr_fast_amx_ready();
#else
    case MR_CPU_ISA_AVX512_BF16:
    case MR_CPU_ISA_AMX:
        return false;
#endif
    case MR_CPU_ISA_AUTO:
    case MR_CPU_ISA_PORTABLE:
    case MR_CPU_ISA_COUNT:
        break;
    }
    return true;
}

const char *mr_cpu_path_name(mr_cpu_isa isa, bool *runs)
{
    const mr_cpu_path *path = mr_cpu_fast_path(isa);
    *runs = path != NULL && cpu_runs(isa);
    return path != NULL ? path->name : NULL;
}

const char *mr_cpu_isa_name(mr_cpu_isa isa)
{
    static const char *const names[MR_CPU_ISA_COUNT] = {
        [MR_CPU_ISA_AUTO] = "auto",
        [MR_CPU_ISA_PORTABLE] = "portable",
        [MR_CPU_ISA_AVX2] = "avx2",
        [MR_CPU_ISA_AVX512_VNNI] = "avx512vnni",
        [MR_CPU_ISA_AVX512_BF16] = "avx512bf16",
        [MR_CPU_ISA_AMX] = "amx",
    };
    return names[isa];
}

static mr_status choose_path(const mr_cpu_options *options, const mr_cpu_path **out, mr_error *err)
{
    static const mr_cpu_isa best_first[] = {MR_CPU_ISA_AMX, MR_CPU_ISA_AVX512_BF16,
                                            MR_CPU_ISA_AVX512_VNNI, MR_CPU_ISA_AVX2,
                                            MR_CPU_ISA_PORTABLE};
    if ((unsigned)options->compute > MR_COMPUTE_F32 || (unsigned)options->isa >= MR_CPU_ISA_COUNT) {
        return mr_fail(err, MR_INVALID_ARGUMENT, "cpu backend: compute %d, isa %d are not known",
                       (int)options->compute, (int)options->isa);
    }
    if (options->compute == MR_COMPUTE_F32) {
        *out = &mr_cpu_path_reference;
        return MR_OK;
    }
    for (size_t i = 0; i < sizeof(best_first) / sizeof(best_first[0]); i++) {
        const mr_cpu_isa isa = best_first[i];
        if (options->isa != MR_CPU_ISA_AUTO && options->isa != isa) {
            continue;
        }
        const mr_cpu_path *path = mr_cpu_fast_path(isa);
        if (path != NULL && cpu_runs(isa)) {
            *out = path;
            return MR_OK;
        }
    }
    return mr_fail_field(err, MR_FAILED_PRECONDITION, "cpu_path",
                         "cpu backend: the %s path is not in this build or not supported by this "
                         "CPU; \"auto\" takes the best there is, compute f32 always works",
                         mr_cpu_isa_name(options->isa));
}

mr_status mr_cpu_backend_create(const mr_cpu_options *options, mr_backend **out, mr_error *err)
{
    const mr_cpu_path *path = NULL;
    MR_TRY(choose_path(options, &path, err));
    cpu_backend *backend = mr_calloc(1, sizeof(*backend));
    if (backend == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "cpu backend: out of memory");
    }
    backend->base.vt = &vtable;
    backend->path = path;
    const uint32_t threads = options->threads > 0 ? options->threads : mr_cpu_count();
    const mr_status status = mr_thread_pool_create(threads, &backend->pool, err);
    if (status != MR_OK) {
        free(backend);
        return status;
    }
    *out = &backend->base;
    return MR_OK;
}
