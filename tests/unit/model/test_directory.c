/* SPDX-License-Identifier: Apache-2.0 */
/* Model directories: config.json, generation_config.json, shards, and what is refused. */
#include "model/model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "../base/temp_dir.h"
#include "safetensors_writer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SHAPE                                                                                      \
    "\"hidden_size\":8,\"intermediate_size\":16,\"num_hidden_layers\":2,"                          \
    "\"num_attention_heads\":2,\"vocab_size\":32,\"max_position_embeddings\":64"
#define LLAMA "\"model_type\":\"llama\"," SHAPE
#define OPT                                                                                        \
    "\"model_type\":\"opt\",\"hidden_size\":8,\"ffn_dim\":16,\"num_hidden_layers\":2,"             \
    "\"num_attention_heads\":2,\"vocab_size\":32,\"max_position_embeddings\":64"

/* ---- configurations, with weights made of nothing ---- */

/* Opens a directory of this config.json and, unless it is NULL, generation_config.json. */
static mr_status open_config(const char *config, const char *generation, mr_model **out,
                             mr_error *err)
{
    const temp_dir dir = temp_dir_make();
    *err = (mr_error){0};
    temp_dir_write(&dir, "config.json", config);
    if (generation != NULL) {
        temp_dir_write(&dir, "generation_config.json", generation);
    }
    const mr_status status = mr_model_open_random(dir.path, 1, out, err);
    temp_dir_remove(&dir);
    return status;
}

static mr_model *accepted(const char *config, const char *generation)
{
    mr_model *model = NULL;
    mr_error err;
    if (open_config(config, generation, &model, &err) != MR_OK) {
        fail_msg("refused: %s", err.message);
    }
    return model;
}

static void refused(const char *config, mr_status status, const char *words)
{
    mr_model *model = NULL;
    mr_error err;
    const mr_status found = open_config(config, NULL, &model, &err);
    if (found != status || strstr(err.message, words) == NULL) {
        fail_msg("%s: status %d, \"%s\" lacks \"%s\"", config, found, err.message, words);
    }
    assert_null(model);
}

static void test_defaults_are_those_of_the_classes(void **state)
{
    (void)state;
    mr_model *model = accepted("{" LLAMA "}", NULL);
    const mr_model_config *c = mr_model_config_get(model);
    assert_int_equal(c->kv_heads, 2);
    assert_int_equal(c->head_width, 4);
    assert_true(c->norm_epsilon == 1e-6f);
    assert_true(c->rope_theta == 10000.0f);
    assert_false(c->tied);
    assert_int_equal(c->window, 0);
    assert_int_equal(c->qkv_bias, MR_BIAS_NONE);
    assert_int_equal(c->n_eos, 0);
    assert_string_equal(c->quantization, "BF16");
    assert_string_equal(mr_model_format(model), "random");
    assert_null(mr_model_tokenizer(model));
    /* embedding and head, 2 layers of 4 attention and 3 FFN matrices and 2 norms, a norm */
    assert_int_equal(c->parameters, 2 * 32 * 8 + 2 * (4 * 64 + 3 * 128 + 2 * 8) + 8);
    assert_int_equal(mr_model_tensor_count(model), 0);
    mr_model_close(model);
}

#define ROWS(layers, heads, kv_heads)                                                              \
    "\"num_hidden_layers\":" #layers ",\"num_attention_heads\":" #heads                            \
    ",\"num_key_value_heads\":" #kv_heads
#define WIDTHS(width, ffn, vocab)                                                                  \
    "\"hidden_size\":" #width ",\"intermediate_size\":" #ffn ",\"ffn_dim\":" #ffn                  \
    ",\"vocab_size\":" #vocab
#define TYPE(name) "\"model_type\":\"" name "\",\"max_position_embeddings\":2048"

