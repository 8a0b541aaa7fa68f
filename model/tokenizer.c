/* SPDX-License-Identifier: Apache-2.0 */
#include "model/tokenizer.h"

#include "base/checked.h"
#include "base/utf8.h"
#include "model/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

/* --- Making one ----------------------------------------------------------------------------- */

static mr_status check_id(const char *name, uint32_t id, uint32_t n_tokens, bool wanted,
                          mr_error *err)
{
    if (id == MR_NO_ID && wanted) {
        return mr_fail(err, MR_INVALID_ARGUMENT,
                       "the model wants a %s token around prompts but names none", name);
    }
    if (id != MR_NO_ID && id >= n_tokens) {
        return mr_fail(err, MR_INVALID_ARGUMENT,
                       "%s token %u is not in the vocabulary of %u tokens", name, id, n_tokens);
    }
    return MR_OK;
}

bool mr_tokenizer_spec_is_byte_level(const mr_tokenizer_spec *spec)
{
    return strcmp(spec->model, "gpt2") == 0;
}

static mr_status check_spec(const mr_tokenizer_spec *spec, mr_error *err)
{
    if (spec->model == NULL ||
        (strcmp(spec->model, "gpt2") != 0 && strcmp(spec->model, "llama") != 0)) {
        return mr_fail(
            err, MR_UNIMPLEMENTED,
            "tokenizer model \"%s\" is not implemented (gpt2, byte-level BPE, and llama, "
            "BPE with byte fallback, are): use another model, or send token ids",
            spec->model != NULL ? spec->model : "");
    }
    if (spec->n_tokens == 0 || spec->n_tokens == MR_NO_ID) {
        return mr_fail(err, MR_INVALID_ARGUMENT, "a vocabulary of %u tokens", spec->n_tokens);
    }
    MR_TRY(check_id("BOS", spec->bos_id, spec->n_tokens, spec->add_bos, err));
    MR_TRY(check_id("EOS", spec->eos_id, spec->n_tokens, spec->add_eos, err));
    if (spec->has_unknown && spec->unknown_id >= spec->n_tokens) {
        return mr_fail(err, MR_INVALID_ARGUMENT,
                       "unknown token %u is not in the vocabulary of %u tokens", spec->unknown_id,
                       spec->n_tokens);
    }
    for (uint32_t i = 0; i < spec->n_added; i++) {
        if (spec->added[i].id >= spec->n_tokens) {
            return mr_fail(err, MR_INVALID_ARGUMENT,
                           "added token %u is not in the vocabulary of %u tokens",
                           spec->added[i].id, spec->n_tokens);
        }
    }
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

/* The tokens that are matched in normalised text, [n_tokens] 0 or 1: what they stand for is
 * normalised too. NULL: out of memory. */
static uint8_t *find_normalized(const mr_tokenizer_spec *spec)
{
    uint8_t *marks = mr_calloc(spec->n_tokens, 1);
    for (uint32_t i = 0; marks != NULL && i < spec->n_added; i++) {
        marks[spec->added[i].id] = spec->added[i].normalized;
    }
    return marks;
}

/* Writes what a token stands for to `work`: added ones are literal to byte-level models; the others
 * are in the byte-level alphabet, or literal, as Hugging Face's decoder has it, when a character is
 * not. SentencePiece's tokens are decoded, all but those that are a byte. */
static mr_status token_bytes(const mr_tokenizer_spec *spec, const mr_text_steps *decode,
                             uint32_t id, mr_text_work *work)
{
    const bool normal = spec->kinds[id] == MR_TOKEN_NORMAL;
    const mr_bytes text = spec->tokens[id];
    if (mr_tokenizer_spec_is_byte_level(spec)) {
        size_t bytes = 0;
        MR_TRY(mr_buffer_reserve(&work->text, text.size));
        if (normal && mr_bpe_alphabet_decode(text, work->text.data, &bytes)) {
            work->text.size = bytes;
        }
        return MR_OK;
    }
    uint8_t byte = 0;
    if (normal && spec->byte_fallback && mr_bpe_byte_token(text, &byte)) {
        work->text.size = 0;
        return mr_buffer_append(&work->text, &byte, 1);
    }
    return mr_text_steps_run(decode, false, work);
}

static mr_status fill_tokens(mr_tokenizer *made, const mr_tokenizer_spec *spec,
                             const mr_text_steps *decode, mr_buffer *all)
{
    mr_text_work work = {0};
    uint8_t *normalized = find_normalized(spec);
    mr_status status = normalized != NULL ? MR_OK : MR_RESOURCE_EXHAUSTED;
    for (uint32_t id = 0; id < spec->n_tokens && status == MR_OK; id++) {
        if (spec->kinds[id] == MR_TOKEN_UNUSED || spec->tokens[id].size == 0) {
            continue;
        }
        status = mr_text_work_set(&work, spec->tokens[id].data, spec->tokens[id].size);
        if (status == MR_OK && normalized[id]) {
            status = mr_text_steps_run(&made->normalizer, true, &work);
        }
        if (status == MR_OK) {
            status = token_bytes(spec, decode, id, &work);
        }
        made->raw[id].size = work.text.size;
        if (status == MR_OK) {
            status = mr_buffer_append(all, work.text.data, work.text.size);
        }
    }
    free(normalized);
    mr_text_work_deinit(&work);
    return status;
}

/* Turns every token into the bytes it stands for. */
static mr_status fill_raw(mr_tokenizer *made, const mr_tokenizer_spec *spec, mr_error *err)
{
    mr_text_steps decode = {0};
    mr_buffer all = {0};
    mr_status status = mr_text_steps_init(&decode, spec->decode, spec->n_decode, err);
    if (status != MR_OK) {
        return status;
    }
    made->raw = mr_calloc(spec->n_tokens, sizeof(*made->raw));
    made->kinds = mr_calloc(spec->n_tokens, 1);
    status = MR_RESOURCE_EXHAUSTED;
    if (made->raw != NULL && made->kinds != NULL && mr_buffer_reserve(&all, 1) == MR_OK) {
        memcpy(made->kinds, spec->kinds, spec->n_tokens);
        status = fill_tokens(made, spec, &decode, &all);
    }
    made->arena = all.data;
    const uint8_t *next = all.data;
    for (uint32_t id = 0; id < spec->n_tokens && status == MR_OK; id++) {
        made->raw[id].data = next;
        next += made->raw[id].size;
        if (made->raw[id].size > made->longest) {
            made->longest = made->raw[id].size;
        }
    }
    mr_text_steps_deinit(&decode);
    if (status == MR_INVALID_ARGUMENT) {
        return mr_fail(err, status,
                       "the normalizer or the decoder makes more than %u times as much of a token",
                       MR_TEXT_GROWTH);
    }
    return status == MR_OK ? MR_OK : mr_fail(err, status, "no memory for the vocabulary");
}

/* Every token that is matched in text, when the specification lists none. */
static mr_status collect_added(const mr_tokenizer_spec *spec, mr_added_token **out, uint32_t *count,
                               mr_error *err)
{
    *count = 0;
    *out = mr_calloc((size_t)spec->n_tokens + 1, sizeof(**out));
    if (*out == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "no memory for the added tokens");
    }
    for (uint32_t id = 0; id < spec->n_tokens; id++) {
        if (spec->kinds[id] == MR_TOKEN_SPECIAL || spec->kinds[id] == MR_TOKEN_ADDED) {
            (*out)[(*count)++] = (mr_added_token){.text = spec->tokens[id], .id = id};
        }
    }
    return MR_OK;
}

