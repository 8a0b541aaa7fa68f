/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the reference path: its dot product, float32 in an order that depends on the length
 * only, and its operators that have files of their own. */
#ifndef MILLRACE_KERNELS_CPU_REFERENCE_H
#define MILLRACE_KERNELS_CPU_REFERENCE_H

#include "kernels/cpu/internal.h"

#define MR_REF_LANES 16

/* Sixteen partial sums, element i into sum i % 16, then halved pairwise. Fixed lanes are what lets
 * a compiler use vectors without reordering anything. */
static inline float mr_ref_dot(const float *restrict a, const float *restrict b, uint32_t n)
{
    float lane[MR_REF_LANES] = {0};
    const uint32_t whole = n - n % MR_REF_LANES;
    for (uint32_t i = 0; i < whole; i += MR_REF_LANES) {
        for (uint32_t j = 0; j < MR_REF_LANES; j++) {
            lane[j] += a[i + j] * b[i + j];
        }
    }
    for (uint32_t i = whole; i < n; i++) {
        lane[i - whole] += a[i] * b[i];
    }
    for (uint32_t half = MR_REF_LANES / 2; half > 0; half /= 2) {
        for (uint32_t j = 0; j < half; j++) {
            lane[j] += lane[j + half];
        }
    }
    return lane[0];
}

/* Operators as in mr_cpu_path.ops, and the scratch bytes that they want a thread. */
void mr_cpu_ref_linear(mr_cpu_exec *exec, const mr_op *op, const mr_batch *batch, uint32_t thread,
                       uint32_t threads);
void mr_cpu_ref_attention(mr_cpu_exec *exec, const mr_op *op, const mr_batch *batch,
                          uint32_t thread, uint32_t threads);
size_t mr_cpu_ref_linear_scratch(const mr_cpu_exec *exec, const mr_op_linear *op);
size_t mr_cpu_ref_attention_scratch(const mr_cpu_exec *exec, const mr_op_attention *op);

#endif
