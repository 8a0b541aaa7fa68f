/* SPDX-License-Identifier: Apache-2.0 */
#include "model/model.h"

#include "base/checked.h"
#include "base/log.h"
#include "model/decoder_plan.h"
#include "model/gguf_vocab.h"
#include "model/hf_text.h"
#include "model/kv_scales.h"
#include "model/model_internal.h"
#include "model/model_load.h"
#include "model/rope.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define SHOWN_PATH_BYTES 160u /* of a path in messages; its end says most */
#define SHOWN_UNUSED     8u   /* names of unused tensors in the log */

/* NULL: the model has none. */
static const mr_tensor_table *tensors_of(const mr_model *model)
{
    if (model->gguf != NULL) {
        return mr_gguf_tensors(model->gguf);
    }
    return model->checkpoint != NULL ? mr_checkpoint_tensors(model->checkpoint) : NULL;
}

static const char *shown_path(const char *path, char out[SHOWN_PATH_BYTES])
{
    const size_t bytes = strlen(path);
    if (bytes < SHOWN_PATH_BYTES) {
        return path;
    }
    snprintf(out, SHOWN_PATH_BYTES, "...%s", path + bytes - (SHOWN_PATH_BYTES - 4));
    return out;
}

/* Sums over the weights of the plan, where a tied matrix is one weight. */
static void measure_weights(mr_model_config *config, const mr_plan *plan)
{
    uint64_t by_type[MR_DTYPE_STORED_COUNT] = {0};
    for (uint32_t i = 0; i < plan->n_weights; i++) {
        const mr_plan_weight *weight = &plan->weights[i];
        config->parameters += (uint64_t)weight->n * weight->k;
        config->weights_bytes += weight->bytes;
        by_type[weight->dtype] += weight->bytes;
    }
    mr_dtype most = MR_DTYPE_F32;
    for (unsigned t = 0; t < MR_DTYPE_STORED_COUNT; t++) {
        if (by_type[t] > by_type[most]) {
            most = (mr_dtype)t;
        }
    }
    snprintf(config->quantization, sizeof(config->quantization), "%s",
             mr_dtype_info_get(most)->name);
}

/* Logs the tensors that the plan does not read: what they would have done is missing from the
 * model's answers. */
static void log_unused(const mr_tensor_table *tensors, const char *label)
{
    char names[512] = "";
    size_t used = 0;
    size_t count = 0;
    for (size_t i = 0; i < tensors->count; i++) {
        if (tensors->items[i].used) {
            continue;
        }
        if (count < SHOWN_UNUSED) {
            const int length = snprintf(names + used, sizeof(names) - used, "%s%s",
                                        count == 0 ? "" : ",", tensors->items[i].name);
            used += length > 0 && (size_t)length < sizeof(names) - used ? (size_t)length : 0;
        }
        count++;
    }
    if (count > 0) {
        char shown[SHOWN_PATH_BYTES];
        mr_log(MR_LOG_WARN, "model", "the file has tensors that this build does not use",
               "file=\"%s\" count=%zu names=\"%s%s\"", shown_path(label, shown), count, names,
               count > SHOWN_UNUSED ? ",..." : "");
    }
}

/* Builds the plan once, so that a model that opens also runs. */
static mr_status try_plan(mr_model *model, const char *label, mr_error *err)
{
    mr_plan *plan;
    MR_TRY(mr_model_plan(model, &plan, err));
    measure_weights(&model->config, plan);
    mr_rope_describe(&model->config);
    if (model->quant.method != MR_QUANT_NONE) {
        snprintf(model->config.quantization, sizeof(model->config.quantization), "%s",
                 model->quant.label);
    }
    mr_plan_destroy(plan);
    const mr_tensor_table *tensors = tensors_of(model);
    if (tensors != NULL) {
        log_unused(tensors, label);
        const uint32_t scaled = mr_kv_scale_layers(tensors);
        if (scaled > 0) {
            snprintf(model->config.kv_scales, sizeof(model->config.kv_scales),
                     "checkpoint, %" PRIu32 " of %" PRIu32 " layers; used by fp8 caches", scaled,
                     model->config.layers);
        }
    }
    return MR_OK;
}

/* Words of a file may be in a message; what moves a terminal's cursor must not be. */
static void clean_message(char *text)
{
    for (; *text != '\0'; text++) {
        if ((unsigned char)*text < 0x20 || *text == 0x7f) {
            *text = ' ';
        }
    }
}

/* What is opened. */
typedef struct opening {
    const char *label;    /* its path, for messages too */
    bool directory;       /* else a file */
    bool text_only;       /* what handles text, and no more */
    const uint64_t *seed; /* of a directory: its weights are made of this; NULL: they are there */
    mr_file_map map;      /* of a file, taken; empty when it is the caller's memory */
    const void *data;     /* of a file */
    size_t size;
} opening;

static mr_status load_text(mr_model *model, const opening *from, mr_error *err)
{
    if (from->directory) {
        mr_hf_text text;
        MR_TRY(mr_hf_text_open(from->label, &text, err));
        model->tokenizer = text.tokenizer;
        model->chat = text.chat;
        return MR_OK;
    }
    MR_TRY(mr_gguf_create(from->data, from->size, &model->gguf, err));
    MR_TRY(mr_gguf_read_tokenizer(model->gguf, UINT32_MAX, &model->tokenizer, err));
    return mr_gguf_read_chat(model->gguf, model->tokenizer, &model->chat, err);
}

