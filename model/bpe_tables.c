/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of BPE, from a list of merges or from scores. */
#include "model/bpe_tables.h"

#include "base/checked.h"
#include "model/unicode_form.h"

#include <stdlib.h>
#include <string.h>

#define NONE MR_BPE_NONE

/* --- The alphabet ------------------------------------------------------------------------- */

static bool is_printable(uint32_t byte)
{
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
}

/* The byte that a character stands for, -1 if none. Printable Latin-1 stands for itself; the other
 * bytes, in order, are the characters from U+0100 on. */
static int alphabet_byte(uint32_t character)
{
    if (character < 0x100) {
        return is_printable(character) ? (int)character : -1;
    }
    uint32_t left = character - 0x100;
    for (uint32_t byte = 0; byte < 0x100; byte++) {
        if (!is_printable(byte) && left-- == 0) {
            return (int)byte;
        }
    }
    return -1;
}

bool mr_bpe_alphabet_decode(mr_bytes text, uint8_t *out, size_t *bytes)
{
    size_t count = 0;
    for (size_t at = 0; at < text.size; count++) {
        uint32_t character = text.data[at++];
        if (character >= 0x80) {
            /* The whole alphabet lies below U+0800: two bytes a character. */
            if ((character & 0xE0) != 0xC0 || at == text.size || (text.data[at] & 0xC0) != 0x80) {
                return false;
            }
            character = (character & 0x1F) << 6 | (text.data[at++] & 0x3Fu);
        }
        const int byte = alphabet_byte(character);
        if (byte < 0) {
            return false;
        }
        if (out != NULL) {
            out[count] = (uint8_t)byte;
        }
    }
    *bytes = count;
    return true;
}

static int hex_digit(uint8_t c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

bool mr_bpe_byte_token(mr_bytes text, uint8_t *byte)
{
    if (text.size != 6 || memcmp(text.data, "<0x", 3) != 0 || text.data[5] != '>') {
        return false;
    }
    const int high = hex_digit(text.data[3]);
    const int low = hex_digit(text.data[4]);
    *byte = (uint8_t)(high * 16 + low);
    return high >= 0 && low >= 0;
}

/* --- Tokens ------------------------------------------------------------------------------- */

/* Text → id of every token that is in use. */
static mr_status index_tokens(const mr_tokenizer_spec *spec, mr_string_map *index, mr_error *err)
{
    for (uint32_t id = 0; id < spec->n_tokens; id++) {
        if (spec->kinds[id] == MR_TOKEN_UNUSED) {
            continue;
        }
        const mr_bytes text = spec->tokens[id];
        const mr_status status = mr_string_map_put(index, text.data, text.size, id);
        if (status == MR_ALREADY_EXISTS) {
            uint32_t first = 0;
            (void)mr_string_map_get(index, text.data, text.size, &first);
            return mr_fail(err, MR_INVALID_ARGUMENT,
                           "tokens %u and %u have the same text: the vocabulary is damaged", first,
                           id);
        }
        if (status != MR_OK) {
            return mr_fail(err, status, "no memory for the vocabulary");
        }
    }
    return MR_OK;
}

static mr_status index_bytes(mr_bpe *bpe, const mr_string_map *index, mr_error *err)
{
    bool any = false;
    for (uint32_t character = 0; character < 0x144; character++) {
        const int byte = alphabet_byte(character);
        const uint8_t wide[2] = {(uint8_t)(0xC0 | character >> 6),
                                 (uint8_t)(0x80 | (character & 0x3F))};
        const uint8_t narrow = (uint8_t)character;
        const bool is_narrow = character < 0x80;
        uint32_t id = NONE;
        if (byte >= 0 &&
            mr_string_map_get(index, is_narrow ? &narrow : wide, is_narrow ? 1 : 2, &id)) {
            bpe->byte_ids[byte] = id;
            any = true;
        }
    }
    if (!any) {
        return mr_fail(err, MR_INVALID_ARGUMENT,
                       "no token is a single byte of the byte-level alphabet: this is not a "
                       "byte-level BPE vocabulary");
    }
    return MR_OK;
}

/* Characters and bytes of a model that merges characters. */
static mr_status index_characters(mr_bpe *bpe, const mr_tokenizer_spec *spec, mr_error *err)
{
    memset(bpe->ascii, 0xFF, sizeof(bpe->ascii));
    MR_TRY(mr_u64_map_create(1024, &bpe->characters));
    for (uint32_t id = 0; id < spec->n_tokens; id++) {
        const mr_bytes text = spec->tokens[id];
        uint8_t byte = 0;
        if (spec->kinds[id] != MR_TOKEN_NORMAL || text.size == 0) {
            continue;
        }
        if (spec->byte_fallback && mr_bpe_byte_token(text, &byte)) {
            bpe->byte_ids[byte] = id;
            bpe->has_fallback = true;
            continue;
        }
        size_t end;
        const int32_t character = mr_unicode_read(text.data, 0, &end);
        if (end != text.size) {
            continue;
        }
        if (character < 128) {
            bpe->ascii[character] = id;
        }
        const mr_status status = mr_u64_map_put(bpe->characters, (uint64_t)character, id);
        if (status != MR_OK) {
            return mr_fail(err, status, "no memory for the vocabulary");
        }
    }
    return MR_OK;
}

/* --- Merges ------------------------------------------------------------------------------- */

/* Splits "left right" and finds the three ids. False when the text has no such form or the tokens
 * do not exist. */
static bool read_merge(const mr_string_map *index, mr_bytes merge, size_t left, uint8_t *joined,
                       uint32_t ids[3])
{
    if (left >= merge.size || merge.data[left] != ' ') {
        return false;
    }
    const size_t right = merge.size - left - 1;
    const uint8_t *second = merge.data + left + 1;
    memcpy(joined, merge.data, left);
    memcpy(joined + left, second, right);
    return left > 0 && right > 0 && mr_string_map_get(index, merge.data, left, &ids[0]) &&
           mr_string_map_get(index, second, right, &ids[1]) &&
           mr_string_map_get(index, joined, left + right, &ids[2]);
}

static size_t merge_cut(const mr_tokenizer_spec *spec, uint32_t rank)
{
    const mr_bytes merge = spec->merges[rank];
    if (spec->merge_cuts != NULL) {
        return spec->merge_cuts[rank];
    }
    const uint8_t *space = merge.size > 0 ? memchr(merge.data, ' ', merge.size) : NULL;
    return space != NULL ? (size_t)(space - merge.data) : merge.size;
}

static mr_status index_merge(mr_bpe *bpe, const mr_tokenizer_spec *spec, uint32_t rank,
                             const mr_string_map *index, mr_error *err)
{
    const mr_bytes merge = spec->merges[rank];
    uint8_t *joined = malloc(merge.size + 1);
    if (joined == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "no memory for the merges");
    }
    uint32_t ids[3] = {NONE, NONE, NONE};
    const bool good = read_merge(index, merge, merge_cut(spec, rank), joined, ids);
    free(joined);
    if (!good) {
        const int shown = merge.size < 80 ? (int)merge.size : 80;
        return mr_fail(err, MR_INVALID_ARGUMENT,
                       "merge %u (\"%.*s\") does not join two tokens into a third: the vocabulary "
                       "and the merges do not belong together",
                       rank, shown, (const char *)merge.data);
    }
    bpe->results[rank] = ids[2];
    if (spec->kinds[ids[2]] == MR_TOKEN_SPECIAL) {
        return MR_OK;
    }
    const mr_status status = mr_u64_map_put(bpe->ranks, mr_bpe_pair_key(ids[0], ids[1]), rank);
    if (status != MR_OK && status != MR_ALREADY_EXISTS) {
        return mr_fail(err, status, "no memory for the merges");
    }
    return MR_OK;
}

