/* SPDX-License-Identifier: Apache-2.0 */
#include "service/prompt.h"

#include <stdio.h>

static mr_status need_tokenizer(const mr_model *model, const char *field, mr_error *err)
{
    if (mr_model_tokenizer(model) != NULL) {
        return MR_OK;
    }
    return mr_fail_field(err, MR_FAILED_PRECONDITION, field,
                         "%s: the model has no tokenizer; give token ids instead", field);
}

/* The tokenizer does not know what its text is called on the surface. */
static void name_field(const char *field, mr_error *err)
{
    if (err != NULL && err->field[0] == '\0') {
        snprintf(err->field, sizeof(err->field), "%s", field);
    }
}

mr_status mr_prompt_from_text(const mr_model *model, mr_bytes text, const char *field, mr_ids *out,
                              mr_error *err)
{
    MR_TRY(need_tokenizer(model, field, err));
    const mr_encode_options options = {.add_special = true, .parse_special = true};
    const mr_status status =
        mr_tokenizer_encode(mr_model_tokenizer(model), text.data, text.size, &options, out, err);
    if (status != MR_OK) {
        name_field(field, err);
    }
    return status;
}

mr_status mr_prompt_from_chat(const mr_model *model, const mr_chat_message *messages, size_t count,
                              mr_ids *out, mr_buffer *rendered, mr_error *err)
{
    static const char field[] = "messages";
    MR_TRY(need_tokenizer(model, field, err));
    mr_chat_rendered chat = {0};
    mr_status status = mr_chat_render(mr_model_chat(model), messages, count, true, &chat, err);
    if (status == MR_OK) {
        const mr_encode_options options = {
            .parse_special = true, .plain = chat.plain, .n_plain = chat.n_plain};
        status = mr_tokenizer_encode(mr_model_tokenizer(model), chat.text.data, chat.text.size,
                                     &options, out, err);
    }
    if (status == MR_OK && rendered != NULL) {
        status = mr_buffer_append(rendered, chat.text.data, chat.text.size);
        if (status != MR_OK) {
            (void)mr_fail(err, status, "out of memory for the rendered conversation");
        }
    }
    mr_chat_rendered_deinit(&chat);
    if (status != MR_OK) {
        name_field(field, err);
    }
    return status;
}
