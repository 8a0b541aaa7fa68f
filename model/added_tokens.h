/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The texts that become one token before anything else looks at them, as tries over bytes.
 * Read-only once filled: any thread.
 */
#ifndef MILLRACE_MODEL_ADDED_TOKENS_H
#define MILLRACE_MODEL_ADDED_TOKENS_H

#include "base/hash_map.h"
#include "base/status.h"
#include "model/text_steps.h"
#include "model/tokenizer_spec.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct mr_added_flags {
    uint32_t id;
    bool lstrip;
    bool rstrip;
    bool single_word;
} mr_added_flags;

/* One trie and what its texts stand for. */
typedef struct mr_added_tokens {
    mr_u64_map *edges; /* owns: node << 8 | byte → node; node 0 is the root */
    uint32_t *tokens;  /* owns, [n_nodes]: index in `flags` of what ends here, UINT32_MAX if none */
    mr_added_flags *flags; /* owns */
    uint32_t n_flags;
    uint32_t n_nodes;
    bool starts[256]; /* some token begins with this byte */
} mr_added_tokens;

/* Takes those of `items` whose `normalized` is as given; `steps` (NULL: none) change their texts
 * first. Empty texts match nothing, a text that is there twice is the last one's. UNIMPLEMENTED,
 * RESOURCE_EXHAUSTED. */
MR_MUST_USE mr_status mr_added_tokens_init(mr_added_tokens *added, const mr_added_token *items,
                                           uint32_t count, bool normalized,
                                           const mr_text_steps *steps, mr_error *err);
void mr_added_tokens_deinit(mr_added_tokens *added);

typedef struct mr_added_match {
    size_t begin; /* with the white space that the token takes */
    size_t end;   /* likewise */
    size_t next;  /* where the next match is looked for */
    uint32_t id;
} mr_added_match;

/* A text, UTF-8, and the part of it in which matches may lie. What flags make of a match (white
 * space taken, neighbours that are word characters) looks at the whole text. */
typedef struct mr_added_scope {
    const uint8_t *text;
    size_t bytes;
    size_t begin;
    size_t end;
    size_t taken; /* the text up to here belongs to the match before */
} mr_added_scope;

/* The leftmost match, and of those that begin there the longest. Time: bytes passed, times the
 * longest token's length at worst. */
bool mr_added_tokens_find(const mr_added_tokens *added, const mr_added_scope *scope,
                          mr_added_match *match);

#endif
