/* SPDX-License-Identifier: Apache-2.0 */
#include "model/hf_text.h"

#include "base/log.h"
#include "model/hf_json.h"
#include "model/tokenizer_json.h"

#define TOKENIZER        "tokenizer.json"
#define TOKENIZER_CONFIG "tokenizer_config.json"
#define TEMPLATE         "chat_template.jinja"
#define SENTENCEPIECE    "tokenizer.model"

#define MAX_TEMPLATE_BYTES ((size_t)4 << 20)

/* What the files of a directory say, before it is put together. */
typedef struct parts {
    mr_file_map tokenizer;
    mr_file_map config_file;
    mr_file_map template_file;
    mr_tokenizer_config config;
} parts;

static mr_status in_file(mr_status status, const char *name, mr_error *err)
{
    if (status != MR_OK) {
        (void)mr_fail_context(err, "%s", name);
    }
    return status;
}

static mr_status read_config(const char *directory, parts *p, mr_error *err)
{
    bool found;
    MR_TRY(mr_hf_map_file(directory, TOKENIZER_CONFIG, &p->config_file, &found, err));
    return found ? in_file(mr_tokenizer_config_parse(p->config_file.data, p->config_file.size,
                                                     &p->config, err),
                           TOKENIZER_CONFIG, err)
                 : MR_OK;
}

static mr_status read_tokenizer(const char *directory, parts *p, mr_tokenizer **out, mr_error *err)
{
    bool found;
    MR_TRY(mr_hf_map_file(directory, TOKENIZER, &p->tokenizer, &found, err));
    if (found) {
        return in_file(
            mr_tokenizer_json_create(p->tokenizer.data, p->tokenizer.size, &p->config, out, err),
            TOKENIZER, err);
    }
    mr_file_map other = {0};
    MR_TRY(mr_hf_map_file(directory, SENTENCEPIECE, &other, &found, err));
    mr_file_map_close(&other);
    if (found) {
        mr_log(MR_LOG_WARN, "model",
               SENTENCEPIECE " is not read: without " TOKENIZER " the model takes and gives ids",
               "file=\"%s\"", SENTENCEPIECE);
    }
    return MR_OK;
}

static mr_status read_chat(const char *directory, parts *p, mr_chat_template **out, mr_error *err)
{
    bool found;
    MR_TRY(mr_hf_map_file(directory, TEMPLATE, &p->template_file, &found, err));
    if (p->template_file.size > MAX_TEMPLATE_BYTES) {
        return mr_fail(err, MR_DATA_LOSS,
                       TEMPLATE " has %zu bytes where at most %zu are allowed; remove it, or "
                                "download it again",
                       p->template_file.size, MAX_TEMPLATE_BYTES);
    }
    const mr_bytes text = found
                              ? (mr_bytes){.data = p->template_file.size > 0 ? p->template_file.data
                                                                             : (const uint8_t *)"",
                                           .size = p->template_file.size}
                              : p->config.chat_template;
    MR_TRY(mr_chat_template_create(text, out, err));
    return mr_chat_template_set_ends(*out, p->config.bos_token, p->config.eos_token, err);
}

static mr_status read_all(const char *directory, parts *p, mr_hf_text *out, mr_error *err)
{
    MR_TRY(read_config(directory, p, err));
    MR_TRY(read_tokenizer(directory, p, &out->tokenizer, err));
    if (out->tokenizer != NULL && p->config.eos_token.data != NULL) {
        out->eos_id = mr_tokenizer_find(out->tokenizer, p->config.eos_token);
    }
    return read_chat(directory, p, &out->chat, err);
}

mr_status mr_hf_text_open(const char *directory, mr_hf_text *out, mr_error *err)
{
    *out = (mr_hf_text){.eos_id = UINT32_MAX};
    parts p = {0};
    const mr_status status = read_all(directory, &p, out, err);
    mr_tokenizer_config_deinit(&p.config);
    mr_file_map_close(&p.tokenizer);
    mr_file_map_close(&p.config_file);
    mr_file_map_close(&p.template_file);
    if (status != MR_OK) {
        mr_tokenizer_destroy(out->tokenizer);
        mr_chat_template_destroy(out->chat);
        *out = (mr_hf_text){.eos_id = UINT32_MAX};
    }
    return status;
}
