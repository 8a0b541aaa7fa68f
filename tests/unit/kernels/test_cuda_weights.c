/* SPDX-License-Identifier: Apache-2.0 */
/* Weights on the host side of the CUDA backend: where they lie, and what they are converted to. */
#include "cuda_fixture.h"
#include "kernels/random_weight.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static float bf16_at(mr_cuda_ptr base, uint64_t index)
{
    uint16_t bits;
    memcpy(&bits, (const uint8_t *)(uintptr_t)base + 2 * index, sizeof(bits));
    return mr_bf16_to_f32(bits);
}

static mr_weights *load(mr_backend *backend, const mr_plan *plan)
{
    mr_weights *weights = NULL;
    mr_error err = {0};
    if (backend->vt->upload(backend, plan, NULL, NULL, &weights, &err) != MR_OK) {
        fail_msg("%s", err.message);
    }
    return weights;
}

static void test_parts_lie_side_by_side_and_are_converted(void **state)
{
    (void)state;
    tiny_dims dims = tiny_dims_default();
    dims.dtype = MR_DTYPE_Q8_0;
    dims.biases = true;
    dims.tied = true;
    tiny_plan tiny;
    tiny_plan_create(&dims, &tiny);
    mr_backend *backend = cuda_open(MR_DTYPE_BF16);
    mr_weights *made = load(backend, tiny.plan);
    const mr_cuda_weights *w = (const mr_cuda_weights *)made;
    for (uint32_t i = 0; i < tiny.plan->n_ops; i++) {
        if (tiny.plan->ops[i].kind == MR_OP_LINEAR) {
            assert_true(mr_cuda_weights_adjoin(w, &tiny.plan->ops[i].linear));
        }
    }
    const mr_weight_id k = tiny.layers[1].k;
    float want[64];
    mr_dequantize(MR_DTYPE_Q8_0, tiny.data[k], want, 64);
    for (uint32_t i = 0; i < 64; i++) {
        assert_true(bf16_at(mr_cuda_weight_at(w, k), i) == mr_bf16_to_f32(mr_f32_to_bf16(want[i])));
    }
    /* Biases of q, k and v as one vector of float32. */
    uint32_t found = 0;
    for (uint32_t i = 0; i < tiny.plan->n_ops; i++) {
        if (w->biases[i] != MR_CUDA_NONE) {
            const float *bias = (const float *)(uintptr_t)(w->base + w->biases[i]);
            const float *k_bias = tiny.data[tiny.layers[found].k_bias];
            assert_memory_equal(bias + 64, k_bias, 32 * sizeof(float));
            found++;
        }
    }
    assert_int_equal(found, 2);
    backend->vt->weights_destroy(backend, made);
    backend->vt->destroy(backend);
    tiny_plan_destroy(&tiny);
    cuda_assert_clean();
}

/* F32 weights that are made of nothing. Matrices smaller than the table are made by the host. */
static void test_random_weights_are_made_while_loading(void **state)
{
    (void)state;
    const tiny_dims dims = tiny_dims_default();
    tiny_plan tiny;
    tiny_plan_create(&dims, &tiny);
    mr_plan_weight *q = &tiny.plan->weights[tiny.layers[0].q];
    q->random = true;
    q->random_seed = 5;
    q->random_stream = 3;
    q->data = NULL;
    float made[64 * 64];
    mr_random_table *table = NULL;
    assert_int_equal(mr_random_table_create(MR_DTYPE_F32, 0.0f, &table), MR_OK);
    mr_random_weight_fill(table, q, 0, 64 * 64, made);
    mr_random_table_destroy(table);
    mr_backend *backend = cuda_open(MR_DTYPE_BF16);
    mr_weights *weights = load(backend, tiny.plan);
    const mr_cuda_weights *w = (const mr_cuda_weights *)weights;
    for (uint32_t i = 0; i < 64 * 64; i++) {
        assert_true(bf16_at(mr_cuda_weight_at(w, tiny.layers[0].q), i) ==
                    mr_bf16_to_f32(mr_f32_to_bf16(made[i])));
    }
    backend->vt->weights_destroy(backend, weights);
    backend->vt->destroy(backend);
    tiny_plan_destroy(&tiny);
    cuda_assert_clean();
}

