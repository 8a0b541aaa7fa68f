/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pre-tokenizers: cut text into the pieces inside which BPE merges. A pre-tokenizer is read-only
 * once made: any thread may use it, each with a cursor of its own.
 */
#ifndef MILLRACE_MODEL_PRETOKENIZER_H
#define MILLRACE_MODEL_PRETOKENIZER_H

#include "base/status.h"
#include "model/tokenizer_spec.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What GGUF's tokenizer.ggml.pre stands for. */
typedef struct mr_tokenizer_family {
    const char *name; /* "smollm", "gpt-2", "llama-bpe" … */
    mr_split_step splits[4];
    uint32_t n_splits;
    bool whole_tokens; /* a piece that is a token is that token, whatever the merges say */
    bool nfc;          /* text is normalised first */
} mr_tokenizer_family;

/* UNIMPLEMENTED for a name that is not known (named): a guess would give wrong ids. Static. */
MR_MUST_USE mr_status mr_tokenizer_family_find(const char *name, const mr_tokenizer_family **out,
                                               mr_error *err);

typedef struct mr_pretokenizer mr_pretokenizer;

/* Makes one of `count` steps (at most MR_MAX_SPLIT_STEPS; none: the text is one piece), which it
 * copies. UNIMPLEMENTED (a pattern that this build does not read), INVALID_ARGUMENT (a pattern that
 * is none), RESOURCE_EXHAUSTED. */
MR_MUST_USE mr_status mr_pretokenizer_create(const mr_split_step *steps, uint32_t count,
                                             mr_pretokenizer **out, mr_error *err);
void mr_pretokenizer_destroy(mr_pretokenizer *pretokenizer);

/* A stretch between two matches, or a match. */
typedef struct mr_split_part {
    size_t begin;
    size_t end;
    bool match;
} mr_split_part;

/* One step at work on one piece of the step before. */
typedef struct mr_split_walk {
    const uint8_t *text;
    size_t bytes;
    size_t done;           /* parts up to here were given */
    size_t search;         /* where the next match is looked for */
    size_t match_end;      /* of the last match; SIZE_MAX before the first */
    mr_split_part waiting; /* a match found behind a gap that was given first */
    mr_split_part ahead;   /* a part read too early */
    bool has_waiting;
    bool has_ahead;
    bool careful; /* one place at a time: some place from `search` on takes many steps */
} mr_split_walk;

/* Walks over the pieces of texts, one text after another. One thread at a time. All of them
 * together have one budget for patterns that take many steps. */
typedef struct mr_piece_cursor {
    const mr_pretokenizer *pretokenizer; /* borrowed until deinit */
    void *match;                         /* owns: PCRE2's match data */
    void *context;                       /* owns: its match context */
    uint64_t steps;                      /* of the matcher, that may be spent on hard places */
    mr_bytes whole;                      /* the text, until it is given as one piece; no step */
    mr_split_walk walks[MR_MAX_SPLIT_STEPS];
} mr_piece_cursor;

MR_MUST_USE mr_status mr_piece_cursor_init(mr_piece_cursor *cursor,
                                           const mr_pretokenizer *pretokenizer, mr_error *err);
void mr_piece_cursor_deinit(mr_piece_cursor *cursor);

/* Sets the text, which must be valid UTF-8 (the caller has checked) and outlive the walk. */
void mr_piece_cursor_start(mr_piece_cursor *cursor, const uint8_t *text, size_t bytes);

/* Gives the next piece, of size 0 at the end of the text. The pieces, in order, are the text, but
 * for what a step removes. INTERNAL when the matcher fails, RESOURCE_EXHAUSTED when it runs out of
 * memory or a pattern needs too many attempts. */
MR_MUST_USE mr_status mr_piece_cursor_next(mr_piece_cursor *cursor, mr_bytes *piece, mr_error *err);

#endif
