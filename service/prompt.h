/* SPDX-License-Identifier: Apache-2.0 */
/* From what a caller wrote to prompt ids. */
#ifndef MILLRACE_SERVICE_PROMPT_H
#define MILLRACE_SERVICE_PROMPT_H

#include "base/buffer.h"
#include "base/status.h"
#include "model/model.h"

/* Appends the ids of raw text: with BOS where the tokenizer's configuration says so, and the text
 * of added tokens becomes their id. FAILED_PRECONDITION when the model has no tokenizer;
 * INVALID_ARGUMENT names `field`. Any thread. */
MR_MUST_USE mr_status mr_prompt_from_text(const mr_model *model, mr_bytes text, const char *field,
                                          mr_ids *out, mr_error *err);

/* Appends the ids of a conversation with the assistant's turn opened; what the messages say never
 * becomes an added token. `rendered` (may be NULL) gets the rendered text, appended. Errors as
 * mr_chat_render gives them. Any thread. */
MR_MUST_USE mr_status mr_prompt_from_chat(const mr_model *model, const mr_chat_message *messages,
                                          size_t count, mr_ids *out, mr_buffer *rendered,
                                          mr_error *err);

#endif
