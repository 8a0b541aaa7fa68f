/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MILLRACE_TESTS_EMULATED_CODES_H
#define MILLRACE_TESTS_EMULATED_CODES_H

/* What the emulated GPU (module.cpp) answers to a shape that it has no kernel for; none of
 * CUDA's codes. */
#define GPU_NOT_TAKEN 100000

#endif
