/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Of all neighbours that some merge joins, the pair of the best rank is joined first, the leftmost
 * one of equal rank, until no merge applies. Short pieces look for the best pair by a scan; long
 * ones keep the pairs in a heap over a linked list.
 *
 * Most pieces of ordinary text are tokens. Each token whose own bytes merge to just that token is
 * therefore in the map `whole`, and a piece found there needs no merging.
 */
#include "model/bpe.h"

#include "base/checked.h"
#include "base/hash_map.h"

#include <stdlib.h>
#include <string.h>

#define NONE        UINT32_MAX
#define SHORT_PIECE 48u /* bytes; up to here the scan is faster than the heap */

struct mr_bpe {
    uint32_t byte_ids[256];
    mr_u64_map *ranks;    /* pair_key → index of its merge, which is its rank */
    uint32_t *results;    /* owns, [n_merges] */
    mr_string_map *whole; /* raw bytes → id */
};

static uint64_t pair_key(uint32_t left, uint32_t right)
{
    return (uint64_t)left << 32 | right;
}

static uint32_t pair_rank(const mr_bpe *bpe, uint32_t left, uint32_t right)
{
    uint32_t rank = NONE;
    return mr_u64_map_get(bpe->ranks, pair_key(left, right), &rank) ? rank : NONE;
}

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

/* --- Tables ------------------------------------------------------------------------------- */

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
    memset(bpe->byte_ids, 0xFF, sizeof(bpe->byte_ids));
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

/* Splits "left right" and finds the three ids. False when the text has no such form or the tokens
 * do not exist. */
static bool read_merge(const mr_string_map *index, mr_bytes merge, uint8_t *joined, uint32_t ids[3])
{
    const uint8_t *space = merge.size > 0 ? memchr(merge.data, ' ', merge.size) : NULL;
    if (space == NULL) {
        return false;
    }
    const size_t left = (size_t)(space - merge.data);
    const size_t right = merge.size - left - 1;
    memcpy(joined, merge.data, left);
    memcpy(joined + left, space + 1, right);
    return left > 0 && right > 0 && mr_string_map_get(index, merge.data, left, &ids[0]) &&
           mr_string_map_get(index, space + 1, right, &ids[1]) &&
           mr_string_map_get(index, joined, left + right, &ids[2]);
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
    const bool good = read_merge(index, merge, joined, ids);
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
    const mr_status status = mr_u64_map_put(bpe->ranks, pair_key(ids[0], ids[1]), rank);
    if (status != MR_OK && status != MR_ALREADY_EXISTS) {
        return mr_fail(err, status, "no memory for the merges");
    }
    return MR_OK;
}

/* Fills `whole` with the NORMAL tokens that their own bytes merge to, or with all of them. */
static mr_status index_whole(mr_bpe *bpe, const mr_tokenizer_spec *spec, const mr_bytes *raw,
                             bool all, mr_error *err)
{
    mr_status status = MR_OK;
    mr_ids ids = {0};
    mr_bpe_scratch scratch = {0};
    mr_string_map *whole = NULL;
    MR_TRY_CLEANUP(status, mr_string_map_create(spec->n_tokens, &whole));
    for (uint32_t id = 0; id < spec->n_tokens; id++) {
        size_t bytes = 0;
        if (spec->kinds[id] != MR_TOKEN_NORMAL ||
            !mr_bpe_alphabet_decode(spec->tokens[id], NULL, &bytes) || bytes == 0) {
            continue;
        }
        ids.count = 0;
        if (!all) {
            MR_TRY_CLEANUP(status, mr_bpe_encode(bpe, raw[id], &scratch, &ids));
        }
        if (all || (ids.count == 1 && ids.data[0] == id)) {
            status = mr_string_map_put(whole, raw[id].data, raw[id].size, id);
            if (status != MR_OK && status != MR_ALREADY_EXISTS) {
                goto cleanup;
            }
        }
    }
    bpe->whole = whole;
    whole = NULL;
    status = MR_OK;
cleanup:
    mr_string_map_destroy(whole);
    mr_bpe_scratch_deinit(&scratch);
    mr_ids_deinit(&ids);
    return status == MR_OK ? MR_OK : mr_fail(err, status, "no memory for the vocabulary");
}

