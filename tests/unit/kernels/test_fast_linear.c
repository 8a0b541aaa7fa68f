/* SPDX-License-Identifier: Apache-2.0 */
/* Packed matrices and their products on every instruction set of this machine: against the same
 * quantised arithmetic in double (tight), and against the unquantised product (within the bound
 * that rounding activations to int8 allows). */
#include "kernels/cpu/fast_pack.h"

#include "kernels/quant_block.h"

#include "fast_tables.h"
#include "random_blocks.h"
#include "tiny_plan.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_ROWS = 35, BLOCK = 32, TILE = 16 };

typedef struct matrix {
    mr_plan_weight from;
    mr_cpu_weight packed;
    uint8_t *source;
    float *exact;  /* [n][k] of the source */
    float *stored; /* [n][k] of the packed form */
} matrix;

/* Blocks of any size and sign. */
static void fill_source(mr_dtype dtype, uint8_t *to, uint64_t blocks, uint64_t *seed)
{
    const mr_dtype_info *info = mr_dtype_info_get(dtype);
    for (uint64_t b = 0; b < blocks; b++, to += info->block_bytes) {
        random_blocks(dtype, to, info->block_elements, tiny_uniform(seed, -8.0f, 8.0f), seed);
    }
}

/* After the source has changed. */
static void matrix_pack(matrix *m)
{
    mr_dequantize(m->from.dtype, m->source, m->exact, (uint64_t)m->from.n * m->from.k);
    memset(m->packed.data, 0, m->packed.bytes);
    mr_cpu_source source = {.weight = &m->from};
    assert_true(mr_dtype_row_bytes(m->from.dtype, m->from.k, &source.row_bytes));
    mr_fast_weight_pack(&source, &m->packed, 1, 2); /* the shares of two threads */
    mr_fast_weight_pack(&source, &m->packed, 0, 2);
    for (uint32_t i = 0; i < m->from.n; i++) {
        mr_fast_weight_row(&m->packed, i, m->stored + (size_t)i * m->from.k);
    }
}

/* `pairs`: as a path has it that multiplies in bf16. */
static void matrix_create(mr_dtype dtype, uint32_t n, uint32_t k, bool pairs, matrix *out)
{
    uint64_t seed = 100 * n + k;
    uint64_t row_bytes = 0;
    *out = (matrix){.from = {.name = "w", .dtype = dtype, .n = n, .k = k},
                    .packed = {.dtype = dtype, .n = n, .k = k, .uses = MR_CPU_USE_LINEAR}};
    assert_true(mr_dtype_row_bytes(dtype, k, &row_bytes));
    out->source = malloc(row_bytes * n);
    out->exact = malloc(sizeof(float) * n * k);
    assert_non_null(out->source);
    out->stored = malloc(sizeof(float) * n * k);
    assert_true(out->exact != NULL && out->stored != NULL);
    const uint64_t elements = (uint64_t)n * k;
    fill_source(dtype, out->source, elements / mr_dtype_info_get(dtype)->block_elements, &seed);
    out->from.data = out->source;
    out->from.bytes = row_bytes * n;
    mr_status (*lay_out)(const mr_plan_weight *, mr_cpu_weight *, mr_error *) =
        pairs ? mr_fast_weight_layout_pairs : mr_fast_weight_layout;
    assert_int_equal(lay_out(&out->from, &out->packed, NULL), MR_OK);
    out->packed.data = aligned_alloc(64, (out->packed.bytes + 63) / 64 * 64);
    assert_non_null(out->packed.data);
    matrix_pack(out);
}

static void matrix_destroy(matrix *m)
{
    free(m->source);
    free(m->exact);
    free(m->stored);
    free(m->packed.data);
}

typedef struct input {
    float *x;       /* [MAX_ROWS][k] */
    uint16_t *half; /* [MAX_ROWS + TILE][k rounded up] */
    uint8_t *quant; /* [MAX_ROWS][k / 32] blocks */
    uint32_t planes;
    float *bias; /* [n] */
    uint8_t *scratch;
} input;

static const mr_fast_block *block_at(const input *in, size_t index)
{
    return (const mr_fast_block *)(const void *)(in->quant +
                                                 index * mr_fast_block_bytes(in->planes));
}