static mr_status make_added(mr_tokenizer *made, const mr_tokenizer_spec *spec, mr_error *err)
{
    const mr_added_token *items = spec->added;
    uint32_t count = spec->n_added;
    mr_added_token *collected = NULL;
    if (items == NULL) {
        MR_TRY(collect_added(spec, &collected, &count, err));
        items = collected;
    }
    mr_status status = mr_added_tokens_init(&made->added, items, count, false, NULL, err);
    if (status == MR_OK) {
        status = mr_added_tokens_init(&made->added_normalized, items, count, true,
                                      &made->normalizer, err);
    }
    free(collected);
    return status;
}

/* The family's own steps, when the specification names one. */
static mr_status apply_family(mr_tokenizer_spec *spec, mr_error *err)
{
    if (spec->pre_tokenizer == NULL || !mr_tokenizer_spec_is_byte_level(spec)) {
        return MR_OK;
    }
    const mr_tokenizer_family *family;
    MR_TRY(mr_tokenizer_family_find(spec->pre_tokenizer, &family, err));
    memcpy(spec->splits, family->splits, sizeof(family->splits));
    spec->n_splits = family->n_splits;
    spec->whole_tokens = spec->whole_tokens || family->whole_tokens;
    if (family->nfc && spec->n_normalizer == 0) {
        spec->normalizer[spec->n_normalizer++] = (mr_text_step){.kind = MR_TEXT_NFC};
    }
    return MR_OK;
}

