/* SPDX-License-Identifier: Apache-2.0 */
/* Backends for the tests that need a GPU. */
#ifndef MILLRACE_TESTS_GPU_H
#define MILLRACE_TESTS_GPU_H

#include "kernels/backend.h"
#include "kernels/cuda/api.h"

/* A backend with 1 GiB of the GPU; skips the test where there is none. */
mr_backend *gpu_backend(mr_dtype compute);
/* The same with batch_invariant. */
mr_backend *gpu_invariant_backend(mr_dtype compute);
/* The scalar reference. */
mr_backend *gpu_reference(void);
/* tiny_options() with room for prompts and for 40 sequences, all of 320 tokens. */
mr_exec_options gpu_wide_options(mr_dtype kv);

/* Calls of the table by themselves: device memory of their own, given out from the bottom. */
typedef struct gpu_bench {
    mr_backend *base; /* of gpu_backend() */
    const mr_cuda_api *api;
    mr_cuda_context *context;
    mr_cuda_ptr memory;
    uint64_t bytes;
    uint64_t used;  /* the test may lower it */
    uint64_t state; /* of tiny_random() */
} gpu_bench;

void gpu_bench_open(gpu_bench *b, mr_dtype compute, uint64_t bytes);
void gpu_bench_close(gpu_bench *b);
/* Filled with NaN, of every type. */
mr_cuda_ptr gpu_room(gpu_bench *b, uint64_t bytes);
mr_cuda_ptr gpu_put(gpu_bench *b, const void *from, uint64_t bytes);
void gpu_get(gpu_bench *b, void *to, mr_cuda_ptr from, uint64_t bytes);

/* Host memory, zero; the caller frees it. */
void *gpu_array(size_t count, size_t size);
/* Of an environment variable. */
uint32_t gpu_number_of(const char *variable, uint32_t otherwise);

#endif