mr_status mr_bpe_create(const mr_tokenizer_spec *spec, const mr_bytes *raw, bool whole_tokens,
                        mr_bpe **out, mr_error *err)
{
    *out = NULL;
    mr_status status = MR_RESOURCE_EXHAUSTED;
    mr_string_map *index = NULL;
    mr_bpe *bpe = mr_calloc(1, sizeof(*bpe));
    if (bpe == NULL ||
        (bpe->results = mr_calloc((size_t)spec->n_merges + 1, sizeof(uint32_t))) == NULL ||
        mr_u64_map_create(spec->n_merges, &bpe->ranks) != MR_OK ||
        mr_string_map_create(spec->n_tokens, &index) != MR_OK) {
        (void)mr_fail(err, status, "no memory for the vocabulary");
        goto cleanup;
    }
    MR_TRY_CLEANUP(status, index_tokens(spec, index, err));
    MR_TRY_CLEANUP(status, index_bytes(bpe, index, err));
    /* From the end, because of a pair that is there twice Hugging Face keeps the later rank. */
    for (uint32_t rank = spec->n_merges; rank-- > 0;) {
        MR_TRY_CLEANUP(status, index_merge(bpe, spec, rank, index, err));
    }
    MR_TRY_CLEANUP(status, index_whole(bpe, spec, raw, whole_tokens, err));
    *out = bpe;
    bpe = NULL;
cleanup:
    mr_string_map_destroy(index);
    mr_bpe_destroy(bpe);
    return status;
}

void mr_bpe_destroy(mr_bpe *bpe)
{
    if (bpe != NULL) {
        mr_string_map_destroy(bpe->whole);
        mr_u64_map_destroy(bpe->ranks);
        free(bpe->results);
        free(bpe);
    }
}

/* --- Short pieces --------------------------------------------------------------------------- */

static size_t merge_short(const mr_bpe *bpe, uint32_t *ids, size_t count)
{
    uint32_t ranks[SHORT_PIECE]; /* of the pair that begins here */
    for (size_t i = 0; i + 1 < count; i++) {
        ranks[i] = pair_rank(bpe, ids[i], ids[i + 1]);
    }
    while (count > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < count; i++) {
            best = ranks[i] < ranks[best] ? i : best;
        }
        if (ranks[best] == NONE) {
            break;
        }
        ids[best] = bpe->results[ranks[best]];
        count--;
        memmove(ids + best + 1, ids + best + 2, (count - best - 1) * sizeof(*ids));
        memmove(ranks + best, ranks + best + 1, (count - best - 1) * sizeof(*ranks));
        if (best + 1 < count) {
            ranks[best] = pair_rank(bpe, ids[best], ids[best + 1]);
        }
        if (best > 0) {
            ranks[best - 1] = pair_rank(bpe, ids[best - 1], ids[best]);
        }
    }
    return count;
}

static mr_status encode_short(const mr_bpe *bpe, mr_bytes piece, mr_ids *out)
{
    uint32_t ids[SHORT_PIECE];
    size_t count = 0;
    for (size_t i = 0; i < piece.size; i++) {
        ids[count] = bpe->byte_ids[piece.data[i]];
        count += ids[count] != NONE;
    }
    return mr_ids_append(out, ids, merge_short(bpe, ids, count));
}

/* --- Long pieces ---------------------------------------------------------------------------- */

/* A symbol of the piece. Symbols keep their place in the array; a merge lengthens the left one and
 * takes the right one out of the list. */
typedef struct symbol {
    uint32_t id;
    uint32_t previous; /* NONE: first */
    uint32_t next;     /* NONE: last */
    uint32_t rank;     /* of the pair with the next symbol; NONE: no merge, or out of the list */
} symbol;

/* Pairs as rank << 32 | place of the left symbol, the least on top. A pair whose symbol has another
 * rank by now is out of date. Each merge takes one out and puts at most two in, so 2n are enough.
 */
typedef struct pair_heap {
    uint64_t *pairs;
    size_t count;
} pair_heap;

