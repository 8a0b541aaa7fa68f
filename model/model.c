/* SPDX-License-Identifier: Apache-2.0 */
#include "model/model.h"

#include "base/buffer.h"
#include "base/checked.h"
#include "base/file_map.h"
#include "base/log.h"
#include "base/utf8.h"
#include "model/arch.h"
#include "model/checkpoint.h"
#include "model/decoder_plan.h"
#include "model/gguf.h"
#include "model/gguf_vocab.h"
#include "model/hf_json.h"
#include "model/hf_text.h"
#include "model/kv_scales.h"
#include "model/model_internal.h"
#include "model/rope.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define SHOWN_PATH_BYTES 160u /* of a path in messages; its end says most */
#define SHOWN_UNUSED     8u   /* names of unused tensors in the log */

struct mr_model {
    mr_file_map map;           /* empty when the file is the caller's memory */
    mr_gguf *gguf;             /* a GGUF file, or */
    mr_checkpoint *checkpoint; /* a directory with weights, or neither */
    const mr_arch *arch;
    mr_model_config config;
    bool random; /* weights are made of random_seed, of random_dtype */
    uint64_t random_seed;
    mr_dtype random_dtype;
    mr_quant_config quant; /* of a directory */
    mr_tokenizer *tokenizer;
    mr_chat_template *chat;
};

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

/* The text that a file has for itself, made fit for one line of output. */
static mr_status copy_name(mr_bytes text, char *out, size_t capacity, mr_error *err)
{
    mr_buffer clean = {0};
    const mr_status status = mr_utf8_append_lossy(&clean, text.data, text.size);
    if (status != MR_OK) {
        mr_buffer_deinit(&clean);
        return mr_fail(err, status, "no memory for the model's name");
    }
    size_t bytes = clean.size < capacity - 1 ? clean.size : capacity - 1;
    if (bytes > 0) {
        bytes -= mr_utf8_pending(clean.data, bytes);
        memcpy(out, clean.data, bytes);
    }
    for (size_t i = 0; i < bytes; i++) {
        if ((unsigned char)out[i] < 0x20 || out[i] == 0x7f) {
            out[i] = ' ';
        }
    }
    out[bytes] = '\0';
    mr_buffer_deinit(&clean);
    return MR_OK;
}

/* general.name, else the file's name without folder and ".gguf". */
static mr_status read_name(mr_model *model, const char *label, mr_error *err)
{
    mr_bytes text = {0};
    MR_TRY(mr_gguf_read_string(model->gguf, "general.name", MR_GGUF_OPTIONAL, &text, err));
    if (text.size == 0) {
        const char *slash = strrchr(label, '/');
        const char *file = slash != NULL ? slash + 1 : label;
        size_t bytes = strlen(file);
        if (bytes > 5 && strcmp(file + bytes - 5, ".gguf") == 0) {
            bytes -= 5;
        }
        text = (mr_bytes){.data = (const uint8_t *)file, .size = bytes};
    }
    return copy_name(text, model->config.name, sizeof(model->config.name), err);
}

