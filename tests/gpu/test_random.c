/* SPDX-License-Identifier: Apache-2.0 */
/* Weights that the GPU makes of nothing, bit by bit those that the host makes. */
#include "gpu.h"
#include "kernels/cuda/internal.h"
#include "kernels/random_weight.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MOST  (3u << 20)
#define GUARD 64u /* bytes behind the weight that must stay as they are */

typedef struct fixture {
    mr_backend *backend;
    const mr_cuda_api *api;
    mr_cuda_context *context;
    mr_cuda_ptr table;
    mr_cuda_ptr out;
    uint8_t *want;
    uint8_t *found;
} fixture;

static void open_fixture(fixture *f)
{
    f->backend = gpu_backend(MR_DTYPE_BF16);
    f->api = ((const mr_cuda_backend *)f->backend)->api;
    f->context = ((const mr_cuda_backend *)f->backend)->context;
    assert_int_equal(f->api->alloc(f->context, MR_RANDOM_PATTERNS * 4, &f->table), 0);
    assert_int_equal(f->api->alloc(f->context, 4 * MOST + GUARD, &f->out), 0);
    f->want = malloc(4 * MOST + GUARD);
    f->found = malloc(4 * MOST + GUARD);
    assert_true(f->want != NULL && f->found != NULL);
}

static void close_fixture(fixture *f)
{
    f->api->release(f->context, f->table);
    f->api->release(f->context, f->out);
    f->backend->vt->destroy(f->backend);
    free(f->want);
    free(f->found);
}

/* What the GPU makes of the table, against f->want and a guard of 0xa5 behind it. */
static void assert_made(fixture *f, const mr_plan_weight *weight, const void *table, uint32_t bytes)
{
    const uint64_t size = (uint64_t)weight->k * bytes;
    const mr_cuda_random random = {
        .table = f->table,
        .out = f->out,
        .count = weight->k,
        .seed = weight->random_seed,
        .stream = weight->random_stream,
        .bytes = bytes,
    };
    memset(f->want + size, 0xa5, GUARD);
    int code = f->api->to_device(f->context, f->table, table, MR_RANDOM_PATTERNS * bytes);
    code = code == 0 ? f->api->fill(f->context, f->out, 0xa5, size + GUARD) : code;
    code = code == 0 ? f->api->random(f->context, &random) : code;
    code = code == 0 ? f->api->to_host(f->context, f->found, f->out, size + GUARD) : code;
    code = code == 0 ? f->api->synchronize(f->context) : code;
    assert_int_equal(code, 0);
    assert_memory_equal(f->found, f->want, size + GUARD);
}

static void test_elements(void **state)
{
    (void)state;
    static const mr_dtype types[] = {MR_DTYPE_F32, MR_DTYPE_F16, MR_DTYPE_BF16};
    static const uint32_t counts[] = {1, 7, 8, 9, 2047, 65539, MOST - 5};
    fixture f;
    open_fixture(&f);
    for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
        const uint32_t bytes = mr_dtype_info_get(types[t])->block_bytes;
        mr_random_table *table = NULL;
        assert_int_equal(mr_random_table_create(types[t], 1.0f, &table), MR_OK);
        for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
            const mr_plan_weight weight = {.n = 1,
                                           .k = counts[i],
                                           .dtype = types[t],
                                           .random = true,
                                           .random_seed = 0xfedcba9876543210u + i,
                                           .random_stream = 17 * (uint32_t)i};
            mr_random_weight_fill(table, &weight, 0, counts[i], f.want);
            assert_made(&f, &weight, mr_random_table_elements(table), bytes);
        }
        mr_random_table_destroy(table);
    }
    close_fixture(&f);
}

static void test_codes(void **state)
{
    (void)state;
    enum { COUNT = 96 * 1024, BLOCK = 36, SCALE = 4 };
    const mr_weight_codes codes = {.codes = {.form = MR_CODES_E4M3, .bits = 8},
                                   .group = COUNT,
                                   .scale_dtype = MR_DTYPE_F32,
                                   .scale_rows = 1};
    const mr_plan_weight weight = {.n = 1,
                                   .k = COUNT,
                                   .dtype = MR_DTYPE_CODES_F8,
                                   .codes = &codes,
                                   .random = true,
                                   .random_seed = 3,
                                   .random_stream = 5};
    fixture f;
    open_fixture(&f);
    mr_random_table *table = NULL;
    assert_int_equal(mr_random_codes_table_create(&codes, &table), MR_OK);
    mr_random_weight_fill(table, &weight, 0, COUNT, f.found);
    for (uint32_t i = 0; i < COUNT / MR_CODES_BLOCK; i++) {
        memcpy(f.want + i * MR_CODES_BLOCK, f.found + i * BLOCK + SCALE, MR_CODES_BLOCK);
    }
    assert_made(&f, &weight, mr_random_table_elements(table), 1);
    mr_random_table_destroy(table);
    close_fixture(&f);
}

int main(int argc, char **argv)
{
    cmocka_set_test_filter(argc > 1 ? argv[1] : NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_elements),
        cmocka_unit_test(test_codes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
