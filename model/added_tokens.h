/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The texts that become one token before anything else looks at them, as a trie over bytes.
 * Read-only once filled: any thread.
 */
#ifndef MILLRACE_MODEL_ADDED_TOKENS_H
#define MILLRACE_MODEL_ADDED_TOKENS_H

#include "base/hash_map.h"
#include "base/status.h"
#include "model/tokenizer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct mr_added_tokens {
    mr_u64_map *edges; /* owns: node << 8 | byte → node; node 0 is the root */
    uint32_t *ids;     /* owns, [n_nodes]: the token that ends here, UINT32_MAX if none */
    uint32_t n_nodes;
    bool starts[256]; /* some token begins with this byte */
} mr_added_tokens;

/* Takes the SPECIAL and ADDED tokens of `spec`; empty texts match nothing. RESOURCE_EXHAUSTED. */
MR_MUST_USE mr_status mr_added_tokens_init(mr_added_tokens *added, const mr_tokenizer_spec *spec,
                                           mr_error *err);
void mr_added_tokens_deinit(mr_added_tokens *added);

typedef struct mr_added_match {
    size_t begin;
    size_t end;
    uint32_t id;
} mr_added_match;

/* The leftmost match in text[begin, end), and of those that begin there the longest. Time: bytes
 * passed, times the longest token's length at worst. */
bool mr_added_tokens_find(const mr_added_tokens *added, const uint8_t *text, size_t begin,
                          size_t end, mr_added_match *match);

#endif
