/* SPDX-License-Identifier: Apache-2.0 */
/* quantization_config: what is read, and what is refused by name. And weights made of nothing in
 * the layouts that it names. */
#include "model/quant_config.h"

#include "base/buffer.h"
#include "model/model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "../base/temp_dir.h"

#include <stdio.h>
#include <string.h>

static mr_status read_text(const char *text, mr_quant_config *out, mr_error *err)
{
    json_t *root = json_loads(text, 0, NULL);
    assert_non_null(root);
    *err = (mr_error){0};
    const mr_status status = mr_quant_config_read(root, out, err);
    json_decref(root);
    return status;
}

static void refused(const char *text, mr_status wanted, const char *words)
{
    mr_quant_config config;
    mr_error err;
    const mr_status status = read_text(text, &config, &err);
    if (status != wanted || strstr(err.message, words) == NULL) {
        fail_msg("%s: status %d, \"%s\" lacks \"%s\"", text, status, err.message, words);
    }
    mr_quant_config_deinit(&config);
}

#define GPTQ "{\"quant_method\":\"gptq\",\"bits\":4"
#define AWQ  "{\"quant_method\":\"awq\",\"bits\":4"
#define GROUP(...)                                                                                 \
    "\"config_groups\":{\"group_0\":{\"targets\":[\"Linear\"],\"weights\":" __VA_ARGS__ "}}"
#define COMPRESSED(form, weights)                                                                  \
    "{\"quant_method\":\"compressed-tensors\",\"format\":\"" form "\"," GROUP(weights) "}"

static void test_what_is_read(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        const char *label;
        mr_quant_scheme scheme;
    } cases[] = {
        {GPTQ ",\"group_size\":64,\"sym\":false}",
         "gptq int4 g64",
         {.bits = 4, .packed = true, .group = 64, .rows = 1}},
        {"{\"quant_method\":\"gptq\",\"bits\":3,\"group_size\":-1}",
         "gptq int3",
         {.bits = 3, .packed = true, .rows = 1, .symmetric = true}},
        {AWQ ",\"group_size\":128,\"zero_point\":true,\"version\":\"gemm\"}",
         "awq int4 g128",
         {.bits = 4, .packed = true, .group = 128, .rows = 1}},
        {"{\"quant_method\":\"awq\",\"w_bit\":4,\"q_group_size\":32,\"version\":\"GEMM\"}",
         "awq int4 g32",
         {.bits = 4, .packed = true, .group = 32, .rows = 1}},
        {COMPRESSED("pack-quantized",
                    "{\"num_bits\":4,\"type\":\"int\",\"strategy\":\"group\",\"group_size\":128}"),
         "compressed int4 g128",
         {.bits = 4, .packed = true, .group = 128, .rows = 1, .symmetric = true}},
        {COMPRESSED("int-quantized", "{\"num_bits\":8,\"strategy\":\"channel\"}"),
         "compressed int8",
         {.bits = 8, .rows = 1, .symmetric = true}},
        {COMPRESSED("float-quantized",
                    "{\"num_bits\":8,\"type\":\"float\",\"strategy\":\"tensor\"}"),
         "compressed fp8",
         {.e4m3 = true, .bits = 8, .symmetric = true}},
        {"{\"quant_method\":\"fp8\",\"weight_block_size\":[128,64]}",
         "fp8",
         {.e4m3 = true, .bits = 8, .group = 64, .rows = 128, .symmetric = true}},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        mr_quant_config config;
        mr_error err;
        if (read_text(cases[i].text, &config, &err) != MR_OK) {
            fail_msg("%s: %s", cases[i].text, err.message);
        }
        const mr_quant_scheme *s = &config.schemes[0];
        const mr_quant_scheme *wanted = &cases[i].scheme;
        assert_string_equal(config.label, cases[i].label);
        assert_int_equal(s->e4m3, wanted->e4m3);
        assert_int_equal(s->bits, wanted->bits);
        assert_int_equal(s->packed, wanted->packed);
        assert_int_equal(s->group, wanted->group);
        assert_int_equal(s->rows, wanted->rows);
        assert_int_equal(s->symmetric, wanted->symmetric);
        mr_quant_config_deinit(&config);
    }
}