/* The shapes of models that everybody knows, and the parameters that their makers count. */
static void test_parameters_are_those_published(void **state)
{
    (void)state;
    static const struct {
        const char *config;
        uint64_t parameters;
    } models[] = {
        /* Llama 2 7B, Llama 3.1 8B, Mistral 7B */
        {"{" TYPE("llama") "," WIDTHS(4096, 11008, 32000) "," ROWS(32, 32, 32) "}", 6738415616},
        {"{" TYPE("llama") "," WIDTHS(4096, 14336, 128256) "," ROWS(32, 32, 8) "}", 8030261248},
        {"{" TYPE("mistral") "," WIDTHS(4096, 14336, 32000) "," ROWS(32, 32, 8) "}", 7241732096},
        /* Qwen2.5 7B, Qwen3 8B, Phi-3 mini, OPT 125M */
        {"{" TYPE("qwen2") "," WIDTHS(3584, 18944, 152064) "," ROWS(28, 28, 4) "}", 7615616512},
        {"{" TYPE("qwen3") "," WIDTHS(4096, 12288, 151936) "," ROWS(36, 32, 8) ",\"head_dim\":128}",
         8190735360},
        {"{" TYPE("phi3") "," WIDTHS(3072, 8192, 32064) "," ROWS(32, 32, 32) "}", 3821079552},
        {"{" TYPE("opt") "," WIDTHS(768, 3072, 50272) "," ROWS(12, 12, 12) "}", 125239296},
    };
    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++) {
        mr_model *model = accepted(models[i].config, NULL);
        assert_int_equal(mr_model_config_get(model)->parameters, models[i].parameters);
        mr_model_close(model);
    }
}

static void test_ends_T5_are_the_union(void **state)
{
    (void)state;
    static const struct {
        const char *config;
        const char *generation;
        uint32_t ends[3];
        uint32_t count;
    } cases[] = {
        {"{" LLAMA ",\"eos_token_id\":2}", NULL, {2}, 1},
        {"{" LLAMA ",\"eos_token_id\":[2,7]}", "{\"eos_token_id\":[7,9]}", {2, 7, 9}, 3},
        {"{" LLAMA ",\"eos_token_id\":null}", "{\"eos_token_id\":31}", {31}, 1},
        {"{" LLAMA "}", "{\"temperature\":0.5}", {0}, 0},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        mr_model *model = accepted(cases[i].config, cases[i].generation);
        const mr_model_config *c = mr_model_config_get(model);
        assert_int_equal(c->n_eos, cases[i].count);
        assert_memory_equal(c->eos, cases[i].ends, c->n_eos * sizeof(c->eos[0]));
        mr_model_close(model);
    }
    refused("{" LLAMA ",\"eos_token_id\":32}", MR_DATA_LOSS, "eos_token_id");
    refused("{" LLAMA ",\"eos_token_id\":\"2\"}", MR_DATA_LOSS, "eos_token_id");
}

static void test_sampling_of_a_generation_config(void **state)
{
    (void)state;
    mr_model *model = accepted("{" LLAMA "}", "{\"temperature\":0.6,\"top_k\":20,"
                                              "\"repetition_penalty\":1.05,\"top_p\":null}");
    const mr_sampling_defaults *own = &mr_model_config_get(model)->sampling;
    assert_true(own->temperature == 0.6f);
    assert_true(own->top_k == 20.0f);
    assert_true(own->repetition_penalty == 1.05f);
    assert_true(isnan(own->top_p) && isnan(own->min_p));
    mr_model_close(model);
    static const char *const bad[] = {"{\"temperature\":-1}", "{\"top_p\":0}", "{\"top_p\":1.5}",
                                      "{\"min_p\":\"x\"}", "{\"repetition_penalty\":0}"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        mr_error err;
        model = NULL;
        assert_int_equal(open_config("{" LLAMA "}", bad[i], &model, &err), MR_DATA_LOSS);
        assert_non_null(strstr(err.message, "generation_config.json: "));
        assert_null(model);
    }
}

/* The windows of a plan's attention operators, layer after layer. */
static void assert_windows(const char *config, uint32_t first, uint32_t second)
{
    mr_model *model = accepted(config, NULL);
    mr_plan *plan = NULL;
    uint32_t windows[2] = {UINT32_MAX, UINT32_MAX};
    assert_int_equal(mr_model_plan(model, &plan, NULL), MR_OK);
    assert_int_equal(mr_plan_check(plan, NULL), MR_OK);
    for (uint32_t i = 0; i < plan->n_ops; i++) {
        if (plan->ops[i].kind == MR_OP_ATTENTION) {
            windows[plan->ops[i].attention.layer] = plan->ops[i].attention.window;
        }
    }
    assert_int_equal(windows[0], first);
    assert_int_equal(windows[1], second);
    mr_plan_destroy(plan);
    mr_model_close(model);
}

