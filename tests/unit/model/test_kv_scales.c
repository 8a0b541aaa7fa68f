/* SPDX-License-Identifier: Apache-2.0 */
#include "model/kv_scales.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#define LAYER "model.layers.0.self_attn"

static void add_number(mr_tensor_table *table, const char *name, const float *value, uint64_t bytes)
{
    mr_model_tensor tensor = {.name = name, .dtype = MR_DTYPE_F32, .data = value, .bytes = bytes};
    assert_int_equal(mr_tensor_table_add(table, &tensor), MR_OK);
}

/* By the projection, by the attention around it, or one for both. */
static void test_kv_scales_under_every_name(void **state)
{
    (void)state;
    static const float half = 0.5f;
    static const struct {
        const char *name;
        bool key;
        bool value;
    } cases[] = {
        {LAYER ".k_proj.k_scale", true, false},
        {LAYER ".v_proj.v_scale", false, true},
        {LAYER ".k_proj.output_scale", true, false},
        {LAYER ".v_proj.output_scale", false, true},
        {LAYER ".k_scale", true, false},
        {LAYER ".v_scale", false, true},
        {LAYER ".attn.k_scale", true, false},
        {LAYER ".attn.v_scale", false, true},
        {LAYER ".kv_scale", true, true},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        mr_tensor_table table;
        assert_int_equal(mr_tensor_table_init(&table, 1), MR_OK);
        add_number(&table, cases[i].name, &half, sizeof(half));
        float key = 0.0f;
        float value = 0.0f;
        assert_int_equal(mr_kv_scale_find(&table, LAYER ".k_proj", true, &key), cases[i].key);
        assert_int_equal(mr_kv_scale_find(&table, LAYER ".v_proj", false, &value), cases[i].value);
        assert_true(key == (cases[i].key ? 0.5f : 0.0f));
        assert_true(value == (cases[i].value ? 0.5f : 0.0f));
        assert_true(table.items[0].used);
        assert_int_equal(mr_kv_scale_layers(&table), cases[i].key ? 1 : 0);
        mr_tensor_table_deinit(&table);
    }
}

static void test_kv_scales_are_one_positive_number(void **state)
{
    (void)state;
    static const float numbers[][2] = {{0.0f, 1.0f}, {-1.0f, 1.0f}, {1.0f, 1.0f}};
    static const uint64_t bytes[] = {4, 4, 8};
    for (size_t i = 0; i < 3; i++) {
        mr_tensor_table table;
        float scale = 7.0f;
        assert_int_equal(mr_tensor_table_init(&table, 1), MR_OK);
        add_number(&table, LAYER ".k_scale", numbers[i], bytes[i]);
        assert_false(mr_kv_scale_find(&table, LAYER ".k_proj", true, &scale));
        assert_true(scale == 7.0f);
        assert_false(table.items[0].used);
        mr_tensor_table_deinit(&table);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kv_scales_under_every_name),
        cmocka_unit_test(test_kv_scales_are_one_positive_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
