/* SPDX-License-Identifier: Apache-2.0 */
/* The AVX-512 BF16 path. */
#ifndef MILLRACE_KERNELS_CPU_FAST_AVX512BF16_H
#define MILLRACE_KERNELS_CPU_FAST_AVX512BF16_H

#include "kernels/cpu/fast_kernels.h"

#include <stdbool.h>

extern const mr_fast_kernels mr_fast_kernels_avx512bf16;

/* Whether the CPU has the instructions. Any thread. */
bool mr_fast_avx512bf16_ready(void);

#endif
