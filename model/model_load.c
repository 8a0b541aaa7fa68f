/* SPDX-License-Identifier: Apache-2.0 */
#include "model/model_load.h"

#include "base/buffer.h"
#include "base/utf8.h"
#include "model/gguf_vocab.h"
#include "model/hf_json.h"
#include "model/hf_text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

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

mr_status mr_model_load_gguf(mr_model *model, const void *data, size_t size, const char *label,
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
    return mr_gguf_read_chat(model->gguf, model->tokenizer, &model->chat, err);
}

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

mr_status mr_model_load_directory(mr_model *model, const char *dir, mr_error *err)
{
    MR_TRY(name_directory(model, dir, err));
    MR_TRY(load_config(model, dir, err));
    MR_TRY(load_directory_text(model, dir, err));
    return model->random ? MR_OK : mr_checkpoint_open(dir, &model->checkpoint, err);
}
