/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a tokenizer is made from. File formats fill it: GGUF gives a family's name, Hugging Face's
 * tokenizer.json the components themselves. Everything is borrowed until the tokenizer is made.
 */
#ifndef MILLRACE_MODEL_TOKENIZER_SPEC_H
#define MILLRACE_MODEL_TOKENIZER_SPEC_H

#include "base/bytes.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum mr_token_kind {
    MR_TOKEN_NORMAL,
    MR_TOKEN_SPECIAL, /* control: matched in text, not shown in text */
    MR_TOKEN_ADDED,   /* user-defined: matched in text, shown */
    MR_TOKEN_UNUSED,
} mr_token_kind;

/* A text that becomes one token before anything else looks at it. */
typedef struct mr_added_token {
    mr_bytes text;
    uint32_t id;
    bool normalized;  /* matched in normalised text, itself normalised; else in the raw text */
    bool lstrip;      /* takes the white space before it too */
    bool rstrip;      /* … and behind it */
    bool single_word; /* matches only where no word character touches it */
} mr_added_token;

typedef enum mr_text_step_kind {
    MR_TEXT_PREPEND,         /* `to` in front of a text that is not empty */
    MR_TEXT_PREPEND_MISSING, /* the same, unless the text begins with `to` already */
    MR_TEXT_PREPEND_START,   /* the same, and only where the whole input begins */
    MR_TEXT_REPLACE,         /* each `from` by `to` */
    MR_TEXT_NFC,
    MR_TEXT_NFD,
    MR_TEXT_NFKC,
    MR_TEXT_NFKD,
} mr_text_step_kind;

/* A change to text. */
typedef struct mr_text_step {
    mr_text_step_kind kind;
    mr_bytes from;
    mr_bytes to;
} mr_text_step;

typedef enum mr_split_kind {
    MR_SPLIT_PATTERN, /* a regular expression as Hugging Face writes it */
    MR_SPLIT_LITERAL, /* a text */
    MR_SPLIT_DIGIT,   /* every digit */
    MR_SPLIT_DIGITS,  /* runs of digits */
    MR_SPLIT_GPT2,    /* the pattern that Hugging Face's ByteLevel has built in */
} mr_split_kind;

typedef enum mr_split_behavior {
    MR_SPLIT_ISOLATED, /* a match is a piece, and so is what lies between two */
    MR_SPLIT_REMOVED,  /* what lies between matches is a piece */
    MR_SPLIT_WITH_PREVIOUS,
    MR_SPLIT_WITH_NEXT,
    MR_SPLIT_CONTIGUOUS, /* neighbouring matches are one piece */
} mr_split_behavior;

/* Cuts each piece of the step before into pieces, as if it were all there is. */
typedef struct mr_split_step {
    mr_split_kind kind;
    mr_split_behavior behavior;
    bool invert; /* what does not match counts as match */
    mr_bytes pattern;
} mr_split_step;

#define MR_MAX_TEXT_STEPS  8u
#define MR_MAX_SPLIT_STEPS 8u

typedef struct mr_tokenizer_spec {
    const char *model; /* "gpt2": byte-level BPE; "llama": BPE of characters, as SentencePiece has
                        * it; another is refused by name */
    /* "smollm", "gpt-2", "llama-bpe", "qwen2" …, unknown: refused; NULL: the steps below say it */
    const char *pre_tokenizer;
    const mr_bytes *tokens; /* [n_tokens], in the byte-level alphabet for gpt2 */
    const uint8_t *kinds;   /* [n_tokens] mr_token_kind */
    uint32_t n_tokens;
    const mr_bytes *merges; /* [n_merges] "left right", best first */
    /* [n_merges] offset of the space between left and right; NULL: it is the first one */
    const uint32_t *merge_cuts;
    uint32_t n_merges;
    const float *scores; /* [n_tokens] instead of merges: two tokens that make a third one are
                          * joined, the best score first; NULL: none */
    bool whole_tokens;   /* a piece that is a token is that token, whatever the merges say */
    bool byte_fallback;  /* llama: a character that is no token becomes its bytes, "<0x0A>" */
    bool fuse_unknown;   /* neighbouring unknown characters are one unknown token */
    bool has_unknown;    /* what is no token becomes unknown_id; else it is left out */
    uint32_t unknown_id;

    const mr_added_token *added; /* [n_added]; NULL: every SPECIAL and ADDED token, raw, no flags */
    uint32_t n_added;

    mr_text_step normalizer[MR_MAX_TEXT_STEPS]; /* on text between raw added tokens */
    uint32_t n_normalizer;
    mr_text_step prepare[MR_MAX_TEXT_STEPS]; /* on text between all added tokens */
    uint32_t n_prepare;
    mr_split_step splits[MR_MAX_SPLIT_STEPS];
    uint32_t n_splits;

    mr_text_step decode[MR_MAX_TEXT_STEPS]; /* REPLACE only: from a token to its text */
    uint32_t n_decode;
    uint32_t decode_strip;  /* spaces that the beginning of a decoded text loses */
    bool decode_bare_first; /* … or all that the first token has */

    bool add_bos; /* raw prompts get BOS in front */
    bool add_eos;
    uint32_t bos_id; /* UINT32_MAX: none */
    uint32_t eos_id;
} mr_tokenizer_spec;

/* Whether `model`, which must be a known one, merges bytes; else it merges characters. */
bool mr_tokenizer_spec_is_byte_level(const mr_tokenizer_spec *spec);

#endif
