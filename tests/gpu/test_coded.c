/* SPDX-License-Identifier: Apache-2.0 */
/* Products with F8_E4M3 weights, each call of the table held to sums in double over the same codes;
 * and a model of such weights against the scalar reference. */
#include "gpu.h"
#include "kernels/cuda/internal.h"
#include "kernels/weight_codes.h"
#include "tiny_codes.h"
#include "tiny_schedule.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- calls of the table ---- */

static void open_bench(gpu_bench *b)
{
    gpu_bench_open(b, MR_DTYPE_BF16, (uint64_t)128 << 20);
    if (!mr_cuda_takes_codes((const mr_cuda_backend *)b->base)) {
        gpu_bench_close(b);
        print_message("this GPU does not multiply F8_E4M3 with scales of rows\n");
        skip();
    }
}

/* Random numbers of about one, as bf16; what they are as floats. */
static mr_cuda_ptr put_random(gpu_bench *b, float *values, uint32_t count)
{
    uint16_t *narrow = malloc(count * sizeof(*narrow));
    assert_non_null(narrow);
    for (uint32_t i = 0; i < count; i++) {
        const float x = tiny_uniform(&b->state, -2.0f, 2.0f);
        narrow[i] = mr_f32_to_bf16(x * x * x);
        values[i] = mr_bf16_to_f32(narrow[i]);
    }
    const mr_cuda_ptr at = gpu_put(b, narrow, count * sizeof(*narrow));
    free(narrow);
    return at;
}

static mr_cuda_ptr put_codes(gpu_bench *b, float *values, uint32_t count)
{
    uint8_t *codes = malloc(count);
    assert_non_null(codes);
    for (uint32_t i = 0; i < count; i++) {
        do {
            codes[i] = (uint8_t)tiny_random(&b->state);
        } while ((codes[i] & 0x7f) == 0x7f);
        values[i] = mr_f8_e4m3_to_f32(codes[i]);
    }
    const mr_cuda_ptr at = gpu_put(b, codes, count);
    free(codes);
    return at;
}

static mr_cuda_ptr put_scales(gpu_bench *b, float *values, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        values[i] = tiny_uniform(&b->state, 0.001f, 0.01f);
    }
    return gpu_put(b, values, count * sizeof(*values));
}

typedef struct product {
    uint32_t rows, n, k;
    float *weight, *weight_scale, *in, *scale; /* scale of rows: codes */
    mr_cuda_linear p;
} product;

static product make_product(gpu_bench *b, uint32_t rows, uint32_t n, uint32_t k, bool coded)
{
    product m = {.rows = rows, .n = n, .k = k};
    m.weight = malloc((size_t)n * k * sizeof(float));
    m.in = malloc((size_t)rows * k * sizeof(float));
    m.weight_scale = malloc(n * sizeof(float));
    m.scale = malloc(rows * sizeof(float));
    assert_true(m.weight != NULL && m.in != NULL && m.weight_scale != NULL && m.scale != NULL);
    b->used = 0;
    m.p = (mr_cuda_linear){
        .weight = put_codes(b, m.weight, n * k),
        .weight_scale = put_scales(b, m.weight_scale, n),
        .type = MR_DTYPE_BF16,
        .weight_type = MR_DTYPE_F8_E4M3,
        .out_type = MR_DTYPE_BF16,
        .rows = rows,
        .n = n,
        .k = k,
        .out_stride = n,
    };
    if (coded) {
        m.p.coded.codes = put_codes(b, m.in, rows * k);
        m.p.coded.scale = put_scales(b, m.scale, rows);
    } else {
        m.p.in = put_random(b, m.in, rows * k);
    }
    m.p.out = gpu_room(b, (uint64_t)rows * n * 4);
    return m;
}

static void free_product(product *m)
{
    free(m->weight);
    free(m->in);
    free(m->weight_scale);
    free(m->scale);
}

/* Element (row, n), and what its terms' magnitudes sum to. */
static double sum_of(const product *m, uint32_t row, uint32_t n, double *size)
{
    double sum = 0.0;
    *size = 0.0;
    for (uint32_t i = 0; i < m->k; i++) {
        const double term =
            (double)m->weight[(size_t)n * m->k + i] * (double)m->in[(size_t)row * m->k + i];
        sum += term;
        *size += fabs(term);
    }
    double scale = m->p.raw ? 1.0 : (double)m->weight_scale[n];
    scale *= m->p.coded.codes != 0 && !m->p.raw ? (double)m->scale[row] : 1.0;
    *size *= scale;
    return sum * scale;
}

