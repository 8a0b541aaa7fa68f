/* SPDX-License-Identifier: Apache-2.0 */
/*
 * BPE: merges the bytes of one piece (byte-level models), or its characters (SentencePiece's
 * models), by rank. Read-only once made: any thread may use it, each with scratch memory of its
 * own.
 */
#ifndef MILLRACE_MODEL_BPE_H
#define MILLRACE_MODEL_BPE_H

#include "base/buffer.h"
#include "base/status.h"
#include "model/piece_cache.h"
#include "model/tokenizer_spec.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Reads text written in GPT-2's alphabet, one character a byte. Writes at most text.size bytes to
 * `out` (NULL: only counts) and their number to *bytes; false when a character is outside the
 * alphabet. */
bool mr_bpe_alphabet_decode(mr_bytes text, uint8_t *out, size_t *bytes);

/* Whether text is the name of a byte, as "<0x0A>", and of which. */
bool mr_bpe_byte_token(mr_bytes text, uint8_t *byte);

typedef struct mr_bpe mr_bpe;

/* Makes the merge tables of `spec`. raw[n_tokens] are the tokens as bytes, borrowed until destroy.
 * Merges into a SPECIAL token are left out: control tokens never come from merging.
 * INVALID_ARGUMENT (a token twice, a merge that names no token: says which), RESOURCE_EXHAUSTED. */
MR_MUST_USE mr_status mr_bpe_create(const mr_tokenizer_spec *spec, const mr_bytes *raw,
                                    mr_bpe **out, mr_error *err);
void mr_bpe_destroy(mr_bpe *bpe);

/* Memory for long pieces, kept from piece to piece. Zero-initialised is valid. One thread at a
 * time. */
typedef struct mr_bpe_scratch {
    mr_piece_cache *cache; /* borrowed; NULL: none */
    void *memory;          /* owns */
    size_t capacity;       /* bytes of the longest piece that fits */
} mr_bpe_scratch;

void mr_bpe_scratch_deinit(mr_bpe_scratch *scratch);

/* Appends the ids of one piece of valid UTF-8 (bytes < 2^32). What the vocabulary has no token for
 * is the unknown token, or dropped when the model names none, as Hugging Face does. O(n log n).
 * RESOURCE_EXHAUSTED. */
MR_MUST_USE mr_status mr_bpe_encode(const mr_bpe *bpe, mr_bytes piece, mr_bpe_scratch *scratch,
                                    mr_ids *out);

#endif
