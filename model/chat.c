/* SPDX-License-Identifier: Apache-2.0 */
#include "model/chat.h"

#include "base/checked.h"
#include "base/sha256.h"
#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef mr_status (*render_fn)(const mr_chat_message *messages, size_t count, bool open_assistant,
                               mr_chat_rendered *out);

typedef struct known_template {
    const char *digest; /* SHA-256 of the source, hex */
    render_fn render;
} known_template;

struct mr_chat_template {
    bool present;
    char digest[2 * MR_SHA256_BYTES + 1]; /* of the source, when present */
    const known_template *known;          /* NULL: cannot be rendered */
};

/* --- Writing -------------------------------------------------------------------------------- */

static mr_status put_literal(mr_chat_rendered *out, const char *text)
{
    return mr_buffer_append(&out->text, text, strlen(text));
}

/* Text that came from a message. `plain` has room for a span of each role and each content. */
static mr_status put_plain(mr_chat_rendered *out, mr_bytes text)
{
    if (text.size == 0) {
        return MR_OK;
    }
    const size_t begin = out->text.size;
    MR_TRY(mr_buffer_append(&out->text, text.data, text.size));
    out->plain[out->n_plain++] = (mr_text_span){.begin = begin, .end = out->text.size};
    return MR_OK;
}

static bool bytes_equal(mr_bytes bytes, const char *text)
{
    return bytes.size == strlen(text) && memcmp(bytes.data, text, bytes.size) == 0;
}

/* --- The templates -------------------------------------------------------------------------- */

/* SmolLM2-Instruct. Turns in ChatML; a conversation that does not begin with a system turn gets
 * the default one; roles are not looked at otherwise. */
static mr_status render_smollm2(const mr_chat_message *messages, size_t count, bool open_assistant,
                                mr_chat_rendered *out)
{
    if (!bytes_equal(messages[0].role, "system")) {
        MR_TRY(put_literal(out, "<|im_start|>system\n"
                                "You are a helpful AI assistant named SmolLM, trained by Hugging "
                                "Face<|im_end|>\n"));
    }
    for (size_t i = 0; i < count; i++) {
        MR_TRY(put_literal(out, "<|im_start|>"));
        MR_TRY(put_plain(out, messages[i].role));
        MR_TRY(put_literal(out, "\n"));
        MR_TRY(put_plain(out, messages[i].content));
        MR_TRY(put_literal(out, "<|im_end|>\n"));
    }
    return open_assistant ? put_literal(out, "<|im_start|>assistant\n") : MR_OK;
}

static const known_template known_templates[] = {
    {"872be49dbb638044ad01b60388f48d469ff2980e5f0dccdc22ec907db54d0788", render_smollm2},
};

/* --- The interface -------------------------------------------------------------------------- */

mr_status mr_chat_template_create(mr_bytes text, mr_chat_template **out, mr_error *err)
{
    *out = mr_calloc(1, sizeof(**out));
    if (*out == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "no memory for the chat template");
    }
    mr_chat_template *made = *out;
    made->present = text.data != NULL;
    if (made->present) {
        uint8_t digest[MR_SHA256_BYTES];
        mr_sha256(text.data, text.size, digest);
        mr_sha256_hex(digest, made->digest);
    }
    for (size_t i = 0; i < sizeof(known_templates) / sizeof(known_templates[0]); i++) {
        if (strcmp(known_templates[i].digest, made->digest) == 0) {
            made->known = &known_templates[i];
        }
    }
    return MR_OK;
}

void mr_chat_template_destroy(mr_chat_template *tmpl)
{
    free(tmpl);
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
    uint64_t spans = 0;
    if (mr_mul_u64(count, 2, &spans)) {
        out->plain = mr_calloc(spans, sizeof(*out->plain));
    }
    const mr_status status = out->plain != NULL
                                 ? tmpl->known->render(messages, count, open_assistant, out)
                                 : MR_RESOURCE_EXHAUSTED;
    if (status != MR_OK) {
        mr_chat_rendered_deinit(out);
        return mr_fail(err, status, "no memory for a conversation of %zu messages", count);
    }
    return MR_OK;
}

void mr_chat_rendered_deinit(mr_chat_rendered *rendered)
{
    mr_buffer_deinit(&rendered->text);
    free(rendered->plain);
    *rendered = (mr_chat_rendered){0};
}