typedef struct scored {
    float score;
    uint32_t id;
} scored;

static int compare_scored(const void *a, const void *b)
{
    const scored *x = a;
    const scored *y = b;
    if (x->score != y->score) {
        return x->score > y->score ? -1 : 1;
    }
    return x->id < y->id ? -1 : x->id > y->id;
}

/* Tokens that come from merging, as SentencePiece has it: not controls, not bytes. */
static size_t collect_scored(const mr_tokenizer_spec *spec, scored *items)
{
    size_t count = 0;
    for (uint32_t id = 0; id < spec->n_tokens; id++) {
        uint8_t byte = 0;
        const bool is_byte = spec->byte_fallback && mr_bpe_byte_token(spec->tokens[id], &byte);
        const bool joined = spec->kinds[id] == MR_TOKEN_NORMAL || spec->kinds[id] == MR_TOKEN_ADDED;
        /* A score that is no number has no place in any order. */
        if (joined && !is_byte && spec->scores[id] == spec->scores[id]) {
            items[count++] = (scored){.score = spec->scores[id], .id = id};
        }
    }
    return count;
}

/* All pairs of tokens that make the token have its rank. */
static mr_status index_splits(mr_bpe *bpe, const mr_tokenizer_spec *spec, uint32_t rank,
                              const mr_string_map *index, mr_error *err)
{
    const mr_bytes text = spec->tokens[bpe->results[rank]];
    for (size_t cut = 1; cut < text.size; cut++) {
        uint32_t left = NONE;
        uint32_t right = NONE;
        if ((text.data[cut] & 0xC0) == 0x80 || !mr_string_map_get(index, text.data, cut, &left) ||
            !mr_string_map_get(index, text.data + cut, text.size - cut, &right)) {
            continue;
        }
        const mr_status status = mr_u64_map_put(bpe->ranks, mr_bpe_pair_key(left, right), rank);
        if (status != MR_OK && status != MR_ALREADY_EXISTS) {
            return mr_fail(err, status, "no memory for the merges");
        }
    }
    return MR_OK;
}