static mr_status refuse_split(const mr_gguf *gguf, mr_error *err)
{
    uint32_t parts = 1;
    MR_TRY(mr_gguf_read_u32(gguf, "split.count", MR_GGUF_OPTIONAL, &parts, err));
    if (parts > 1) {
        return mr_fail(err, MR_UNIMPLEMENTED,
                       "one of the %" PRIu32 " parts of a split model (split.count), which is not "
                       "supported; merge them into one file",
                       parts);
    }
    return MR_OK;
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

static mr_status load_gguf(mr_model *model, const void *data, size_t size, const char *label,
                           mr_error *err)
{
    char architecture[MR_GGUF_NAME_MAX] = "";
    mr_model_config *config = &model->config;
    MR_TRY(mr_gguf_create(data, size, &model->gguf, err));
    MR_TRY(refuse_split(model->gguf, err));
    MR_TRY(mr_gguf_read_name(model->gguf, "general.architecture", MR_GGUF_REQUIRED, architecture,
                             err));
    MR_TRY(mr_arch_find_gguf(architecture, &model->arch, err));
    snprintf(config->architecture, sizeof(config->architecture), "%s", model->arch->name);
    MR_TRY(read_name(model, label, err));
    MR_TRY(model->arch->read_gguf(model->gguf, config, err));
    MR_TRY(mr_gguf_read_eos(model->gguf, config, err));
    MR_TRY(mr_gguf_read_tokenizer(model->gguf, config->vocab_size, &model->tokenizer, err));
    MR_TRY(mr_gguf_read_chat(model->gguf, model->tokenizer, &model->chat, err));
    return try_plan(model, label, err);
}

/* ---- directories ---- */

/* The directory's own name. */
static mr_status name_directory(mr_model *model, const char *dir, mr_error *err)
{
    size_t end = strlen(dir);
    while (end > 1 && dir[end - 1] == '/') {
        end--;
    }
    size_t begin = end;
    while (begin > 0 && dir[begin - 1] != '/') {
        begin--;
    }
    const mr_bytes name = {.data = (const uint8_t *)dir + begin, .size = end - begin};
    return copy_name(name, model->config.name, sizeof(model->config.name), err);
}

/* The network and its ends of sequence. */
static mr_status read_config(mr_model *model, const json_t *root, mr_error *err)
{
    mr_model_config *config = &model->config;
    const char *type = "";
    MR_TRY(mr_hf_json_string(root, "model_type", &type, err));
    MR_TRY(mr_arch_find_hf(type, &model->arch, err));
    MR_TRY(mr_quant_config_read(json_object_get(root, "quantization_config"), &model->quant, err));
    snprintf(config->architecture, sizeof(config->architecture), "%s", model->arch->name);
    MR_TRY(model->arch->hf->read(root, model->arch->hf, config, err));
    if (model->random) {
        MR_TRY(mr_hf_read_dtype(root, &model->random_dtype, err));
    }
    return mr_hf_add_eos(root, config, err);
}

static mr_status load_config(mr_model *model, const char *dir, mr_error *err)
{
    json_t *root;
    MR_TRY(mr_hf_json_read(dir, "config.json", &root, err));
    if (root == NULL) {
        return mr_fail(err, MR_NOT_FOUND,
                       "the directory has no config.json; give a Hugging Face model directory, or "
                       "the path of a GGUF file");
    }
    mr_status status = read_config(model, root, err);
    json_decref(root);
    if (status != MR_OK) {
        (void)mr_fail_context(err, "config.json");
        return status;
    }
    if (model->quant.method == MR_QUANT_NONE) {
        MR_TRY(mr_quant_config_open(dir, &model->quant, err));
    }
    MR_TRY(mr_hf_json_read(dir, "generation_config.json", &root, err));
    if (root != NULL) {
        status = mr_hf_add_eos(root, &model->config, err);
        if (status == MR_OK) {
            status = mr_hf_read_sampling(root, &model->config, err);
        }
        json_decref(root);
    }
    if (status != MR_OK) {
        (void)mr_fail_context(err, "generation_config.json");
    }
    return status;
}

/* Tokenizer and chat template, and the end of text that their files name. */
static mr_status load_directory_text(mr_model *model, const char *dir, mr_error *err)
{
    mr_hf_text text;
    const uint32_t vocab_size = model->config.vocab_size;
    MR_TRY(mr_hf_text_open(dir, &text, err));
    model->tokenizer = text.tokenizer;
    model->chat = text.chat;
    if (text.tokenizer != NULL && mr_tokenizer_vocab_size(text.tokenizer) > vocab_size) {
        return mr_fail(err, MR_DATA_LOSS,
                       "tokenizer.json has %" PRIu32 " tokens where the embedding has %" PRIu32
                       " rows; the files do not belong together",
                       mr_tokenizer_vocab_size(text.tokenizer), vocab_size);
    }
    return text.eos_id != UINT32_MAX ? mr_model_config_add_eos(&model->config, text.eos_id, err)
                                     : MR_OK;
}

static mr_status load_directory(mr_model *model, const char *dir, mr_error *err)
{
    MR_TRY(name_directory(model, dir, err));
    MR_TRY(load_config(model, dir, err));
    MR_TRY(load_directory_text(model, dir, err));
    if (!model->random) {
        MR_TRY(mr_checkpoint_open(dir, &model->checkpoint, err));
    }
    return try_plan(model, dir, err);
}

/* ---- opening ---- */

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
    return from->directory ? load_directory(model, from->label, err)
                           : load_gguf(model, from->data, from->size, from->label, err);
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

mr_status mr_model_config_add_eos(mr_model_config *config, uint32_t id, mr_error *err)
{
    for (uint32_t i = 0; i < config->n_eos; i++) {
        if (config->eos[i] == id) {
            return MR_OK;
        }
    }
    if (config->n_eos == MR_MAX_EOS) {
        return mr_fail(err, MR_DATA_LOSS, "more than %d ends of sequence are named", MR_MAX_EOS);
    }
    config->eos[config->n_eos++] = id;
    return MR_OK;
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
