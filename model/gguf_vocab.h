/* SPDX-License-Identifier: Apache-2.0 */
/* What a GGUF file says about text: tokenizer, chat template, ends of sequence. */
#ifndef MILLRACE_MODEL_GGUF_VOCAB_H
#define MILLRACE_MODEL_GGUF_VOCAB_H

#include "base/status.h"
#include "model/chat.h"
#include "model/gguf.h"
#include "model/model_config.h"
#include "model/tokenizer.h"

/* Gives the tokenizer, NULL if the file has none. Its vocabulary must be vocab_size long
 * (UINT32_MAX: whatever it is).
 * DATA_LOSS, UNIMPLEMENTED (a component this build lacks, named), RESOURCE_EXHAUSTED. */
MR_MUST_USE mr_status mr_gguf_read_tokenizer(const mr_gguf *gguf, uint32_t vocab_size,
                                             mr_tokenizer **out, mr_error *err);

/* Gives the chat template, one that has no text if the file has none. The tokenizer (NULL: none)
 * knows what BOS and EOS look like. On an error *out may be set and is the caller's to destroy. */
MR_MUST_USE mr_status mr_gguf_read_chat(const mr_gguf *gguf, const mr_tokenizer *tokenizer,
                                        mr_chat_template **out, mr_error *err);

/* Fills config->eos with every end of sequence, turn or message that the metadata names. */
MR_MUST_USE mr_status mr_gguf_read_eos(const mr_gguf *gguf, mr_model_config *config, mr_error *err);

#endif
