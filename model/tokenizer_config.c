/* SPDX-License-Identifier: Apache-2.0 */
#include "model/tokenizer_config.h"

#include "model/hf_json.h"

/* Keeps all but the copy of the added tokens, which may be long and which tokenizer.json has too.
 */
static mr_status on_event(void *ctx, const mr_json_event *event, mr_error *err)
{
    mr_json_tree *tree = ctx;
    const bool at_second = mr_json_depth(event) == 1;
    const bool below = mr_json_depth(event) > 1;
    const mr_bytes key = at_second ? event->key
                         : below   ? mr_json_path_key(event, 0)
                                   : (mr_bytes){0};
    return mr_bytes_is(key, "added_tokens_decoder") ? MR_OK : mr_json_tree_add(tree, event, err);
}

static mr_status wrong_type(const char *key, const char *wanted, mr_error *err)
{
    return mr_fail(err, MR_DATA_LOSS, "\"%s\" is not %s", key, wanted);
}

static mr_status read_flag(const json_t *root, const char *key, mr_tristate *out, mr_error *err)
{
    const json_t *value = json_object_get(root, key);
    bool yes = false;
    MR_TRY(mr_hf_json_bool(root, key, &yes, err));
    if (value != NULL && !json_is_null(value)) {
        *out = yes ? MR_YES : MR_NO;
    }
    return MR_OK;
}

/* A token is a string, or an object with its text as "content". */
static mr_status read_token(const json_t *root, const char *key, mr_bytes *out, mr_error *err)
{
    const json_t *value = json_object_get(root, key);
    if (value == NULL || json_is_null(value)) {
        return MR_OK;
    }
    *out = json_is_object(value) ? mr_json_tree_string(value, "content")
                                 : mr_json_tree_string(root, key);
    return out->data != NULL ? MR_OK : wrong_type(key, "a token", err);
}

/* A template is a string; several are an array of {"name", "template"}. */
static mr_status read_template(const json_t *root, mr_bytes *out, mr_error *err)
{
    static const char key[] = "chat_template";
    const json_t *value = json_object_get(root, key);
    if (value == NULL || json_is_null(value)) {
        return MR_OK;
    }
    if (!json_is_array(value)) {
        *out = mr_json_tree_string(root, key);
        return out->data != NULL ? MR_OK : wrong_type(key, "a template", err);
    }
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *item = json_array_get(value, i);
        if (mr_bytes_is(mr_json_tree_string(item, "name"), "default")) {
            *out = mr_json_tree_string(item, "template");
        }
    }
    return MR_OK;
}

static mr_status read_all(mr_tokenizer_config *config, mr_error *err)
{
    const json_t *root = config->tree.root;
    if (!json_is_object(root)) {
        return mr_fail(err, MR_DATA_LOSS, "not an object");
    }
    MR_TRY(read_flag(root, "add_bos_token", &config->add_bos, err));
    MR_TRY(read_flag(root, "add_eos_token", &config->add_eos, err));
    MR_TRY(read_token(root, "bos_token", &config->bos_token, err));
    MR_TRY(read_token(root, "eos_token", &config->eos_token, err));
    return read_template(root, &config->chat_template, err);
}

mr_status mr_tokenizer_config_parse(const void *data, size_t size, mr_tokenizer_config *out,
                                    mr_error *err)
{
    *out = (mr_tokenizer_config){0};
    mr_status status =
        mr_json_sax_parse(data, size, MR_TOKENIZER_CONFIG_MAX_BYTES, on_event, &out->tree, err);
    if (status == MR_OK) {
        status = read_all(out, err);
    }
    if (status != MR_OK) {
        mr_tokenizer_config_deinit(out);
    }
    return status;
}

void mr_tokenizer_config_deinit(mr_tokenizer_config *config)
{
    mr_json_tree_deinit(&config->tree);
    *config = (mr_tokenizer_config){0};
}
