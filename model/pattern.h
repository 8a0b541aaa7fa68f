/* SPDX-License-Identifier: Apache-2.0 */
/* Regular expressions of Hugging Face tokenizers (Oniguruma's syntax), rewritten for PCRE2. */
#ifndef MILLRACE_MODEL_PATTERN_H
#define MILLRACE_MODEL_PATTERN_H

#include "base/buffer.h"
#include "base/bytes.h"
#include "base/status.h"

/* Appends a pattern, for UTF, UCP and line feeds as newlines, that matches the same text. Classes
 * of characters are spelled out as character_classes.h has them. UNIMPLEMENTED names a construct
 * that the two would read differently or that no known tokenizer uses; RESOURCE_EXHAUSTED. */
MR_MUST_USE mr_status mr_pattern_translate(mr_bytes pattern, mr_buffer *out, mr_error *err);

/* Appends a pattern that matches `text` itself. RESOURCE_EXHAUSTED. */
MR_MUST_USE mr_status mr_pattern_quote(mr_bytes text, mr_buffer *out);

#endif
