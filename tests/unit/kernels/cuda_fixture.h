/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA backend on a GPU that computes nothing, and steps of a small model on it. */
#ifndef MILLRACE_TESTS_CUDA_FIXTURE_H
#define MILLRACE_TESTS_CUDA_FIXTURE_H

#include "fake_gpu.h"
#include "kernels/cuda/internal.h"
#include "tiny_plan.h"

typedef struct cuda_fixture {
    tiny_plan tiny;
    mr_backend *backend;
    tiny_session session;
} cuda_fixture;

/* Before every test: the fake as new. */
int cuda_setup(void **state);

/* `bytes` of the GPU, or 0: nine tenths less what others have. */
mr_status cuda_try_open(mr_dtype compute, uint64_t bytes, mr_backend **out, mr_error *err);
/* 64 MiB of it. */
mr_backend *cuda_open(mr_dtype compute);
/* tiny_options() with a cache in BF16, without logits. */
mr_exec_options cuda_exec_options(void);

/* A model in BF16, and a trace that is empty. */
void cuda_fixture_open(cuda_fixture *f, const tiny_dims *dims, bool batch_invariant);
/* The default one with heads of another width. */
void cuda_fixture_open_heads(cuda_fixture *f, uint32_t head_width);
void cuda_fixture_close(cuda_fixture *f);

extern const int32_t cuda_prompt[9];

/* A step of `slots` decoding sequences at `position`; the trace is of it alone. */
void cuda_decode(cuda_fixture *f, uint32_t slots, uint32_t position);

void cuda_assert_says(const mr_error *err, const char *what);
/* Nothing of the GPU is left behind. */
void cuda_assert_clean(void);
void cuda_assert_trace(const char *const *want, uint32_t count);

#endif
