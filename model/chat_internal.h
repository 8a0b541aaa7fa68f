/* SPDX-License-Identifier: Apache-2.0 */
/* The templates that this build renders; for chat.c and tests. */
#ifndef MILLRACE_MODEL_CHAT_INTERNAL_H
#define MILLRACE_MODEL_CHAT_INTERNAL_H

#include "model/chat.h"

#include <stdbool.h>

#define MR_CHAT_MAX_SPANS 3u /* a message: its role, what it thought, its content */

/* What a template sees. */
typedef struct mr_chat_input {
    const mr_chat_message *messages;
    size_t count; /* at least one */
    bool open_assistant;
    mr_bytes bos; /* bos_token and eos_token, may be empty */
    mr_bytes eos;
} mr_chat_input;

/* Appends to `out`, whose plain array has room for MR_CHAT_MAX_SPANS a message.
 * RESOURCE_EXHAUSTED, or INVALID_ARGUMENT as the template has it, for which it fills err. */
typedef mr_status (*mr_chat_render_fn)(const mr_chat_input *in, mr_chat_rendered *out,
                                       mr_error *err);

typedef struct mr_chat_known {
    const char *digest; /* SHA-256, hex, of the source without a line feed at its end */
    const char *name;   /* of the family, for documentation */
    mr_chat_render_fn render;
} mr_chat_known;

/* NULL at the end of the table. */
const mr_chat_known *mr_chat_known_at(size_t index);

/* As mr_chat_template_create for a source that has this digest. */
MR_MUST_USE mr_status mr_chat_template_create_digest(const char *digest, mr_chat_template **out,
                                                     mr_error *err);

#endif