/* Sums of codes have some 13 bits on the way (the matrix units' own), which counts at the terms'
 * size; then the result is rounded. */
static void check_product(gpu_bench *b, product *m, const char *what)
{
    uint16_t *out = malloc((size_t)m->rows * m->n * sizeof(*out));
    assert_non_null(out);
    assert_int_equal(b->api->linear(b->context, &m->p), 0);
    gpu_get(b, out, m->p.out, (uint64_t)m->rows * m->n * sizeof(*out));
    for (uint32_t row = 0; row < m->rows; row++) {
        for (uint32_t n = 0; n < m->n; n++) {
            double size;
            const double want = sum_of(m, row, n, &size);
            const double got = (double)mr_bf16_to_f32(out[(size_t)row * m->n + n]);
            if (!(fabs(got - want) <= 0x1p-8 * fabs(want) + 2e-3 * size)) {
                fail_msg("%s, %u rows, [%u][%u]: (%u, %u) is %g, not %g", what, m->rows, m->n, m->k,
                         row, n, got, want);
            }
        }
    }
    free(out);
    free_product(m);
}

static void test_products_of_codes(void **state)
{
    (void)state;
    static const uint32_t shapes[][3] = {{9, 16, 16},     {17, 48, 32},   {33, 256, 1024},
                                         {128, 96, 512},  {600, 64, 160}, {31, 272, 2064},
                                         {64, 1024, 2048}};
    gpu_bench b;
    open_bench(&b);
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        for (int raw = 0; raw < 2; raw++) {
            product m = make_product(&b, shapes[i][0], shapes[i][1], shapes[i][2], true);
            m.p.raw = raw != 0;
            check_product(&b, &m, raw != 0 ? "raw" : "scaled");
        }
    }
    gpu_bench_close(&b);
}

static void test_few_rows_take_codes_as_weights(void **state)
{
    (void)state;
    static const uint32_t widths[][2] = {{16, 16}, {48, 80}, {256, 1024}, {4256, 512}};
    gpu_bench b;
    open_bench(&b);
    for (size_t i = 0; i < sizeof(widths) / sizeof(widths[0]); i++) {
        for (uint32_t rows = 1; rows <= MR_CUDA_FEW_ROWS; rows++) {
            product m = make_product(&b, rows, widths[i][0], widths[i][1], false);
            check_product(&b, &m, "few");
        }
    }
    gpu_bench_close(&b);
}

/* Codes and scale of a row of numbers. */
static void check_rows(gpu_bench *b, const float *values, const mr_cuda_coded_rows *coded,
                       uint32_t rows, uint32_t width, const char *what)
{
    uint8_t *codes = malloc((size_t)rows * width);
    float *scales = malloc(rows * sizeof(*scales));
    assert_true(codes != NULL && scales != NULL);
    gpu_get(b, codes, coded->codes, (uint64_t)rows * width);
    gpu_get(b, scales, coded->scale, rows * sizeof(*scales));
    for (uint32_t row = 0; row < rows; row++) {
        float largest = 0.0f;
        for (uint32_t i = 0; i < width; i++) {
            largest = fmaxf(largest, fabsf(values[(size_t)row * width + i]));
        }
        const float scale = coded->fixed > 0.0f ? coded->fixed : largest / 448.0f;
        assert_true(fabsf(scales[row] - scale) <= 1e-6f * scale);
        for (uint32_t i = 0; i < width; i++) {
            /* A number halfway between two codes goes either way: the quotient is rounded. */
            const double x = (double)values[(size_t)row * width + i] / (double)scale;
            const double capped = fmax(fmin(x, 448.0), -448.0);
            const double got = (double)mr_f8_e4m3_to_f32(codes[(size_t)row * width + i]);
            const double best = (double)mr_f8_e4m3_to_f32(tiny_e4m3((float)capped));
            if (!(fabs(got - capped) <= fabs(best - capped) * (1.0 + 1e-5) + 1e-5 * fabs(x))) {
                fail_msg("%s: (%u, %u) of %u is %g, and became %g", what, row, i, width, x, got);
            }
        }
    }
    free(codes);
    free(scales);
}

static mr_cuda_coded_rows coded_room(gpu_bench *b, uint32_t rows, uint32_t width, float fixed)
{
    return (mr_cuda_coded_rows){.codes = gpu_room(b, (uint64_t)rows * width),
                                .scale = gpu_room(b, rows * 4),
                                .fixed = fixed};
}

