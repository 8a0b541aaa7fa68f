/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel tables that this machine can run, for the tests of the fast path. */
#ifndef MILLRACE_TESTS_FAST_TABLES_H
#define MILLRACE_TESTS_FAST_TABLES_H

#include "base/cpu.h"
#include "kernels/cpu/fast_amx.h"
#include "kernels/cpu/fast_avx512bf16.h"
#include "kernels/cpu/fast_kernels.h"

#define FAST_TABLES_MAX 5

typedef struct fast_table {
    const char *name;
    const mr_fast_kernels *kernels;
    bool pairs; /* multiplies bf16 weights with bf16 activations */
} fast_table;

/* Gives how many of `out` it filled. */
static inline uint32_t fast_tables(fast_table out[FAST_TABLES_MAX])
{
    uint32_t count = 0;
    out[count++] = (fast_table){"portable", &mr_fast_kernels_portable, false};
#if defined(__x86_64__)
    const mr_cpu_features cpu = mr_cpu_detect();
    if (cpu.avx2_fma) {
        out[count++] = (fast_table){"avx2", &mr_fast_kernels_avx2, false};
    }
    if (cpu.avx512_vnni) {
        out[count++] = (fast_table){"avx512vnni", &mr_fast_kernels_avx512, false};
    }
    if (mr_fast_avx512bf16_ready()) {
        out[count++] = (fast_table){"avx512bf16", &mr_fast_kernels_avx512bf16, true};
    }
    if (mr_fast_amx_ready()) {
        out[count++] = (fast_table){"amx", &mr_fast_kernels_amx, true};
    }
#endif
    return count;
}

#endif
