/* SPDX-License-Identifier: Apache-2.0 */
/* What this processor and this process may use. */
#ifndef MILLRACE_BASE_CPU_H
#define MILLRACE_BASE_CPU_H

#include <stdbool.h>
#include <stdint.h>

typedef struct mr_cpu_features {
    bool avx2_fma;    /* AVX2, FMA, F16C and the OS saves YMM */
    bool avx512_vnni; /* AVX-512 F, BW, VL, DQ and VNNI, and the OS saves ZMM */
    bool avx512_bf16;
    bool amx_int8; /* AMX tile + int8 + bf16, permission not asked for yet */
} mr_cpu_features;

mr_cpu_features mr_cpu_detect(void);

/* Asks the system to save the AMX tiles of this process; before they are used, on any thread. False
 * where it does not: no such CPU, an old kernel, or one that forbids it. */
bool mr_cpu_request_amx(void);

/* CPUs this process may run on: the affinity mask, cut to the cgroup's CPU quota (v1 and v2,
 * rounded up), at least 1. */
uint32_t mr_cpu_count(void);

/* Bytes of memory this process may still take: MemAvailable, cut to the cgroup's limit. */
uint64_t mr_memory_available(void);

/* Peak resident set of this process, bytes. */
uint64_t mr_memory_peak_rss(void);

#endif
