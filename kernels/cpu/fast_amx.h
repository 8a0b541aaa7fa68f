/* SPDX-License-Identifier: Apache-2.0 */
/* The AMX path. */
#ifndef MILLRACE_KERNELS_CPU_FAST_AMX_H
#define MILLRACE_KERNELS_CPU_FAST_AMX_H

#include "kernels/cpu/fast_kernels.h"

#include <stdbool.h>

extern const mr_fast_kernels mr_fast_kernels_amx;

/* Whether the CPU has the instructions and the system lets this process use them, for which it
 * asks. Any thread. */
bool mr_fast_amx_ready(void);

#endif
