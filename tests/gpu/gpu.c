/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu.h"

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/internal.h"
#include "tiny_plan.h"

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

mr_exec_options gpu_wide_options(mr_dtype kv)
{
    mr_exec_options options = tiny_options();
    options.max_tokens = 1024;
    options.max_seqs = 40;
    options.max_rows = 1024;
    options.max_context = 320;
    options.block_size = 16;
    options.n_blocks = 1 + options.max_seqs * (options.max_context / options.block_size);
    options.kv_dtype = kv;
    return options;
}

void gpu_bench_open(gpu_bench *b, mr_dtype compute, uint64_t bytes)
{
    *b = (gpu_bench){.base = gpu_backend(compute), .bytes = bytes, .state = 7};
    const mr_cuda_backend *backend = (const mr_cuda_backend *)b->base;
    b->api = backend->api;
    b->context = backend->context;
    assert_int_equal(b->api->alloc(b->context, bytes, &b->memory), 0);
}

void gpu_bench_close(gpu_bench *b)
{
    b->api->release(b->context, b->memory);
    b->base->vt->destroy(b->base);
}

mr_cuda_ptr gpu_room(gpu_bench *b, uint64_t bytes)
{
    const mr_cuda_ptr at = b->memory + b->used;
    b->used += (bytes + 255) / 256 * 256;
    assert_true(b->used <= b->bytes);
    assert_int_equal(b->api->fill(b->context, at, 0xff, bytes), 0);
    return at;
}

mr_cuda_ptr gpu_put(gpu_bench *b, const void *from, uint64_t bytes)
{
    const mr_cuda_ptr at = gpu_room(b, bytes);
    assert_int_equal(b->api->to_device(b->context, at, from, bytes), 0);
    assert_int_equal(b->api->synchronize(b->context), 0);
    return at;
}

void gpu_get(gpu_bench *b, void *to, mr_cuda_ptr from, uint64_t bytes)
{
    assert_int_equal(b->api->to_host(b->context, to, from, bytes), 0);
    assert_int_equal(b->api->synchronize(b->context), 0);
}

void *gpu_array(size_t count, size_t size)
{
    void *made = calloc(count, size);
    assert_non_null(made);
    return made;
}

uint32_t gpu_number_of(const char *variable, uint32_t otherwise)
{
    const char *text = getenv(variable);
    return text != NULL ? (uint32_t)strtoul(text, NULL, 10) : otherwise;
}
