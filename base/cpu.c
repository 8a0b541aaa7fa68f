/* SPDX-License-Identifier: Apache-2.0 */
#include "base/cpu.h"

#include "base/cgroup.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#define MEMBERSHIP        "/proc/self/cgroup"
#define CGROUP_MOUNT      "/sys/fs/cgroup"
#define MAX_AFFINITY_CPUS (1 << 16)

#if defined(__x86_64__)
/* Register state that the OS saves on a context switch (XCR0). */
#define XCR0_YMM  0x6ull
#define XCR0_ZMM  0xE6ull
#define XCR0_TILE 0x60000ull

static bool has_bits(uint64_t value, uint64_t bits)
{
    return (value & bits) == bits;
}

static uint64_t read_xcr0(void)
{
    uint32_t low;
    uint32_t high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

mr_cpu_features mr_cpu_detect(void)
{
    mr_cpu_features features = {0};
    uint32_t eax;
    uint32_t ebx;
    uint32_t ecx;
    uint32_t edx;
    const uint32_t osxsave = 1u << 27;
    const uint32_t avx_fma_f16c = 1u << 28 | 1u << 12 | 1u << 29;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !has_bits(ecx, osxsave)) {
        return features;
    }
    const bool vex = has_bits(ecx, avx_fma_f16c);
    const uint64_t xcr0 = read_xcr0();
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) {
        return features;
    }
    const uint32_t avx2 = 1u << 5;
    const uint32_t avx512_f_dq_bw_vl = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;
    const uint32_t vnni = 1u << 11;
    const uint32_t amx_bf16_tile_int8 = 1u << 22 | 1u << 24 | 1u << 25;
    features.avx2_fma = vex && has_bits(ebx, avx2) && has_bits(xcr0, XCR0_YMM);
    features.avx512_vnni = features.avx2_fma && has_bits(ebx, avx512_f_dq_bw_vl) &&
                           has_bits(ecx, vnni) && has_bits(xcr0, XCR0_ZMM);
    features.amx_int8 =
        features.avx512_vnni && has_bits(edx, amx_bf16_tile_int8) && has_bits(xcr0, XCR0_TILE);
    const uint32_t max_subleaf = eax;
    const uint32_t avx512_bf16 = 1u << 5;
    features.avx512_bf16 = max_subleaf >= 1 && features.avx512_vnni &&
                           __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 &&
                           has_bits(eax, avx512_bf16);
    return features;
}
#else
mr_cpu_features mr_cpu_detect(void)
{
    return (mr_cpu_features){0};
}
#endif

#if defined(__x86_64__)
bool mr_cpu_request_amx(void)
{
    const long request_permission = 0x1023; /* ARCH_REQ_XCOMP_PERM, which older headers lack */
    const long tile_data = 18;
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}
#else
bool mr_cpu_request_amx(void)
{
    return false;
}
#endif

/* 0 when the kernel does not tell. */
static uint32_t affinity_count(void)
{
    /* The kernel refuses masks that are smaller than its own (EINVAL): double until it fits. */
    for (int cpus = CPU_SETSIZE; cpus <= MAX_AFFINITY_CPUS; cpus *= 2) {
        cpu_set_t *set = CPU_ALLOC((size_t)cpus);
        if (set == NULL) {
            return 0;
        }
        const size_t bytes = CPU_ALLOC_SIZE((size_t)cpus);
        const int rc = sched_getaffinity(0, bytes, set);
        const int error = errno;
        const int count = rc == 0 ? CPU_COUNT_S(bytes, set) : 0;
        CPU_FREE(set);
        if (rc == 0 || error != EINVAL) {
            return (uint32_t)count;
        }
    }
    return 0;
}

uint32_t mr_cpu_count(void)
{
    const uint32_t allowed = affinity_count();
    const uint64_t limit = mr_cgroup_cpu_limit(MEMBERSHIP, CGROUP_MOUNT);
    const uint64_t quota = limit / 1000 + (limit % 1000 > 0);
    const uint64_t count = quota < allowed ? quota : allowed;
    return count > 0 ? (uint32_t)count : 1;
}

/* MemAvailable of /proc/meminfo in bytes, UINT64_MAX when the kernel does not tell. */
static uint64_t system_available(void)
{
    FILE *file = fopen("/proc/meminfo", "re");
    if (file == NULL) {
        return UINT64_MAX;
    }
    char line[128];
    unsigned long long kib = UINT64_MAX / 1024;
    bool found = false;
    while (!found && fgets(line, sizeof(line), file) != NULL) {
        found = sscanf(line, "MemAvailable: %llu kB", &kib) == 1;
    }
    fclose(file);
    return found ? kib * 1024 : UINT64_MAX;
}

uint64_t mr_memory_available(void)
{
    const uint64_t system = system_available();
    const uint64_t group = mr_cgroup_memory_left(MEMBERSHIP, CGROUP_MOUNT);
    return group < system ? group : system;
}

uint64_t mr_memory_peak_rss(void)
{
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage) != 0) {
        return 0;
    }
    return (uint64_t)usage.ru_maxrss * 1024; /* Linux counts KiB */
}
