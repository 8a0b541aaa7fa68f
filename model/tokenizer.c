/* SPDX-License-Identifier: Apache-2.0 */
#include "model/tokenizer.h"

#include "base/checked.h"
#include "base/utf8.h"
#include "model/added_tokens.h"
#include "model/bpe.h"
#include "model/pretokenizer.h"

#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX

struct mr_tokenizer {
    uint32_t n_tokens;
    uint32_t bos_id; /* NONE: raw prompts get none */
    uint32_t eos_id; /* NONE: raw prompts get none */
    uint8_t *kinds;  /* owns, [n_tokens] mr_token_kind */
    mr_bytes *raw;   /* owns, [n_tokens]: what each token stands for, in `arena` */
    uint8_t *arena;  /* owns */
    mr_added_tokens added;
    mr_pretokenizer *pretokenizer; /* owns */
    mr_bpe *bpe;                   /* owns */
};

/* --- Making one ----------------------------------------------------------------------------- */

static mr_status check_id(const char *name, uint32_t id, uint32_t n_tokens, bool wanted,
                          mr_error *err)
{
    if (id == NONE && wanted) {
        return mr_fail(err, MR_INVALID_ARGUMENT,
                       "the model wants a %s token around prompts but names none", name);
    }
    if (id != NONE && id >= n_tokens) {
        return mr_fail(err, MR_INVALID_ARGUMENT,
                       "%s token %u is not in the vocabulary of %u tokens", name, id, n_tokens);
    }
    return MR_OK;
}

static mr_status check_spec(const mr_tokenizer_spec *spec, mr_error *err)
{
    if (spec->model == NULL || strcmp(spec->model, "gpt2") != 0) {
        return mr_fail(err, MR_UNIMPLEMENTED,
                       "tokenizer model \"%s\" is not implemented (gpt2, byte-level BPE, is): use "
                       "another model, or send token ids",
                       spec->model != NULL ? spec->model : "");
    }
    if (spec->n_tokens == 0 || spec->n_tokens == NONE) {
        return mr_fail(err, MR_INVALID_ARGUMENT, "a vocabulary of %u tokens", spec->n_tokens);
    }
    MR_TRY(check_id("BOS", spec->bos_id, spec->n_tokens, spec->add_bos, err));
    MR_TRY(check_id("EOS", spec->eos_id, spec->n_tokens, spec->add_eos, err));
    for (uint32_t id = 0; id < spec->n_tokens; id++) {
        size_t bad = 0;
        if (spec->kinds[id] > MR_TOKEN_UNUSED) {
            return mr_fail(err, MR_INVALID_ARGUMENT, "token %u has the unknown kind %u", id,
                           (unsigned)spec->kinds[id]);
        }
        /* A match of half a character would leave text that the patterns cannot read. */
        if (!mr_utf8_valid(spec->tokens[id].data, spec->tokens[id].size, &bad)) {
            return mr_fail(err, MR_INVALID_ARGUMENT, "token %u is not UTF-8 at byte %zu", id, bad);
        }
    }
    return MR_OK;
}

/* Turns every token into the bytes it stands for: added ones are literal; the others are in the
 * byte-level alphabet, or literal, as Hugging Face's decoder has it, when a character is not. */
static mr_status fill_raw(mr_tokenizer *made, const mr_tokenizer_spec *spec)
{
    uint64_t total = 1;
    for (uint32_t id = 0; id < spec->n_tokens; id++) {
        if (!mr_add_u64(total, spec->tokens[id].size, &total)) {
            return MR_RESOURCE_EXHAUSTED;
        }
    }
    made->raw = mr_calloc(spec->n_tokens, sizeof(*made->raw));
    made->kinds = mr_calloc(spec->n_tokens, 1);
    made->arena = mr_calloc(total, 1);
    if (made->raw == NULL || made->kinds == NULL || made->arena == NULL) {
        return MR_RESOURCE_EXHAUSTED;
    }
    memcpy(made->kinds, spec->kinds, spec->n_tokens);
    uint8_t *next = made->arena;
    for (uint32_t id = 0; id < spec->n_tokens; id++) {
        const mr_bytes text = spec->tokens[id];
        size_t bytes = 0;
        if (spec->kinds[id] != MR_TOKEN_UNUSED && text.size > 0 &&
            (spec->kinds[id] != MR_TOKEN_NORMAL || !mr_bpe_alphabet_decode(text, next, &bytes))) {
            memcpy(next, text.data, text.size);
            bytes = text.size;
        }
        made->raw[id] = (mr_bytes){.data = next, .size = bytes};
        next += bytes;
    }
    return MR_OK;
}

