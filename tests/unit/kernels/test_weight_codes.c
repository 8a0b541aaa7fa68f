/* SPDX-License-Identifier: Apache-2.0 */
/* Codes of quantised checkpoints: packing vectors by hand, the numbers of F8_E4M3, the blocks, and
 * the strip layouts of the fast path. Whole matrices: tests/unit/model/test_quant_weights.c. */
#include "kernels/weight_codes.h"

#include "kernels/cpu/fast_pack.h"
#include "kernels/random_weight.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tiny_plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- words ---- */

static void test_awq_nibbles_Q4(void **state)
{
    (void)state;
    /* Codes 0 … 7 of a word; their nibbles from the lowest on are 0, 2, 4, 6, 1, 3, 5, 7. */
    static const uint8_t word[] = {0x20, 0x64, 0x31, 0x75};
    const mr_code_matrix m = {.data = word,
                              .bytes = 4,
                              .form = MR_CODES_SHUFFLED,
                              .bits = 4,
                              .packs_rows = true,
                              .next = 4,
                              .line = 4};
    for (uint32_t row = 0; row < 8; row++) {
        assert_int_equal(mr_code_at(&m, row, 0), row);
    }
}

static void test_three_bits_go_across_words(void **state)
{
    (void)state;
    /* Codes i mod 8: code 10 (2) has its low bits on top of word 0, code 21 (5) its lowest bit on
     * top of word 1. */
    static const uint8_t words[] = {0x88, 0xc6, 0xfa, 0x88, 0xc6, 0xfa,
                                    0x88, 0xc6, 0xfa, 0x88, 0xc6, 0xfa};
    const mr_code_matrix along = {.data = words, .bytes = 12, .bits = 3, .next = 4, .line = 12};
    for (uint32_t i = 0; i < 32; i++) {
        assert_int_equal(mr_code_at(&along, 0, i), i % 8);
    }
    /* The same down a column of a matrix of two columns. */
    uint8_t two[24] = {0};
    for (uint32_t w = 0; w < 3; w++) {
        memcpy(two + 8 * w + 4, words + 4 * w, 4);
    }
    const mr_code_matrix down = {.data = two, .bytes = 24, .bits = 3, .next = 8, .line = 4};
    for (uint32_t i = 0; i < 32; i++) {
        assert_int_equal(mr_code_at(&down, 1, i), i % 8);
        assert_int_equal(mr_code_at(&down, 0, i), 0);
    }
}

static void test_zeros_of_the_first_gptq_format_Q1(void **state)
{
    (void)state;
    static const uint8_t stored[] = {0x07, 0x0f, 0x00, 0x00}; /* 7, 0, 15, 0 … */
    mr_weight_codes codes = {
        .codes = {.bits = 4},
        .zeros = {.data = stored, .bits = 4, .packs_rows = true, .next = 4, .line = 4},
        .zero_add = 1};
    assert_int_equal(mr_weight_codes_zero(&codes, 0, 0), 8);
    assert_int_equal(mr_weight_codes_zero(&codes, 1, 0), 1);
    assert_int_equal(mr_weight_codes_zero(&codes, 2, 0), 0); /* a zero of 0 is stored as −1 */
    codes.zero_add = 0;
    assert_int_equal(mr_weight_codes_zero(&codes, 0, 0), 7);
    codes.zeros.data = NULL;
    assert_int_equal(mr_weight_codes_zero(&codes, 0, 0), 8);
}

