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
#include "model/bpe_tables.h"
#include "model/unicode_form.h"

#include <stdlib.h>
#include <string.h>

#define NONE        MR_BPE_NONE
#define SHORT_PIECE 48u /* bytes; up to here the scan is faster than the heap */

static uint32_t pair_rank(const mr_bpe *bpe, uint32_t left, uint32_t right)
{
    uint32_t rank = NONE;
    return mr_u64_map_get(bpe->ranks, mr_bpe_pair_key(left, right), &rank) ? rank : NONE;
}

/* --- Making one ----------------------------------------------------------------------------- */

/* Whether the token may stand in a piece. */
static bool fits_piece(const mr_bpe *bpe, const mr_tokenizer_spec *spec, uint32_t id)
{
    size_t bytes = spec->tokens[id].size;
    return spec->kinds[id] == MR_TOKEN_NORMAL && bytes > 0 &&
           (!bpe->byte_level || mr_bpe_alphabet_decode(spec->tokens[id], NULL, &bytes));
}

/* Whether the piece that a token stands for becomes just that token. */
static mr_status is_whole(const mr_bpe *bpe, const mr_tokenizer_spec *spec, mr_bytes piece,
                          uint32_t id, mr_bpe_scratch *scratch, mr_ids *ids, bool *whole)
{
    *whole = spec->whole_tokens;
    if (*whole) {
        return MR_OK;
    }
    ids->count = 0;
    MR_TRY(mr_bpe_encode(bpe, piece, scratch, ids));
    *whole = ids->count == 1 && ids->data[0] == id;
    return MR_OK;
}

/* Fills `whole`; in it are the NORMAL tokens that their own text merges to, or all of them. The
 * keys are the tokens as bytes, or copies of their texts. */
static mr_status fill_whole(mr_bpe *bpe, const mr_tokenizer_spec *spec, const mr_bytes *raw,
                            mr_string_map *whole)
{
    mr_status status = MR_OK;
    mr_ids ids = {0};
    mr_bpe_scratch scratch = {0};
    uint8_t *next = bpe->texts;
    for (uint32_t id = 0; id < spec->n_tokens && status == MR_OK; id++) {
        mr_bytes piece = bpe->byte_level ? raw[id] : spec->tokens[id];
        bool found = false;
        if (fits_piece(bpe, spec, id)) {
            status = is_whole(bpe, spec, piece, id, &scratch, &ids, &found);
        }
        if (!found) {
            continue;
        }
        if (!bpe->byte_level) {
            memcpy(next, piece.data, piece.size);
            piece.data = next;
            next += piece.size;
        }
        status = mr_string_map_put(whole, piece.data, piece.size, id);
        status = status == MR_ALREADY_EXISTS ? MR_OK : status;
    }
    mr_bpe_scratch_deinit(&scratch);
    mr_ids_deinit(&ids);
    return status;
}

static mr_status index_whole(mr_bpe *bpe, const mr_tokenizer_spec *spec, const mr_bytes *raw,
                             mr_error *err)
{
    uint64_t bytes = 1;
    bool fits = true;
    for (uint32_t id = 0; id < spec->n_tokens && !bpe->byte_level; id++) {
        fits = fits && mr_add_u64(bytes, spec->tokens[id].size, &bytes);
    }
    mr_string_map *whole = NULL;
    bpe->texts = fits ? mr_calloc(bytes, 1) : NULL;
    mr_status status =
        bpe->texts != NULL ? mr_string_map_create(spec->n_tokens, &whole) : MR_RESOURCE_EXHAUSTED;
    if (status == MR_OK) {
        status = fill_whole(bpe, spec, raw, whole);
    }
    bpe->whole = whole; /* only now: filling it must not look into it */
    return status == MR_OK ? MR_OK : mr_fail(err, status, "no memory for the vocabulary");
}

mr_status mr_bpe_create(const mr_tokenizer_spec *spec, const mr_bytes *raw, mr_bpe **out,
                        mr_error *err)
{
    *out = NULL;
    mr_bpe *bpe = mr_calloc(1, sizeof(*bpe));
    if (bpe == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "no memory for the vocabulary");
    }
    mr_status status = mr_bpe_fill(bpe, spec, err);
    if (status == MR_OK) {
        status = index_whole(bpe, spec, raw, err);
    }
    if (status != MR_OK) {
        mr_bpe_destroy(bpe);
        return status;
    }
    *out = bpe;
    return MR_OK;
}

