/* SPDX-License-Identifier: Apache-2.0 */
/* The AMX path. */
#ifndef MILLRACE_KERNELS_CPU_FAST_AMX_H
#define MILLRACE_KERNELS_CPU_FAST_AMX_H

#include "kernels/cpu/fast_kernels.h"

#include <stdbool.h>

extern const mr_fast_kernels mr_fast_kernels_amx;

/* A strip of bf16 pairs. */
void mr_fast_amx_linear_bf16(const mr_fast_linear *job);

/* Products of bf16, on one thread between a begin and an end. */
void mr_fast_amx_begin(void);
void mr_fast_amx_tiles(const mr_fast_tiles *job);
void mr_fast_amx_end(void);
void mr_fast_amx_zip(const mr_fast_zip *job);

/* Whether the CPU has the instructions and the system lets this process use them, for which it
 * asks. Any thread. */
bool mr_fast_amx_ready(void);

#endif