#define MISTRAL "\"model_type\":\"mistral\"," SHAPE
#define QWEN    "\"model_type\":\"qwen2\"," SHAPE ",\"sliding_window\":9"

static void test_windows(void **state)
{
    (void)state;
    assert_windows("{" MISTRAL "}", 4096, 4096);
    assert_windows("{" MISTRAL ",\"sliding_window\":null}", 0, 0);
    assert_windows("{" MISTRAL ",\"sliding_window\":5}", 5, 5);
    assert_windows("{" LLAMA ",\"sliding_window\":5}", 0, 0);
    assert_windows("{" QWEN "}", 0, 0);
    assert_windows("{" QWEN ",\"max_window_layers\":0}", 0, 0);
    assert_windows("{" QWEN ",\"use_sliding_window\":false,\"max_window_layers\":0}", 0, 0);
    assert_windows("{" QWEN ",\"use_sliding_window\":true}", 0, 0); /* layers from 28 on */
    assert_windows("{" QWEN ",\"use_sliding_window\":true,\"max_window_layers\":1}", 0, 9);
    assert_windows("{" QWEN ",\"use_sliding_window\":true,"
                   "\"layer_types\":[\"sliding_attention\",\"full_attention\"]}",
                   9, 0);
    refused("{" QWEN ",\"use_sliding_window\":true,\"layer_types\":[\"full_attention\"]}",
            MR_DATA_LOSS, "layer_types");
    refused("{" QWEN ",\"use_sliding_window\":true,"
            "\"layer_types\":[\"full_attention\",\"chunked_attention\"]}",
            MR_UNIMPLEMENTED, "'chunked_attention' for layer 1");
}

static void test_what_is_not_supported_is_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *config;
        const char *words;
    } cases[] = {
        {"{\"model_type\":\"mixtral\"," SHAPE "}", "architecture 'mixtral' (model_type)"},
        {"{" SHAPE "}", "architecture '' (model_type)"},
        {"{" LLAMA ",\"architectures\":[\"LlamaForSequenceClassification\"]}",
         "LlamaForSequenceClassification"},
        {"{" LLAMA ",\"hidden_act\":\"gelu\"}", "hidden_act 'gelu'"},
        {"{" LLAMA ",\"quantization_config\":{\"quant_method\":\"hqq\"}}", "'hqq'"},
        {"{" LLAMA ",\"torch_dtype\":\"float8_e4m3fn\"}", "'float8_e4m3fn'"},
        {"{" OPT ",\"do_layer_norm_before\":false}", "'do_layer_norm_before' false"},
        {"{" OPT ",\"word_embed_proj_dim\":4}", "word_embed_proj_dim 4"},
        {"{" OPT ",\"activation_function\":\"gelu\"}", "activation_function 'gelu'"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        refused(cases[i].config, MR_UNIMPLEMENTED, cases[i].words);
    }
}