static void test_what_is_refused_by_name(void **state)
{
    (void)state;
    static const char *const methods[] = {"bitsandbytes", "hqq",    "aqlm",     "quip",
                                          "exl2",         "mxfp4",  "modelopt", "torchao",
                                          "eetq",         "marlin", "quark",    "GPTQ"};
    for (size_t i = 0; i < sizeof(methods) / sizeof(methods[0]); i++) {
        char text[64];
        char words[64];
        snprintf(text, sizeof(text), "{\"quant_method\":\"%s\"}", methods[i]);
        snprintf(words, sizeof(words), "'%s' is not supported; gptq, awq", methods[i]);
        refused(text, MR_UNIMPLEMENTED, words);
    }
    refused("{}", MR_UNIMPLEMENTED, "'unnamed'");
    refused("{\"quant_method\":\"gptq\",\"bits\":5}", MR_UNIMPLEMENTED, "GPTQ of 5 bits");
    refused(GPTQ ",\"checkpoint_format\":\"marlin\"}", MR_UNIMPLEMENTED,
            "checkpoint_format 'marlin'");
    refused(GPTQ ",\"dynamic\":{\"-:.*down.*\":{}}}", MR_UNIMPLEMENTED, "'dynamic'");
    refused(AWQ ",\"version\":\"gemv\"}", MR_UNIMPLEMENTED, "AWQ version 'gemv'");
    refused("{\"quant_method\":\"awq\",\"bits\":8}", MR_UNIMPLEMENTED, "AWQ of 8 bits");
    refused(COMPRESSED("nvfp4-pack-quantized", "{\"num_bits\":4,\"type\":\"float\"}"),
            MR_UNIMPLEMENTED, "format 'nvfp4-pack-quantized'");
    refused(COMPRESSED("pack-quantized", "{\"num_bits\":4,\"type\":\"float\"}"), MR_UNIMPLEMENTED,
            "group_0: compressed-tensors type 'float'");
    refused("{\"quant_method\":\"compressed-tensors\",\"format\":\"int-quantized\","
            "\"sparsity_config\":{\"format\":\"sparse-24-bitmask\"}}",
            MR_UNIMPLEMENTED, "'sparse-24-bitmask'");
    refused("{\"quant_method\":\"fp8\",\"fmt\":\"e5m2\"}", MR_UNIMPLEMENTED, "'e5m2'");
}

static void test_configurations_that_cannot_be(void **state)
{
    (void)state;
    refused("[]", MR_DATA_LOSS, "no object");
    refused(GPTQ ",\"group_size\":0}", MR_DATA_LOSS, "group_size");
    refused(GPTQ ",\"group_size\":-2}", MR_DATA_LOSS, "group_size");
    refused(GPTQ ",\"group_size\":\"128\"}", MR_DATA_LOSS, "group_size");
    refused(GPTQ ",\"sym\":1}", MR_DATA_LOSS, "'sym'");
    refused(AWQ ",\"modules_to_not_convert\":[1]}", MR_DATA_LOSS, "modules_to_not_convert");
    refused("{\"quant_method\":\"compressed-tensors\"}", MR_DATA_LOSS, "config_groups");
    refused("{\"quant_method\":\"fp8\",\"weight_block_size\":[0,128]}", MR_DATA_LOSS,
            "weight_block_size");
}

static bool leaves(const mr_quant_config *config, const char *module)
{
    bool found = false;
    assert_int_equal(mr_quant_config_leaves(config, module, &found, NULL), MR_OK);
    return found;
}

static void test_modules_left_alone(void **state)
{
    (void)state;
    mr_quant_config config;
    mr_error err;
    assert_int_equal(read_text(AWQ ",\"modules_to_not_convert\":[\"lm_head\",\"layers.1.mlp\","
                                   "\"re:.*self_attn[.]q_.*\"]}",
                               &config, &err),
                     MR_OK);
    assert_true(leaves(&config, "lm_head"));
    assert_true(leaves(&config, "model.layers.1.mlp.up_proj"));
    assert_true(leaves(&config, "model.layers.0.self_attn.q_proj"));
    assert_false(leaves(&config, "model.layers.0.self_attn.k_proj"));
    mr_quant_config_deinit(&config);
    /* No pattern, and behind it one that is one. */
    assert_int_equal(
        read_text(AWQ ",\"modules_to_not_convert\":[\"re:(\",\"re:b\"]}", &config, &err), MR_OK);
    assert_true(leaves(&config, "b.a"));
    assert_false(leaves(&config, "a.b"));
    mr_quant_config_deinit(&config);
}

/* Patterns that explode, and lists that are long, are asked for each of some ten thousand modules.
 */
