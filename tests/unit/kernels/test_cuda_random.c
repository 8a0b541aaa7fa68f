/* SPDX-License-Identifier: Apache-2.0 */
/* Weights made of nothing in the memory of a GPU: the bits that a CPU makes, whoever makes them. */
#include "cuda_fixture.h"
#include "kernels/random_weight.h"
#include "tiny_codes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Every weight of the plan made of nothing. */
static void make_all_random(tiny_plan *tiny)
{
    for (uint32_t i = 0; i < tiny->plan->n_weights; i++) {
        mr_plan_weight *weight = &tiny->plan->weights[i];
        weight->random = true;
        weight->random_seed = 0x123456789abcdefu;
        weight->random_stream = i;
        weight->random_mean = weight->n == 1 ? 1.0f : 0.0f;
        weight->data = NULL;
    }
}

/* What the host makes, as the type of `item`. */
static void assert_element(const mr_plan_weight *weight, const uint8_t *made, uint64_t i,
                           mr_dtype type, const uint8_t *found)
{
    float value;
    mr_dequantize(weight->dtype, made + i * mr_dtype_info_get(weight->dtype)->block_bytes, &value,
                  1);
    if (type == MR_DTYPE_F32) {
        assert_memory_equal(found + 4 * i, &value, 4);
        return;
    }
    const uint16_t want = type == MR_DTYPE_F16 ? mr_f32_to_f16(value) : mr_f32_to_bf16(value);
    assert_memory_equal(found + 2 * i, &want, 2);
}

static void assert_weight(const mr_plan *plan, const mr_cuda_weights *w, mr_weight_id id)
{
    const mr_plan_weight *weight = &plan->weights[id];
    const mr_cuda_weight *item = &w->items[id];
    const uint64_t count = (uint64_t)weight->n * weight->k;
    const uint8_t *found = (const uint8_t *)(uintptr_t)mr_cuda_weight_at(w, id);
    uint8_t *made = malloc(4 * count); /* no element has more bytes */
    mr_random_table *table = NULL;
    assert_non_null(made);
    if (weight->codes != NULL) {
        const uint32_t block = mr_dtype_info_get(MR_DTYPE_CODES_F8)->block_bytes;
        assert_true(item->coded);
        assert_int_equal(mr_random_codes_table_create(weight->codes, &table), MR_OK);
        mr_random_weight_fill(table, weight, 0, count, made);
        for (uint64_t i = 0; i < count; i += MR_CODES_BLOCK) {
            const uint8_t *from = made + i / MR_CODES_BLOCK * block;
            assert_memory_equal(found + i, from + 4, MR_CODES_BLOCK);
            assert_memory_equal(
                (const void *)(uintptr_t)(w->base + item->scales + i / weight->k * sizeof(float)),
                from, 4);
        }
    } else {
        assert_int_equal(mr_random_table_create(weight->dtype, weight->random_mean, &table), MR_OK);
        mr_random_weight_fill(table, weight, 0, count, made);
        for (uint64_t i = 0; i < count; i++) {
            assert_element(weight, made, i, mr_cuda_weight_type(w, item), found);
        }
    }
    mr_random_table_destroy(table);
    free(made);
}

/* With F8_E4M3 codes in the layers if `coded`; gives the launches that made weights. */
static uint32_t check_all(mr_dtype compute, bool coded)
{
    const mr_cuda_options options = {
        .compute = compute,
        .threads = 3,
        .memory_fraction = 0.9,
        .memory_bytes = (uint64_t)64 << 20,
        .api = fake_api(),
    };
    tiny_dims dims = tiny_dims_default();
    dims.vocab = 1031; /* matrices of more elements than the table has */
    tiny_plan tiny;
    tiny_codes codes = {.count = 0};
    mr_backend *backend = NULL;
    mr_weights *weights = NULL;
    mr_error err = {0};
    tiny_plan_create(&dims, &tiny);
    if (coded) {
        tiny_codes_create(&tiny, &codes);
    }
    make_all_random(&tiny);
    assert_int_equal(mr_cuda_backend_create(&options, &backend, NULL), MR_OK);
    fake_clear_trace();
    if (backend->vt->upload(backend, tiny.plan, NULL, NULL, &weights, &err) != MR_OK) {
        fail_msg("%s", err.message);
    }
    const uint32_t made = fake_count("random");
    const mr_cuda_weights *w = (const mr_cuda_weights *)weights;
    for (uint32_t i = 0; i < tiny.plan->n_weights; i++) {
        if (w->items[i].used) {
            assert_weight(tiny.plan, w, (mr_weight_id)i);
        }
    }
    /* What the table took is free again. */
    assert_int_equal(((const mr_cuda_backend *)backend)->slab.used, w->end);
    backend->vt->weights_destroy(backend, weights);
    backend->vt->destroy(backend);
    tiny_plan_destroy(&tiny);
    tiny_codes_destroy(&codes);
    cuda_assert_clean();
    return made;
}

static void test_the_gpu_makes_what_the_host_makes(void **state)
{
    (void)state;
    static const mr_dtype types[] = {MR_DTYPE_F32, MR_DTYPE_F16, MR_DTYPE_BF16};
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        fake_reset();
        /* The two of the vocabulary; the rest is smaller than the table. */
        assert_int_equal(check_all(types[i], false), 2);
    }
}

static void test_codes_and_scales_are_made_there_too(void **state)
{
    (void)state;
    /* Of two layers q, k, v, o, gate, up, down; between them tables change. */
    assert_int_equal(check_all(MR_DTYPE_BF16, true), 2 + 2 * 7);
}

static void test_a_failing_launch_ends_loading(void **state)
{
    (void)state;
    tiny_dims dims = tiny_dims_default();
    dims.vocab = 1031;
    tiny_plan tiny;
    mr_weights *weights = NULL;
    mr_error err = {0};
    tiny_plan_create(&dims, &tiny);
    make_all_random(&tiny);
    mr_backend *backend = cuda_open(MR_DTYPE_BF16);
    fake.fail = "random";
    fake.fail_at = 1;
    assert_int_equal(backend->vt->upload(backend, tiny.plan, NULL, NULL, &weights, &err),
                     MR_INTERNAL);
    cuda_assert_says(&err, "making weights");
    backend->vt->destroy(backend);
    tiny_plan_destroy(&tiny);
    cuda_assert_clean();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_the_gpu_makes_what_the_host_makes, cuda_setup),
        cmocka_unit_test_setup(test_codes_and_scales_are_made_there_too, cuda_setup),
        cmocka_unit_test_setup(test_a_failing_launch_ends_loading, cuda_setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
