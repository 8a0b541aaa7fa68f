/* SPDX-License-Identifier: Apache-2.0 */
/* Rotary positions of a config.json against the published formulas in float64 (R1, R2). */
#include "model/hf_rope.h"

#include "kernels/plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void config_deinit(mr_model_config *config)
{
    free((void *)(uintptr_t)config->rope.inv_freq);
    free((void *)(uintptr_t)config->rope.long_inv_freq);
}

static void assert_table(const char *name, const json_t *expected, const float *found,
                         uint32_t pairs)
{
    assert_int_equal(json_array_size(expected), pairs);
    for (uint32_t i = 0; i < pairs; i++) {
        const double want = json_real_value(json_array_get(expected, i));
        if (!(fabs((double)found[i] - want) <= 1e-7 * want)) {
            fail_msg("%s: frequency %u is %.9g, not %.9g", name, i, (double)found[i], want);
        }
    }
}

static void check_lengths(const char *name, const mr_model_config *config, json_t *lengths)
{
    const uint32_t pairs = config->rope.dims / 2;
    float *table = malloc(pairs * sizeof(*table));
    assert_non_null(table);
    const char *length;
    json_t *expected;
    json_object_foreach(lengths, length, expected)
    {
        const uint32_t tokens = (uint32_t)atoi(length);
        const bool past = tokens > config->rope.original;
        const float *found = past ? config->rope.long_inv_freq : config->rope.inv_freq;
        if (config->rope.rule == MR_ROPE_DYNAMIC) {
            mr_rope_dynamic(&config->rope, tokens, table);
            found = table;
        }
        assert_table(name, expected, found, pairs);
    }
    free(table);
}

static void test_tables_R2_against_formulas(void **state)
{
    (void)state;
    json_t *rows = json_load_file(MR_TEST_DATA "/rope.json", 0, NULL);
    assert_true(json_array_size(rows) >= 12);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        const char *name = json_string_value(json_object_get(row, "name"));
        mr_error err = {0};
        mr_model_config config = {
            .head_width = (uint32_t)json_integer_value(json_object_get(row, "head_dim")),
            .context_length =
                (uint32_t)json_integer_value(json_object_get(row, "max_position_embeddings")),
        };
        if (mr_hf_read_rope(json_object_get(row, "config"), &config, &err) != MR_OK) {
            fail_msg("%s: %s", name, err.message);
        }
        assert_table(name, json_object_get(row, "inv_freq"), config.rope.inv_freq,
                     config.rope.dims / 2);
        const double factor = json_number_value(json_object_get(row, "attention_factor"));
        assert_true(fabs((double)config.rope.attention_factor - factor) <= 1e-7 * factor);
        check_lengths(name, &config, json_object_get(row, "lengths"));
        config_deinit(&config);
    }
    json_decref(rows);
}

/* Reads `json` for a head of 8 and a context of 1,024. */
static mr_status read_rope(const char *json, mr_model_config *config, mr_error *err)
{
    *config = (mr_model_config){.head_width = 8, .context_length = 1024};
    *err = (mr_error){0};
    json_t *root = json_loads(json, 0, NULL);
    assert_non_null(root);
    const mr_status status = mr_hf_read_rope(root, config, err);
    json_decref(root);
    return status;
}

static void test_both_spellings_R1_are_the_same(void **state)
{
    (void)state;
    static const char *const same[] = {
        "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":4.0},\"rope_theta\":1000.0}",
        "{\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":4},\"rope_theta\":1000.0}",
        "{\"rope_scaling\":{\"rope_type\":\"linear\",\"type\":\"linear\",\"factor\":4},"
        "\"rope_theta\":1000}",
        "{\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":4.0,\"rope_theta\":1000.0}}",
        "{\"rope_scaling\":null,\"rope_parameters\":{\"type\":\"linear\",\"factor\":4.0,"
        "\"rope_theta\":1000.0}}",
    };
    /* 1000^(-1/4) / 4 = 10^(-3/4) / 4 */
    const double second = 0.17782794100389228 / 4;
    for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++) {
        mr_model_config config;
        mr_error err;
        assert_int_equal(read_rope(same[i], &config, &err), MR_OK);
        assert_string_equal(config.rope_type, "linear");
        assert_true(fabs((double)config.rope.inv_freq[1] - second) < 1e-7);
        assert_int_equal(config.context_length, 4096);
        config_deinit(&config);
    }
}