static void test_e4m3(void **state)
{
    (void)state;
    /* "FP8 formats for deep learning", table 2: largest 448, least normal 2^-6, subnormals from
     * 2^-9 on, no infinity, NaN with all bits set. */
    static const struct {
        uint8_t bits;
        float value;
    } known[] = {{0x00, 0.0f},  {0x01, 0x1p-9f}, {0x07, 0.875f * 0x1p-6f}, {0x08, 0x1p-6f},
                 {0x38, 1.0f},  {0x39, 1.125f},  {0x7e, 448.0f},           {0xfe, -448.0f},
                 {0xb8, -1.0f}, {0x81, -0x1p-9f}};
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        assert_true(mr_f8_e4m3_to_f32(known[i].bits) == known[i].value);
    }
    assert_true(isnan(mr_f8_e4m3_to_f32(0x7f)) && isnan(mr_f8_e4m3_to_f32(0xff)));
    assert_true(signbit(mr_f8_e4m3_to_f32(0x80)) != 0 && mr_f8_e4m3_to_f32(0x80) == 0.0f);
}

/* ---- the fast path's layouts ---- */

#define N 40 /* a whole strip and a part of one */
#define K 64

typedef struct matrix {
    uint8_t bytes[N * K]; /* int8 or E4M3 codes */
    uint8_t zeros[N * 2];
    float scales[N * 2];
    mr_weight_codes codes;
    mr_plan_weight weight;
} matrix;

static void make_matrix(matrix *m, mr_code_form form, bool centred, uint32_t group)
{
    uint64_t seed = 3;
    *m = (matrix){0};
    for (size_t i = 0; i < sizeof(m->bytes); i++) {
        m->bytes[i] = (uint8_t)(tiny_random(&seed) % 0x7f);
    }
    for (size_t i = 0; i < N * 2; i++) {
        m->zeros[i] = (uint8_t)tiny_random(&seed);
        m->scales[i] = mr_f16_to_f32(mr_f32_to_f16(tiny_uniform(&seed, 0.001f, 0.02f)));
    }
    m->codes = (mr_weight_codes){
        .codes = {.data = m->bytes, .form = form, .bits = 8, .next = 1, .line = K},
        .scales = (const uint8_t *)m->scales,
        .scale_dtype = MR_DTYPE_F32,
        .scale_row = K / group,
        .scale_group = 1,
        .scale_rows = 1,
        .group = group,
        .centred = centred,
        .halves = true};
    if (!centred && form == MR_CODES_INT8) {
        m->codes.zeros = (mr_code_matrix){
            .data = m->zeros, .form = MR_CODES_INT8, .bits = 8, .next = 1, .line = K / group};
    }
    m->weight = (mr_plan_weight){.name = "w",
                                 .n = N,
                                 .k = K,
                                 .codes = &m->codes,
                                 .dtype = mr_weight_codes_dtype(&m->codes, K)};
}

/* Each element of the packed matrix is what the formula gives, to within `tolerance` of the largest
 * product of the scale and a code. */
static void check_packed(matrix *m, mr_fast_layout layout, float tolerance)
{
    mr_error err = {0};
    float row[K];
    mr_cpu_source source = {.weight = &m->weight};
    mr_cpu_weight to = {.dtype = m->weight.dtype, .n = N, .k = K};
    assert_true(mr_dtype_row_bytes(m->weight.dtype, K, &source.row_bytes));
    assert_int_equal(mr_fast_weight_layout(&m->weight, &to, &err), MR_OK);
    assert_int_equal(to.layout, layout);
    to.data = calloc(1, to.bytes);
    assert_non_null(to.data);
    mr_fast_weight_pack(&source, &to, 0, 1);
    for (uint32_t n = 0; n < N; n++) {
        mr_fast_weight_row(&to, n, row);
        for (uint32_t k = 0; k < K; k++) {
            const uint32_t at = n * (K / m->codes.group) + k / m->codes.group;
            const int zero = m->codes.zeros.data != NULL ? (int8_t)m->zeros[at] : 0;
            const float code = m->codes.codes.form == MR_CODES_E4M3
                                   ? mr_f8_e4m3_to_f32(m->bytes[n * K + k])
                                   : (float)((int8_t)m->bytes[n * K + k] - zero);
            const float expected = m->scales[at] * code;
            assert_true(fabsf(row[k] - expected) <= tolerance * m->scales[at] * 256.0f);
        }
    }
    free(source.made);
    free(to.data);
}

