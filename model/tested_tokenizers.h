/* SPDX-License-Identifier: Apache-2.0 */
/* Which tokenizers were compared with Hugging Face's, and on which vocabulary: for docs/models.md.
 * tests/tokenizers/families.py makes each of them. */
#ifndef MILLRACE_MODEL_TESTED_TOKENIZERS_H
#define MILLRACE_MODEL_TESTED_TOKENIZERS_H

#include <stddef.h>

typedef struct mr_tested_tokenizer {
    const char *family;
    const char *parts;      /* what it is made of */
    const char *vocabulary; /* what it was tested with */
} mr_tested_tokenizer;

/* NULL at the end of the table. */
const mr_tested_tokenizer *mr_tested_tokenizer_at(size_t index);

#endif
