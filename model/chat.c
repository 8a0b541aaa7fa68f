/* SPDX-License-Identifier: Apache-2.0 */
#include "model/chat.h"

#include "base/checked.h"
#include "base/sha256.h"
#include "base/utf8.h"
#include "model/chat_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct mr_chat_template {
    bool present;
    char digest[2 * MR_SHA256_BYTES + 1]; /* of the source, when present */
    const mr_chat_known *known;           /* NULL: cannot be rendered */
    mr_buffer bos;
    mr_buffer eos;
};

static mr_status create(const char *digest, mr_chat_template **out, mr_error *err)
{
    *out = mr_calloc(1, sizeof(**out));
    if (*out == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "no memory for the chat template");
    }
    mr_chat_template *made = *out;
    made->present = digest != NULL;
    (void)snprintf(made->digest, sizeof(made->digest), "%s", digest != NULL ? digest : "");
    const mr_chat_known *known;
    for (size_t i = 0; (known = mr_chat_known_at(i)) != NULL; i++) {
        if (made->present && strcmp(known->digest, made->digest) == 0) {
            made->known = known;
        }
    }
    return MR_OK;
}

mr_status mr_chat_template_create_digest(const char *digest, mr_chat_template **out, mr_error *err)
{
    return create(digest, out, err);
}

mr_status mr_chat_template_create(mr_bytes text, mr_chat_template **out, mr_error *err)
{
    if (text.data == NULL) {
        return create(NULL, out, err);
    }
    /* Jinja drops a line feed at the end, which files have and configurations lack. */
    const bool line = text.size > 0 && text.data[text.size - 1] == '\n';
    uint8_t bytes[MR_SHA256_BYTES];
    char digest[2 * MR_SHA256_BYTES + 1];
    mr_sha256(text.data, text.size - line, bytes);
    mr_sha256_hex(bytes, digest);
    return create(digest, out, err);
}

void mr_chat_template_destroy(mr_chat_template *tmpl)
{
    if (tmpl != NULL) {
        mr_buffer_deinit(&tmpl->bos);
        mr_buffer_deinit(&tmpl->eos);
        free(tmpl);
    }
}

mr_status mr_chat_template_set_ends(mr_chat_template *tmpl, mr_bytes bos, mr_bytes eos,
                                    mr_error *err)
{
    tmpl->bos.size = 0;
    tmpl->eos.size = 0;
    mr_status status = mr_buffer_append(&tmpl->bos, bos.data, bos.size);
    if (status == MR_OK) {
        status = mr_buffer_append(&tmpl->eos, eos.data, eos.size);
    }
    return status == MR_OK ? MR_OK : mr_fail(err, status, "no memory for the chat template");
}

bool mr_chat_template_known(const mr_chat_template *tmpl)
{
    return tmpl->known != NULL;
}

static mr_status check_utf8(size_t index, const char *part, mr_bytes text, mr_error *err)
{
    size_t bad = 0;
    if (mr_utf8_valid(text.data, text.size, &bad)) {
        return MR_OK;
    }
    char field[MR_ERROR_FIELD_MAX];
    (void)snprintf(field, sizeof(field), "messages[%zu].%s", index, part);
    return mr_fail_field(err, MR_INVALID_ARGUMENT, field, "not UTF-8 at byte %zu", bad);
}

static mr_status check_render(const mr_chat_template *tmpl, const mr_chat_message *messages,
                              size_t count, mr_error *err)
{
    if (!tmpl->present) {
        return mr_fail(err, MR_FAILED_PRECONDITION,
                       "the model has no chat template: send a prompt or ids");
    }
    if (tmpl->known == NULL) {
        return mr_fail(err, MR_FAILED_PRECONDITION,
                       "the model's chat template (SHA-256 %s) is not one that this build renders: "
                       "send a prompt or ids",
                       tmpl->digest);
    }
    if (count == 0) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, "messages",
                             "a conversation needs at least one message");
    }
    for (size_t i = 0; i < count; i++) {
        MR_TRY(check_utf8(i, "role", messages[i].role, err));
        MR_TRY(check_utf8(i, "content", messages[i].content, err));
    }
    return MR_OK;
}

mr_status mr_chat_render(const mr_chat_template *tmpl, const mr_chat_message *messages,
                         size_t count, bool open_assistant, mr_chat_rendered *out, mr_error *err)
{
    *out = (mr_chat_rendered){0};
    MR_TRY(check_render(tmpl, messages, count, err));
    const mr_chat_input input = {.messages = messages,
                                 .count = count,
                                 .open_assistant = open_assistant,
                                 .bos = {.data = tmpl->bos.data, .size = tmpl->bos.size},
                                 .eos = {.data = tmpl->eos.data, .size = tmpl->eos.size}};
    uint64_t spans = 0;
    if (mr_mul_u64(count, MR_CHAT_MAX_SPANS, &spans)) {
        out->plain = mr_calloc(spans, sizeof(*out->plain));
    }
    const mr_status status =
        out->plain != NULL ? tmpl->known->render(&input, out, err) : MR_RESOURCE_EXHAUSTED;
    if (status == MR_OK) {
        return MR_OK;
    }
    mr_chat_rendered_deinit(out);
    return status != MR_RESOURCE_EXHAUSTED
               ? status
               : mr_fail(err, status, "no memory for a conversation of %zu messages", count);
}

void mr_chat_rendered_deinit(mr_chat_rendered *rendered)
{
    mr_buffer_deinit(&rendered->text);
    free(rendered->plain);
    *rendered = (mr_chat_rendered){0};
}
