/* SPDX-License-Identifier: Apache-2.0 */
#include "base/hash_map.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#define KEYS 20000u

static void test_strings_grow_and_stay(void **state)
{
    (void)state;
    static char keys[KEYS][16];
    mr_string_map *map;
    assert_int_equal(mr_string_map_create(0, &map), MR_OK);
    for (uint32_t i = 0; i < KEYS; i++) {
        const int bytes = snprintf(keys[i], sizeof(keys[i]), "token-%u", i);
        assert_int_equal(mr_string_map_put(map, keys[i], (size_t)bytes, i), MR_OK);
    }
    for (uint32_t i = 0; i < KEYS; i++) {
        char key[16];
        const int bytes = snprintf(key, sizeof(key), "token-%u", i);
        uint32_t value;
        assert_true(mr_string_map_get(map, key, (size_t)bytes, &value));
        assert_int_equal(value, i);
        assert_false(mr_string_map_get(map, key, (size_t)bytes - 6, &value));
    }
    mr_string_map_destroy(map);
}

static void test_strings_that_look_alike(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t bytes;
    } keys[] = {
        {"", 0},         {"\0", 1},         {"\0\0", 2},          {"a", 1},          {"a\0", 2},
        {"abcdefgh", 8}, {"abcdefgh\0", 9}, {"abcdefghi", 9},     {"\0abcdefgh", 9}, {"abcdefg", 7},
        {"hgfedcba", 8}, {"\xFF\xFE", 2},   {"abcdefgh\0\0", 10},
    };
    const uint32_t count = sizeof(keys) / sizeof(*keys);
    mr_string_map *map;
    assert_int_equal(mr_string_map_create(count, &map), MR_OK);
    for (uint32_t i = 0; i < count; i++) {
        assert_int_equal(mr_string_map_put(map, keys[i].text, keys[i].bytes, i), MR_OK);
    }
    for (uint32_t i = 0; i < count; i++) {
        uint32_t value;
        assert_int_equal(mr_string_map_put(map, keys[i].text, keys[i].bytes, 99),
                         MR_ALREADY_EXISTS);
        assert_true(mr_string_map_get(map, keys[i].text, keys[i].bytes, &value));
        assert_int_equal(value, i);
    }
    uint32_t value;
    assert_true(mr_string_map_get(map, NULL, 0, &value));
    assert_int_equal(value, 0);
    assert_false(mr_string_map_get(map, "b", 1, &value));
    mr_string_map_destroy(map);
    mr_string_map_destroy(NULL);
}

static void test_u64_keys(void **state)
{
    (void)state;
    mr_u64_map *map;
    uint32_t value;
    assert_int_equal(mr_u64_map_create(10, &map), MR_OK);
    assert_false(mr_u64_map_get(map, 0, &value));
    for (uint32_t i = 0; i < KEYS; i++) {
        /* Pairs of ids as the merge table has them, and multiples of a large power of two. */
        const uint64_t key = i % 2 == 0 ? (uint64_t)i << 44 : (uint64_t)i << 32 | (i / 3);
        assert_int_equal(mr_u64_map_put(map, key, i), MR_OK);
        assert_int_equal(mr_u64_map_put(map, key, i + 1), MR_ALREADY_EXISTS);
    }
    for (uint32_t i = 0; i < KEYS; i++) {
        const uint64_t key = i % 2 == 0 ? (uint64_t)i << 44 : (uint64_t)i << 32 | (i / 3);
        assert_true(mr_u64_map_get(map, key, &value));
        assert_int_equal(value, i);
        assert_false(mr_u64_map_get(map, key | 1ull << 31, &value));
    }
    assert_int_equal(mr_u64_map_put(map, UINT64_MAX, 1), MR_INVALID_ARGUMENT);
    assert_false(mr_u64_map_get(map, UINT64_MAX, &value));
    mr_u64_map_destroy(map);
    mr_u64_map_destroy(NULL);
}

static void test_impossible_sizes(void **state)
{
    (void)state;
    mr_string_map *strings;
    mr_u64_map *numbers;
    assert_int_equal(mr_string_map_create(SIZE_MAX, &strings), MR_RESOURCE_EXHAUSTED);
    assert_int_equal(mr_string_map_create(SIZE_MAX / 16, &strings), MR_RESOURCE_EXHAUSTED);
    assert_int_equal(mr_u64_map_create(SIZE_MAX / 4, &numbers), MR_RESOURCE_EXHAUSTED);
    assert_null(strings);
    assert_null(numbers);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_strings_grow_and_stay),
        cmocka_unit_test(test_strings_that_look_alike),
        cmocka_unit_test(test_u64_keys),
        cmocka_unit_test(test_impossible_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