static mr_status make_parts(mr_tokenizer *made, const mr_tokenizer_spec *spec, mr_error *err)
{
    MR_TRY(mr_text_steps_init(&made->normalizer, spec->normalizer, spec->n_normalizer, err));
    MR_TRY(fill_raw(made, spec, err));
    MR_TRY(mr_text_steps_init(&made->prepare, spec->prepare, spec->n_prepare, err));
    MR_TRY(mr_pretokenizer_create(spec->splits, spec->n_splits, &made->pretokenizer, err));
    MR_TRY(make_added(made, spec, err));
    MR_TRY(mr_bpe_create(spec, made->raw, &made->bpe, err));
    const mr_status status = mr_piece_caches_create(&made->caches);
    return status == MR_OK ? MR_OK : mr_fail(err, status, "no memory for the tokenizer");
}

mr_status mr_tokenizer_create(const mr_tokenizer_spec *given, mr_tokenizer **out, mr_error *err)
{
    *out = NULL;
    mr_tokenizer_spec spec = *given;
    MR_TRY(check_spec(&spec, err));
    MR_TRY(apply_family(&spec, err));
    mr_tokenizer *made = mr_calloc(1, sizeof(*made));
    if (made == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "no memory for the vocabulary");
    }
    made->n_tokens = spec.n_tokens;
    made->bos_id = spec.add_bos ? spec.bos_id : MR_NO_ID;
    made->eos_id = spec.add_eos ? spec.eos_id : MR_NO_ID;
    made->decode_strip = spec.decode_strip;
    made->decode_bare_first = spec.decode_bare_first;
    const mr_status status = make_parts(made, &spec, err);
    if (status != MR_OK) {
        mr_tokenizer_destroy(made);
        return status;
    }
    *out = made;
    return MR_OK;
}

void mr_tokenizer_destroy(mr_tokenizer *tokenizer)
{
    if (tokenizer != NULL) {
        mr_piece_caches_destroy(tokenizer->caches);
        mr_bpe_destroy(tokenizer->bpe);
        mr_pretokenizer_destroy(tokenizer->pretokenizer);
        mr_added_tokens_deinit(&tokenizer->added);
        mr_added_tokens_deinit(&tokenizer->added_normalized);
        mr_text_steps_deinit(&tokenizer->normalizer);
        mr_text_steps_deinit(&tokenizer->prepare);
        free(tokenizer->arena);
        free(tokenizer->raw);
        free(tokenizer->kinds);
        free(tokenizer);
    }
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

size_t mr_tokenizer_longest_token(const mr_tokenizer *tokenizer)
{
    return tokenizer->longest;
}

uint32_t mr_tokenizer_bos(const mr_tokenizer *tokenizer)
{
    return tokenizer->bos_id;
}

uint32_t mr_tokenizer_find(const mr_tokenizer *tokenizer, mr_bytes text)
{
    for (uint32_t id = 0; id < tokenizer->n_tokens && text.size > 0; id++) {
        const uint8_t kind = tokenizer->kinds[id];
        if ((kind == MR_TOKEN_SPECIAL || kind == MR_TOKEN_ADDED) &&
            mr_bytes_equal(tokenizer->raw[id], text)) {
            return id;
        }
    }
    return MR_NO_ID;
}

/* Takes off what the family's encoding put in front of a text. */
static void strip_beginning(const mr_tokenizer *tokenizer, size_t first, size_t first_token,
                            mr_buffer *out)
{
    size_t spaces = 0;
    const size_t most = tokenizer->decode_bare_first ? first_token : tokenizer->decode_strip;
    while (spaces < most && first + spaces < out->size && out->data[first + spaces] == ' ') {
        spaces++;
    }
    if (spaces > 0) {
        memmove(out->data + first, out->data + first + spaces, out->size - first - spaces);
        out->size -= spaces;
    }
}

mr_status mr_tokenizer_decode(const mr_tokenizer *tokenizer, const uint32_t *ids, size_t count,
                              bool keep_special, mr_buffer *out, mr_error *err)
{
    const size_t first = out->size;
    size_t first_token = 0; /* bytes of the first token that is shown */
    bool any = false;
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
        first_token = any ? first_token : bytes.size;
        any = true;
    }
    strip_beginning(tokenizer, first, first_token, out);
    return MR_OK;
}
