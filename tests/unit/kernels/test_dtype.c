/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/dtype.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* IEEE 754 binary16 by its definition: (−1)^s · 2^(e − 25) · (1024 + m), or 2^−24 · m. */
static double half_by_definition(uint32_t bits)
{
    const int exponent = (int)(bits >> 10 & 31);
    const double mantissa = bits & 1023;
    const double sign = bits & 0x8000 ? -1.0 : 1.0;
    return exponent == 0 ? sign * ldexp(mantissa, -24)
                         : sign * ldexp(1024.0 + mantissa, exponent - 25);
}

static void test_f16_all_values(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits <= 0xffff; bits++) {
        const float value = mr_f16_to_f32((uint16_t)bits);
        if ((bits >> 10 & 31) < 31) {
            assert_true((double)value == half_by_definition(bits));
            assert_int_equal(signbit(value) != 0, bits >> 15);
            assert_int_equal(mr_f32_to_f16(value), bits);
        } else if ((bits & 1023) == 0) {
            assert_true(isinf(value));
            assert_int_equal(mr_f32_to_f16(value), bits);
        } else {
            assert_true(isnan(value));
            assert_true(isnan(mr_f16_to_f32(mr_f32_to_f16(value))));
        }
    }
}

static void test_f16_rounding(void **state)
{
    (void)state;
    static const struct {
        float value;
        uint16_t bits;
    } cases[] = {
        {1.0f, 0x3c00},           {-2.0f, 0xc000},          {65504.0f, 0x7bff},
        {65519.996f, 0x7bff},     {65520.0f, 0x7c00},       {1e30f, 0x7c00},
        {0x1p-14f, 0x0400},       {0x1p-24f, 0x0001},       {0x1p-25f, 0x0000},
        {0x1.000002p-25f, 0x1},   {0x1.8p-24f, 0x0002},     {0x1.ffep-15f, 0x0400},
        {1.00048828125f, 0x3c00}, {1.00146484375f, 0x3c02}, {1.000489f, 0x3c01},
        {-0.0f, 0x8000},          {0.1f, 0x2e66},           {-0x1p-30f, 0x8000},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(mr_f32_to_f16(cases[i].value), cases[i].bits);
    }
    /* Halfway between neighbours goes to the even one, over the whole range. */
    for (uint32_t bits = 0; bits < 0x7bff; bits++) {
        const float low = mr_f16_to_f32((uint16_t)bits);
        const float high = mr_f16_to_f32((uint16_t)(bits + 1));
        const float middle = (low + high) / 2;
        assert_int_equal(mr_f32_to_f16(middle), bits + (bits & 1));
        assert_int_equal(mr_f32_to_f16(nextafterf(middle, 0.0f)), bits);
        assert_int_equal(mr_f32_to_f16(nextafterf(middle, INFINITY)), bits + 1);
    }
}

static void test_bf16(void **state)
{
    (void)state;
    static const struct {
        uint32_t from;
        uint16_t to;
    } cases[] = {
        {0x3f800000, 0x3f80}, {0x3f808000, 0x3f80}, {0x3f818000, 0x3f82}, {0x3f808001, 0x3f81},
        {0x7f7fffff, 0x7f80}, {0x7f800000, 0x7f80}, {0xff800000, 0xff80}, {0x00000001, 0x0000},
        {0x00018000, 0x0002}, {0x80000000, 0x8000}, {0x7f800001, 0x7fc0}, {0xffffffff, 0xffff},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(mr_f32_to_bf16(float_of(cases[i].from)), cases[i].to);
    }
    assert_int_equal(bits_of(mr_bf16_to_f32(0x4049)), 0x40490000);
}

