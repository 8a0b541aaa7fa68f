/* SPDX-License-Identifier: Apache-2.0 */
#include "base/file_map.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/base/temp_dir.h"

#include <unistd.h>

static void test_maps_a_file(void **state)
{
    (void)state;
    const temp_dir dir = temp_dir_make();
    char path[PATH_MAX];
    mr_file_map map;
    mr_error err;
    temp_dir_write(&dir, "f", "weights");
    assert_int_equal(mr_file_map_open(temp_dir_join(&dir, "f", path), &map, &err), MR_OK);
    assert_int_equal(map.size, 7);
    assert_memory_equal(map.data, "weights", 7);
    /* What was released is read from the file again. */
    mr_file_map_release(&map, map.data, map.size);
    mr_file_map_release(&map, map.data + 2, 3);
    mr_file_map_release(&map, map.data + 7, 0);
    assert_memory_equal(map.data, "weights", 7);
    mr_file_map_close(&map);
    assert_null(map.data);
    mr_file_map_close(&map);
    temp_dir_remove(&dir);
}

static void test_empty_file(void **state)
{
    (void)state;
    const temp_dir dir = temp_dir_make();
    char path[PATH_MAX];
    mr_file_map map;
    temp_dir_write(&dir, "empty", "");
    assert_int_equal(mr_file_map_open(temp_dir_join(&dir, "empty", path), &map, NULL), MR_OK);
    assert_null(map.data);
    assert_int_equal(map.size, 0);
    mr_file_map_close(&map);
    temp_dir_remove(&dir);
}

static void test_errors_name_the_path(void **state)
{
    (void)state;
    const temp_dir dir = temp_dir_make();
    char path[PATH_MAX];
    mr_file_map map;
    mr_error err;
    temp_dir_join(&dir, "missing", path);
    assert_int_equal(mr_file_map_open(path, &map, &err), MR_NOT_FOUND);
    assert_non_null(strstr(err.message, path));
    assert_int_equal(mr_file_map_open(dir.path, &map, &err), MR_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "directory"));
    temp_dir_join(&dir, "pipe", path);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(mr_file_map_open(path, &map, &err), MR_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, path));
    if (geteuid() != 0) { /* root may read everything */
        temp_dir_write(&dir, "secret", "x");
        assert_int_equal(chmod(temp_dir_join(&dir, "secret", path), 0), 0);
        assert_int_equal(mr_file_map_open(path, &map, &err), MR_PERMISSION_DENIED);
    }
    temp_dir_remove(&dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_maps_a_file),
        cmocka_unit_test(test_empty_file),
        cmocka_unit_test(test_errors_name_the_path),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