static void input_create(const mr_fast_kernels *kernels, uint32_t planes, uint32_t n, uint32_t k,
                         input *out)
{
    uint64_t seed = k;
    out->x = malloc(sizeof(float) * MAX_ROWS * k);
    out->half = calloc((MAX_ROWS + TILE) * mr_fast_half_width(k), sizeof(*out->half));
    assert_non_null(out->half);
    out->planes = planes;
    out->quant = malloc(mr_fast_block_bytes(planes) * MAX_ROWS * (k / BLOCK + 1));
    out->bias = malloc(sizeof(float) * n);
    out->scratch = aligned_alloc(64, mr_fast_linear_scratch(k) + 64);
    assert_true(out->x != NULL && out->quant != NULL && out->bias != NULL && out->scratch != NULL);
    for (uint32_t i = 0; i < MAX_ROWS * k; i++) {
        out->x[i] = tiny_uniform(&seed, -2.0f, 2.0f);
    }
    for (uint32_t row = 0; row < MAX_ROWS; row++) {
        kernels->narrow(MR_DTYPE_BF16, out->x + row * k, out->half + row * mr_fast_half_width(k),
                        k);
    }
    for (uint32_t i = 0; i < n; i++) {
        out->bias[i] = tiny_uniform(&seed, -1.0f, 1.0f);
    }
    if (k % BLOCK == 0) {
        kernels->quantize(out->x, MAX_ROWS * k, planes, out->quant);
    }
}

static void input_destroy(input *in)
{
    free(in->x);
    free(in->half);
    free(in->quant);
    free(in->bias);
    free(in->scratch);
}

/* out[rows][n] of rows first … first + rows − 1. */
static void multiply(const mr_fast_kernels *kernels, const matrix *m, const input *in,
                     uint32_t first, uint32_t rows, float *out)
{
    const uint32_t k = m->packed.k;
    const size_t strip_bytes = mr_fast_strip_bytes(m->packed.layout, k);
    for (uint32_t i = 0; i < m->packed.n; i += MR_FAST_STRIP) {
        const uint32_t left = m->packed.n - i;
        mr_fast_linear job = {
            .layout = m->packed.layout,
            .k = k,
            .strip = (const uint8_t *)m->packed.data + i / MR_FAST_STRIP * strip_bytes,
            .n = left < MR_FAST_STRIP ? left : MR_FAST_STRIP,
            .rows = rows,
            .bias = in->bias + i,
            .out = out + i,
            .out_stride = m->packed.n,
            .scratch = in->scratch,
        };
        if (mr_fast_is_quantised(job.layout)) {
            job.planes = in->planes;
            job.x_quant = (const uint8_t *)block_at(in, (size_t)first * (k / BLOCK));
        } else if (job.layout == MR_FAST_BF16_PAIRS) {
            job.x_half = in->half + first * mr_fast_half_width(k);
        } else {
            job.x = in->x + (size_t)first * k;
        }
        kernels->linear(&job);
    }
}

/* Output (row, i): with the activations as quantised, exactly; how far float sums may be from
 * that; the product with the activations as they were; how far quantising may be from that. */
typedef struct expected {
    double quantised, rounding, exact, quantising;
} expected;

static expected expect(const matrix *m, const input *in, uint32_t row, uint32_t i)
{
    const uint32_t k = m->packed.k;
    const float *w = m->stored + (size_t)i * k;
    const float *x = in->x + (size_t)row * k;
    expected e = {.quantised = (double)in->bias[i], .exact = (double)in->bias[i]};
    double size = 16.0 * fabs((double)in->bias[i]);
    for (uint32_t j = 0; j < k; j++) {
        double approx = (double)x[j];
        if (mr_fast_is_quantised(m->packed.layout)) {
            const mr_fast_block *block = block_at(in, row * (k / BLOCK) + j / BLOCK);
            int32_t code = block->codes[j % BLOCK];
            code = in->planes == 1 ? code : 256 * code + block->codes[BLOCK + j % BLOCK];
            approx = (double)block->scale * (double)code;
            e.quantising += fabs((double)w[j]) * (double)block->scale * 0.5;
        } else if (m->packed.layout == MR_FAST_BF16_PAIRS) {
            approx = (double)mr_bf16_to_f32(mr_f32_to_bf16(x[j]));
            e.quantising += fabs((double)(w[j] * x[j])) * 0x1p-8;
        }
        e.exact += (double)w[j] * (double)x[j];
        e.quantised += (double)w[j] * approx;
        size += fabs((double)w[j] * approx) + fabs((double)w[j]) / 16;
    }
    /* d · u and m of a block are summed apart and are up to 16 times what they come to together. */
    e.rounding = 32 * 0x1p-24 * size * (1.0 + k / 512.0);
    return e;
}

