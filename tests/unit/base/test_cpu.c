/* SPDX-License-Identifier: Apache-2.0 */
#include "base/cpu.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The flags of the first processor as the kernel lists them, " a b c "; false where it has none. */
static bool read_flags(char *flags, int capacity)
{
    FILE *file = fopen("/proc/cpuinfo", "r");
    assert_non_null(file);
    bool found = false;
    while (!found && fgets(flags, capacity, file) != NULL) {
        found = strncmp(flags, "flags", 5) == 0;
    }
    fclose(file);
    flags[strcspn(flags, "\n")] = ' ';
    return found;
}

static bool has_all(const char *flags, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        char word[32];
        snprintf(word, sizeof(word), " %s ", names[i]);
        if (strstr(flags, word) == NULL) {
            return false;
        }
    }
    return true;
}

static void test_features_agree_with_the_kernel(void **state)
{
    (void)state;
    static const char *const avx2[] = {"avx2", "fma", "f16c"};
    static const char *const avx512[] = {"avx2",     "fma",      "f16c",     "avx512f",
                                         "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"};
    char flags[8192];
    if (!read_flags(flags, sizeof(flags))) {
        skip();
    }
    const mr_cpu_features features = mr_cpu_detect();
    const bool vnni = has_all(flags, avx512, 8);
    assert_int_equal(features.avx2_fma, has_all(flags, avx2, 3));
    assert_int_equal(features.avx512_vnni, vnni);
    assert_int_equal(features.avx512_bf16,
                     vnni && has_all(flags, (const char *const[]){"avx512_bf16"}, 1));
    static const char *const amx[] = {"amx_tile", "amx_int8", "amx_bf16"};
    assert_int_equal(features.amx_int8, vnni && has_all(flags, amx, 3));
}

static void test_counts_are_sane(void **state)
{
    (void)state;
    assert_in_range(mr_cpu_count(), 1, sysconf(_SC_NPROCESSORS_CONF));
    const uint64_t physical = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    assert_in_range(mr_memory_available(), 1, physical);
}

static void test_peak_rss_grows_with_touched_memory(void **state)
{
    (void)state;
    const size_t bytes = 32u << 20;
    volatile uint8_t *data = malloc(bytes);
    assert_non_null(data);
    for (size_t i = 0; i < bytes; i += 1024) {
        data[i] = 1;
    }
    assert_true(mr_memory_peak_rss() >= bytes);
    free((void *)(uintptr_t)data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_features_agree_with_the_kernel),
        cmocka_unit_test(test_counts_are_sane),
        cmocka_unit_test(test_peak_rss_grows_with_touched_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
