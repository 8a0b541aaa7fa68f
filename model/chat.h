/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chat templates. Only templates whose text is known, by its SHA-256, are rendered: each has its
 * own C function that is held byte-equal to what Jinja renders. A model with another template
 * loads, takes prompts and ids, and answers FAILED_PRECONDITION to chat, naming the template.
 */
#ifndef MILLRACE_MODEL_CHAT_H
#define MILLRACE_MODEL_CHAT_H

#include "base/buffer.h"
#include "base/status.h"
#include "model/tokenizer.h"

typedef struct mr_chat_message {
    mr_bytes role;    /* as the template knows it: "system", "user", "assistant" */
    mr_bytes content; /* UTF-8 */
} mr_chat_message;

typedef struct mr_chat_template mr_chat_template;

/* `text` is the template's source (copied); NULL with size 0: the model has none. Unknown text is
 * no error here: rendering is what fails. */
MR_MUST_USE mr_status mr_chat_template_create(mr_bytes text, mr_chat_template **out, mr_error *err);
void mr_chat_template_destroy(mr_chat_template *tmpl);
/* What the template's bos_token and eos_token are (copied); without a call both are empty.
 * RESOURCE_EXHAUSTED. */
MR_MUST_USE mr_status mr_chat_template_set_ends(mr_chat_template *tmpl, mr_bytes bos, mr_bytes eos,
                                                mr_error *err);
/* True iff render works for some messages. */
bool mr_chat_template_known(const mr_chat_template *tmpl);

typedef struct mr_chat_rendered {
    mr_buffer text;
    mr_text_span *plain; /* owns; the spans that came from the messages */
    size_t n_plain;
} mr_chat_rendered;

/* Renders the conversation, with the assistant's turn opened unless told otherwise.
 * INVALID_ARGUMENT (no messages, bad UTF-8, a role the template refuses: with its message),
 * FAILED_PRECONDITION (no template, or one that is not known: names its digest). */
MR_MUST_USE mr_status mr_chat_render(const mr_chat_template *tmpl, const mr_chat_message *messages,
                                     size_t count, bool open_assistant, mr_chat_rendered *out,
                                     mr_error *err);
void mr_chat_rendered_deinit(mr_chat_rendered *rendered);

#endif
