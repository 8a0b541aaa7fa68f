/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pre-tokenizers: cut text into the pieces inside which byte-level BPE merges. A pre-tokenizer is
 * read-only once made: any thread may use it, each with a cursor of its own.
 */
#ifndef MILLRACE_MODEL_PRETOKENIZER_H
#define MILLRACE_MODEL_PRETOKENIZER_H

#include "base/status.h"
#include "model/tokenizer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct mr_pretokenizer mr_pretokenizer;

/* `name` as GGUF's tokenizer.ggml.pre: "smollm", "gpt-2", "llama-bpe". UNIMPLEMENTED for another
 * (named): a guess would give wrong ids. RESOURCE_EXHAUSTED. */
MR_MUST_USE mr_status mr_pretokenizer_create(const char *name, mr_pretokenizer **out,
                                             mr_error *err);
void mr_pretokenizer_destroy(mr_pretokenizer *pretokenizer);

/* True iff the family takes a piece that is a token as that token, whatever the merges say. */
bool mr_pretokenizer_whole_tokens(const mr_pretokenizer *pretokenizer);

/* Walks over the pieces of texts, one text after another. One thread at a time. */
typedef struct mr_piece_cursor {
    const mr_pretokenizer *pretokenizer; /* borrowed until deinit */
    void *match;                         /* owns: PCRE2's match data */
    const uint8_t *text;                 /* borrowed until the next start */
    size_t bytes;
    size_t at;
} mr_piece_cursor;

MR_MUST_USE mr_status mr_piece_cursor_init(mr_piece_cursor *cursor,
                                           const mr_pretokenizer *pretokenizer, mr_error *err);
void mr_piece_cursor_deinit(mr_piece_cursor *cursor);

/* Sets the text, which must be valid UTF-8 (the caller has checked) and outlive the walk. */
void mr_piece_cursor_start(mr_piece_cursor *cursor, const uint8_t *text, size_t bytes);

/* Gives the next piece, of size 0 at the end of the text. The pieces, in order, are the text.
 * INTERNAL when the matcher fails, RESOURCE_EXHAUSTED when it runs out of memory. */
MR_MUST_USE mr_status mr_piece_cursor_next(mr_piece_cursor *cursor, mr_bytes *piece, mr_error *err);

#endif