static void check_product(const fast_table *table, const matrix *m, uint32_t planes, uint32_t rows)
{
    const uint32_t n = m->packed.n;
    input in;
    input_create(table->kernels, planes, n, m->packed.k, &in);
    float *out = malloc(sizeof(float) * rows * n);
    float *alone = malloc(sizeof(float) * n);
    assert_true(out != NULL && alone != NULL);
    multiply(table->kernels, m, &in, 0, rows, out);
    for (uint32_t row = 0; row < rows; row++) {
        for (uint32_t i = 0; i < n; i++) {
            const expected e = expect(m, &in, row, i);
            const double found = (double)out[row * n + i];
            if (!(fabs(found - e.quantised) <= e.rounding) ||
                !(fabs(found - e.exact) <= e.quantising + e.rounding)) {
                fail_msg("%s %s n %u k %u planes %u, row %u of %u, output %u: %g for %g +- %g, "
                         "%g +- %g",
                         table->name, mr_dtype_info_get(m->packed.dtype)->name, n, m->packed.k,
                         planes, row, rows, i, found, e.quantised, e.rounding, e.exact,
                         e.quantising);
            }
        }
        /* No bit depends on the other rows. */
        multiply(table->kernels, m, &in, row, 1, alone);
        assert_memory_equal(alone, out + row * n, sizeof(float) * n);
    }
    free(out);
    free(alone);
    input_destroy(&in);
}

static void test_linear_all_types_and_sizes(void **state)
{
    (void)state;
    static const uint32_t outputs[] = {1, 16, 31, 32, 50, 96};
    static const uint32_t inputs[2][4] = {{32, 96, 576, 21}, {256, 512, 768, 256}};
    fast_table tables[FAST_TABLES_MAX];
    const uint32_t count = fast_tables(tables);
    for (int dtype = 0; dtype < MR_DTYPE_COUNT; dtype++) {
        for (uint32_t s = 0; s < 24; s++) {
            const uint32_t block = mr_dtype_info_get((mr_dtype)dtype)->block_elements;
            const uint32_t k = inputs[block > BLOCK][s % 4];
            matrix m[2];
            if (k % block != 0) {
                continue;
            }
            matrix_create((mr_dtype)dtype, outputs[s / 4], k, false, &m[0]);
            matrix_create((mr_dtype)dtype, outputs[s / 4], k, true, &m[1]);
            for (uint32_t t = 0; t < count; t++) {
                const uint32_t rows = k >= 576 ? MAX_ROWS : 1 + (s * 7 + t) % MAX_ROWS;
                check_product(&tables[t], &m[tables[t].pairs], 1 + s % 2, rows);
            }
            matrix_destroy(&m[0]);
            matrix_destroy(&m[1]);
        }
    }
}

/* `k`, or a block where that is more. */
static uint32_t width_of(mr_dtype dtype, uint32_t k)
{
    const uint32_t block = mr_dtype_info_get(dtype)->block_elements;
    return block > k ? block : k;
}

static void test_linear_every_row_count(void **state)
{
    (void)state;
    fast_table tables[FAST_TABLES_MAX];
    const uint32_t count = fast_tables(tables);
    for (int dtype = 0; dtype < MR_DTYPE_COUNT; dtype++) {
        matrix m[2];
        matrix_create((mr_dtype)dtype, 33, width_of((mr_dtype)dtype, 64), false, &m[0]);
        matrix_create((mr_dtype)dtype, 33, width_of((mr_dtype)dtype, 64), true, &m[1]);
        /* Up to a tile of rows and two more, then a tile and its rest, and two of them. */
        for (uint32_t rows = 1; rows <= MAX_ROWS; rows += rows < 18 ? 1 : 13) {
            for (uint32_t t = 0; t < count; t++) {
                check_product(&tables[t], &m[tables[t].pairs], 1, rows);
                check_product(&tables[t], &m[tables[t].pairs], 2, rows);
            }
        }
        matrix_destroy(&m[0]);
        matrix_destroy(&m[1]);
    }
}

