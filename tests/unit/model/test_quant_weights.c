/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Quantised checkpoints: matrices of every format against the dequantiser of
 * tests/tools/make_quantised_fixtures.py, bit for bit, and small models against logits of float64
 * arithmetic on what that dequantises. Those in packages/ were written by the packages that define
 * the formats (tests/tools/make_quantised_checkpoints.py).
 */
#include "model/quant_weights.h"

#include "base/sha256.h"
#include "kernels/cpu/cpu_backend.h"
#include "model/checkpoint.h"
#include "model/model.h"
#include "model/safetensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tiny_plan.h"

#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS   32
#define INPUTS 256 /* of a case, at most */
#define TOKENS 10
#define VOCAB  64

/* ---- matrices ---- */

typedef struct cases {
    json_t *table;
    void *file;
    mr_safetensors *parsed;
    mr_tensor_table tensors;
} cases;

static void *read_file(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    *size = (size_t)ftell(file);
    rewind(file);
    void *data = malloc(*size);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, *size, file), *size);
    assert_int_equal(fclose(file), 0);
    return data;
}

static int open_cases(void **state)
{
    static cases c;
    size_t size;
    mr_error err = {0};
    c.table = json_load_file(MR_TEST_DATA "/quantised/cases.json", 0, NULL);
    assert_non_null(c.table);
    c.file = read_file(MR_TEST_DATA "/quantised/cases.safetensors", &size);
    assert_int_equal(mr_safetensors_create(c.file, size, &c.parsed, &err), MR_OK);
    assert_int_equal(mr_tensor_table_init(&c.tensors, mr_safetensors_count(c.parsed)), MR_OK);
    for (size_t i = 0; i < mr_safetensors_count(c.parsed); i++) {
        assert_int_equal(mr_tensor_table_add(&c.tensors, mr_safetensors_at(c.parsed, i)), MR_OK);
    }
    *state = &c;
    return 0;
}

static int close_cases(void **state)
{
    cases *c = *state;
    mr_tensor_table_deinit(&c->tensors);
    mr_safetensors_destroy(c->parsed);
    free(c->file);
    json_decref(c->table);
    return 0;
}

static const json_t *case_of(const cases *c, const char *name)
{
    size_t index;
    const json_t *row;
    json_array_foreach(c->table, index, row)
    {
        if (strcmp(json_string_value(json_object_get(row, "name")), name) == 0) {
            return row;
        }
    }
    fail_msg("no case %s", name);
    return NULL;
}

static mr_quant_module whole(const json_t *row)
{
    return (mr_quant_module){.name = json_string_value(json_object_get(row, "name")),
                             .rows = ROWS,
                             .k = (uint32_t)json_integer_value(json_object_get(row, "inputs")),
                             .n = ROWS,
                             .linear = true};
}

/* Rows [first, first + n) of the module as floats, through the blocks that backends get. */
static void dequantise(const mr_weight_codes *codes, uint32_t n, uint32_t k, float *out)
{
    uint64_t row_bytes;
    const mr_dtype dtype = mr_weight_codes_dtype(codes, k);
    assert_true(mr_dtype_row_bytes(dtype, k, &row_bytes));
    uint8_t *rows = malloc(n * row_bytes);
    assert_non_null(rows);
    mr_weight_codes_fill(codes, k, 0, n, rows);
    mr_dequantize(dtype, rows, out, (uint64_t)n * k);
    free(rows);
}

static void find(const cases *c, const json_t *row, const mr_quant_module *module,
                 mr_weight_codes *codes)
{
    mr_quant_config config;
    bool found = false;
    mr_error err = {0};
    if (mr_quant_config_read(json_object_get(row, "config"), &config, &err) != MR_OK ||
        mr_quant_find(&config, &c->tensors, module, codes, &found, &err) != MR_OK) {
        fail_msg("%s: %s", module->name, err.message);
    }
    assert_true(found);
    mr_quant_config_deinit(&config);
}

static void check_digest(const json_t *row, const float *values, size_t count)
{
    const char *name = json_string_value(json_object_get(row, "name"));
    const char *expected = json_string_value(json_object_get(row, "sha256"));
    uint8_t bytes[MR_SHA256_BYTES];
    char text[2 * MR_SHA256_BYTES + 1];
    mr_sha256(values, sizeof(*values) * count, bytes);
    for (size_t i = 0; i < MR_SHA256_BYTES; i++) {
        snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    }
    if (strcmp(text, expected) != 0) {
        fail_msg("%s: begins %.9g %.9g %.9g, and its elements are not those of the script", name,
                 (double)values[0], (double)values[1], (double)values[2]);
    }
}

