/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA backend: plans on one NVIDIA GPU, through the module libmillrace-cuda.so (api.h). */
#ifndef MILLRACE_KERNELS_CUDA_CUDA_BACKEND_H
#define MILLRACE_KERNELS_CUDA_CUDA_BACKEND_H

#include "kernels/backend.h"
#include "kernels/cuda/api.h"

typedef struct mr_cuda_options {
    mr_dtype compute; /* F32, F16 or BF16: weights, activations */
    uint32_t threads; /* that convert weights while loading; at least 1 */
    double
        memory_fraction; /* of the GPU's memory that may be in use afterwards, above 0, at most 1 */
    uint64_t memory_bytes; /* this much instead; 0: by the fraction */
    /* A row's results do not depend on what else is in a step, nor on how a sequence is cut into
     * steps: one way of summing for all row counts, and all attention is split attention. */
    bool batch_invariant;
    /* Where the module is; NULL: beside the program, in ../lib and ../lib/millrace from there, and
     * in the build folder. */
    const char *module_path;
    const mr_cuda_api *api; /* instead of a module, for tests; NULL: the module's */
} mr_cuda_options;

/* Takes the whole share of the GPU's memory at once. Gives a backend; destroy it through its table.
 * FAILED_PRECONDITION without module, driver or GPU, saying which; RESOURCE_EXHAUSTED when the
 * memory is not there. */
MR_MUST_USE mr_status mr_cuda_backend_create(const mr_cuda_options *options, mr_backend **out,
                                             mr_error *err);

/* What a plan is computed in unless somebody asks for more: F16 if its matrices are stored so, else
 * BF16. */
mr_dtype mr_cuda_default_compute(const mr_plan *plan);

#endif