/* The largest codes of both sides, of either sign: no partial sum may saturate. */
static void check_extremes(const fast_table *table, const matrix *m, uint32_t planes)
{
    const uint32_t k = m->packed.k;
    input in;
    enum { ROWS = 17 }; /* a tile, and one besides */
    float out[ROWS * 32];
    input_create(table->kernels, planes, 32, k, &in);
    for (uint32_t j = 0; j < ROWS * k; j++) {
        in.x[j] = j % k < k / 2 ? 1.5f : -1.5f;
    }
    table->kernels->quantize(in.x, ROWS * k, planes, in.quant);
    multiply(table->kernels, m, &in, 0, ROWS, out);
    for (uint32_t i = 0; i < ROWS * 32; i++) {
        const expected e = expect(m, &in, i / 32, i % 32);
        assert_true(fabs((double)out[i] - e.quantised) <= e.rounding);
    }
    input_destroy(&in);
}

static void test_linear_extreme_codes(void **state)
{
    (void)state;
    static const uint8_t codes[] = {0x80, 0x7f, 0xff, 0x00};
    fast_table tables[FAST_TABLES_MAX];
    const uint32_t count = fast_tables(tables);
    for (int dtype = MR_DTYPE_Q8_0; dtype < MR_DTYPE_COUNT; dtype++) {
        for (size_t pattern = 0; pattern < sizeof(codes); pattern++) {
            const uint32_t k = width_of((mr_dtype)dtype, 64);
            matrix m;
            matrix_create((mr_dtype)dtype, 32, k, false, &m);
            uniform_blocks((mr_dtype)dtype, m.source, 32 * k, 4.0f, codes[pattern]);
            matrix_pack(&m);
            for (uint32_t t = 0; t < count; t++) {
                check_extremes(&tables[t], &m, 1);
                check_extremes(&tables[t], &m, 2);
            }
            matrix_destroy(&m);
        }
    }
}

/* Codes round to nearest, their largest is 127 or 127 · 256 + 127, and sums are theirs. */
static void check_codes(const float *x, float magnitude, uint32_t planes,
                        const mr_fast_block *block)
{
    const float largest = planes == 1 ? 127.0f : 32639.0f;
    int32_t sum = 0;
    int32_t low = 0;
    assert_float_equal(block->scale, magnitude / largest, 0);
    for (uint32_t j = 0; j < BLOCK; j++) {
        int32_t code = block->codes[j];
        code = planes == 1 ? code : 256 * code + block->codes[BLOCK + j];
        assert_int_equal(code, lrintf(x[j] * (largest / magnitude)));
        sum += code;
        low += j < BLOCK / 2 ? code : 0;
    }
    assert_int_equal(block->minus_sum, -sum);
    assert_int_equal(block->minus_low, -low);
    assert_float_equal(block->offset_sum, block->scale * (float)sum, 0);
}

static void test_quantize_blocks(void **state)
{
    (void)state;
    fast_table tables[FAST_TABLES_MAX];
    const uint32_t count = 2 * fast_tables(tables);
    for (uint32_t t = 0; t < count; t++) {
        input in;
        input_create(tables[t / 2].kernels, 1 + t % 2, 1, 5 * BLOCK, &in);
        float *x = in.x;
        memset(x + 2 * BLOCK, 0, sizeof(float) * 3 * BLOCK);
        x[5] = 3.5f;
        x[BLOCK + 31] = -3.5f;
        x[3 * BLOCK + 1] = NAN;
        x[4 * BLOCK + 1] = 0x1p-140f;
        tables[t / 2].kernels->quantize(x, 5 * BLOCK, in.planes, in.quant);
        check_codes(x, 3.5f, in.planes, block_at(&in, 0));
        check_codes(x + BLOCK, 3.5f, in.planes, block_at(&in, 1));
        assert_int_equal(block_at(&in, 0)->codes[5], 127);
        assert_true(block_at(&in, 2)->scale == 0.0f && block_at(&in, 2)->minus_sum == 0);
        assert_true(isnan(block_at(&in, 3)->scale));
        assert_true(block_at(&in, 4)->scale == 0.0f && block_at(&in, 4)->minus_sum == 0);
        input_destroy(&in);
    }
}

