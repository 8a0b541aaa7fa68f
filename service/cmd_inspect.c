/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/backend.h"
#include "service/commands.h"
#include "service/jsonl.h"
#include "service/models_docs.h"

#include <inttypes.h>

static json_t *rope_object(const mr_model_config *config)
{
    json_t *inv_freq = json_array();
    for (uint32_t i = 0; i < config->rope.dims / 2 && config->rope.inv_freq != NULL; i++) {
        if (json_array_append_new(inv_freq, json_real((double)config->rope.inv_freq[i])) != 0) {
            json_decref(inv_freq);
            return NULL;
        }
    }
    json_t *rope =
        json_pack("{s:s, s:s, s:f, s:I, s:s, s:o, s:f}", "type", config->rope_type, "in_effect",
                  config->rope_in_effect, "theta", (double)config->rope_theta, "dims",
                  (json_int_t)config->rope.dims, "pairing",
                  config->rope.pairing == MR_ROPE_INTERLEAVED ? "interleaved" : "halves",
                  "inv_freq", inv_freq, "attention_factor", (double)config->rope.attention_factor);
    /* The frequencies above are of prompts up to this length. */
    if (config->rope.rule != MR_ROPE_FIXED &&
        json_object_set_new(rope, "follows_length",
                            json_pack("{s:s, s:I}", "rule", "prompt above", "tokens",
                                      (json_int_t)config->rope.original)) != 0) {
        json_decref(rope);
        return NULL;
    }
    return rope;
}

static json_t *tensor_object(const mr_model_tensor *tensor)
{
    json_t *shape = json_array();
    for (uint32_t i = 0; i < tensor->n_dims; i++) {
        if (json_array_append_new(shape, json_integer((json_int_t)tensor->shape[i])) != 0) {
            json_decref(shape);
            return NULL;
        }
    }
    return json_pack("{s:s, s:s, s:o, s:I, s:b}", "name", tensor->name, "type",
                     mr_dtype_info_get(tensor->dtype)->name, "shape", shape, "bytes",
                     (json_int_t)tensor->bytes, "used", (int)tensor->used);
}

static json_t *tensors_array(const mr_model *model)
{
    json_t *array = json_array();
    for (size_t i = 0; i < mr_model_tensor_count(model); i++) {
        if (json_array_append_new(array, tensor_object(mr_model_tensor_at(model, i))) != 0) {
            json_decref(array);
            return NULL;
        }
    }
    return array;
}

/* Bytes that a token takes in a KV cache of this type. */
static uint64_t kv_bytes_per_token(const mr_model_config *config, mr_dtype kv_dtype)
{
    const mr_plan_kv kv = {
        .layers = config->layers,
        .heads = config->kv_heads,
        .head_width = config->head_width,
        .groups = 1,
    };
    return mr_kv_block_bytes(&kv, kv_dtype, 1);
}

/* By the names of kv_cache_dtype. */
static json_t *kv_bytes_object(const mr_model_config *config)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I}", "f32",
                     (json_int_t)kv_bytes_per_token(config, MR_DTYPE_F32), "f16",
                     (json_int_t)kv_bytes_per_token(config, MR_DTYPE_F16), "bf16",
                     (json_int_t)kv_bytes_per_token(config, MR_DTYPE_BF16), "int8",
                     (json_int_t)kv_bytes_per_token(config, MR_DTYPE_I8), "fp8",
                     (json_int_t)kv_bytes_per_token(config, MR_DTYPE_F8_E4M3));
}

static json_t *model_object(const mr_model *model)
{
    const mr_model_config *config = mr_model_config_get(model);
    json_t *eos = mr_jsonl_ids_array(config->eos, config->n_eos);
    json_t *memory =
        json_pack("{s:I, s:I, s:o}", "weights_bytes", (json_int_t)config->weights_bytes,
                  "kv_cache_bytes_per_token",
                  (json_int_t)kv_bytes_per_token(config, MR_DTYPE_BF16), /* the default */
                  "kv_cache_bytes_per_token_by_dtype", kv_bytes_object(config));
    json_t *object = json_pack(
        "{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:s, s:I}", "name", config->name, "format",
        mr_model_format(model), "architecture", config->architecture, "layers",
        (json_int_t)config->layers, "vocab_size", (json_int_t)config->vocab_size, "context_length",
        (json_int_t)config->context_length, "parameters", (json_int_t)config->parameters,
        "quantization", config->quantization, "weights_bytes", (json_int_t)config->weights_bytes);
    json_t *shape =
        json_pack("{s:I, s:I, s:I, s:I, s:I}", "width", (json_int_t)config->width, "ffn_width",
                  (json_int_t)config->ffn_width, "heads", (json_int_t)config->heads, "kv_heads",
                  (json_int_t)config->kv_heads, "head_width", (json_int_t)config->head_width);
    int failed = shape == NULL ? -1 : json_object_update(object, shape);
    json_decref(shape);
    failed |= json_object_set_new(object, "chat",
                                  json_boolean(mr_chat_template_known(mr_model_chat(model))));
    failed |= json_object_set_new(object, "eos_token_ids", eos);
    failed |= json_object_set_new(object, "memory", memory);
    failed |= json_object_set_new(object, "rope", rope_object(config));
    if (config->kv_scales[0] != '\0') {
        failed |= json_object_set_new(object, "kv_scales", json_string(config->kv_scales));
    }
    failed |= json_object_set_new(object, "tensors", tensors_array(model));
    if (failed != 0) {
        json_decref(object);
        return NULL;
    }
    return object;
}