static void test_every_layout_bit_for_bit_Q1_Q4(void **state)
{
    const cases *c = *state;
    float *values = malloc(sizeof(*values) * ROWS * INPUTS);
    float *part = malloc(sizeof(*part) * ROWS * INPUTS);
    assert_true(values != NULL && part != NULL);
    size_t index;
    const json_t *row;
    json_array_foreach(c->table, index, row)
    {
        mr_quant_module module = whole(row);
        mr_weight_codes codes;
        find(c, row, &module, &codes);
        dequantise(&codes, ROWS, module.k, values);
        check_digest(row, values, (size_t)ROWS * module.k);

        /* A slice of it, as fused matrices are taken apart. */
        module.first = 9;
        module.n = 16;
        find(c, row, &module, &codes);
        dequantise(&codes, 16, module.k, part);
        assert_memory_equal(part, values + (size_t)9 * module.k, sizeof(*part) * 16 * module.k);
    }
    assert_int_equal(json_array_size(c->table), 72 + 4 + 12 + 1 + 3 + 2 + 3);
    free(values);
    free(part);
}

static void test_which_layouts_stay_integers(void **state)
{
    static const struct {
        const char *name;
        mr_dtype dtype;
        bool centred;
    } expected[] = {
        {"gptq-4-g32-sym", MR_DTYPE_CODES4, true},
        {"gptq-2-g64-sym-v2", MR_DTYPE_CODES4, true},
        {"gptq-3-row-asym", MR_DTYPE_CODES4, false},
        {"gptq-8-g128-sym", MR_DTYPE_CODES8, true},
        {"gptq-4-g32-sym-order", MR_DTYPE_F32, true},
        {"gptq-4-row-asym-order", MR_DTYPE_CODES4, false}, /* one group: no order */
        {"awq-g64", MR_DTYPE_CODES4, false},
        {"packed-8-channel-sym", MR_DTYPE_CODES8, true},
        {"int8-channel-asym", MR_DTYPE_CODES8, false},
        {"float-channel", MR_DTYPE_CODES_F8, false},
    };
    const cases *c = *state;
    for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++) {
        const json_t *row = case_of(c, expected[i].name);
        const mr_quant_module module = whole(row);
        mr_weight_codes codes;
        find(c, row, &module, &codes);
        assert_int_equal(mr_weight_codes_dtype(&codes, module.k), expected[i].dtype);
        assert_int_equal(codes.centred, expected[i].centred);
    }
}

/* Changes a key of a case's configuration (NULL: takes it away) and expects the finder to refuse.
 */
static void refused(const cases *c, const char *name, const char *key, json_t *value,
                    const char *words)
{
    mr_quant_config config = {0};
    mr_weight_codes codes;
    mr_error err = {0};
    bool found;
    const mr_quant_module module = whole(case_of(c, name));
    json_t *changed = json_deep_copy(json_object_get(case_of(c, name), "config"));
    assert_int_equal(json_object_set_new(changed, key, value), 0);
    mr_status status = mr_quant_config_read(changed, &config, &err);
    if (status == MR_OK) {
        status = mr_quant_find(&config, &c->tensors, &module, &codes, &found, &err);
    }
    if (status != MR_DATA_LOSS || strstr(err.message, words) == NULL) {
        fail_msg("%s: status %d, \"%s\" lacks \"%s\"", name, status, err.message, words);
    }
    mr_quant_config_deinit(&config);
    json_decref(changed);
}

static void test_the_other_format_is_refused_Q1(void **state)
{
    const cases *c = *state;
    refused(c, "gptq-4-g64-sym", "checkpoint_format", json_string("gptq_v2"),
            "every stored zero is 7");
    refused(c, "gptq-4-g64-sym", "checkpoint_format", json_string("gptq_v2"),
            "set \"checkpoint_format\": \"gptq\" in the quantization_config");
    refused(c, "gptq-4-g64-sym-v2", "checkpoint_format", json_string("gptq"),
            "every stored zero is 8");
    refused(c, "gptq-8-g64-sym-v2", "checkpoint_format", json_null(), "every stored zero is 128");
    refused(c, "gptq-2-g64-sym", "checkpoint_format", json_string("gptq_v2"),
            "set \"checkpoint_format\": \"gptq\"");
}

static void test_sizes_are_named_Q3(void **state)
{
    const cases *c = *state;
    refused(c, "gptq-4-g64-sym", "group_size", json_integer(48),
            "layer 'gptq-4-g64-sym': its 128 inputs are not a multiple of 48, the group size");
    refused(c, "gptq-4-g64-sym", "group_size", json_integer(32), "'gptq-4-g64-sym.scales'");
    refused(c, "gptq-4-g64-sym-order", "group_size", json_integer(128),
            "'gptq-4-g64-sym-order.scales'");
    refused(c, "gptq-4-g64-sym", "bits", json_integer(8), "'gptq-4-g64-sym.qweight'");
    refused(c, "awq-g64", "group_size", json_integer(128), "'awq-g64.scales'");
}