static void test_rows_are_rounded_by_their_largest(void **state)
{
    (void)state;
    static const uint32_t shapes[][2] = {{1, 16}, {9, 4096}, {200, 14336}, {3, 48}, {2, 65536}};
    gpu_bench b;
    open_bench(&b);
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        const uint32_t rows = shapes[i][0];
        const uint32_t width = shapes[i][1];
        float *values = malloc((size_t)rows * width * sizeof(*values));
        assert_non_null(values);
        b.used = 0;
        for (int fixed = 0; fixed < 2; fixed++) {
            mr_cuda_quantize q = {.in = put_random(&b, values, rows * width),
                                  .type = MR_DTYPE_BF16,
                                  .rows = rows,
                                  .width = width};
            q.coded = coded_room(&b, rows, width, fixed != 0 ? 0.01f : 0.0f);
            assert_int_equal(b.api->quantize(b.context, &q), 0);
            check_rows(&b, values, &q.coded, rows, width, "rows");
        }
        free(values);
    }
    gpu_bench_close(&b);
}

/* The norm and the gated activation give codes of what they would otherwise store. */
static void check_rounded_norm(gpu_bench *b, uint32_t rows, uint32_t width)
{
    const uint32_t count = rows * width;
    float *values = malloc(count * sizeof(*values));
    float *gain = malloc(width * sizeof(*gain));
    uint16_t *plain = malloc(count * sizeof(*plain));
    assert_true(values != NULL && gain != NULL && plain != NULL);
    b->used = 0;
    mr_cuda_norm p = {.in = put_random(b, values, count),
                      .gain = put_scales(b, gain, width),
                      .type = MR_DTYPE_BF16,
                      .kind = MR_NORM_RMS,
                      .rows = rows,
                      .width = width,
                      .epsilon = 1e-5f};
    for (uint32_t i = 0; i < count; i++) {
        values[i] = tiny_uniform(&b->state, -3.0f, 3.0f);
    }
    p.out = gpu_room(b, (uint64_t)count * 2);
    p.stream = gpu_put(b, values, count * sizeof(*values));
    assert_int_equal(b->api->norm(b->context, &p), 0);
    gpu_get(b, plain, p.out, (uint64_t)count * 2);
    p.stream = gpu_put(b, values, count * sizeof(*values));
    p.coded = coded_room(b, rows, width, 0.0f);
    assert_int_equal(b->api->norm(b->context, &p), 0);
    for (uint32_t i = 0; i < count; i++) {
        values[i] = mr_bf16_to_f32(plain[i]);
    }
    /* Sums in another order may round a number to another bf16: a bound for the product. */
    uint8_t *codes = malloc(count);
    float *scales = malloc(rows * sizeof(*scales));
    assert_true(codes != NULL && scales != NULL);
    gpu_get(b, codes, p.coded.codes, count);
    gpu_get(b, scales, p.coded.scale, rows * sizeof(*scales));
    for (uint32_t i = 0; i < count; i++) {
        const double got = (double)mr_f8_e4m3_to_f32(codes[i]) * (double)scales[i / width];
        const double most = 448.0 * (double)scales[i / width];
        assert_true(fabs(got - (double)values[i]) <=
                    fabs((double)values[i]) * 0.07 + most * 0x1p-18);
    }
    free(codes);
    free(scales);
    free(values);
    free(gain);
    free(plain);
}

static void check_rounded_gated(gpu_bench *b, uint32_t rows, uint32_t width, bool raw)
{
    const uint32_t count = rows * width;
    float *in = malloc((size_t)2 * count * sizeof(*in));
    float *values = malloc(count * sizeof(*values));
    float *row = malloc(rows * sizeof(*row));
    float *column = malloc((size_t)2 * width * sizeof(*column));
    assert_true(in != NULL && values != NULL && row != NULL && column != NULL);
    b->used = 0;
    mr_cuda_gated p = {.in = put_random(b, in, 2 * count),
                       .type = MR_DTYPE_BF16,
                       .activation = MR_ACT_RELU,
                       .rows = rows,
                       .width = width};
    const mr_cuda_raw_scales scales = {.row = put_scales(b, row, rows),
                                       .column = put_scales(b, column, 2 * width)};
    if (raw) {
        p.raw = scales;
    }
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t r = i / width;
        const uint32_t c = i % width;
        float gate = in[(size_t)r * 2 * width + c];
        float up = in[(size_t)r * 2 * width + width + c];
        if (raw) {
            gate = mr_bf16_to_f32(mr_f32_to_bf16(gate * (row[r] * column[c])));
            up = mr_bf16_to_f32(mr_f32_to_bf16(up * (row[r] * column[width + c])));
        }
        values[i] = gate > 0.0f ? mr_bf16_to_f32(mr_f32_to_bf16(gate * up)) : 0.0f;
    }
    p.coded = coded_room(b, rows, width, 0.0f);
    assert_int_equal(b->api->gated(b->context, &p), 0);
    check_rows(b, values, &p.coded, rows, width, "gated");
    free(in);
    free(values);
    free(row);
    free(column);
}

