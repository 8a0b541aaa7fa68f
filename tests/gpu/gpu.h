/* SPDX-License-Identifier: Apache-2.0 */
/* Backends for the tests that need a GPU. */
#ifndef MILLRACE_TESTS_GPU_H
#define MILLRACE_TESTS_GPU_H

#include "kernels/backend.h"

/* A backend with 1 GiB of the GPU; skips the test where there is none. */
mr_backend *gpu_backend(mr_dtype compute);
/* The same with batch_invariant. */
mr_backend *gpu_invariant_backend(mr_dtype compute);
/* The scalar reference. */
mr_backend *gpu_reference(void);

#endif
