/* SPDX-License-Identifier: Apache-2.0 */
#include "service/api_key.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "../base/temp_dir.h"

static void test_api_key_of_a_client(void **state)
{
    (void)state;
    char key[MR_API_KEY_MAX + 1];
    mr_error err = {0};
    unsetenv(MR_API_KEY_VARIABLE);
    assert_int_equal(mr_api_key_load(NULL, key, &err), MR_OK);
    assert_string_equal(key, "");
    setenv(MR_API_KEY_VARIABLE, "from-the-environment", 1);
    assert_int_equal(mr_api_key_load(NULL, key, &err), MR_OK);
    assert_string_equal(key, "from-the-environment");

    const temp_dir dir = temp_dir_make();
    char path[PATH_MAX];
    const char *file = temp_dir_join(&dir, "key", path);
    temp_dir_write(&dir, "key", "from-a-file \r\n");
    assert_int_equal(mr_api_key_load(file, key, &err), MR_OK);
    assert_string_equal(key, "from-a-file");
    static const char *const bad[] = {"", "\n", "hunter2 x", "hunter2\nx", "hunter2\xc3\xa4"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        temp_dir_write(&dir, "key", bad[i]);
        assert_int_equal(mr_api_key_load(file, key, &err), MR_INVALID_ARGUMENT);
        assert_non_null(strstr(err.message, "key"));
        assert_null(strstr(err.message, "hunter2"));
    }
    temp_dir_remove(&dir);
    assert_int_equal(mr_api_key_load(file, key, &err), MR_NOT_FOUND);
    unsetenv(MR_API_KEY_VARIABLE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_api_key_of_a_client),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
