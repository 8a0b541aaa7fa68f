/* SPDX-License-Identifier: Apache-2.0 */
/* batch_invariant: a row's bits alone are its bits in any company, however its sequence was cut
 * into steps (D4). Bit by bit, so nothing but the device itself is the reference. */
#include "gpu.h"
#include "kernels/cuda/internal.h"
#include "tiny_schedule.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LENGTH = 301, VOCAB = 96, ROWS = 300 };

static const mr_dtype types[] = {MR_DTYPE_BF16, MR_DTYPE_F16, MR_DTYPE_F32};

/* ---- products ---- */

typedef struct product {
    uint32_t n;
    uint32_t k;
    bool logits; /* float32 comes out */
    bool bias;
} product;

/* Those of the 8B Llama shape (a part of the vocabulary), SmolLM2's, odd ones. */
static const product products[] = {
    {6144, 4096, false, false},  {4096, 4096, false, false}, {28672, 4096, false, false},
    {4096, 14336, false, false}, {32064, 4096, true, false}, {960, 576, false, true},
    {576, 1536, false, false},   {49152, 576, true, false},  {37, 50, false, true},
    {100, 264, true, false},
};

/* Bits of numbers in ±[½, 1) of a type; float32 ones have as many bits as fit. */
static void fill_random(void *out, mr_dtype type, size_t count, uint64_t seed)
{
    for (size_t i = 0; i < count; i++) {
        const uint32_t bits = (uint32_t)(tiny_random(&seed) >> 16);
        if (type == MR_DTYPE_F32) {
            ((uint32_t *)out)[i] = (bits & 0x807fffffu) | 0x3f000000u;
        } else if (type == MR_DTYPE_F16) {
            ((uint16_t *)out)[i] = (uint16_t)((bits & 0x83ffu) | 0x3800u);
        } else {
            ((uint16_t *)out)[i] = (uint16_t)((bits & 0x807fu) | 0x3f00u);
        }
    }
}

static mr_cuda_ptr place(mr_cuda_backend *backend, const void *data, uint64_t bytes)
{
    mr_cuda_ptr at = 0;
    assert_true(mr_cuda_slab_take(&backend->slab, bytes, &at));
    if (data != NULL) {
        assert_int_equal(backend->api->to_device(backend->context, at, data, bytes), 0);
        assert_int_equal(backend->api->synchronize(backend->context), 0);
    }
    return at;
}

static mr_cuda_ptr place_random(mr_cuda_backend *backend, mr_dtype type, size_t count,
                                uint64_t seed)
{
    void *data = malloc(count * mr_cuda_size(type));
    assert_non_null(data);
    fill_random(data, type, count, seed);
    const mr_cuda_ptr at = place(backend, data, count * mr_cuda_size(type));
    free(data);
    return at;
}

/* Rows [first, first + count) of the input, into `out` on the host. */
static void multiply(mr_cuda_backend *backend, const mr_cuda_linear *p, uint32_t first,
                     uint32_t count, uint8_t *out)
{
    const uint64_t row = (uint64_t)p->n * mr_cuda_size(p->out_type);
    mr_cuda_linear some = *p;
    some.in += (uint64_t)first * p->k * mr_cuda_size(p->type);
    some.rows = count;
    assert_int_equal(backend->api->fill(backend->context, p->out, 0xff, count * row), 0);
    assert_int_equal(backend->api->linear(backend->context, &some), 0);
    assert_int_equal(backend->api->to_host(backend->context, out, p->out, count * row), 0);
    assert_int_equal(backend->api->synchronize(backend->context), 0);
}