static void test_context_R1_is_not_cut_to_the_trained_one(void **state)
{
    (void)state;
    mr_model_config config;
    mr_error err;
    static const struct {
        const char *json;
        uint32_t context;
    } cases[] = {
        {"{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,"
         "\"original_max_position_embeddings\":1024}}",
         4096},
        {"{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,"
         "\"original_max_position_embeddings\":256}}",
         1024},
        {"{\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2.5}}", 2560},
        {"{\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,"
         "\"high_freq_factor\":4,\"original_max_position_embeddings\":128}}",
         1024},
        {"{}", 1024},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(read_rope(cases[i].json, &config, &err), MR_OK);
        assert_int_equal(config.context_length, cases[i].context);
        config_deinit(&config);
    }
}

static void test_what_is_not_known_R1_is_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        mr_status status;
        const char *words;
    } bad[] = {
        {"{\"rope_scaling\":{\"type\":\"linear\",\"factor\":4,\"alpha\":1}}", MR_UNIMPLEMENTED,
         "'alpha'"},
        {"{\"rope_scaling\":{\"type\":\"default\",\"factor\":4}}", MR_UNIMPLEMENTED, "'factor'"},
        {"{\"rope_scaling\":{\"type\":\"mrope\",\"factor\":4}}", MR_UNIMPLEMENTED, "'mrope'"},
        {"{\"rope_scaling\":{\"factor\":4}}", MR_DATA_LOSS, "no rope_type"},
        {"{\"rope_scaling\":{\"type\":\"linear\"}}", MR_DATA_LOSS, "'factor'"},
        {"{\"rope_scaling\":{\"type\":\"linear\",\"factor\":null}}", MR_DATA_LOSS, "'factor'"},
        {"{\"rope_scaling\":{\"type\":\"linear\",\"factor\":0.5}}", MR_DATA_LOSS, "factor 0.5"},
        {"{\"rope_scaling\":{\"type\":\"linear\",\"factor\":\"4\"}}", MR_DATA_LOSS, "'factor'"},
        {"{\"rope_scaling\":{\"type\":\"yarn\",\"rope_type\":\"linear\",\"factor\":4}}",
         MR_DATA_LOSS, "'yarn'"},
        {"{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4},"
         "\"rope_parameters\":{\"type\":\"yarn\",\"factor\":2}}",
         MR_DATA_LOSS, "contradict"},
        {"{\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,"
         "\"high_freq_factor\":4}}",
         MR_DATA_LOSS, "'original_max_position_embeddings'"},
        {"{\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,"
         "\"high_freq_factor\":4,\"original_max_position_embeddings\":128}}",
         MR_DATA_LOSS, "high_freq_factor"},
        {"{\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,1,1],"
         "\"long_factor\":[1,1,1,1]}}",
         MR_DATA_LOSS, "'short_factor'"},
        {"{\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,1,1,1],"
         "\"long_factor\":[1,1,1,0]}}",
         MR_DATA_LOSS, "'long_factor'"},
        {"{\"rope_scaling\":7}", MR_DATA_LOSS, "no object"},
        {"{\"rope_theta\":-1}", MR_DATA_LOSS, "rope_theta"},
        {"{\"partial_rotary_factor\":0.1}", MR_DATA_LOSS, "partial_rotary_factor"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        mr_model_config config;
        mr_error err;
        const mr_status status = read_rope(bad[i].json, &config, &err);
        if (status != bad[i].status || strstr(err.message, bad[i].words) == NULL) {
            fail_msg("%s: status %d, \"%s\"", bad[i].json, status, err.message);
        }
        config_deinit(&config);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tables_R2_against_formulas),
        cmocka_unit_test(test_both_spellings_R1_are_the_same),
        cmocka_unit_test(test_context_R1_is_not_cut_to_the_trained_one),
        cmocka_unit_test(test_what_is_not_known_R1_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