void mr_bpe_destroy(mr_bpe *bpe)
{
    if (bpe != NULL) {
        mr_string_map_destroy(bpe->whole);
        mr_u64_map_destroy(bpe->characters);
        mr_u64_map_destroy(bpe->ranks);
        free(bpe->byte_ranks);
        free(bpe->results);
        free(bpe->texts);
        free(bpe);
    }
}

/* --- Symbols -------------------------------------------------------------------------------- */

/* What is no token, on its way to become the unknown token. */
static size_t flush_unknown(const mr_bpe *bpe, bool *pending, uint32_t *ids, size_t count)
{
    if (*pending) {
        ids[count++] = bpe->unknown_id;
        *pending = false;
    }
    return count;
}

static size_t add_unknown(const mr_bpe *bpe, bool *pending, uint32_t *ids, size_t count)
{
    if (!bpe->has_unknown) {
        return count;
    }
    if (!bpe->fuse_unknown) {
        count = flush_unknown(bpe, pending, ids, count);
    }
    *pending = true;
    return count;
}

/* The tokens of all bytes; false if one has none. */
static bool fall_back(const mr_bpe *bpe, const uint8_t *bytes, size_t count, uint32_t *ids)
{
    bool all = bpe->has_fallback;
    for (size_t i = 0; i < count; i++) {
        ids[i] = bpe->byte_ids[bytes[i]];
        all = all && ids[i] != NONE;
    }
    return all;
}

static size_t read_bytes(const mr_bpe *bpe, mr_bytes piece, uint32_t *ids)
{
    size_t count = 0;
    bool pending = false;
    for (size_t i = 0; i < piece.size; i++) {
        const uint32_t id = bpe->byte_ids[piece.data[i]];
        if (id != NONE) {
            count = flush_unknown(bpe, &pending, ids, count);
            ids[count++] = id;
        } else {
            count = add_unknown(bpe, &pending, ids, count);
        }
    }
    return flush_unknown(bpe, &pending, ids, count);
}

static size_t read_characters(const mr_bpe *bpe, mr_bytes piece, uint32_t *ids)
{
    size_t count = 0;
    bool pending = false;
    for (size_t at = 0; at < piece.size;) {
        const size_t begin = at;
        const int32_t character = mr_unicode_read(piece.data, at, &at);
        uint32_t id = NONE;
        if (character < 128) {
            id = bpe->ascii[character];
        } else if (!mr_u64_map_get(bpe->characters, (uint64_t)character, &id)) {
            id = NONE;
        }
        if (id != NONE) {
            count = flush_unknown(bpe, &pending, ids, count);
            ids[count++] = id;
        } else if (fall_back(bpe, piece.data + begin, at - begin, ids + count)) {
            count += at - begin; /* as in Hugging Face, unknown ones before it come after it */
        } else {
            count = add_unknown(bpe, &pending, ids, count);
        }
    }
    return flush_unknown(bpe, &pending, ids, count);
}

/* The symbols of a piece before any merge: at most piece.size ids. */
static size_t read_symbols(const mr_bpe *bpe, mr_bytes piece, uint32_t *ids)
{
    return bpe->byte_level ? read_bytes(bpe, piece, ids) : read_characters(bpe, piece, ids);
}

/* --- Short pieces --------------------------------------------------------------------------- */

/* The rank of the symbols i and i + 1 of a piece before any merge. */
static uint32_t first_rank(const mr_bpe *bpe, mr_bytes piece, const uint32_t *ids, size_t i)
{
    return bpe->byte_ranks != NULL ? bpe->byte_ranks[piece.data[i] << 8 | piece.data[i + 1]]
                                   : pair_rank(bpe, ids[i], ids[i + 1]);
}