/* ---- models ---- */

/* compute=f32: each logit is within 1e-4 of the largest. The fast paths: activations lose about
 * 1/254 of the largest of 32 to rounding; in models like these the same rounding in NumPy gives
 * differences of 0.012 to 0.026 of the length of all logits. */
static void compare(const char *dir, mr_compute compute, const float *found, const float *expected)
{
    double worst = 0;
    double largest = 0;
    double error = 0;
    double length = 0;
    for (size_t i = 0; i < TOKENS * VOCAB; i++) {
        const double difference = fabs((double)found[i] - (double)expected[i]);
        worst = fmax(worst, difference);
        largest = fmax(largest, fabs((double)expected[i]));
        error += difference * difference;
        length += (double)expected[i] * (double)expected[i];
    }
    const bool exact = compute == MR_COMPUTE_F32;
    const double relative = exact ? worst / largest : sqrt(error / length);
    if (!(relative <= (exact ? 1e-4 : 0.03))) {
        fail_msg("%s: logits differ by %g", dir, relative);
    }
}

static void check_logits(const char *dir, mr_compute compute, mr_cpu_isa isa)
{
    static const int32_t prompt[TOKENS] = {1, 17, 3, 42, 42, 0, 63, 8, 29, 5};
    char path[PATH_MAX];
    size_t size;
    mr_model *model = NULL;
    mr_backend *backend = NULL;
    tiny_plan tiny = {0};
    tiny_session session;
    mr_step_output out;
    mr_error err = {0};
    const mr_cpu_options cpu = {.compute = compute, .isa = isa, .threads = 2};
    if (mr_model_open(dir, &model, &err) != MR_OK ||
        mr_model_plan(model, &tiny.plan, &err) != MR_OK ||
        mr_plan_check(tiny.plan, &err) != MR_OK ||
        mr_cpu_backend_create(&cpu, &backend, &err) != MR_OK) {
        fail_msg("%s: %s", dir, err.message);
    }
    for (size_t i = 0; i < mr_model_tensor_count(model); i++) {
        if (!mr_model_tensor_at(model, i)->used) {
            fail_msg("%s: tensor %s is not used", dir, mr_model_tensor_at(model, i)->name);
        }
    }
    const mr_exec_options options = tiny_options();
    tiny_session_create(&tiny, backend, &options, &session);
    mr_batch_reset(session.storage);
    tiny_feed(&session, 0, prompt, 0, TOKENS, true);
    tiny_run(&session, &out);
    snprintf(path, sizeof(path), "%s/logits.f32", dir);
    float *expected = read_file(path, &size);
    assert_int_equal(size, sizeof(*expected) * TOKENS * VOCAB);
    compare(dir, compute, out.logits, expected);
    free(expected);
    tiny_session_destroy(&session);
    backend->vt->destroy(backend);
    mr_plan_destroy(tiny.plan);
    mr_model_close(model);
}

static void check_model(void **state)
{
    char dir[PATH_MAX];
    snprintf(dir, sizeof(dir), "%s/quantised/%s", MR_TEST_DATA, (const char *)*state);
    check_logits(dir, MR_COMPUTE_F32, MR_CPU_ISA_AUTO);
    for (unsigned isa = MR_CPU_ISA_PORTABLE; isa < MR_CPU_ISA_COUNT; isa++) {
        bool runs;
        (void)mr_cpu_path_name((mr_cpu_isa)isa, &runs);
        if (runs) {
            check_logits(dir, MR_COMPUTE_AUTO, (mr_cpu_isa)isa);
        }
    }
}

#define CASES(test) cmocka_unit_test_setup_teardown(test, open_cases, close_cases)
#define MODEL(name)                                                                                \
    {                                                                                              \
        "logits of " name, check_model, NULL, NULL, (void *)(uintptr_t)(name)                      \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASES(test_every_layout_bit_for_bit_Q1_Q4),
        CASES(test_which_layouts_stay_integers),
        CASES(test_the_other_format_is_refused_Q1),
        CASES(test_sizes_are_named_Q3),
        MODEL("models/gptq-3-g64-order"),
        MODEL("models/packed-8-channel"),
        MODEL("models/fp8-scalar"),
        MODEL("packages/auto-gptq-4-g32-order"),
        MODEL("packages/auto-gptq-3-g64"),
        MODEL("packages/autoawq-g32"),
        MODEL("packages/compressed-4-g32-sym"),
        MODEL("packages/compressed-4-g32-asym"),
        MODEL("packages/compressed-int8"),
        MODEL("packages/compressed-float"),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