static mr_status load(mr_model *model, const opening *from, mr_error *err)
{
    if (from->text_only) {
        return load_text(model, from, err);
    }
    if (from->directory) {
        MR_TRY(mr_model_load_directory(model, from->label, err));
    } else {
        MR_TRY(mr_model_load_gguf(model, from->data, from->size, from->label, err));
    }
    return try_plan(model, from->label, err);
}

/* Gives the model; the message of a failure gets the path. */
static mr_status open_source(opening from, mr_model **out, mr_error *err)
{
    mr_model *model = mr_calloc(1, sizeof(*model));
    if (model == NULL) {
        mr_file_map_close(&from.map);
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "no memory to open a model");
    }
    model->config.sampling = (mr_sampling_defaults){NAN, NAN, NAN, NAN, NAN};
    model->map = from.map;
    model->random = from.seed != NULL;
    model->random_seed = from.seed != NULL ? *from.seed : 0;
    mr_error local = {0};
    const mr_status status = load(model, &from, &local);
    if (status != MR_OK) {
        char shown[SHOWN_PATH_BYTES];
        mr_model_close(model);
        clean_message(local.message);
        return mr_fail(err, status, "%s: %s", shown_path(from.label, shown), local.message);
    }
    *out = model;
    return MR_OK;
}

static bool is_directory(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static mr_status open_path(const char *path, bool text_only, mr_model **out, mr_error *err)
{
    opening from = {.label = path, .directory = is_directory(path), .text_only = text_only};
    *out = NULL;
    if (!from.directory) {
        MR_TRY(mr_file_map_open(path, &from.map, err));
        from.data = from.map.data;
        from.size = from.map.size;
    }
    return open_source(from, out, err);
}

mr_status mr_model_open(const char *path, mr_model **out, mr_error *err)
{
    return open_path(path, false, out, err);
}

mr_status mr_model_open_text(const char *path, mr_model **out, mr_error *err)
{
    return open_path(path, true, out, err);
}

mr_status mr_model_open_random(const char *path, uint64_t seed, mr_model **out, mr_error *err)
{
    *out = NULL;
    if (!is_directory(path)) {
        char shown[SHOWN_PATH_BYTES];
        return mr_fail_field(err, MR_INVALID_ARGUMENT, "load_format",
                             "%s: load_format random takes a directory with a config.json",
                             shown_path(path, shown));
    }
    return open_source((opening){.label = path, .directory = true, .seed = &seed}, out, err);
}

mr_status mr_model_open_memory(const void *data, size_t size, const char *label, mr_model **out,
                               mr_error *err)
{
    *out = NULL;
    return open_source((opening){.label = label, .data = data, .size = size}, out, err);
}

void mr_model_close(mr_model *model)
{
    if (model == NULL) {
        return;
    }
    mr_tokenizer_destroy(model->tokenizer);
    mr_chat_template_destroy(model->chat);
    free((void *)(uintptr_t)model->config.rope.inv_freq);
    free((void *)(uintptr_t)model->config.rope.long_inv_freq);
    mr_quant_config_deinit(&model->quant);
    mr_gguf_destroy(model->gguf);
    mr_checkpoint_close(model->checkpoint);
    mr_file_map_close(&model->map);
    free(model);
}

const mr_model_config *mr_model_config_get(const mr_model *model)
{
    return &model->config;
}

const mr_tokenizer *mr_model_tokenizer(const mr_model *model)
{
    return model->tokenizer;
}

const mr_chat_template *mr_model_chat(const mr_model *model)
{
    return model->chat;
}

const char *mr_model_format(const mr_model *model)
{
    if (model->gguf != NULL) {
        return "gguf";
    }
    return model->random ? "random" : "safetensors";
}

size_t mr_model_tensor_count(const mr_model *model)
{
    const mr_tensor_table *tensors = tensors_of(model);
    return tensors != NULL ? tensors->count : 0;
}

const mr_model_tensor *mr_model_tensor_at(const mr_model *model, size_t index)
{
    const mr_tensor_table *tensors = tensors_of(model);
    MR_CHECK(tensors != NULL && index < tensors->count);
    return &tensors->items[index];
}

/* mr_plan.release: drops the pages of what was uploaded. */
static void release(const void *ctx, const void *data, uint64_t bytes)
{
    const mr_model *model = ctx;
    if (model->checkpoint != NULL) {
        mr_checkpoint_release(model->checkpoint, data, bytes);
    } else if (model->map.data != NULL) {
        mr_file_map_release(&model->map, data, bytes);
    }
}

mr_status mr_model_plan(const mr_model *model, mr_plan **out, mr_error *err)
{
    const bool gguf = model->gguf != NULL;
    const mr_decoder_source source = {
        .config = &model->config,
        .names = gguf ? model->arch->gguf_names : model->arch->hf_names,
        .quant = &model->quant,
        .tensors = tensors_of(model),
        .random_dtype = model->random_dtype,
        .random_seed = model->random_seed,
    };
    MR_TRY(mr_decoder_plan(&source, out, err));
    (*out)->release = release;
    (*out)->release_ctx = model;
    return MR_OK;
}