static size_t merge_short(const mr_bpe *bpe, mr_bytes piece, uint32_t *ids, size_t count)
{
    uint32_t ranks[SHORT_PIECE]; /* of the pair that begins here */
    for (size_t i = 0; i + 1 < count; i++) {
        ranks[i] = first_rank(bpe, piece, ids, i);
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
    const size_t count = read_symbols(bpe, piece, ids);
    return mr_ids_append(out, ids, merge_short(bpe, piece, ids, count));
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

static void merge_long(const mr_bpe *bpe, symbol *symbols, pair_heap *heap)
{
    while (heap->count > 0) {
        const uint64_t pair = heap_pop(heap);
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
        rank_pair(bpe, symbols, heap, at);
        if (left->previous != NONE) {
            rank_pair(bpe, symbols, heap, left->previous);
        }
    }
}

static mr_status scratch_reserve(mr_bpe_scratch *scratch, size_t bytes)
{
    if (bytes <= scratch->capacity) {
        return MR_OK;
    }
    free(scratch->memory);
    scratch->capacity = 0;
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
    uint32_t *ids = (uint32_t *)pairs; /* the heap is empty until all symbols are read */
    const uint32_t count = (uint32_t)read_symbols(bpe, piece, ids);
    if (count == 0) {
        return MR_OK;
    }
    for (uint32_t i = 0; i < count; i++) {
        symbols[i] = (symbol){.id = ids[i], .previous = i - 1, .next = i + 1, .rank = NONE};
        if (i + 1 < count) {
            symbols[i].rank = first_rank(bpe, piece, ids, i);
        }
    }
    symbols[count - 1].next = NONE;
    pair_heap heap = {.pairs = pairs};
    for (uint32_t i = 0; i < count; i++) {
        if (symbols[i].rank != NONE) {
            heap_push(&heap, (uint64_t)symbols[i].rank << 32 | i);
        }
    }
    merge_long(bpe, symbols, &heap);
    for (uint32_t at = 0; at != NONE; at = symbols[at].next) {
        MR_TRY(mr_ids_push(out, symbols[at].id));
    }
    return MR_OK;
}

/* --- Pieces --------------------------------------------------------------------------------- */

static mr_status encode_piece(const mr_bpe *bpe, mr_bytes piece, mr_bpe_scratch *scratch,
                              mr_ids *out)
{
    const uint32_t *known = NULL;
    const size_t count =
        scratch->cache != NULL ? mr_piece_cache_get(scratch->cache, piece, &known) : 0;
    if (count > 0) {
        return mr_ids_append(out, known, count);
    }
    const size_t first = out->count;
    uint32_t id = NONE;
    if (bpe->whole != NULL && mr_string_map_get(bpe->whole, piece.data, piece.size, &id)) {
        MR_TRY(mr_ids_push(out, id));
    } else {
        MR_TRY(piece.size <= SHORT_PIECE ? encode_short(bpe, piece, out)
                                         : encode_long(bpe, piece, scratch, out));
    }
    if (scratch->cache != NULL && out->count > first) {
        mr_piece_cache_put(scratch->cache, piece, out->data + first, out->count - first);
    }
    return MR_OK;
}

/* Bytes of the first word: up to a U+2581 that follows something else. */
static size_t first_word(mr_bytes text)
{
    static const uint8_t mark[3] = {0xE2, 0x96, 0x81};
    size_t at = 0;
    while (at + 3 <= text.size && memcmp(text.data + at, mark, 3) == 0) {
        at += 3;
    }
    const uint8_t *next =
        at < text.size ? memmem(text.data + at, text.size - at, mark, sizeof(mark)) : NULL;
    return next != NULL ? (size_t)(next - text.data) : text.size;
}

mr_status mr_bpe_encode(const mr_bpe *bpe, mr_bytes piece, mr_bpe_scratch *scratch, mr_ids *out)
{
    if (piece.size >= NONE) {
        return MR_RESOURCE_EXHAUSTED;
    }
    if (!bpe->cuts_words) {
        return encode_piece(bpe, piece, scratch, out);
    }
    while (piece.size > 0) {
        const size_t bytes = first_word(piece);
        MR_TRY(encode_piece(bpe, (mr_bytes){.data = piece.data, .size = bytes}, scratch, out));
        piece.data += bytes;
        piece.size -= bytes;
    }
    return MR_OK;
}
