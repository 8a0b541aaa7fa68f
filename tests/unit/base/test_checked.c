/* SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>

static void test_arithmetic_refuses_overflow(void **state)
{
    (void)state;
    uint64_t out = 5;
    assert_false(mr_add_u64(UINT64_MAX, 1, &out));
    assert_false(mr_mul_u64(1ull << 32, 1ull << 32, &out));
    assert_false(mr_align_u64(UINT64_MAX - 2, 64, &out));
    assert_int_equal(out, 5);
    assert_true(mr_add_u64(UINT64_MAX - 1, 1, &out));
    assert_true(out == UINT64_MAX);
    assert_true(mr_mul_u64(1ull << 31, 1ull << 32, &out));
    assert_true(out == 1ull << 63);
    assert_true(mr_align_u64(65, 64, &out));
    assert_int_equal(out, 128);
    assert_true(mr_align_u64(64, 64, &out));
    assert_int_equal(out, 64);
}

/* Not constants to the compiler, which would rightly warn about such sizes. */
static volatile size_t huge = SIZE_MAX;

static void test_allocation_refuses_impossible_sizes(void **state)
{
    (void)state;
    assert_null(mr_calloc(huge / 2 + 2, 2));
    assert_null(mr_calloc(huge / 2 + 1, 1));
    assert_null(mr_alloc_aligned(huge));
    assert_null(mr_alloc_aligned(huge / 2));
    int *kept = mr_calloc(4, sizeof(*kept));
    assert_non_null(kept);
    kept[3] = 42;
    assert_null(mr_reallocarray(kept, huge / 4 + 2, 4));
    assert_int_equal(kept[3], 42);
    int *grown = mr_reallocarray(kept, 100, sizeof(*grown));
    assert_non_null(grown);
    assert_int_equal(grown[3], 42);
    free(grown);
}

static void test_aligned_memory_is_zeroed(void **state)
{
    (void)state;
    for (size_t bytes = 0; bytes < 300; bytes += 37) {
        uint8_t *data = mr_alloc_aligned(bytes);
        assert_non_null(data);
        assert_int_equal((uintptr_t)data % 64, 0);
        for (size_t i = 0; i < bytes; i++) {
            assert_int_equal(data[i], 0);
            data[i] = 0xFF;
        }
        free(data);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arithmetic_refuses_overflow),
        cmocka_unit_test(test_allocation_refuses_impossible_sizes),
        cmocka_unit_test(test_aligned_memory_is_zeroed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
