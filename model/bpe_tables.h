/* SPDX-License-Identifier: Apache-2.0 */
/* What bpe_tables.c makes and bpe.c reads. */
#ifndef MILLRACE_MODEL_BPE_TABLES_H
#define MILLRACE_MODEL_BPE_TABLES_H

#include "base/hash_map.h"
#include "model/bpe.h"

#define MR_BPE_NONE UINT32_MAX

struct mr_bpe {
    bool byte_level;
    bool has_fallback; /* byte_ids are tokens of bytes that stand in for a character */
    bool cuts_words;   /* no merge joins anything with a U+2581 behind it */
    bool has_unknown;
    bool fuse_unknown;
    uint32_t unknown_id;
    uint32_t byte_ids[256]; /* MR_BPE_NONE: there is no token for the byte */
    mr_u64_map *characters; /* character → id; NULL for byte-level models */
    uint32_t ascii[128];    /* the same for the first of them */
    mr_u64_map *ranks;      /* mr_bpe_pair_key → rank */
    /* owns, [256][256]: ranks of pairs of bytes, which every piece begins with; NULL when merging
     * characters or when a byte has no token */
    uint32_t *byte_ranks;
    uint32_t *results;    /* owns, [n_ranks]: what the pairs of a rank become */
    mr_string_map *whole; /* piece → id, for pieces that are one token */
    uint8_t *texts;       /* owns what the keys of `whole` point to, when merging characters */
};

static inline uint64_t mr_bpe_pair_key(uint32_t left, uint32_t right)
{
    return (uint64_t)left << 32 | right;
}

/* Fills all but `whole`. Frees nothing. Errors as mr_bpe_create. */
MR_MUST_USE mr_status mr_bpe_fill(mr_bpe *bpe, const mr_tokenizer_spec *spec, mr_error *err);

#endif