static void heap_push(pair_heap *heap, uint64_t pair)
{
    size_t at = heap->count++;
    while (at > 0 && heap->pairs[(at - 1) / 2] > pair) {
        heap->pairs[at] = heap->pairs[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap->pairs[at] = pair;
}

static uint64_t heap_pop(pair_heap *heap)
{
    const uint64_t top = heap->pairs[0];
    const uint64_t last = heap->pairs[--heap->count];
    size_t at = 0;
    for (size_t child = 1; child < heap->count; child = 2 * at + 1) {
        if (child + 1 < heap->count && heap->pairs[child + 1] < heap->pairs[child]) {
            child++;
        }
        if (heap->pairs[child] >= last) {
            break;
        }
        heap->pairs[at] = heap->pairs[child];
        at = child;
    }
    heap->pairs[at] = last;
    return top;
}

/* Ranks the pair that begins at `at` anew. */
static void rank_pair(const mr_bpe *bpe, symbol *symbols, pair_heap *heap, uint32_t at)
{
    const uint32_t next = symbols[at].next;
    symbols[at].rank = next == NONE ? NONE : pair_rank(bpe, symbols[at].id, symbols[next].id);
    if (symbols[at].rank != NONE) {
        heap_push(heap, (uint64_t)symbols[at].rank << 32 | at);
    }
}

static void merge_long(const mr_bpe *bpe, symbol *symbols, uint32_t count, uint64_t *pairs)
{
    pair_heap heap = {.pairs = pairs};
    for (uint32_t i = 0; i < count; i++) {
        rank_pair(bpe, symbols, &heap, i);
    }
    while (heap.count > 0) {
        const uint64_t pair = heap_pop(&heap);
        const uint32_t at = (uint32_t)pair;
        if (symbols[at].rank != pair >> 32) {
            continue;
        }
        symbol *left = &symbols[at];
        symbol *right = &symbols[left->next];
        left->id = bpe->results[left->rank];
        left->next = right->next;
        right->rank = NONE;
        if (left->next != NONE) {
            symbols[left->next].previous = at;
        }
        rank_pair(bpe, symbols, &heap, at);
        if (left->previous != NONE) {
            rank_pair(bpe, symbols, &heap, left->previous);
        }
    }
}

static mr_status scratch_reserve(mr_bpe_scratch *scratch, size_t bytes)
{
    if (bytes <= scratch->capacity) {
        return MR_OK;
    }
    mr_bpe_scratch_deinit(scratch);
    scratch->memory = mr_calloc(bytes, sizeof(symbol) + 2 * sizeof(uint64_t));
    if (scratch->memory == NULL) {
        return MR_RESOURCE_EXHAUSTED;
    }
    scratch->capacity = bytes;
    return MR_OK;
}

void mr_bpe_scratch_deinit(mr_bpe_scratch *scratch)
{
    free(scratch->memory);
    *scratch = (mr_bpe_scratch){0};
}

static mr_status encode_long(const mr_bpe *bpe, mr_bytes piece, mr_bpe_scratch *scratch,
                             mr_ids *out)
{
    MR_TRY(scratch_reserve(scratch, piece.size));
    uint64_t *pairs = scratch->memory;
    symbol *symbols = (symbol *)(pairs + 2 * piece.size);
    uint32_t count = 0;
    for (size_t i = 0; i < piece.size; i++) {
        const uint32_t id = bpe->byte_ids[piece.data[i]];
        if (id != NONE) {
            symbols[count] = (symbol){.id = id, .previous = count - 1, .next = count + 1};
            count++;
        }
    }
    if (count == 0) {
        return MR_OK;
    }
    symbols[count - 1].next = NONE;
    merge_long(bpe, symbols, count, pairs);
    for (uint32_t at = 0; at != NONE; at = symbols[at].next) {
        MR_TRY(mr_ids_push(out, symbols[at].id));
    }
    return MR_OK;
}

mr_status mr_bpe_encode(const mr_bpe *bpe, mr_bytes piece, mr_bpe_scratch *scratch, mr_ids *out)
{
    uint32_t id = NONE;
    if (bpe->whole != NULL && mr_string_map_get(bpe->whole, piece.data, piece.size, &id)) {
        return mr_ids_push(out, id);
    }
    return piece.size <= SHORT_PIECE ? encode_short(bpe, piece, out)
                                     : encode_long(bpe, piece, scratch, out);
}
