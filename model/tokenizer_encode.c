/* SPDX-License-Identifier: Apache-2.0 */
/* Text to ids. */
#include "base/utf8.h"
#include "model/tokenizer_internal.h"

#include <string.h>

#define MAX_TEXT_BYTES ((size_t)1 << 30) /* steps may make three bytes of one */

static mr_status check_text(const uint8_t *text, size_t bytes, const mr_encode_options *options,
                            mr_error *err)
{
    if (bytes > MAX_TEXT_BYTES) {
        return mr_fail(err, MR_INVALID_ARGUMENT, "a text of %zu bytes is too long (limit 1 GiB)",
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

/* Finds the added tokens of a text from left to right, none of which touches a plain span: matches
 * lie in the gaps between two. */
typedef struct added_search {
    const mr_tokenizer *tokenizer;
    const uint8_t *text;
    size_t bytes;
    const mr_encode_options *options;
    size_t next_span;
    size_t at;    /* where the next match is looked for */
    size_t taken; /* the text up to here is encoded */
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
        const mr_added_scope scope = {.text = search->text,
                                      .bytes = search->bytes,
                                      .begin = search->at,
                                      .end = gap_end.begin,
                                      .taken = search->taken};
        if (mr_added_tokens_find(&search->tokenizer->added, &scope, match)) {
            search->at = match->next;
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
    const mr_encode_options *options;
    mr_piece_cursor cursor;
    mr_bpe_scratch scratch;
    mr_text_work normal;   /* the text between two raw added tokens, normalised */
    mr_text_work prepared; /* the text between two added tokens, ready to be split */
} encode_state;

static mr_status no_memory(mr_status status, mr_error *err)
{
    if (status == MR_INVALID_ARGUMENT) {
        return mr_fail(err, status,
                       "the tokenizer's normalizer makes more than %u times as much of the text; "
                       "send token ids",
                       MR_TEXT_GROWTH);
    }
    return mr_fail(err, status, "no memory for the ids of a text");
}

static mr_status encode_pieces(encode_state *state, const uint8_t *text, size_t bytes, mr_ids *out,
                               mr_error *err)
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
            return no_memory(status, err);
        }
    }
}

/* Text in which no added token is left. `starts`: the whole text begins with it. */
static mr_status encode_ordinary(encode_state *state, const uint8_t *text, size_t bytes,
                                 bool starts, mr_ids *out, mr_error *err)
{
    if (state->tokenizer->prepare.count == 0 || bytes == 0) {
        return encode_pieces(state, text, bytes, out, err);
    }
    mr_text_work *work = &state->prepared;
    mr_status status = mr_text_work_set(work, text, bytes);
    if (status == MR_OK) {
        status = mr_text_steps_run(&state->tokenizer->prepare, starts, work);
    }
    return status == MR_OK ? encode_pieces(state, work->text.data, work->text.size, out, err)
                           : no_memory(status, err);
}

static mr_status push_id(mr_ids *out, uint32_t id, mr_error *err)
{
    const mr_status status = mr_ids_push(out, id);
    return status == MR_OK ? MR_OK : no_memory(status, err);
}

/* Gives the next stretch of the normalised text that is plain, or is not. */
static size_t marked_until(const mr_text_work *work, size_t begin, bool *marked)
{
    if (!work->marked) {
        *marked = false;
        return work->text.size;
    }
    *marked = work->marks.data[begin] != 0;
    const void *found = memchr(work->marks.data + begin, *marked ? 0 : 1, work->text.size - begin);
    return found == NULL ? work->text.size : (size_t)((const uint8_t *)found - work->marks.data);
}

/* The next added token of normalised text, as next_added for raw text. */
static bool next_normalized(const encode_state *state, size_t taken, size_t *at,
                            mr_added_match *match)
{
    const mr_text_work *work = &state->normal;
    while (*at < work->text.size) {
        bool marked;
        const size_t end = marked_until(work, *at, &marked);
        const mr_added_scope scope = {.text = work->text.data,
                                      .bytes = work->text.size,
                                      .begin = *at,
                                      .end = end,
                                      .taken = taken};
        if (!marked && mr_added_tokens_find(&state->tokenizer->added_normalized, &scope, match)) {
            *at = match->next;
            return true;
        }
        *at = end;
    }
    return false;
}

/* Marks what came from plain spans; the work's text is text[begin, …) of the whole. */
static void mark_plain(const encode_state *state, size_t begin, mr_text_work *work)
{
    const size_t end = begin + work->text.size;
    const mr_text_span *plain = state->options->plain;
    size_t i = 0;
    for (size_t count = state->options->n_plain;
         i < count;) { /* the first that ends behind begin */
        const size_t middle = i + (count - i) / 2;
        if (plain[middle].end <= begin) {
            i = middle + 1;
        } else {
            count = middle;
        }
    }
    for (; i < state->options->n_plain && plain[i].begin < end; i++) {
        const mr_text_span span = plain[i];
        const size_t from = span.begin > begin ? span.begin : begin;
        const size_t to = span.end < end ? span.end : end;
        if (from < to) {
            memset(work->marks.data + (from - begin), 1, to - from);
        }
    }
}

/* Text between two raw added tokens, which begins at `begin` of the whole text. */
static mr_status encode_between(encode_state *state, const uint8_t *text, size_t begin, size_t end,
                                mr_ids *out, mr_error *err)
{
    const mr_tokenizer *tokenizer = state->tokenizer;
    const bool searches = tokenizer->added_normalized.n_flags > 0 && state->options->parse_special;
    if (begin >= end) {
        return MR_OK;
    }
    if (tokenizer->normalizer.count == 0 && !searches) {
        return encode_ordinary(state, text + begin, end - begin, begin == 0, out, err);
    }
    mr_text_work *work = &state->normal;
    work->marked = searches && state->options->n_plain > 0;
    mr_status status = mr_text_work_set(work, text + begin, end - begin);
    if (status == MR_OK) {
        if (work->marked) {
            mark_plain(state, begin, work);
        }
        status = mr_text_steps_run(&tokenizer->normalizer, begin == 0, work);
    }
    if (status != MR_OK) {
        return no_memory(status, err);
    }
    size_t taken = 0;
    size_t at = 0;
    mr_added_match match;
    while (searches && next_normalized(state, taken, &at, &match)) {
        if (match.begin > taken) {
            MR_TRY(encode_ordinary(state, work->text.data + taken, match.begin - taken,
                                   begin == 0 && taken == 0, out, err));
        }
        MR_TRY(push_id(out, match.id, err));
        taken = match.end;
    }
    return encode_ordinary(state, work->text.data + taken, work->text.size - taken,
                           begin == 0 && taken == 0, out, err);
}

static mr_status encode_text(encode_state *state, added_search *search, mr_ids *out, mr_error *err)
{
    mr_added_match match;
    while (next_added(search, &match)) {
        MR_TRY(encode_between(state, search->text, search->taken, match.begin, out, err));
        MR_TRY(push_id(out, match.id, err));
        search->taken = match.end;
    }
    return encode_between(state, search->text, search->taken, search->bytes, out, err);
}

/* BOS in front, unless the text itself begins with it (K1: never two of them), and EOS behind. */
static mr_status add_special(const mr_tokenizer *tokenizer, size_t first, mr_ids *out,
                             mr_error *err)
{
    const uint32_t bos = tokenizer->bos_id;
    if (bos != MR_NO_ID && (out->count == first || out->data[first] != bos)) {
        MR_TRY(push_id(out, bos, err));
        memmove(out->data + first + 1, out->data + first,
                (out->count - first - 1) * sizeof(*out->data));
        out->data[first] = bos;
    }
    return tokenizer->eos_id != MR_NO_ID ? push_id(out, tokenizer->eos_id, err) : MR_OK;
}

mr_status mr_tokenizer_encode(const mr_tokenizer *tokenizer, const void *text, size_t bytes,
                              const mr_encode_options *options, mr_ids *out, mr_error *err)
{
    const uint8_t *data = bytes > 0 ? text : (const void *)"";
    MR_TRY(check_text(data, bytes, options, err));
    const size_t first = out->count;
    encode_state state = {.tokenizer = tokenizer, .options = options};
    added_search search = {
        .tokenizer = tokenizer, .text = data, .bytes = bytes, .options = options};
    MR_TRY(mr_piece_cursor_init(&state.cursor, tokenizer->pretokenizer, err));
    state.scratch.cache = mr_piece_caches_take(tokenizer->caches);
    mr_status status = encode_text(&state, &search, out, err);
    mr_piece_cache_give(state.scratch.cache);
    if (status == MR_OK && options->add_special) {
        status = add_special(tokenizer, first, out, err);
    }
    if (status != MR_OK) {
        out->count = first;
    }
    mr_text_work_deinit(&state.normal);
    mr_text_work_deinit(&state.prepared);
    mr_bpe_scratch_deinit(&state.scratch);
    mr_piece_cursor_deinit(&state.cursor);
    return status;
}