mr_status mr_tokenizer_create(const mr_tokenizer_spec *spec, mr_tokenizer **out, mr_error *err)
{
    *out = NULL;
    MR_TRY(check_spec(spec, err));
    mr_tokenizer *made = mr_calloc(1, sizeof(*made));
    mr_status status = MR_RESOURCE_EXHAUSTED;
    if (made == NULL || fill_raw(made, spec) != MR_OK) {
        (void)mr_fail(err, status, "no memory for the vocabulary");
        goto cleanup;
    }
    made->n_tokens = spec->n_tokens;
    made->bos_id = spec->add_bos ? spec->bos_id : NONE;
    made->eos_id = spec->add_eos ? spec->eos_id : NONE;
    MR_TRY_CLEANUP(status, mr_pretokenizer_create(spec->pre_tokenizer, &made->pretokenizer, err));
    MR_TRY_CLEANUP(status, mr_added_tokens_init(&made->added, spec, err));
    MR_TRY_CLEANUP(status,
                   mr_bpe_create(spec, made->raw, mr_pretokenizer_whole_tokens(made->pretokenizer),
                                 &made->bpe, err));
    *out = made;
    made = NULL;
cleanup:
    mr_tokenizer_destroy(made);
    return status;
}

void mr_tokenizer_destroy(mr_tokenizer *tokenizer)
{
    if (tokenizer != NULL) {
        mr_bpe_destroy(tokenizer->bpe);
        mr_pretokenizer_destroy(tokenizer->pretokenizer);
        mr_added_tokens_deinit(&tokenizer->added);
        free(tokenizer->arena);
        free(tokenizer->raw);
        free(tokenizer->kinds);
        free(tokenizer);
    }
}

/* --- Text to ids ---------------------------------------------------------------------------- */

static mr_status check_text(const uint8_t *text, size_t bytes, const mr_encode_options *options,
                            mr_error *err)
{
    if (bytes >= UINT32_MAX) {
        return mr_fail(err, MR_INVALID_ARGUMENT, "a text of %zu bytes is too long (limit 4 GiB)",
                       bytes);
    }
    size_t bad = 0;
    if (!mr_utf8_valid(text, bytes, &bad)) {
        return mr_fail(err, MR_INVALID_ARGUMENT, "the text is not UTF-8 at byte %zu", bad);
    }
    size_t from = 0;
    for (size_t i = 0; i < options->n_plain; i++) {
        const mr_text_span span = options->plain[i];
        if (span.begin < from || span.end < span.begin || span.end > bytes) {
            return mr_fail(err, MR_INVALID_ARGUMENT,
                           "plain span %zu (%zu to %zu) overlaps the one before it or leaves the "
                           "text of %zu bytes",
                           i, span.begin, span.end, bytes);
        }
        from = span.end;
    }
    return MR_OK;
}

/* Finds the added tokens of a text from left to right, none of which touches a plain span: each
 * gap between two spans is searched as if it were all there is. */
typedef struct added_search {
    const mr_tokenizer *tokenizer;
    const uint8_t *text;
    size_t bytes;
    const mr_encode_options *options;
    size_t next_span;
    size_t at;
} added_search;

static bool next_added(added_search *search, mr_added_match *match)
{
    if (!search->options->parse_special) {
        return false;
    }
    for (;;) {
        const mr_encode_options *options = search->options;
        const bool last = search->next_span == options->n_plain;
        const mr_text_span gap_end =
            last ? (mr_text_span){search->bytes, search->bytes} : options->plain[search->next_span];
        if (!last && gap_end.begin == gap_end.end) {
            search->next_span++; /* an empty span holds no byte that could be matched */
            continue;
        }
        if (mr_added_tokens_find(&search->tokenizer->added, search->text, search->at, gap_end.begin,
                                 match)) {
            search->at = match->end;
            return true;
        }
        if (last) {
            return false;
        }
        search->at = gap_end.end;
        search->next_span++;
    }
}

typedef struct encode_state {
    const mr_tokenizer *tokenizer;
    mr_piece_cursor cursor;
    mr_bpe_scratch scratch;
} encode_state;

