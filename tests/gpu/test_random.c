/* SPDX-License-Identifier: Apache-2.0 */
/* Weights that the GPU makes of nothing, bit by bit those that the host makes. */
#include "gpu.h"
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
    gpu_bench bench;
    mr_cuda_ptr table;
    mr_cuda_ptr out;
    uint8_t *want;
    uint8_t *found;
} fixture;

static void open_fixture(fixture *f)
{
    gpu_bench_open(&f->bench, MR_DTYPE_BF16, (uint64_t)16 << 20);
    f->table = gpu_room(&f->bench, MR_RANDOM_PATTERNS * 4);
    f->out = gpu_room(&f->bench, 4 * MOST + GUARD);
    f->want = gpu_array(4 * MOST + GUARD, 1);
    f->found = gpu_array(4 * MOST + GUARD, 1);
}

static void close_fixture(fixture *f)
{
    gpu_bench_close(&f->bench);
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
    const mr_cuda_api *api = f->bench.api;
    mr_cuda_context *context = f->bench.context;
    int code = api->to_device(context, f->table, table, MR_RANDOM_PATTERNS * bytes);
    code = code == 0 ? api->fill(context, f->out, 0xa5, size + GUARD) : code;
    code = code == 0 ? api->random(context, &random) : code;
    assert_int_equal(code, 0);
    gpu_get(&f->bench, f->found, f->out, size + GUARD);
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
