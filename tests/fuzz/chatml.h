/* SPDX-License-Identifier: Apache-2.0 */
/* What fuzz targets of chats share: the template of the golden files, and a vocabulary that has its
 * two special tokens. */
#ifndef MILLRACE_TESTS_FUZZ_CHATML_H
#define MILLRACE_TESTS_FUZZ_CHATML_H

#include "../unit/model/tiny_vocab.h"

#include <jansson.h>

typedef struct chatml_vocab {
    tiny_vocab vocab;
    uint32_t start; /* <|im_start|> */
    uint32_t end;   /* <|im_end|> */
} chatml_vocab;

static inline void chatml_vocab_init(chatml_vocab *v)
{
    tiny_vocab_init(&v->vocab);
    tiny_vocab_join(&v->vocab, "<", "|");
    tiny_vocab_join(&v->vocab, "|", ">");
    v->start = tiny_vocab_add(&v->vocab, "<|im_start|>", MR_TOKEN_SPECIAL);
    v->end = tiny_vocab_add(&v->vocab, "<|im_end|>", MR_TOKEN_SPECIAL);
}

/* The template's source; lives as long as the process. */
static inline const char *chatml_template(void)
{
    static json_t *golden;
    if (golden == NULL) {
        golden = json_load_file(MR_TEST_DATA "/chat_smollm2.json", JSON_ALLOW_NUL, NULL);
    }
    const char *text = json_string_value(json_object_get(golden, "template"));
    MR_CHECK(text != NULL);
    return text;
}

#endif