static void test_configurations_that_cannot_be(void **state)
{
    (void)state;
    static const struct {
        const char *config;
        const char *words;
    } cases[] = {
        {"{", "config.json, line"},
        {"[]", "no JSON object"},
        {"{" LLAMA ",\"vocab_size\":32}", "duplicate"},
        {"{\"model_type\":\"llama\"}", "'num_hidden_layers' is missing"},
        {"{" LLAMA ",\"num_key_value_heads\":0}", "'num_key_value_heads'"},
        {"{" LLAMA ",\"num_key_value_heads\":3}", "not a multiple of num_key_value_heads 3"},
        {"{" LLAMA ",\"head_dim\":3}", "head width of 3"},
        {"{" LLAMA ",\"head_dim\":\"4\"}", "'head_dim'"},
        {"{" LLAMA ",\"head_dim\":4.5}", "'head_dim'"},
        {"{" LLAMA ",\"rms_norm_eps\":0}", "rms_norm_eps"},
        {"{" LLAMA ",\"tie_word_embeddings\":1}", "'tie_word_embeddings'"},
        {"{" LLAMA ",\"rope_theta\":1e300}", "rope_theta 1e+300"},
        {"{" LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":1e300}}", "factor 1e+300"},
        {"{" LLAMA ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":2,\"low_freq_factor\":1,"
         "\"high_freq_factor\":4,\"original_max_position_embeddings\":0}}",
         "original_max_position_embeddings is 0"},
        {"{" LLAMA ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":2,"
         "\"attention_factor\":1e39}}",
         "attention factor of 1e+39"},
        {"{" LLAMA ",\"rope_scaling\":{\"rope_type\":\"longrope\",\"short_factor\":[1,1],"
         "\"long_factor\":[2,2],\"original_max_position_embeddings\":1}}",
         "attention factor of inf"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        refused(cases[i].config, MR_DATA_LOSS, cases[i].words);
    }
}

/* ---- weights ---- */

/* A checkpoint that lacks a tensor, or has it in another shape or type. */
static void test_tensors_against_the_configuration(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        size_t body;
        mr_status status;
        const char *words;
    } cases[] = {
        {"{\"model.embed_tokens.weight\":{\"dtype\":\"BF16\",\"shape\":[32,8],"
         "\"data_offsets\":[0,512]}}",
         512, MR_DATA_LOSS, "'model.layers.0.input_layernorm.weight' is missing"},
        {"{\"model.embed_tokens.weight\":{\"dtype\":\"BF16\",\"shape\":[31,8],"
         "\"data_offsets\":[0,496]}}",
         496, MR_DATA_LOSS, "shape [31, 8] where the configuration wants [32, 8]"},
        {"{\"model.embed_tokens.weight\":{\"dtype\":\"BF16\",\"shape\":[8,32],"
         "\"data_offsets\":[0,512]}}",
         512, MR_DATA_LOSS, "shape [8, 32] where the configuration wants [32, 8]"},
        {"{\"model.embed_tokens.weight\":{\"dtype\":\"I8\",\"shape\":[32,8],"
         "\"data_offsets\":[0,256]}}",
         256, MR_UNIMPLEMENTED, "type I8"},
        {"{\"model.embed_tokens.weight\":{\"dtype\":\"BF16\",\"shape\":[],"
         "\"data_offsets\":[0,2]}}",
         2, MR_DATA_LOSS, "shape [] where the configuration wants [32, 8]"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const temp_dir dir = temp_dir_make();
        mr_model *model = NULL;
        mr_error err = {0};
        temp_dir_write(&dir, "config.json", "{" LLAMA "}");
        safetensors_write(&dir, "model.safetensors", cases[i].header, cases[i].body);
        assert_int_equal(mr_model_open(dir.path, &model, &err), cases[i].status);
        if (strstr(err.message, cases[i].words) == NULL) {
            fail_msg("\"%s\" lacks \"%s\"", err.message, cases[i].words);
        }
        temp_dir_remove(&dir);
    }
}

/* A factor that is null is one that is not given, as transformers writes it. */
static void test_a_longrope_factor_may_be_null(void **state)
{
    (void)state;
    mr_model *model = accepted("{" LLAMA ",\"rope_scaling\":{\"rope_type\":\"longrope\","
                               "\"short_factor\":[1,1],\"long_factor\":[2,2],\"factor\":null}}",
                               NULL);
    assert_true(mr_model_config_get(model)->rope.attention_factor == 1.0f);
    mr_model_close(model);
}

static mr_status open_with_tokenizer(const char *config, mr_model **out, mr_error *err)
{
    const temp_dir dir = temp_dir_make();
    *out = NULL;
    *err = (mr_error){0};
    temp_dir_write(&dir, "config.json", config);
    temp_dir_write(&dir, "tokenizer_config.json", "{\"eos_token\":{\"content\":\"c\"}}");
    temp_dir_write(&dir, "tokenizer.json",
                   "{\"added_tokens\":[{\"id\":32,\"content\":\"c\",\"special\":true}],"
                   "\"model\":{"
                   "\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},\"merges\":[]}}");
    const mr_status status = mr_model_open_random(dir.path, 1, out, err);
    temp_dir_remove(&dir);
    return status;
}

#define VOCAB(size)                                                                                \
    "{\"model_type\":\"llama\",\"hidden_size\":8,\"intermediate_size\":16,\"num_hidden_layers\":"  \
    "1,"                                                                                           \
    "\"num_attention_heads\":2,\"max_position_embeddings\":64,\"vocab_size\":" #size               \
    ",\"eos_token_id\":1}"

/* An id that the tokenizer gives has a row in the embedding; its end is one of the model's (T5). */
static void test_a_tokenizer_belongs_to_the_embedding(void **state)
{
    (void)state;
    mr_model *model = NULL;
    mr_error err;
    assert_int_equal(open_with_tokenizer(VOCAB(32), &model, &err), MR_DATA_LOSS);
    assert_non_null(strstr(err.message, "33 tokens where the embedding has 32 rows"));
    assert_null(model);
    assert_int_equal(open_with_tokenizer(VOCAB(33), &model, &err), MR_OK);
    const mr_model_config *c = mr_model_config_get(model);
    assert_int_equal(c->n_eos, 2);
    assert_int_equal(c->eos[0], 1);
    assert_int_equal(c->eos[1], 32);
    mr_model_close(model);
}

/* Words of a file that get into a message cannot command a terminal. */
static void test_messages_have_no_control_characters(void **state)
{
    (void)state;
    mr_model *model = NULL;
    mr_error err;
    assert_int_equal(open_config("{\"model_type\":\"x\\u001b[31m\\ny\"}", NULL, &model, &err),
                     MR_UNIMPLEMENTED);
    assert_non_null(strstr(err.message, "'x [31m y'"));
}

static void test_a_configuration_F5_has_a_largest_size(void **state)
{
    (void)state;
    const size_t size = ((size_t)4 << 20) + 1;
    char *text = malloc(size + 1);
    assert_non_null(text);
    memset(text, ' ', size);
    memcpy(text, "{" LLAMA "}", strlen("{" LLAMA "}"));
    text[size] = '\0';
    mr_model *model = NULL;
    mr_error err;
    assert_int_equal(open_config(text, NULL, &model, &err), MR_DATA_LOSS);
    assert_non_null(strstr(err.message, "config.json has 4194305 bytes"));
    text[size - 1] = '\0';
    assert_int_equal(open_config(text, NULL, &model, &err), MR_OK);
    mr_model_close(model);
    free(text);
}

static void test_a_template_has_a_largest_size(void **state)
{
    (void)state;
    const temp_dir dir = temp_dir_make();
    const size_t size = ((size_t)4 << 20) + 1;
    char *text = malloc(size + 1);
    assert_non_null(text);
    memset(text, ' ', size);
    text[size] = '\0';
    temp_dir_write(&dir, "config.json", "{" LLAMA "}");
    temp_dir_write(&dir, "chat_template.jinja", text);
    mr_model *model = NULL;
    mr_error err = {0};
    assert_int_equal(mr_model_open_random(dir.path, 1, &model, &err), MR_DATA_LOSS);
    assert_non_null(strstr(err.message, "chat_template.jinja has 4194305 bytes"));
    text[size - 1] = '\0';
    temp_dir_write(&dir, "chat_template.jinja", text);
    assert_int_equal(mr_model_open_random(dir.path, 1, &model, &err), MR_OK);
    mr_model_close(model);
    free(text);
    temp_dir_remove(&dir);
}

static void test_random_weights_need_a_directory(void **state)
{
    (void)state;
    mr_model *model = NULL;
    mr_error err = {0};
    assert_int_equal(mr_model_open_random("/dev/null", 1, &model, &err), MR_INVALID_ARGUMENT);
    assert_string_equal(err.field, "load_format");
    assert_null(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults_are_those_of_the_classes),
        cmocka_unit_test(test_parameters_are_those_published),
        cmocka_unit_test(test_ends_T5_are_the_union),
        cmocka_unit_test(test_sampling_of_a_generation_config),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_what_is_not_supported_is_refused_by_name),
        cmocka_unit_test(test_configurations_that_cannot_be),
        cmocka_unit_test(test_tensors_against_the_configuration),
        cmocka_unit_test(test_random_weights_need_a_directory),
        cmocka_unit_test(test_a_longrope_factor_may_be_null),
        cmocka_unit_test(test_messages_have_no_control_characters),
        cmocka_unit_test(test_a_configuration_F5_has_a_largest_size),
        cmocka_unit_test(test_a_template_has_a_largest_size),
        cmocka_unit_test(test_a_tokenizer_belongs_to_the_embedding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
