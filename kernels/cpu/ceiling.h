/* SPDX-License-Identifier: Apache-2.0 */
/* What this machine could do at best, measured: the yardstick of profiles. */
#ifndef MILLRACE_KERNELS_CPU_CEILING_H
#define MILLRACE_KERNELS_CPU_CEILING_H

#include "kernels/cpu/internal.h"

/* Reads a buffer of `bytes` again and again on all threads of the pool, and multiplies bytes in
 * registers with the instructions that `path` uses; the best of several rounds of each, some
 * tenths of a second. RESOURCE_EXHAUSTED when there is no memory for the buffer. */
MR_MUST_USE mr_status mr_cpu_ceilings(mr_thread_pool *pool, const mr_cpu_path *path, uint64_t bytes,
                                      mr_ceilings *out, mr_error *err);

#endif