/* Gives the second layer's k an int8 code an element, with a scale an output, in the place of what
 * it has. */
static mr_weight_id give_codes(tiny_plan *tiny, const uint8_t codes[32 * 64],
                               const float scales[32])
{
    const mr_weight_codes from = {
        .codes = {.data = codes,
                  .bytes = 32 * 64,
                  .form = MR_CODES_INT8,
                  .bits = 8,
                  .next = 1,
                  .line = 64},
        .scales = (const uint8_t *)scales,
        .scale_bytes = 32 * sizeof(*scales),
        .scale_dtype = MR_DTYPE_F32,
        .scale_row = 1,
        .scale_group = 1,
        .scale_rows = 1,
        .group = 64,
        .centred = true,
    };
    const mr_plan_weight weight = {.name = "codes", .n = 32, .k = 64};
    mr_weight_id k = 0;
    assert_int_equal(mr_plan_add_codes(tiny->plan, &weight, &from, &k), MR_OK);
    tiny->data = realloc(tiny->data, (k + 1u) * sizeof(*tiny->data));
    assert_non_null(tiny->data);
    tiny->data[k] = NULL;
    for (uint32_t i = 0; i < tiny->plan->n_ops; i++) {
        mr_op *op = &tiny->plan->ops[i];
        if (op->kind == MR_OP_LINEAR && op->linear.weight[1] == tiny->layers[1].k &&
            op->linear.parts == 3) {
            op->linear.weight[1] = k;
        }
    }
    return k;
}

static void test_codes_are_decoded_while_loading(void **state)
{
    (void)state;
    static uint8_t codes[32 * 64];
    float scales[32];
    for (uint32_t i = 0; i < 32 * 64; i++) {
        codes[i] = (uint8_t)(i * 7);
    }
    for (uint32_t n = 0; n < 32; n++) {
        scales[n] = 0.5f + (float)n;
    }
    const tiny_dims dims = tiny_dims_default();
    tiny_plan tiny;
    tiny_plan_create(&dims, &tiny);
    const mr_weight_id k = give_codes(&tiny, codes, scales);
    mr_backend *backend = cuda_open(MR_DTYPE_BF16);
    mr_weights *weights = load(backend, tiny.plan);
    const mr_cuda_weights *w = (const mr_cuda_weights *)weights;
    for (uint32_t i = 0; i < 32 * 64; i++) {
        const float want = scales[i / 64] * (float)(int8_t)codes[i];
        assert_true(bf16_at(mr_cuda_weight_at(w, k), i) == mr_bf16_to_f32(mr_f32_to_bf16(want)));
    }
    backend->vt->weights_destroy(backend, weights);
    backend->vt->destroy(backend);
    tiny_plan_destroy(&tiny);
    cuda_assert_clean();
}

static void test_a_failing_copy_ends_loading(void **state)
{
    (void)state;
    static const char *const calls[] = {"to_device", "record", "await", "synchronize",
                                        "alloc_host"};
    const tiny_dims dims = tiny_dims_default();
    tiny_plan tiny;
    tiny_plan_create(&dims, &tiny);
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        fake_reset();
        mr_backend *backend = cuda_open(MR_DTYPE_BF16);
        mr_weights *weights = NULL;
        mr_error err = {0};
        fake.fail = calls[i];
        fake.fail_at = 1;
        const mr_status status =
            backend->vt->upload(backend, tiny.plan, NULL, NULL, &weights, &err);
        assert_int_equal(status, i == 4 ? MR_RESOURCE_EXHAUSTED : MR_INTERNAL);
        backend->vt->destroy(backend);
        cuda_assert_clean();
    }
    tiny_plan_destroy(&tiny);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_parts_lie_side_by_side_and_are_converted, cuda_setup),
        cmocka_unit_test_setup(test_random_weights_are_made_while_loading, cuda_setup),
        cmocka_unit_test_setup(test_codes_are_decoded_while_loading, cuda_setup),
        cmocka_unit_test_setup(test_a_failing_copy_ends_loading, cuda_setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
