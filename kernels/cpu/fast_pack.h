/* SPDX-License-Identifier: Apache-2.0 */
/* Matrices in the strip layouts of fast_kernels.h: sizes, packing at upload, and reading a row
 * back for embeddings. */
#ifndef MILLRACE_KERNELS_CPU_FAST_PACK_H
#define MILLRACE_KERNELS_CPU_FAST_PACK_H

#include "kernels/cpu/fast_kernels.h"
#include "kernels/cpu/internal.h"

/* As mr_cpu_path.weight_layout and weight_pack. */
MR_MUST_USE mr_status mr_fast_weight_layout(const mr_plan_weight *from, mr_cpu_weight *to,
                                            mr_error *err);
/* Likewise on paths that multiply in bf16. */
MR_MUST_USE mr_status mr_fast_weight_layout_pairs(const mr_plan_weight *from, mr_cpu_weight *to,
                                                  mr_error *err);
void mr_fast_weight_pack(mr_cpu_source *from, mr_cpu_weight *to, uint32_t thread, uint32_t threads);

/* Bytes of a strip of inputs `k`; a multiple of 64. */
size_t mr_fast_strip_bytes(uint32_t layout, uint32_t k);

/* Row `row` of a packed matrix as floats: out[k]. */
void mr_fast_weight_row(const mr_cpu_weight *weight, uint32_t row, float *out);

#endif
