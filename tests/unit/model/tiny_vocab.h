/* SPDX-License-Identifier: Apache-2.0 */
/* A byte-level vocabulary made by hand: the ids 0 … 255 are the bytes, what is added follows. */
#ifndef MILLRACE_TESTS_TINY_VOCAB_H
#define MILLRACE_TESTS_TINY_VOCAB_H

#include "model/tokenizer.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define TINY_TOKENS 512
#define TINY_MERGES 512
#define TINY_BYTES  40

typedef struct tiny_vocab {
    char token_text[TINY_TOKENS][TINY_BYTES];
    char merge_text[TINY_MERGES][2 * TINY_BYTES];
    mr_bytes tokens[TINY_TOKENS];
    uint8_t kinds[TINY_TOKENS];
    mr_bytes merges[TINY_MERGES];
    mr_tokenizer_spec spec;
} tiny_vocab;

/* `text` in the byte-level alphabet, or literally for an added token. Returns the id. */
static inline uint32_t tiny_vocab_add(tiny_vocab *v, const char *text, mr_token_kind kind)
{
    const uint32_t id = v->spec.n_tokens++;
    snprintf(v->token_text[id], TINY_BYTES, "%s", text);
    v->tokens[id] = mr_bytes_of(v->token_text[id]);
    v->kinds[id] = (uint8_t)kind;
    return id;
}

static inline void tiny_vocab_merge(tiny_vocab *v, const char *left, const char *right)
{
    const uint32_t rank = v->spec.n_merges++;
    snprintf(v->merge_text[rank], 2 * TINY_BYTES, "%s %s", left, right);
    v->merges[rank] = mr_bytes_of(v->merge_text[rank]);
}

/* A merge and the token that it makes. Returns the token's id. */
static inline uint32_t tiny_vocab_join(tiny_vocab *v, const char *left, const char *right)
{
    char text[TINY_BYTES];
    snprintf(text, sizeof(text), "%s%s", left, right);
    tiny_vocab_merge(v, left, right);
    return tiny_vocab_add(v, text, MR_TOKEN_NORMAL);
}

static inline void tiny_vocab_init(tiny_vocab *v)
{
    memset(v, 0, sizeof(*v));
    v->spec.model = "gpt2";
    v->spec.pre_tokenizer = "gpt-2";
    v->spec.tokens = v->tokens;
    v->spec.kinds = v->kinds;
    v->spec.merges = v->merges;
    v->spec.bos_id = UINT32_MAX;
    v->spec.eos_id = UINT32_MAX;
    uint32_t others = 0x100;
    for (uint32_t byte = 0; byte < 0x100; byte++) {
        const uint32_t c =
            (byte > 0x20 && byte < 0x7F) || (byte > 0xA0 && byte != 0xAD) ? byte : others++;
        const char wide[3] = {(char)(0xC0 | c >> 6), (char)(0x80 | (c & 0x3F)), '\0'};
        const char narrow[2] = {(char)c, '\0'};
        tiny_vocab_add(v, c < 0x80 ? narrow : wide, MR_TOKEN_NORMAL);
    }
}

#endif
