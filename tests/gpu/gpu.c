/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu.h"

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/cuda_backend.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

static mr_backend *open_gpu(mr_dtype compute, bool batch_invariant)
{
    const mr_cuda_options options = {
        .compute = compute,
        .threads = 2,
        .memory_bytes = (uint64_t)1 << 30,
        .batch_invariant = batch_invariant,
        .module_path = getenv("MILLRACE_TEST_MODULE"),
    };
    mr_backend *backend = NULL;
    mr_error err = {0};
    const mr_status status = mr_cuda_backend_create(&options, &backend, &err);
    if (status == MR_FAILED_PRECONDITION) {
        print_message("%s\n", err.message);
        skip();
    }
    if (status != MR_OK) {
        fail_msg("%s", err.message);
    }
    return backend;
}

mr_backend *gpu_backend(mr_dtype compute)
{
    return open_gpu(compute, false);
}

mr_backend *gpu_invariant_backend(mr_dtype compute)
{
    return open_gpu(compute, true);
}

mr_backend *gpu_reference(void)
{
    mr_backend *backend = NULL;
    const mr_cpu_options options = {.compute = MR_COMPUTE_F32, .threads = 2};
    assert_int_equal(mr_cpu_backend_create(&options, &backend, NULL), MR_OK);
    return backend;
}
