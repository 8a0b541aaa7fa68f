/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tokenizers: byte-level BPE (GPT-2 family) and BPE of characters with byte fallback (SentencePiece
 * family), exactly as Hugging Face `tokenizers` computes them. Added tokens are cut out first, the
 * rest is normalised, split by the family's patterns (PCRE2), and each piece is merged by rank. A
 * tokenizer is read-only once made: any thread may use it.
 */
#ifndef MILLRACE_MODEL_TOKENIZER_H
#define MILLRACE_MODEL_TOKENIZER_H

#include "base/buffer.h"
#include "base/status.h"
#include "model/tokenizer_spec.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct mr_tokenizer mr_tokenizer;

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
/* Bytes that the longest token stands for. */
size_t mr_tokenizer_longest_token(const mr_tokenizer *tokenizer);
/* BOS that raw prompts get, UINT32_MAX if none. */
uint32_t mr_tokenizer_bos(const mr_tokenizer *tokenizer);

/* The SPECIAL or ADDED token of this text, UINT32_MAX if there is none. */
uint32_t mr_tokenizer_find(const mr_tokenizer *tokenizer, mr_bytes text);

/* Appends the bytes of all ids (special ones only if kept), as a text that begins here: the
 * families that put a space in front of a text take it off again, which token_bytes does not know.
 * INVALID_ARGUMENT for an id outside the vocabulary. The bytes need not be UTF-8. */
MR_MUST_USE mr_status mr_tokenizer_decode(const mr_tokenizer *tokenizer, const uint32_t *ids,
                                          size_t count, bool keep_special, mr_buffer *out,
                                          mr_error *err);

#endif