static void test_sizes(void **state)
{
    (void)state;
    static const struct {
        mr_dtype dtype;
        const char *name;
        uint64_t bytes; /* of 256 elements */
    } cases[] = {
        {MR_DTYPE_F32, "F32", 1024},      {MR_DTYPE_F16, "F16", 512},
        {MR_DTYPE_BF16, "BF16", 512},     {MR_DTYPE_Q8_0, "Q8_0", 272},
        {MR_DTYPE_Q4_0, "Q4_0", 144},     {MR_DTYPE_Q4_1, "Q4_1", 160},
        {MR_DTYPE_Q5_0, "Q5_0", 176},     {MR_DTYPE_Q5_1, "Q5_1", 192},
        {MR_DTYPE_Q2_K, "Q2_K", 84},      {MR_DTYPE_Q3_K, "Q3_K", 110},
        {MR_DTYPE_Q4_K, "Q4_K", 144},     {MR_DTYPE_Q5_K, "Q5_K", 176},
        {MR_DTYPE_Q6_K, "Q6_K", 210},     {MR_DTYPE_IQ4_NL, "IQ4_NL", 144},
        {MR_DTYPE_IQ4_XS, "IQ4_XS", 136},
    };
    for (size_t i = 0; i < MR_DTYPE_COUNT; i++) {
        uint64_t bytes = 7;
        assert_string_equal(mr_dtype_info_get(cases[i].dtype)->name, cases[i].name);
        assert_true(mr_dtype_row_bytes(cases[i].dtype, 256, &bytes));
        assert_int_equal(bytes, cases[i].bytes);
    }
    uint64_t bytes = 7;
    assert_false(mr_dtype_row_bytes(MR_DTYPE_Q4_1, 48, &bytes));
    assert_false(mr_dtype_row_bytes(MR_DTYPE_IQ4_XS, 128, &bytes));
    assert_false(mr_dtype_row_bytes(MR_DTYPE_F32, UINT64_MAX / 2, &bytes));
    assert_int_equal(bytes, 7);
}

static void test_q8_0_block(void **state)
{
    (void)state;
    uint8_t block[1 + 34] = {0};
    uint8_t *b = block + 1; /* unaligned on purpose */
    b[0] = 0x00;
    b[1] = 0x38; /* d = 0.5 */
    b[2] = 127;
    b[3] = 0x80;  /* −128 */
    b[33] = 0xff; /* −1 */
    float out[32];
    mr_dequantize(MR_DTYPE_Q8_0, b, out, 32);
    assert_true(out[0] == 63.5f && out[1] == -64.0f && out[2] == 0.0f && out[31] == -0.5f);
}

static void test_q4_blocks(void **state)
{
    (void)state;
    /* d = 0.25, byte i = low nibble i % 16, high nibble 15 − i % 16. */
    uint8_t q4_0[18] = {0x00, 0x34};
    uint8_t q4_1[20] = {0x00, 0x34, 0x00, 0xbc}; /* m = −1 */
    for (uint32_t i = 0; i < 16; i++) {
        q4_0[2 + i] = q4_1[4 + i] = (uint8_t)(i | (15 - i) << 4);
    }
    float a[32];
    float b[32];
    mr_dequantize(MR_DTYPE_Q4_0, q4_0, a, 32);
    mr_dequantize(MR_DTYPE_Q4_1, q4_1, b, 32);
    for (uint32_t i = 0; i < 16; i++) {
        assert_true(a[i] == 0.25f * ((float)i - 8.0f));
        assert_true(a[16 + i] == 0.25f * (7.0f - (float)i));
        assert_true(b[i] == 0.25f * (float)i - 1.0f);
        assert_true(b[16 + i] == 0.25f * (15.0f - (float)i) - 1.0f);
    }
}

static void test_plain_types(void **state)
{
    (void)state;
    const float f32[2] = {1.5f, -3.25f};
    const uint8_t f16[4] = {0x00, 0x3e, 0x80, 0xc2}; /* 1.5, −3.25 */
    const uint8_t bf16[4] = {0xc0, 0x3f, 0x50, 0xc0};
    float out[2];
    mr_dequantize(MR_DTYPE_F32, f32, out, 2);
    assert_memory_equal(out, f32, sizeof(f32));
    mr_dequantize(MR_DTYPE_F16, f16, out, 2);
    assert_memory_equal(out, f32, sizeof(f32));
    mr_dequantize(MR_DTYPE_BF16, bf16, out, 2);
    assert_memory_equal(out, f32, sizeof(f32));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f16_all_values), cmocka_unit_test(test_f16_rounding),
        cmocka_unit_test(test_bf16),           cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_q8_0_block),     cmocka_unit_test(test_q4_blocks),
        cmocka_unit_test(test_plain_types),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