static mr_status index_scores(mr_bpe *bpe, const mr_tokenizer_spec *spec,
                              const mr_string_map *index, mr_error *err)
{
    scored *items = mr_calloc((size_t)spec->n_tokens + 1, sizeof(*items));
    if (items == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "no memory for the merges");
    }
    const size_t count = collect_scored(spec, items);
    qsort(items, count, sizeof(*items), compare_scored);
    for (size_t rank = 0; rank < count; rank++) {
        bpe->results[rank] = items[rank].id;
    }
    free(items);
    for (uint32_t rank = 0; rank < count; rank++) {
        MR_TRY(index_splits(bpe, spec, rank, index, err));
    }
    return MR_OK;
}

/* Whether U+2581, the mark of a space, follows another character in the text. */
static bool has_inner_mark(mr_bytes text)
{
    static const uint8_t mark[3] = {0xE2, 0x96, 0x81};
    for (size_t at = 1; at + 3 <= text.size; at++) {
        const bool before = at >= 3 && memcmp(text.data + at - 3, mark, 3) == 0;
        if (memcmp(text.data + at, mark, 3) == 0 && !before) {
            return true;
        }
    }
    return false;
}

/* Merges stay inside of words, each with the marks before it, if no token goes beyond. */
static bool words_are_apart(const mr_tokenizer_spec *spec)
{
    bool apart = !spec->whole_tokens && !mr_tokenizer_spec_is_byte_level(spec);
    for (uint32_t id = 0; id < spec->n_tokens && apart; id++) {
        const uint8_t kind = spec->kinds[id];
        apart = (kind != MR_TOKEN_NORMAL && kind != MR_TOKEN_ADDED) ||
                !has_inner_mark(spec->tokens[id]);
    }
    return apart;
}

static mr_status index_all(mr_bpe *bpe, const mr_tokenizer_spec *spec, mr_string_map *index,
                           mr_error *err)
{
    MR_TRY(index_tokens(spec, index, err));
    MR_TRY(bpe->byte_level ? index_bytes(bpe, index, err) : index_characters(bpe, spec, err));
    if (spec->scores != NULL) {
        return index_scores(bpe, spec, index, err);
    }
    /* From the end, because of a pair that is there twice Hugging Face keeps the later rank. */
    for (uint32_t rank = spec->n_merges; rank-- > 0;) {
        MR_TRY(index_merge(bpe, spec, rank, index, err));
    }
    return MR_OK;
}

/* A table for the pairs that are looked up most. */
static mr_status fill_byte_ranks(mr_bpe *bpe, mr_error *err)
{
    for (size_t byte = 0; byte < 256; byte++) {
        if (!bpe->byte_level || bpe->byte_ids[byte] == NONE) {
            return MR_OK;
        }
    }
    bpe->byte_ranks = mr_calloc(256 * 256, sizeof(*bpe->byte_ranks));
    if (bpe->byte_ranks == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "no memory for the merges");
    }
    for (size_t pair = 0; pair < 256 * 256; pair++) {
        const uint64_t key = mr_bpe_pair_key(bpe->byte_ids[pair >> 8], bpe->byte_ids[pair & 0xFF]);
        uint32_t rank = NONE;
        bpe->byte_ranks[pair] = mr_u64_map_get(bpe->ranks, key, &rank) ? rank : NONE;
    }
    return MR_OK;
}

mr_status mr_bpe_fill(mr_bpe *bpe, const mr_tokenizer_spec *spec, mr_error *err)
{
    const uint32_t n_ranks = spec->scores != NULL ? spec->n_tokens : spec->n_merges;
    mr_string_map *index = NULL;
    bpe->byte_level = mr_tokenizer_spec_is_byte_level(spec);
    bpe->cuts_words = words_are_apart(spec);
    bpe->has_unknown = spec->has_unknown;
    bpe->fuse_unknown = spec->fuse_unknown;
    bpe->unknown_id = spec->unknown_id;
    memset(bpe->byte_ids, 0xFF, sizeof(bpe->byte_ids));
    bpe->results = mr_calloc((size_t)n_ranks + 1, sizeof(uint32_t));
    mr_status status = MR_RESOURCE_EXHAUSTED;
    if (bpe->results == NULL || mr_u64_map_create(n_ranks, &bpe->ranks) != MR_OK ||
        mr_string_map_create(spec->n_tokens, &index) != MR_OK) {
        (void)mr_fail(err, status, "no memory for the vocabulary");
    } else {
        status = index_all(bpe, spec, index, err);
        status = status == MR_OK ? fill_byte_ranks(bpe, err) : status;
    }
    mr_string_map_destroy(index);
    /* A mark that is no token could be part of an unknown one. */
    uint32_t mark = NONE;
    bpe->cuts_words =
        bpe->cuts_words && status == MR_OK && mr_u64_map_get(bpe->characters, 0x2581, &mark);
    return status;
}