static void check_product(mr_cuda_backend *backend, const product *shape)
{
    static const uint32_t counts[] = {1, 2, 5, 8, 9, 16, 31, 64, 129, 299};
    const uint64_t mark = backend->slab.used;
    const mr_dtype type = backend->compute;
    mr_cuda_linear p = {
        .type = type,
        .out_type = shape->logits ? MR_DTYPE_F32 : type,
        .n = shape->n,
        .k = shape->k,
        .out_stride = shape->n,
        .invariant = true,
    };
    p.weight = place_random(backend, type, (size_t)p.n * p.k, 1);
    p.in = place_random(backend, type, (size_t)ROWS * p.k, 2);
    p.bias = shape->bias ? place_random(backend, MR_DTYPE_F32, p.n, 3) : 0;
    const uint64_t row = (uint64_t)p.n * mr_cuda_size(p.out_type);
    p.out = place(backend, NULL, ROWS * row);
    uint8_t *all = malloc(ROWS * row);
    uint8_t *some = malloc(ROWS * row);
    assert_true(all != NULL && some != NULL);
    multiply(backend, &p, 0, ROWS, all);
    for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
        const uint32_t firsts[] = {0, ROWS - counts[c], (ROWS - counts[c]) / 2};
        for (size_t f = 0; f < 3; f++) {
            multiply(backend, &p, firsts[f], counts[c], some);
            if (memcmp(all + firsts[f] * row, some, counts[c] * row) != 0) {
                fail_msg("%s, n %u, k %u: rows %u to %u differ from what they are among %u",
                         mr_dtype_info_get(type)->name, p.n, p.k, firsts[f],
                         firsts[f] + counts[c] - 1, ROWS);
            }
        }
    }
    free(all);
    free(some);
    mr_cuda_slab_reset(&backend->slab, mark, backend->slab.used);
}

static void test_rows_of_products_do_not_see_company_D4(void **state)
{
    (void)state;
    for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
        mr_backend *base = gpu_invariant_backend(types[t]);
        for (size_t i = 0; i < sizeof(products) / sizeof(products[0]); i++) {
            check_product((mr_cuda_backend *)base, &products[i]);
        }
        base->vt->destroy(base);
    }
}

/* ---- sequences ---- */

static const tiny_schedule ways[] = {
    {.prefill = LENGTH, .chunk = LENGTH}, /* one prompt */
    {.prefill = 20, .chunk = 7},          /* decoding, past the border of a split */
    {.prefill = 40, .chunk = 40, .neighbours = 1},
    {.prefill = 290, .chunk = 130, .neighbours = 2},
    {.prefill = 280, .chunk = 16, .neighbours = 15},
    {.prefill = 285, .chunk = 19, .neighbours = 11},
    {.prefill = 1, .chunk = 1, .neighbours = 36},
};

static void check_sequences(const tiny_dims *dims, mr_dtype compute, const char *what)
{
    tiny_dims typed = *dims;
    typed.dtype = compute;
    const mr_exec_options options = gpu_wide_options(compute);
    tiny_plan tiny;
    tiny_plan_create(&typed, &tiny);
    mr_backend *backend = gpu_invariant_backend(compute);
    float *first = tiny_logits(backend, &tiny, &options, LENGTH, ways[0]);
    for (size_t w = 1; w < sizeof(ways) / sizeof(ways[0]); w++) {
        float *logits = tiny_logits(backend, &tiny, &options, LENGTH, ways[w]);
        for (uint32_t row = 0; row < LENGTH; row++) {
            const size_t at = (size_t)row * VOCAB;
            if (memcmp(first + at, logits + at, VOCAB * sizeof(float)) != 0) {
                fail_msg("%s, %s, way %zu: token %u differs", what,
                         mr_dtype_info_get(compute)->name, w, row);
            }
        }
        free(logits);
    }
    free(first);
    backend->vt->destroy(backend);
    tiny_plan_destroy(&tiny);
}

static void test_sequences_do_not_see_company_or_chunks_D4(void **state)
{
    (void)state;
    for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
        tiny_dims dims = tiny_dims_default();
        check_sequences(&dims, types[t], "D 16");
        dims.head_width = 64;
        check_sequences(&dims, types[t], "D 64");
        dims.heads = 9;
        dims.kv_heads = 3;
        dims.biases = true;
        dims.norm = MR_NORM_LAYER;
        check_sequences(&dims, types[t], "9 heads over 3, biases");
        dims = tiny_dims_default();
        dims.head_width = 128;
        dims.window = 150;
        dims.soft_cap = 2.0f;
        check_sequences(&dims, types[t], "D 128, window, soft cap");
        dims = tiny_dims_default();
        dims.width = 50;
        dims.ffn = 37;
        check_sequences(&dims, types[t], "odd widths");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_of_products_do_not_see_company_D4),
        cmocka_unit_test(test_sequences_do_not_see_company_or_chunks_D4),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
