/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buffer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

static void test_append_and_consume(void **state)
{
    (void)state;
    mr_buffer buffer = {0};
    for (int i = 0; i < 1000; i++) {
        const uint8_t byte = (uint8_t)i;
        assert_int_equal(mr_buffer_append(&buffer, &byte, 1), MR_OK);
    }
    assert_int_equal(buffer.size, 1000);
    mr_buffer_consume(&buffer, 998);
    assert_int_equal(buffer.size, 2);
    assert_int_equal(buffer.data[0], 998 % 256);
    assert_int_equal(buffer.data[1], 999 % 256);
    mr_buffer_consume(&buffer, 2);
    assert_int_equal(buffer.size, 0);
    mr_buffer_deinit(&buffer);
    assert_null(buffer.data);
}

static void test_empty_append_takes_null(void **state)
{
    (void)state;
    mr_buffer buffer = {0};
    mr_ids ids = {0};
    assert_int_equal(mr_buffer_append(&buffer, NULL, 0), MR_OK);
    assert_int_equal(mr_ids_append(&ids, NULL, 0), MR_OK);
    mr_buffer_consume(&buffer, 0);
    assert_null(buffer.data);
    assert_null(ids.data);
    mr_buffer_deinit(&buffer);
    mr_ids_deinit(&ids);
}

static void test_impossible_size_leaves_contents(void **state)
{
    (void)state;
    mr_buffer buffer = {0};
    assert_int_equal(mr_buffer_append(&buffer, "abc", 3), MR_OK);
    assert_int_equal(mr_buffer_reserve(&buffer, SIZE_MAX), MR_RESOURCE_EXHAUSTED);
    assert_int_equal(mr_buffer_reserve(&buffer, SIZE_MAX / 2), MR_RESOURCE_EXHAUSTED);
    assert_int_equal(buffer.size, 3);
    assert_memory_equal(buffer.data, "abc", 3);
    mr_buffer_deinit(&buffer);

    mr_ids ids = {0};
    assert_int_equal(mr_ids_push(&ids, 7), MR_OK);
    assert_int_equal(mr_ids_reserve(&ids, SIZE_MAX / 4), MR_RESOURCE_EXHAUSTED);
    assert_int_equal(ids.data[0], 7);
    mr_ids_deinit(&ids);
}

static void test_printf_appends_without_nul(void **state)
{
    (void)state;
    mr_buffer buffer = {0};
    assert_int_equal(mr_buffer_printf(&buffer, "%s=%d", "blocks", 512), MR_OK);
    assert_int_equal(mr_buffer_printf(&buffer, "%0200d", 1), MR_OK);
    assert_int_equal(buffer.size, 10 + 200);
    assert_memory_equal(buffer.data, "blocks=512000", 13);
    assert_int_equal(buffer.data[209], '1');
    mr_buffer_deinit(&buffer);
}

static void test_ids(void **state)
{
    (void)state;
    mr_ids ids = {0};
    for (uint32_t i = 0; i < 500; i++) {
        assert_int_equal(mr_ids_push(&ids, i), MR_OK);
    }
    assert_int_equal(mr_ids_append(&ids, (uint32_t[]){9, 8}, 2), MR_OK);
    assert_int_equal(ids.count, 502);
    assert_int_equal(ids.data[499], 499);
    assert_int_equal(ids.data[501], 8);
    mr_ids_deinit(&ids);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_append_and_consume),
        cmocka_unit_test(test_empty_append_takes_null),
        cmocka_unit_test(test_impossible_size_leaves_contents),
        cmocka_unit_test(test_printf_appends_without_nul),
        cmocka_unit_test(test_ids),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
