/* SPDX-License-Identifier: Apache-2.0 */
#include "model/tokenizer_json.h"

#include "base/checked.h"
#include "model/tokenizer_components.h"
#include "model/tokenizer_tables.h"

#include <stdlib.h>
#include <string.h>

/* A specification while it is put together. */
typedef struct builder {
    mr_tokenizer_tables tables;
    mr_string_map *index;  /* owns: text → id */
    mr_bytes *tokens;      /* owns */
    uint8_t *kinds;        /* owns */
    mr_bytes *merges;      /* owns */
    uint32_t *cuts;        /* owns */
    mr_added_token *added; /* owns */
    mr_tokenizer_spec spec;
    mr_error *err;
} builder;

static void builder_deinit(builder *b)
{
    mr_tokenizer_tables_deinit(&b->tables);
    mr_string_map_destroy(b->index);
    free(b->tokens);
    free(b->kinds);
    free(b->merges);
    free(b->cuts);
    free(b->added);
}

static mr_status no_memory(builder *b)
{
    return mr_fail(b->err, MR_RESOURCE_EXHAUSTED, "no memory for the tokenizer");
}

static mr_status fail_text(builder *b, const char *what, mr_bytes text)
{
    return mr_fail(b->err, MR_DATA_LOSS, "%s \"%.*s\"; the file is corrupt", what,
                   text.size < 60 ? (int)text.size : 60, (const char *)text.data);
}

static const mr_vocab_entry *vocab_of(const builder *b, size_t *count)
{
    *count = b->tables.vocab.size / sizeof(mr_vocab_entry);
    return (const mr_vocab_entry *)(const void *)b->tables.vocab.data;
}

static const mr_added_entry *added_of(const builder *b, size_t *count)
{
    *count = b->tables.added.size / sizeof(mr_added_entry);
    return (const mr_added_entry *)(const void *)b->tables.added.data;
}

/* --- Tokens --------------------------------------------------------------------------------- */

static mr_status put_token(builder *b, mr_bytes text, uint32_t id, mr_token_kind kind)
{
    if (b->kinds[id] != MR_TOKEN_UNUSED) {
        return fail_text(b, "two tokens have the id of", text);
    }
    const mr_status status = mr_string_map_put(b->index, text.data, text.size, id);
    if (status == MR_ALREADY_EXISTS) {
        return fail_text(b, "the vocabulary has twice", text);
    }
    b->tokens[id] = text;
    b->kinds[id] = (uint8_t)kind;
    return status == MR_OK ? MR_OK : no_memory(b);
}

/* Room for all ids that there are. */
static mr_status make_room(builder *b)
{
    size_t n_vocab;
    size_t n_added;
    const mr_vocab_entry *vocab = vocab_of(b, &n_vocab);
    const mr_added_entry *added = added_of(b, &n_added);
    uint32_t count = 0;
    for (size_t i = 0; i < n_vocab; i++) {
        count = vocab[i].id >= count ? vocab[i].id + 1 : count;
    }
    for (size_t i = 0; i < n_added; i++) {
        count = added[i].token.id >= count ? added[i].token.id + 1 : count;
    }
    b->spec.n_tokens = count;
    b->tokens = mr_calloc((size_t)count + 1, sizeof(*b->tokens));
    b->kinds = mr_calloc((size_t)count + 1, 1);
    b->added = mr_calloc(n_added + 1, sizeof(*b->added));
    if (b->tokens == NULL || b->kinds == NULL || b->added == NULL ||
        mr_string_map_create(n_vocab + n_added, &b->index) != MR_OK) {
        return no_memory(b);
    }
    memset(b->kinds, MR_TOKEN_UNUSED, (size_t)count + 1);
    return MR_OK;
}

/* An added token that is in the vocabulary too has the vocabulary's id. */
static mr_status add_token(builder *b, const mr_added_entry *entry)
{
    const mr_bytes text = mr_tokenizer_tables_text(&b->tables, entry->text);
    const mr_token_kind kind = entry->special ? MR_TOKEN_SPECIAL : MR_TOKEN_ADDED;
    uint32_t id = entry->token.id;
    if (text.size == 0) {
        return MR_OK;
    }
    if (mr_string_map_get(b->index, text.data, text.size, &id)) {
        b->kinds[id] = (uint8_t)kind;
    } else {
        MR_TRY(put_token(b, text, id, kind));
    }
    mr_added_token *token = &b->added[b->spec.n_added++];
    *token = entry->token;
    token->id = id;
    token->text = text;
    return MR_OK;
}

static mr_status build_tokens(builder *b)
{
    size_t n_vocab;
    size_t n_added;
    const mr_vocab_entry *vocab = vocab_of(b, &n_vocab);
    const mr_added_entry *added = added_of(b, &n_added);
    MR_TRY(make_room(b));
    for (size_t i = 0; i < n_vocab; i++) {
        MR_TRY(put_token(b, mr_tokenizer_tables_text(&b->tables, vocab[i].text), vocab[i].id,
                         MR_TOKEN_NORMAL));
    }
    for (size_t i = 0; i < n_added; i++) {
        MR_TRY(add_token(b, &added[i]));
    }
    b->spec.tokens = b->tokens;
    b->spec.kinds = b->kinds;
    b->spec.added = b->added;
    return MR_OK;
}

