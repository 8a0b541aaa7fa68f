/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hugging Face's tokenizer.json. Only components that this build computes exactly are taken; any
 * other is refused by its name.
 */
#ifndef MILLRACE_MODEL_TOKENIZER_JSON_H
#define MILLRACE_MODEL_TOKENIZER_JSON_H

#include "base/status.h"
#include "model/tokenizer.h"
#include "model/tokenizer_config.h"

#define MR_TOKENIZER_JSON_MAX_BYTES ((size_t)512 << 20)

/* Makes the tokenizer of a file's contents. What `config` (NULL: none) says of BOS and EOS goes
 * before what the file's own post-processor does. UNIMPLEMENTED (a component this build lacks,
 * named), DATA_LOSS (no JSON, tables that contradict each other: says where), RESOURCE_EXHAUSTED.
 */
MR_MUST_USE mr_status mr_tokenizer_json_create(const void *data, size_t size,
                                               const mr_tokenizer_config *config,
                                               mr_tokenizer **out, mr_error *err);

#endif
