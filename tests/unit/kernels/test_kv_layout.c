/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/backend.h"
#include "kernels/kv_layout.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* SmolLM2-135M: 30 layers · (keys, values) · 3 heads · 64 wide. */
static const mr_plan_kv smol = {.layers = 30, .heads = 3, .head_width = 64};

static void test_kv_layout_sizes_by_hand(void **state)
{
    (void)state;
    mr_kv_layout l;
    assert_true(mr_kv_layout_make(&smol, MR_DTYPE_BF16, 16, &l));
    assert_int_equal(l.element, 2);
    assert_int_equal(l.row, 128);
    assert_int_equal(l.scales, 0);
    assert_int_equal(l.piece, 2048);
    assert_int_equal(l.block, 6144);
    assert_int_equal(l.all, 368640);
    assert_true(mr_kv_layout_make(&smol, MR_DTYPE_I8, 16, &l));
    assert_int_equal(l.row, 64);
    assert_int_equal(l.scales, 64);
    assert_int_equal(l.piece, 64 + 1024);
    assert_int_equal(l.all, 60 * 3 * 1088);
    /* A scale is never out of line, however odd the width. */
    const mr_plan_kv odd = {.layers = 1, .heads = 2, .head_width = 7};
    assert_true(mr_kv_layout_make(&odd, MR_DTYPE_I8, 1, &l));
    assert_int_equal(l.piece, 12);
}

static void test_kv_layout_bytes_a_token(void **state)
{
    (void)state;
    assert_int_equal(mr_kv_block_bytes(&smol, MR_DTYPE_F32, 1), 46080);
    assert_int_equal(mr_kv_block_bytes(&smol, MR_DTYPE_F16, 1), 23040);
    assert_int_equal(mr_kv_block_bytes(&smol, MR_DTYPE_BF16, 1), 23040);
    assert_int_equal(mr_kv_block_bytes(&smol, MR_DTYPE_I8, 1), 12240);
    assert_int_equal(mr_kv_block_bytes(&smol, MR_DTYPE_F8_E4M3, 1), 11520);
}

static void test_kv_layout_refuses(void **state)
{
    (void)state;
    mr_kv_layout l;
    assert_false(mr_kv_layout_make(&smol, MR_DTYPE_Q8_0, 16, &l));
    assert_false(mr_kv_dtype_known(MR_DTYPE_Q4_1));
    const mr_plan_kv huge = {.layers = UINT32_MAX, .heads = UINT32_MAX, .head_width = UINT32_MAX};
    assert_false(mr_kv_layout_make(&huge, MR_DTYPE_I8, 16, &l));
    assert_true(mr_kv_block_bytes(&huge, MR_DTYPE_F32, 16) == UINT64_MAX);
}

static void test_kv_quantize_by_hand(void **state)
{
    (void)state;
    /* Steps of 2: halves go to the even code. */
    const float x[] = {254.0f, -254.0f, 3.0f, 5.0f, -3.0f, 0.9f, 1.1f, 0.0f};
    const int8_t expected[] = {127, -127, 2, 2, -2, 0, 1, 0};
    int8_t codes[8];
    assert_true(mr_kv_quantize(x, codes, 8) == 2.0f);
    assert_memory_equal(codes, expected, 8);
    const float nought[] = {0.0f, -0.0f, 1e-38f};
    assert_true(mr_kv_quantize(nought, codes, 3) == 0.0f);
    assert_int_equal(codes[2], 0);
    const float bad[] = {1.0f, NAN, INFINITY};
    assert_true(isnan(mr_kv_quantize(bad, codes, 3)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kv_layout_sizes_by_hand),
        cmocka_unit_test(test_kv_layout_bytes_a_token),
        cmocka_unit_test(test_kv_layout_refuses),
        cmocka_unit_test(test_kv_quantize_by_hand),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