static mr_status build_merges(builder *b)
{
    const size_t count = b->tables.merges.size / sizeof(mr_merge_entry);
    const mr_merge_entry *entries = (const mr_merge_entry *)(const void *)b->tables.merges.data;
    if (count >= UINT32_MAX) {
        return mr_fail(b->err, MR_DATA_LOSS, "%zu merges; the file is corrupt", count);
    }
    b->merges = mr_calloc(count + 1, sizeof(*b->merges));
    b->cuts = mr_calloc(count + 1, sizeof(*b->cuts));
    if (b->merges == NULL || b->cuts == NULL) {
        return no_memory(b);
    }
    for (size_t i = 0; i < count; i++) {
        b->merges[i] = mr_tokenizer_tables_text(&b->tables, entries[i].text);
        b->cuts[i] = (uint32_t)entries[i].cut;
    }
    b->spec.merges = b->merges;
    b->spec.merge_cuts = b->cuts;
    b->spec.n_merges = (uint32_t)count;
    return MR_OK;
}

/* --- What else the files say ---------------------------------------------------------------- */

/* The id of a token that the configuration names by its text. */
static mr_status find_named(builder *b, const char *what, mr_bytes text, uint32_t *id)
{
    if (text.data == NULL || !mr_string_map_get(b->index, text.data, text.size, id)) {
        return mr_fail(b->err, MR_DATA_LOSS,
                       "tokenizer_config.json wants a %s token but names none that the vocabulary "
                       "has (\"%.*s\")",
                       what, text.size < 60 ? (int)text.size : 60,
                       text.data != NULL ? (const char *)text.data : "");
    }
    return MR_OK;
}

static mr_status build_ends(builder *b, const mr_tokenizer_config *config,
                            const mr_template_ends *ends)
{
    static const mr_tokenizer_config nothing;
    const mr_tokenizer_config *says = config != NULL ? config : &nothing;
    b->spec.bos_id = ends->bos_id;
    b->spec.eos_id = ends->eos_id;
    b->spec.add_bos = ends->bos_id != UINT32_MAX;
    b->spec.add_eos = ends->eos_id != UINT32_MAX;
    if (says->add_bos == MR_YES) {
        MR_TRY(find_named(b, "BOS", says->bos_token, &b->spec.bos_id));
    }
    if (says->add_eos == MR_YES) {
        MR_TRY(find_named(b, "EOS", says->eos_token, &b->spec.eos_id));
    }
    b->spec.add_bos = says->add_bos == MR_UNSAID ? b->spec.add_bos : says->add_bos == MR_YES;
    b->spec.add_eos = says->add_eos == MR_UNSAID ? b->spec.add_eos : says->add_eos == MR_YES;
    return MR_OK;
}

static mr_status build_unknown(builder *b, mr_bytes unknown)
{
    if (unknown.data == NULL) {
        return MR_OK;
    }
    b->spec.has_unknown = true;
    return mr_string_map_get(b->index, unknown.data, unknown.size, &b->spec.unknown_id)
               ? MR_OK
               : fail_text(b, "the vocabulary lacks the unknown token", unknown);
}

static mr_status build(builder *b, const mr_tokenizer_config *config, mr_tokenizer **out)
{
    mr_template_ends ends;
    mr_bytes unknown = {0};
    if (!json_is_object(b->tables.tree.root)) {
        return mr_fail(b->err, MR_DATA_LOSS, "not an object; the file is corrupt");
    }
    MR_TRY(mr_tokenizer_components_read(b->tables.tree.root, &b->spec, &ends, &unknown, b->err));
    if (b->tables.vocab_is_list) {
        return mr_fail(b->err, MR_DATA_LOSS,
                       "the vocabulary is a list where BPE has a table; the file is corrupt");
    }
    MR_TRY(build_tokens(b));
    MR_TRY(build_merges(b));
    MR_TRY(build_ends(b, config, &ends));
    MR_TRY(build_unknown(b, unknown));
    const mr_status status = mr_tokenizer_create(&b->spec, out, b->err);
    if (status != MR_INVALID_ARGUMENT) {
        return status;
    }
    if (b->err != NULL) { /* tables that contradict each other are the file's fault */
        b->err->status = MR_DATA_LOSS;
    }
    return MR_DATA_LOSS;
}

mr_status mr_tokenizer_json_create(const void *data, size_t size, const mr_tokenizer_config *config,
                                   mr_tokenizer **out, mr_error *err)
{
    *out = NULL;
    builder b = {.err = err};
    /* An entry takes some bytes of the file, so that no id can be larger than it is long. */
    b.tables.max_id = mr_min_u64(size, UINT32_MAX - 2);
    mr_status status = mr_buffer_reserve(&b.tables.texts, 1) == MR_OK ? MR_OK : no_memory(&b);
    if (status == MR_OK) {
        status = mr_json_sax_parse(data, size, MR_TOKENIZER_JSON_MAX_BYTES,
                                   mr_tokenizer_tables_take, &b.tables, err);
    }
    if (status == MR_OK) {
        status = build(&b, config, out);
    }
    builder_deinit(&b);
    return status;
}
