/* SPDX-License-Identifier: Apache-2.0 */
/* What a Hugging Face directory says about text beside tokenizer.json: tokenizer_config.json. */
#ifndef MILLRACE_MODEL_TOKENIZER_CONFIG_H
#define MILLRACE_MODEL_TOKENIZER_CONFIG_H

#include "model/json_tree.h"

#define MR_TOKENIZER_CONFIG_MAX_BYTES ((size_t)64 << 20)

typedef enum mr_tristate {
    MR_UNSAID,
    MR_NO,
    MR_YES,
} mr_tristate;

/* Zero-initialised is valid: nothing is said. Texts are borrowed from `tree`. */
typedef struct mr_tokenizer_config {
    mr_json_tree tree; /* owns */
    mr_tristate add_bos;
    mr_tristate add_eos;
    mr_bytes bos_token; /* data NULL: none */
    mr_bytes eos_token;
    mr_bytes chat_template; /* data NULL: none */
} mr_tokenizer_config;

/* Reads a tokenizer_config.json. Of several chat templates the one named "default" counts.
 * DATA_LOSS (no JSON, a value of another type: names it), RESOURCE_EXHAUSTED. */
MR_MUST_USE mr_status mr_tokenizer_config_parse(const void *data, size_t size,
                                                mr_tokenizer_config *out, mr_error *err);
void mr_tokenizer_config_deinit(mr_tokenizer_config *config);

#endif