static void print_text(const mr_model *model)
{
    const mr_model_config *c = mr_model_config_get(model);
    printf("%s: %s, %s, %s\n", c->name, c->architecture, mr_model_format(model), c->quantization);
    printf("  parameters      %.1f million in %.1f MiB\n", (double)c->parameters / 1e6,
           (double)c->weights_bytes / (1 << 20));
    printf("  layers          %" PRIu32 ", width %" PRIu32 ", FFN %" PRIu32 ", heads %" PRIu32
           " (%" PRIu32 " for keys and values) of %" PRIu32 "\n",
           c->layers, c->width, c->ffn_width, c->heads, c->kv_heads, c->head_width);
    printf("  vocabulary      %" PRIu32 "\n", c->vocab_size);
    printf("  context         %" PRIu32 " tokens\n", c->context_length);
    printf("  KV cache        %" PRIu64 " bytes a token (bf16, the default), int8 %" PRIu64
           ", f32 %" PRIu64 "\n",
           kv_bytes_per_token(c, MR_DTYPE_BF16), kv_bytes_per_token(c, MR_DTYPE_I8),
           kv_bytes_per_token(c, MR_DTYPE_F32));
    if (c->kv_scales[0] != '\0') {
        printf("  KV scales       %s\n", c->kv_scales);
    }
    printf("  positions       ");
    if (c->learned_positions > 0) {
        printf("learned, %" PRIu32 "\n", c->context_length);
    } else {
        printf("RoPE %s, theta %g, %" PRIu32 " dimensions\n", c->rope_in_effect,
               (double)c->rope_theta, c->rope.dims);
    }
    if (c->window > 0) {
        printf("  window          %" PRIu32 " tokens\n", c->window);
    }
    printf("  chat template   %s\n",
           mr_chat_template_known(mr_model_chat(model)) ? "known" : "none that is known");
    printf("  tensors         %zu; --json lists them\n", mr_model_tensor_count(model));
}

static int print_supported(void)
{
    mr_buffer text = {0};
    const mr_status status = mr_models_markdown(&text);
    if (status == MR_OK) {
        fwrite(text.data, 1, text.size, stdout);
    }
    mr_buffer_deinit(&text);
    if (status != MR_OK) {
        mr_error err;
        (void)mr_fail(&err, status, "out of memory for the list of models");
        return mr_cli_fail(MR_EXIT_FAILED, &err);
    }
    return MR_EXIT_OK;
}

int mr_cmd_inspect(int argc, char **argv)
{
    mr_cli_model cli = {0};
    bool json = false;
    bool supported = false;
    const mr_cli_option options[] = {
        MR_CLI_MODEL_OPTIONS(&cli),
        {"supported", MR_CLI_FLAG, &supported, NULL, NULL,
         "what models this build runs instead, docs/models.md"},
        {"json", MR_CLI_FLAG, &json, NULL, NULL, "everything, as a JSON object"},
    };
    const mr_cli_command command = {
        .name = "inspect",
        .usage = "(MODEL [--json] | --supported)",
        .about = "What a model file holds: architecture, tensors, quantisation, memory, RoPE in "
                 "effect.",
        .options = options,
        .n_options = sizeof(options) / sizeof(options[0]),
        .examples = "millrace inspect model.gguf\n"
                    "millrace inspect model.gguf --json\n"
                    "millrace inspect --supported > docs/models.md\n",
        .max_operands = 1,
    };
    mr_cli_texts operands;
    const mr_cli_outcome outcome = mr_cli_parse(&command, argc, argv, &operands);
    if (outcome != MR_CLI_RUN) {
        return outcome == MR_CLI_HELPED ? MR_EXIT_OK : MR_EXIT_USAGE;
    }
    if (supported) {
        return print_supported();
    }
    if ((cli.path != NULL) == (operands.count > 0)) {
        return mr_cli_fail_usage("inspect: give the model's path, once");
    }
    cli.path = cli.path != NULL ? cli.path : operands.items[0];
    mr_model *model;
    const int opened = mr_command_open_model(&cli, &model);
    if (opened != MR_EXIT_OK) {
        return opened;
    }
    mr_error err = {0};
    mr_status status = MR_OK;
    if (json) {
        status = mr_jsonl_write(stdout, model_object(model), &err);
    } else {
        print_text(model);
    }
    mr_model_close(model);
    return status == MR_OK ? MR_EXIT_OK : mr_cli_fail(MR_EXIT_FAILED, &err);
}
