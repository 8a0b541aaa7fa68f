/* SPDX-License-Identifier: Apache-2.0 */
/* What tokenizer.c makes and tokenizer_encode.c reads. */
#ifndef MILLRACE_MODEL_TOKENIZER_INTERNAL_H
#define MILLRACE_MODEL_TOKENIZER_INTERNAL_H

#include "model/added_tokens.h"
#include "model/bpe.h"
#include "model/pretokenizer.h"
#include "model/text_steps.h"
#include "model/tokenizer.h"

#define MR_NO_ID UINT32_MAX

struct mr_tokenizer {
    uint32_t n_tokens;
    uint32_t bos_id; /* MR_NO_ID: raw prompts get none */
    uint32_t eos_id; /* MR_NO_ID: raw prompts get none */
    uint8_t *kinds;  /* owns, [n_tokens] mr_token_kind */
    size_t longest;  /* bytes of the longest of `raw` */
    mr_bytes *raw;   /* owns, [n_tokens]: what each token stands for, in `arena` */
    uint8_t *arena;  /* owns */
    uint32_t decode_strip;
    bool decode_bare_first;
    mr_text_steps normalizer;
    mr_text_steps prepare;
    mr_added_tokens added;            /* matched in the raw text */
    mr_added_tokens added_normalized; /* matched in what the normaliser left */
    mr_pretokenizer *pretokenizer;    /* owns */
    mr_bpe *bpe;                      /* owns */
    mr_piece_caches *caches;          /* owns */
};

#endif
