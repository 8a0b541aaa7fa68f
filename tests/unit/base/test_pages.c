/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/cpu.h"
#include "base/pages.h"

#define GIB ((size_t)1 << 30)

static void large_memory_is_zero_and_not_resident_until_touched(void **state)
{
    (void)state;
    const uint64_t before = mr_memory_peak_rss();
    uint8_t *pages = mr_pages_alloc(16 * GIB);
    assert_non_null(pages);
    assert_int_equal((uintptr_t)pages % 64, 0);
    assert_int_equal(pages[0], 0);
    assert_int_equal(pages[16 * GIB - 1], 0);
    pages[8 * GIB] = 1;
    assert_in_range(mr_memory_peak_rss() - before, 0, GIB / 4);
    mr_pages_free(pages, 16 * GIB);
}

static void nothing_and_too_much(void **state)
{
    (void)state;
    void *nothing = mr_pages_alloc(0);
    assert_non_null(nothing);
    mr_pages_free(nothing, 0);
    mr_pages_free(NULL, 1);
    assert_null(mr_pages_alloc(SIZE_MAX / 2));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(large_memory_is_zero_and_not_resident_until_touched),
        cmocka_unit_test(nothing_and_too_much),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