/* How far packing may be from element `i` of a block: scale and minimum of the larger blocks are
 * rounded to f16. */
static float packing_error(mr_dtype dtype, const mr_quant_group *groups, uint32_t i)
{
    const mr_quant_group *group = &groups[i / BLOCK];
    const uint32_t half = i % BLOCK / (BLOCK / 2);
    if (mr_dtype_info_get(dtype)->block_elements == BLOCK) {
        return 0.0f;
    }
    return 0x1.01p-11f *
           (fabsf(group->scale[half] * (float)group->codes[i % BLOCK]) + fabsf(group->min[half]));
}

static void check_rows(const matrix *m)
{
    const mr_dtype_info *info = mr_dtype_info_get(m->from.dtype);
    mr_quant_group groups[MR_QUANT_GROUPS_MAX];
    for (uint32_t i = 0; i < m->from.n * m->from.k; i++) {
        const uint32_t at = i % info->block_elements;
        if (at == 0 && info->block_elements > 1) {
            const size_t block = i / info->block_elements;
            mr_quant_unpack(m->from.dtype, m->source + block * info->block_bytes, groups);
        }
        const float most =
            info->block_elements > 1 ? packing_error(m->from.dtype, groups, at) : 0.0f;
        if (!(fabsf(m->stored[i] - m->exact[i]) <= most)) {
            fail_msg("%s element %u: %g for %g +- %g", info->name, i, (double)m->stored[i],
                     (double)m->exact[i], (double)most);
        }
    }
}

static void test_rows_read_back(void **state)
{
    (void)state;
    for (int dtype = 0; dtype < MR_DTYPE_COUNT; dtype++) {
        for (int pairs = 0; pairs < 2; pairs++) {
            matrix m;
            matrix_create((mr_dtype)dtype, 50, width_of((mr_dtype)dtype, 96), pairs == 1, &m);
            check_rows(&m);
            matrix_destroy(&m);
        }
    }
}

/* A scale that is no number, or too large for f16 once multiplied, never gives finite weights. */
static void test_scales_out_of_range_stay_visible(void **state)
{
    (void)state;
    static const uint16_t halves[] = {0x7c00, 0xfc00, 0x7e00, 0x7bff}; /* ±∞, NaN, 65504 */
    for (size_t i = 0; i < sizeof(halves) / sizeof(halves[0]); i++) {
        matrix m;
        matrix_create(MR_DTYPE_Q4_K, 1, 256, false, &m);
        memset(m.source, 0xff, 144); /* scales of 63, minima of 63, codes of 15 */
        memcpy(m.source, &halves[i], sizeof(*halves));
        memset(m.source + 2, 0, 2);
        matrix_pack(&m);
        for (uint32_t j = 0; j < 256; j++) {
            assert_false(isfinite(m.stored[j]));
        }
        matrix_destroy(&m);
    }
}

static void test_unknown_type_is_refused(void **state)
{
    (void)state;
    mr_error err = {0};
    const mr_plan_weight from = {.name = "blk.0.odd", .n = 1, .k = 32};
    mr_cpu_weight to = {.dtype = MR_DTYPE_COUNT, .n = 1, .k = 32};
    assert_int_equal(mr_fast_weight_layout(&from, &to, &err), MR_UNIMPLEMENTED);
    assert_non_null(strstr(err.message, "blk.0.odd"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear_all_types_and_sizes),
        cmocka_unit_test(test_linear_every_row_count),
        cmocka_unit_test(test_linear_extreme_codes),
        cmocka_unit_test(test_quantize_blocks),
        cmocka_unit_test(test_rows_read_back),
        cmocka_unit_test(test_scales_out_of_range_stay_visible),
        cmocka_unit_test(test_unknown_type_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
