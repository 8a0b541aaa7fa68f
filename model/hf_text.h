/* SPDX-License-Identifier: Apache-2.0 */
/* What a Hugging Face model directory says about text: tokenizer, chat template, end of text. */
#ifndef MILLRACE_MODEL_HF_TEXT_H
#define MILLRACE_MODEL_HF_TEXT_H

#include "base/status.h"
#include "model/chat.h"
#include "model/tokenizer.h"

typedef struct mr_hf_text {
    mr_tokenizer *tokenizer; /* owns; NULL: the directory has no tokenizer.json */
    mr_chat_template *chat;  /* owns */
    uint32_t eos_id;         /* what tokenizer_config.json names, UINT32_MAX: nothing */
} mr_hf_text;

/* Reads tokenizer.json, tokenizer_config.json and chat_template.jinja (which goes before the
 * configuration's template, as in transformers); each may be absent. DATA_LOSS, UNIMPLEMENTED (a
 * component this build lacks, named), PERMISSION_DENIED, RESOURCE_EXHAUSTED: they name the file. */
MR_MUST_USE mr_status mr_hf_text_open(const char *directory, mr_hf_text *out, mr_error *err);

#endif
