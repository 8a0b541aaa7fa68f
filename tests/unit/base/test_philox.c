/* SPDX-License-Identifier: Apache-2.0 */
#include "base/philox.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

static void assert_philox(const uint32_t counter[4], const uint32_t key[2], const uint32_t want[4])
{
    uint32_t out[4];
    mr_philox4x32(counter, key, out);
    assert_memory_equal(out, want, sizeof(out));
}

/* The known answers that the authors publish with Random123 (kat_vectors, philox4x32 10). */
static void test_published_vectors(void **state)
{
    (void)state;
    assert_philox((uint32_t[]){0, 0, 0, 0}, (uint32_t[]){0, 0},
                  (uint32_t[]){0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
    assert_philox((uint32_t[]){UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX},
                  (uint32_t[]){UINT32_MAX, UINT32_MAX},
                  (uint32_t[]){0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
    assert_philox((uint32_t[]){0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
                  (uint32_t[]){0xa4093822, 0x299f31d0},
                  (uint32_t[]){0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

static void test_output_may_overlay_the_counter(void **state)
{
    (void)state;
    uint32_t words[4] = {0, 0, 0, 0};
    mr_philox4x32(words, (uint32_t[]){0, 0}, words);
    assert_memory_equal(words, ((uint32_t[]){0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}), 16);
}

static void test_uniform_is_open_and_exact(void **state)
{
    (void)state;
    assert_true(mr_uniform(0) == 0x1p-24f);
    assert_true(mr_uniform(511) == 0x1p-24f);
    assert_true(mr_uniform(512) == 3 * 0x1p-24f);
    assert_true(mr_uniform(UINT32_MAX) == 1.0f - 0x1p-24f);
    /* The top 2^16 values are all distinct: nothing was rounded. */
    for (uint32_t i = 0; i < 1u << 16; i++) {
        const uint32_t top = (1u << 23) - 1 - i;
        assert_true((double)mr_uniform(top << 9) == ((double)top + 0.5) / 8388608.0);
    }
}

/* Values of a separate Python implementation. */
static void test_token_uniform_counter_and_key_layout(void **state)
{
    (void)state;
    const uint64_t key = 0x0123456789abcdef;
    assert_true(mr_token_uniform(key, 0, 0, 0) == 0x1.70a046p-1f);
    assert_true(mr_token_uniform(key, 7, 1, 10) == 0x1.04a25p-4f);
    assert_true(mr_token_uniform(key, 4095, 0, 128255) == 0x1.c26e5p-4f);
}

static void test_gumbel(void **state)
{
    (void)state;
    assert_true(fabsf(mr_gumbel(0.5f) - 0.36651292f) < 1e-6f);
    assert_true(fabsf(mr_gumbel(0.9f) - 2.2503673f) < 1e-5f);
    assert_true(fabsf(mr_gumbel(mr_uniform(0)) + 2.8115409f) < 1e-5f);
    assert_true(fabsf(mr_gumbel(mr_uniform(UINT32_MAX)) - 16.635532f) < 1e-4f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published_vectors),
        cmocka_unit_test(test_output_may_overlay_the_counter),
        cmocka_unit_test(test_uniform_is_open_and_exact),
        cmocka_unit_test(test_token_uniform_counter_and_key_layout),
        cmocka_unit_test(test_gumbel),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