static void test_strips_of_the_fast_path(void **state)
{
    (void)state;
    matrix m;
    make_matrix(&m, MR_CODES_INT8, true, K);
    check_packed(&m, MR_FAST_U8_CENTRED, 0.0f);
    make_matrix(&m, MR_CODES_INT8, true, 32);
    check_packed(&m, MR_FAST_U8_CENTRED, 0.0f);
    make_matrix(&m, MR_CODES_INT8, false, 32);
    check_packed(&m, MR_FAST_U8_OFFSET, 0x1p-11f); /* zero · scale as f16 */
    make_matrix(&m, MR_CODES_E4M3, false, K);
    check_packed(&m, MR_FAST_BF16, 0x1p-8f * 448.0f / 256.0f); /* eight bits */
    make_matrix(&m, MR_CODES_INT8, true, 16);                  /* no whole blocks */
    m.weight.dtype = mr_weight_codes_dtype(&m.codes, K);
    assert_int_equal(m.weight.dtype, MR_DTYPE_F32);
}

/* ---- weights made of nothing ---- */

static void random_codes(uint32_t bits, bool centred, mr_code_form form, uint32_t group)
{
    enum { ROWS = 64, INPUTS = 256 };
    static float first[ROWS * INPUTS];
    static float second[INPUTS];
    static uint8_t rows[ROWS * INPUTS * 2];
    mr_weight_codes codes = {.codes = {.bits = bits, .form = form},
                             .scale_dtype = MR_DTYPE_F16,
                             .group = group,
                             .centred = centred,
                             .scale_rows = 1};
    const mr_plan_weight weight = {.n = ROWS,
                                   .k = INPUTS,
                                   .codes = &codes,
                                   .random = true,
                                   .random_seed = 9,
                                   .random_stream = 4,
                                   .dtype = mr_weight_codes_dtype(&codes, INPUTS)};
    mr_random_table *table = NULL;
    assert_int_equal(mr_random_codes_table_create(&codes, &table), MR_OK);
    mr_random_weight_fill(table, &weight, 0, ROWS * INPUTS, rows);
    mr_dequantize(weight.dtype, rows, first, ROWS * INPUTS);
    double square = 0;
    double mean = 0;
    for (size_t i = 0; i < ROWS * INPUTS; i++) {
        square += (double)first[i] * (double)first[i];
        mean += (double)first[i];
    }
    const double deviation = sqrt(square / (ROWS * INPUTS));
    mean /= ROWS * INPUTS;
    /* Codes of two bits are far apart, and zeros that are 1 less shift half of the groups. */
    assert_true(deviation > 0.6 * MR_RANDOM_DEVIATION && deviation < 1.5 * MR_RANDOM_DEVIATION);
    assert_true(fabs(mean) < 0.5 * MR_RANDOM_DEVIATION);

    /* Any row comes out the same alone. */
    mr_random_weight_fill(table, &weight, 17 * INPUTS, INPUTS, rows);
    mr_dequantize(weight.dtype, rows, second, INPUTS);
    assert_memory_equal(second, first + 17 * INPUTS, sizeof(second));
    mr_random_table_destroy(table);
}

static void test_random_codes(void **state)
{
    (void)state;
    random_codes(4, true, MR_CODES_WORDS, 32);
    random_codes(4, false, MR_CODES_WORDS, 128);
    random_codes(2, true, MR_CODES_WORDS, 64);
    random_codes(3, false, MR_CODES_WORDS, 64);
    random_codes(8, true, MR_CODES_WORDS, 256);
    random_codes(8, true, MR_CODES_E4M3, 256);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_awq_nibbles_Q4),
        cmocka_unit_test(test_three_bits_go_across_words),
        cmocka_unit_test(test_zeros_of_the_first_gptq_format_Q1),
        cmocka_unit_test(test_e4m3),
        cmocka_unit_test(test_strips_of_the_fast_path),
        cmocka_unit_test(test_random_codes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