static void test_makers_of_rows_round_them(void **state)
{
    (void)state;
    gpu_bench b;
    open_bench(&b);
    check_rounded_norm(&b, 9, 64);
    check_rounded_norm(&b, 33, 4096);
    check_rounded_norm(&b, 300, 576);
    check_rounded_norm(&b, 2, 32768);
    check_rounded_gated(&b, 9, 96, false);
    check_rounded_gated(&b, 150, 14336, false);
    check_rounded_gated(&b, 40, 1536, true);
    gpu_bench_close(&b);
}

/* ---- a model ---- */

/* Of all rows together: roundings of 3 bits differ widely from row to row. */
static double whole_distance(const float *a, const float *b, uint32_t count)
{
    double error = 0.0;
    double size = 0.0;
    for (uint32_t i = 0; i < count; i++) {
        const double d = (double)a[i] - (double)b[i];
        error += d * d;
        size += (double)b[i] * (double)b[i];
    }
    return sqrt(error / size);
}

/* Products with few rows keep these as they are; with many they are rounded to 3 bits and more. */
static void check_model(const tiny_dims *dims, mr_dtype compute, mr_dtype kv)
{
    enum { LENGTH = 120 };
    static const tiny_schedule ways[] = {{.prefill = LENGTH, .chunk = LENGTH},
                                         {.prefill = 20, .chunk = 4},
                                         {.prefill = 100, .chunk = 50, .neighbours = 11},
                                         {.prefill = 64, .chunk = 64, .neighbours = 30}};
    static const double allowed[] = {0.12, 0.06, 0.12, 0.12};
    mr_exec_options options = tiny_options();
    options.max_tokens = 2048;
    options.max_seqs = 40;
    options.max_rows = 1024;
    options.max_context = 128;
    options.block_size = 16;
    options.n_blocks = 1 + options.max_seqs * (options.max_context / options.block_size);
    mr_exec_options on_cpu = options;
    options.kv_dtype = kv;
    tiny_plan tiny;
    tiny_codes own;
    tiny_plan_create(dims, &tiny);
    tiny_codes_create(&tiny, &own);
    mr_backend *backend = gpu_backend(compute);
    mr_backend *reference = gpu_reference();
    float *expected = tiny_logits(reference, &tiny, &on_cpu, LENGTH, ways[0]);
    for (size_t w = 0; w < sizeof(ways) / sizeof(ways[0]); w++) {
        float *logits = tiny_logits(backend, &tiny, &options, LENGTH, ways[w]);
        const double found = whole_distance(logits, expected, LENGTH * dims->vocab);
        print_message("way %zu, %s, KV %s: relative error %.4f\n", w,
                      mr_dtype_info_get(compute)->name, mr_dtype_info_get(kv)->name, found);
        assert_true(found <= allowed[w]);
        free(logits);
    }
    free(expected);
    backend->vt->destroy(backend);
    reference->vt->destroy(reference);
    tiny_plan_destroy(&tiny);
    tiny_codes_destroy(&own);
}

static void test_models_of_codes(void **state)
{
    (void)state;
    tiny_dims dims = tiny_dims_default();
    dims.head_width = 64;
    check_model(&dims, MR_DTYPE_BF16, MR_DTYPE_BF16);
    check_model(&dims, MR_DTYPE_F16, MR_DTYPE_F16);
    check_model(&dims, MR_DTYPE_BF16, MR_DTYPE_F8_E4M3);
    dims.biases = true;
    check_model(&dims, MR_DTYPE_BF16, MR_DTYPE_BF16);
    dims = tiny_dims_default();
    dims.heads = 8;
    dims.kv_heads = 8;
    dims.norm = MR_NORM_LAYER;
    dims.activation = MR_ACT_GELU_TANH;
    check_model(&dims, MR_DTYPE_BF16, MR_DTYPE_I8);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products_of_codes),
        cmocka_unit_test(test_few_rows_take_codes_as_weights),
        cmocka_unit_test(test_rows_are_rounded_by_their_largest),
        cmocka_unit_test(test_makers_of_rows_round_them),
        cmocka_unit_test(test_models_of_codes),
    };
    cmocka_set_test_filter(argc > 1 ? argv[1] : NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
