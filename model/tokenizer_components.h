/* SPDX-License-Identifier: Apache-2.0 */
/* The components that a tokenizer.json names, as steps of a specification. */
#ifndef MILLRACE_MODEL_TOKENIZER_COMPONENTS_H
#define MILLRACE_MODEL_TOKENIZER_COMPONENTS_H

#include "base/status.h"
#include "model/tokenizer_spec.h"

#include <jansson.h>

/* What the post-processor puts around a text. */
typedef struct mr_template_ends {
    uint32_t bos_id; /* UINT32_MAX: none */
    uint32_t eos_id;
} mr_template_ends;

/* Reads normalizer, pre_tokenizer, model (all but its tables), decoder and post_processor of `root`
 * into `spec`, whose texts are borrowed from it. *unknown gets the unknown token's text (data NULL:
 * none). UNIMPLEMENTED names a component, or an option of one, that this build does not compute;
 * DATA_LOSS a value of another type. */
MR_MUST_USE mr_status mr_tokenizer_components_read(const json_t *root, mr_tokenizer_spec *spec,
                                                   mr_template_ends *ends, mr_bytes *unknown,
                                                   mr_error *err);

#endif