/* Text in which no added token is left. */
static mr_status encode_ordinary(encode_state *state, const uint8_t *text, size_t bytes,
                                 mr_ids *out, mr_error *err)
{
    mr_bytes piece;
    mr_piece_cursor_start(&state->cursor, text, bytes);
    for (;;) {
        MR_TRY(mr_piece_cursor_next(&state->cursor, &piece, err));
        if (piece.size == 0) {
            return MR_OK;
        }
        const mr_status status = mr_bpe_encode(state->tokenizer->bpe, piece, &state->scratch, out);
        if (status != MR_OK) {
            return mr_fail(err, status, "no memory for the ids of a text");
        }
    }
}

static mr_status push_id(mr_ids *out, uint32_t id, mr_error *err)
{
    const mr_status status = mr_ids_push(out, id);
    return status == MR_OK ? MR_OK : mr_fail(err, status, "no memory for the ids of a text");
}

static mr_status encode_text(encode_state *state, added_search *search, mr_ids *out, mr_error *err)
{
    size_t at = 0;
    mr_added_match match;
    while (next_added(search, &match)) {
        MR_TRY(encode_ordinary(state, search->text + at, match.begin - at, out, err));
        MR_TRY(push_id(out, match.id, err));
        at = match.end;
    }
    return encode_ordinary(state, search->text + at, search->bytes - at, out, err);
}

/* BOS in front, unless the text itself begins with it (K1: never two of them), and EOS behind. */
static mr_status add_special(const mr_tokenizer *tokenizer, size_t first, mr_ids *out,
                             mr_error *err)
{
    const uint32_t bos = tokenizer->bos_id;
    if (bos != NONE && (out->count == first || out->data[first] != bos)) {
        MR_TRY(push_id(out, bos, err));
        memmove(out->data + first + 1, out->data + first,
                (out->count - first - 1) * sizeof(*out->data));
        out->data[first] = bos;
    }
    return tokenizer->eos_id != NONE ? push_id(out, tokenizer->eos_id, err) : MR_OK;
}

mr_status mr_tokenizer_encode(const mr_tokenizer *tokenizer, const void *text, size_t bytes,
                              const mr_encode_options *options, mr_ids *out, mr_error *err)
{
    const uint8_t *data = bytes > 0 ? text : (const void *)"";
    MR_TRY(check_text(data, bytes, options, err));
    const size_t first = out->count;
    encode_state state = {.tokenizer = tokenizer};
    added_search search = {
        .tokenizer = tokenizer, .text = data, .bytes = bytes, .options = options};
    MR_TRY(mr_piece_cursor_init(&state.cursor, tokenizer->pretokenizer, err));
    mr_status status = encode_text(&state, &search, out, err);
    if (status == MR_OK && options->add_special) {
        status = add_special(tokenizer, first, out, err);
    }
    if (status != MR_OK) {
        out->count = first;
    }
    mr_bpe_scratch_deinit(&state.scratch);
    mr_piece_cursor_deinit(&state.cursor);
    return status;
}

/* --- Ids to text, and questions ------------------------------------------------------------- */

uint32_t mr_tokenizer_vocab_size(const mr_tokenizer *tokenizer)
{
    return tokenizer->n_tokens;
}

mr_token_kind mr_tokenizer_kind(const mr_tokenizer *tokenizer, uint32_t id)
{
    MR_CHECK(id < tokenizer->n_tokens);
    return (mr_token_kind)tokenizer->kinds[id];
}

mr_bytes mr_tokenizer_token_bytes(const mr_tokenizer *tokenizer, uint32_t id)
{
    MR_CHECK(id < tokenizer->n_tokens);
    return tokenizer->raw[id];
}

uint32_t mr_tokenizer_bos(const mr_tokenizer *tokenizer)
{
    return tokenizer->bos_id;
}

mr_status mr_tokenizer_decode(const mr_tokenizer *tokenizer, const uint32_t *ids, size_t count,
                              bool keep_special, mr_buffer *out, mr_error *err)
{
    const size_t first = out->size;
    for (size_t i = 0; i < count; i++) {
        if (ids[i] >= tokenizer->n_tokens) {
            out->size = first;
            return mr_fail(err, MR_INVALID_ARGUMENT,
                           "id %u at index %zu is not in the vocabulary of %u tokens", ids[i], i,
                           tokenizer->n_tokens);
        }
        if (!keep_special && tokenizer->kinds[ids[i]] == MR_TOKEN_SPECIAL) {
            continue;
        }
        const mr_bytes bytes = tokenizer->raw[ids[i]];
        const mr_status status = mr_buffer_append(out, bytes.data, bytes.size);
        if (status != MR_OK) {
            out->size = first;
            return mr_fail(err, status, "no memory for the text of %zu ids", count);
        }
    }
    return MR_OK;
}
