/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tokenizers. Byte-level BPE (GPT-2 family) exactly as Hugging Face `tokenizers` computes it:
 * added tokens are cut out first, the rest is split by the family's pattern (PCRE2), each piece is
 * merged by rank. A tokenizer is read-only once made: any thread may use it.
 */
#ifndef MILLRACE_MODEL_TOKENIZER_H
#define MILLRACE_MODEL_TOKENIZER_H

#include "base/buffer.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct mr_tokenizer mr_tokenizer;

/* A byte string that is not NUL-terminated. */
typedef struct mr_bytes {
    const uint8_t *data;
    size_t size;
} mr_bytes;

typedef enum mr_token_kind {
    MR_TOKEN_NORMAL,
    MR_TOKEN_SPECIAL, /* control: matched in text, not shown in text */
    MR_TOKEN_ADDED,   /* user-defined: matched in text, shown */
    MR_TOKEN_UNUSED,
} mr_token_kind;

/* What a tokenizer is made from; file formats fill it. Everything is copied. */
typedef struct mr_tokenizer_spec {
    const char *model;         /* "gpt2": byte-level BPE; another is refused by name */
    const char *pre_tokenizer; /* "smollm", "gpt-2", "llama-bpe", "qwen2" …; unknown: refused */
    const mr_bytes *tokens;    /* [n_tokens], in the byte-level alphabet for gpt2 */
    const uint8_t *kinds;      /* [n_tokens] mr_token_kind */
    uint32_t n_tokens;
    const mr_bytes *merges; /* [n_merges] "left right", best first */
    uint32_t n_merges;
    bool add_bos; /* raw prompts get BOS in front */
    bool add_eos;
    uint32_t bos_id; /* UINT32_MAX: none */
    uint32_t eos_id;
} mr_tokenizer_spec;

/* UNIMPLEMENTED (unknown component, named), INVALID_ARGUMENT (inconsistent tables, says where),
 * RESOURCE_EXHAUSTED. */
MR_MUST_USE mr_status mr_tokenizer_create(const mr_tokenizer_spec *spec, mr_tokenizer **out,
                                          mr_error *err);
void mr_tokenizer_destroy(mr_tokenizer *tokenizer);

/* A stretch of the text in which added tokens are never matched (what a user wrote in a chat). */
typedef struct mr_text_span {
    size_t begin;
    size_t end;
} mr_text_span;

typedef struct mr_encode_options {
    bool add_special;          /* BOS / EOS as the tokenizer's own configuration says */
    bool parse_special;        /* text of added tokens becomes their id */
    const mr_text_span *plain; /* ascending, not overlapping */
    size_t n_plain;
} mr_encode_options;

/* Appends the ids of text to `out`. INVALID_ARGUMENT for text that is not UTF-8 (says where);
 * U+0000 is text like any other; a byte that the vocabulary has no token for is left out, as
 * Hugging Face does. On an error `out` is as before. Time is near linear in `bytes`. */
MR_MUST_USE mr_status mr_tokenizer_encode(const mr_tokenizer *tokenizer, const void *text,
                                          size_t bytes, const mr_encode_options *options,
                                          mr_ids *out, mr_error *err);

uint32_t mr_tokenizer_vocab_size(const mr_tokenizer *tokenizer);
mr_token_kind mr_tokenizer_kind(const mr_tokenizer *tokenizer, uint32_t id);
/* The token's own bytes (part of a character, maybe): borrowed, may be empty. `id` must be in the
 * vocabulary. */
mr_bytes mr_tokenizer_token_bytes(const mr_tokenizer *tokenizer, uint32_t id);
/* BOS that raw prompts get, UINT32_MAX if none. */
uint32_t mr_tokenizer_bos(const mr_tokenizer *tokenizer);

/* Appends the bytes of all ids (special ones only if kept). INVALID_ARGUMENT for an id outside the
 * vocabulary. The bytes need not be UTF-8. */
MR_MUST_USE mr_status mr_tokenizer_decode(const mr_tokenizer *tokenizer, const uint32_t *ids,
                                          size_t count, bool keep_special, mr_buffer *out,
                                          mr_error *err);

#endif
