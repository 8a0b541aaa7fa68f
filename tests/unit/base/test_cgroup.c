/* SPDX-License-Identifier: Apache-2.0 */
#include "base/cgroup.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/base/temp_dir.h"

static uint64_t cpu_limit(const temp_dir *dir)
{
    char membership[PATH_MAX];
    char mount[PATH_MAX];
    return mr_cgroup_cpu_limit(temp_dir_join(dir, "cgroup", membership),
                               temp_dir_join(dir, "fs", mount));
}

static uint64_t memory_left(const temp_dir *dir)
{
    char membership[PATH_MAX];
    char mount[PATH_MAX];
    return mr_cgroup_memory_left(temp_dir_join(dir, "cgroup", membership),
                                 temp_dir_join(dir, "fs", mount));
}

static void test_no_cgroup_is_no_limit(void **state)
{
    (void)state;
    const temp_dir dir = temp_dir_make();
    assert_true(cpu_limit(&dir) == MR_CGROUP_UNLIMITED);
    temp_dir_write(&dir, "cgroup", "0::/a\nnot a line\n:\n");
    assert_true(cpu_limit(&dir) == MR_CGROUP_UNLIMITED);
    assert_true(memory_left(&dir) == MR_CGROUP_UNLIMITED);
    temp_dir_remove(&dir);
}

static void test_v2_tightest_of_the_path_counts(void **state)
{
    (void)state;
    const temp_dir dir = temp_dir_make();
    temp_dir_write(&dir, "cgroup", "0::/pods/one\n");
    temp_dir_write(&dir, "fs/pods/one/cpu.max", "max 100000\n");
    temp_dir_write(&dir, "fs/pods/cpu.max", "150000 100000\n");
    temp_dir_write(&dir, "fs/cpu.max", "400000 100000\n");
    assert_int_equal(cpu_limit(&dir), 1500);

    temp_dir_write(&dir, "fs/pods/one/memory.max", "1000\n");
    temp_dir_write(&dir, "fs/pods/one/memory.current", "700\n");
    assert_int_equal(memory_left(&dir), 300);
    temp_dir_write(&dir, "fs/pods/one/memory.stat", "anon 100\ninactive_file 500\nfile 600\n");
    assert_int_equal(memory_left(&dir), 800);
    temp_dir_write(&dir, "fs/pods/memory.max", "650\n");
    temp_dir_write(&dir, "fs/pods/memory.current", "700\n");
    assert_int_equal(memory_left(&dir), 0);
    temp_dir_remove(&dir);
}

static void test_v2_path_of_another_namespace_falls_to_the_root(void **state)
{
    (void)state;
    const temp_dir dir = temp_dir_make();
    temp_dir_write(&dir, "cgroup", "0::/system.slice/docker-1234.scope\n");
    temp_dir_write(&dir, "fs/cpu.max", "50000 100000\n");
    assert_int_equal(cpu_limit(&dir), 500);
    temp_dir_write(&dir, "cgroup", "0::/\n");
    assert_int_equal(cpu_limit(&dir), 500);
    /* A folder above the mount is nobody's limit. */
    temp_dir_write(&dir, "cpu.max", "1000 100000\n");
    assert_int_equal(cpu_limit(&dir), 500);
    temp_dir_remove(&dir);
}

static void test_v1(void **state)
{
    (void)state;
    const temp_dir dir = temp_dir_make();
    temp_dir_write(&dir, "cgroup", "9:memory:/m\n4:cpu,cpuacct:/c\n3:cpuset:/s\n");
    temp_dir_write(&dir, "fs/cpu,cpuacct/c/cpu.cfs_quota_us", "-1\n");
    temp_dir_write(&dir, "fs/cpu,cpuacct/c/cpu.cfs_period_us", "100000\n");
    assert_true(cpu_limit(&dir) == MR_CGROUP_UNLIMITED);
    temp_dir_write(&dir, "fs/cpu,cpuacct/c/cpu.cfs_quota_us", "250000\n");
    assert_int_equal(cpu_limit(&dir), 2500);
    temp_dir_write(&dir, "fs/memory/m/memory.limit_in_bytes", "5000\n");
    temp_dir_write(&dir, "fs/memory/m/memory.usage_in_bytes", "4000\n");
    temp_dir_write(&dir, "fs/memory/m/memory.stat", "inactive_file 1\ntotal_inactive_file 1500\n");
    assert_int_equal(memory_left(&dir), 2500);
    temp_dir_remove(&dir);
}

static void test_malformed_files_set_no_limit(void **state)
{
    (void)state;
    static const char *const bad[] = {"",         "100000",    "100000 0",
                                      "x 100000", "-5 100000", "99999999999999999999999 100000"};
    const temp_dir dir = temp_dir_make();
    temp_dir_write(&dir, "cgroup", "0::/\n");
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        temp_dir_write(&dir, "fs/cpu.max", bad[i]);
        assert_true(cpu_limit(&dir) == MR_CGROUP_UNLIMITED);
    }
    temp_dir_remove(&dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_cgroup_is_no_limit),
        cmocka_unit_test(test_v2_tightest_of_the_path_counts),
        cmocka_unit_test(test_v2_path_of_another_namespace_falls_to_the_root),
        cmocka_unit_test(test_v1),
        cmocka_unit_test(test_malformed_files_set_no_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