static void test_patterns_F5_of_modules_have_so_many_steps(void **state)
{
    (void)state;
    mr_quant_config config;
    mr_error err = {0};
    bool found;
    assert_int_equal(
        read_text(AWQ ",\"modules_to_not_convert\":[\"re:(?:[a-z]+)+[0-9]\"]}", &config, &err),
        MR_OK);
    assert_false(leaves(&config, "q.proj"));
    assert_int_equal(mr_quant_config_leaves(&config, "selfattentionqueryprojection", &found, &err),
                     MR_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(err.message, "'selfattentionqueryprojection'"));
    mr_quant_config_deinit(&config);
    mr_buffer text = {0};
    assert_int_equal(mr_buffer_printf(&text, AWQ ",\"modules_to_not_convert\":["), MR_OK);
    for (uint32_t i = 0; i < MR_QUANT_LEFT_STEPS; i++) {
        assert_int_equal(mr_buffer_printf(&text, "\"m%u\",", i), MR_OK);
    }
    assert_int_equal(mr_buffer_printf(&text, "\"last\"]}%c", '\0'), MR_OK);
    assert_int_equal(read_text((const char *)text.data, &config, &err), MR_OK);
    assert_true(leaves(&config, "m8191"));
    assert_int_equal(mr_quant_config_leaves(&config, "last", &found, &err), MR_RESOURCE_EXHAUSTED);
    mr_quant_config_deinit(&config);
    mr_buffer_deinit(&text);
}

/* ---- weights made of nothing ---- */

#define SHAPE                                                                                      \
    "{\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":128,"                      \
    "\"num_hidden_layers\":2,\"num_attention_heads\":2,\"vocab_size\":96,"                         \
    "\"max_position_embeddings\":64,\"dtype\":\"float16\",\"quantization_config\":"

/* The types of weights by name; the head's last. */
static void check_random(const char *quant, const char *label, mr_dtype linear, mr_dtype q,
                         mr_dtype head)
{
    char config[1024];
    mr_model *model = NULL;
    mr_plan *plan = NULL;
    mr_error err = {0};
    const temp_dir dir = temp_dir_make();
    snprintf(config, sizeof(config), "%s%s}", SHAPE, quant);
    temp_dir_write(&dir, "config.json", config);
    if (mr_model_open_random(dir.path, 1, &model, &err) != MR_OK ||
        mr_model_plan(model, &plan, &err) != MR_OK || mr_plan_check(plan, &err) != MR_OK) {
        fail_msg("%s: %s", quant, err.message);
    }
    temp_dir_remove(&dir);
    assert_string_equal(mr_model_config_get(model)->quantization, label);
    for (uint32_t i = 0; i < plan->n_weights; i++) {
        const mr_plan_weight *weight = &plan->weights[i];
        const bool is_q = strstr(weight->name, "q_proj") != NULL;
        const bool is_linear = strstr(weight->name, "_proj") != NULL;
        const bool is_head = strcmp(weight->name, "lm_head.weight") == 0;
        const mr_dtype wanted = is_q ? q : is_linear ? linear : is_head ? head : MR_DTYPE_F16;
        assert_int_equal(weight->dtype, wanted);
        assert_true(weight->random);
    }
    mr_plan_destroy(plan);
    mr_model_close(model);
}

static void test_random_weights_in_every_layout(void **state)
{
    (void)state;
    check_random(GPTQ ",\"group_size\":32}", "gptq int4 g32", MR_DTYPE_CODES4, MR_DTYPE_CODES4,
                 MR_DTYPE_F16);
    check_random(GPTQ ",\"group_size\":64,\"lm_head\":true,\"desc_act\":true}", "gptq int4 g64",
                 MR_DTYPE_CODES4, MR_DTYPE_CODES4, MR_DTYPE_CODES4);
    check_random(AWQ ",\"group_size\":64,\"modules_to_not_convert\":[\"q_proj\"]}", "awq int4 g64",
                 MR_DTYPE_CODES4, MR_DTYPE_F16, MR_DTYPE_F16);
    check_random("{\"quant_method\":\"compressed-tensors\",\"format\":\"int-quantized\","
                 "\"ignore\":[\"lm_head\",\"re:.*q_proj\"]," GROUP(
                     "{\"num_bits\":8,\"strategy\":\"channel\"}") "}",
                 "compressed int8", MR_DTYPE_CODES8, MR_DTYPE_F16, MR_DTYPE_F16);
    check_random("{\"quant_method\":\"fp8\",\"ignored_layers\":[\"lm_head\"]}", "fp8",
                 MR_DTYPE_CODES_F8, MR_DTYPE_CODES_F8, MR_DTYPE_F16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_read),
        cmocka_unit_test(test_what_is_refused_by_name),
        cmocka_unit_test(test_configurations_that_cannot_be),
        cmocka_unit_test(test_modules_left_alone),
        cmocka_unit_test(test_patterns_F5_of_modules_have_so_many_steps),
        cmocka_unit_test(test_random_weights_in_every_layout),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
