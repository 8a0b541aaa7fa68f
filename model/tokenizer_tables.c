/* SPDX-License-Identifier: Apache-2.0 */
#include "model/tokenizer_tables.h"

#include <inttypes.h>
#include <string.h>

enum { IN_NONE, IN_VOCAB, IN_MERGES, IN_ADDED };

static mr_status no_memory(mr_status status, mr_error *err)
{
    return status == MR_OK ? MR_OK : mr_fail(err, status, "no memory for the tokenizer");
}

static mr_status corrupt(const mr_json_event *event, const char *where, const char *what,
                         mr_error *err)
{
    const uint32_t depth = mr_json_depth(event);
    const mr_bytes key = event->key;
    if (key.size > 0) {
        return mr_fail(err, MR_DATA_LOSS, "%s: \"%.*s\" %s; the file is corrupt", where,
                       key.size < 60 ? (int)key.size : 60, (const char *)key.data, what);
    }
    return mr_fail(err, MR_DATA_LOSS, "%s: element %" PRIu64 " %s; the file is corrupt", where,
                   mr_json_path_index(event, depth - 1), what);
}

static mr_status keep_text(mr_tokenizer_tables *tables, mr_bytes text, mr_text_ref *out,
                           mr_error *err)
{
    *out = (mr_text_ref){.begin = tables->texts.size, .size = text.size};
    return no_memory(mr_buffer_append(&tables->texts, text.data, text.size), err);
}

/* "text": id */
static mr_status take_vocab(mr_tokenizer_tables *tables, const mr_json_event *event, mr_error *err)
{
    uint64_t id = 0;
    mr_vocab_entry entry = {0};
    if (event->kind != MR_JSON_NUMBER || !mr_json_u64(event, tables->max_id, &id)) {
        return corrupt(event, "vocabulary", "has no usable id", err);
    }
    entry.id = (uint32_t)id;
    MR_TRY(keep_text(tables, event->key, &entry.text, err));
    return no_memory(mr_buffer_append(&tables->vocab, &entry, sizeof(entry)), err);
}

static mr_status push_merge(mr_tokenizer_tables *tables, mr_merge_entry entry, mr_error *err)
{
    if (entry.text.size >= UINT32_MAX) {
        return mr_fail(err, MR_DATA_LOSS, "a merge of %zu bytes; the file is corrupt",
                       entry.text.size);
    }
    return no_memory(mr_buffer_append(&tables->merges, &entry, sizeof(entry)), err);
}

/* "left right" */
static mr_status take_merge_line(mr_tokenizer_tables *tables, const mr_json_event *event,
                                 mr_error *err)
{
    const mr_bytes text = event->text;
    const uint8_t *space = text.size > 0 ? memchr(text.data, ' ', text.size) : NULL;
    const size_t cut = space != NULL ? (size_t)(space - text.data) : 0;
    if (space == NULL || memchr(space + 1, ' ', text.size - cut - 1) != NULL) {
        return corrupt(event, "merges", "is not two tokens with a space between", err);
    }
    mr_merge_entry entry = {.cut = cut};
    MR_TRY(keep_text(tables, text, &entry.text, err));
    return push_merge(tables, entry, err);
}

/* ["left", "right"] */
static mr_status take_merge_part(mr_tokenizer_tables *tables, const mr_json_event *event,
                                 mr_error *err)
{
    mr_text_ref part;
    if (event->kind != MR_JSON_STRING || tables->merge_parts == 2) {
        return corrupt(event, "merges", "is not a pair of tokens", err);
    }
    MR_TRY(keep_text(tables, event->text, &part, err));
    if (tables->merge_parts++ > 0) {
        return MR_OK;
    }
    tables->merge_begin = part.begin;
    const mr_merge_entry entry = {.text = {.begin = part.begin}, .cut = part.size};
    MR_TRY(push_merge(tables, entry, err));
    return no_memory(mr_buffer_append(&tables->texts, " ", 1), err);
}

/* The second text of the last merge is there. */
static mr_status finish_pair(mr_tokenizer_tables *tables)
{
    mr_merge_entry *last =
        (mr_merge_entry *)(void *)(tables->merges.data + tables->merges.size - sizeof(*last));
    last->text.size = tables->texts.size - tables->merge_begin;
    return MR_OK;
}

static mr_status take_merge(mr_tokenizer_tables *tables, const mr_json_event *event, mr_error *err)
{
    if (mr_json_depth(event) == 4 && event->kind != MR_JSON_ARRAY_END) {
        return take_merge_part(tables, event, err);
    }
    switch (event->kind) {
    case MR_JSON_STRING:
        return take_merge_line(tables, event, err);
    case MR_JSON_ARRAY_BEGIN:
        tables->merge_parts = 0;
        return MR_OK;
    case MR_JSON_ARRAY_END:
        return tables->merge_parts == 2 ? finish_pair(tables)
                                        : corrupt(event, "merges", "is not a pair of tokens", err);
    default:
        return corrupt(event, "merges", "is neither a text nor a pair", err);
    }
}

static bool *flag_of(mr_added_entry *entry, mr_bytes key)
{
    const struct {
        const char *name;
        bool *flag;
    } flags[] = {
        {"special", &entry->special},
        {"normalized", &entry->token.normalized},
        {"lstrip", &entry->token.lstrip},
        {"rstrip", &entry->token.rstrip},
        {"single_word", &entry->token.single_word},
    };
    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++) {
        if (mr_bytes_is(key, flags[i].name)) {
            return flags[i].flag;
        }
    }
    return NULL;
}

static mr_status take_added_field(mr_tokenizer_tables *tables, const mr_json_event *event,
                                  mr_error *err)
{
    mr_added_entry *entry =
        (mr_added_entry *)(void *)(tables->added.data + tables->added.size - sizeof(*entry));
    uint64_t id = 0;
    bool *flag = flag_of(entry, event->key);
    if (flag != NULL) {
        *flag = event->boolean;
        return event->kind == MR_JSON_BOOL
                   ? MR_OK
                   : corrupt(event, "added_tokens", "is not true or false", err);
    }
    if (mr_bytes_is(event->key, "content")) {
        entry->has_text = true;
        return event->kind == MR_JSON_STRING ? keep_text(tables, event->text, &entry->text, err)
                                             : corrupt(event, "added_tokens", "is not a text", err);
    }
    if (!mr_bytes_is(event->key, "id")) {
        return mr_fail(err, MR_UNIMPLEMENTED,
                       "added tokens have the field \"%.*s\", which this build does not know",
                       event->key.size < 60 ? (int)event->key.size : 60,
                       (const char *)event->key.data);
    }
    if (!mr_json_u64(event, tables->max_id, &id)) {
        return corrupt(event, "added_tokens", "is no usable id", err);
    }
    entry->token.id = (uint32_t)id;
    entry->has_id = true;
    return MR_OK;
}

static mr_status take_added(mr_tokenizer_tables *tables, const mr_json_event *event, mr_error *err)
{
    const uint32_t depth = mr_json_depth(event);
    if (depth == 2 && event->kind == MR_JSON_OBJECT_BEGIN) {
        const mr_added_entry entry = {0};
        return no_memory(mr_buffer_append(&tables->added, &entry, sizeof(entry)), err);
    }
    if (depth == 2 && event->kind == MR_JSON_OBJECT_END) {
        const mr_added_entry *entry =
            (const mr_added_entry *)(const void *)(tables->added.data + tables->added.size -
                                                   sizeof(*entry));
        return entry->has_id && entry->has_text
                   ? MR_OK
                   : corrupt(event, "added_tokens", "lacks id or content", err);
    }
    return depth == 3 ? take_added_field(tables, event, err)
                      : corrupt(event, "added_tokens", "is not a token", err);
}

/* Which table begins or ends with the event. */
static uint32_t table_of(const mr_json_event *event)
{
    const uint32_t depth = mr_json_depth(event);
    if (depth == 1 && mr_bytes_is(event->key, "added_tokens")) {
        return IN_ADDED;
    }
    if (depth != 2 || !mr_bytes_is(mr_json_path_key(event, 0), "model")) {
        return IN_NONE;
    }
    if (mr_bytes_is(event->key, "vocab")) {
        return IN_VOCAB;
    }
    return mr_bytes_is(event->key, "merges") ? IN_MERGES : IN_NONE;
}

static mr_status begin_table(mr_tokenizer_tables *tables, const mr_json_event *event,
                             uint32_t table, mr_error *err)
{
    const bool list = event->kind == MR_JSON_ARRAY_BEGIN;
    const mr_buffer *filled = table == IN_VOCAB    ? &tables->vocab
                              : table == IN_MERGES ? &tables->merges
                                                   : &tables->added;
    if (event->kind == MR_JSON_NULL) {
        return MR_OK;
    }
    if (filled->size > 0 || (event->kind != MR_JSON_OBJECT_BEGIN && !list) ||
        (table != IN_VOCAB && !list)) {
        return mr_fail(err, MR_DATA_LOSS, "\"%.*s\" is not one table; the file is corrupt",
                       (int)event->key.size, (const char *)event->key.data);
    }
    tables->vocab_is_list = tables->vocab_is_list || (table == IN_VOCAB && list);
    tables->skipped = table;
    return MR_OK;
}

mr_status mr_tokenizer_tables_take(void *ctx, const mr_json_event *event, mr_error *err)
{
    mr_tokenizer_tables *tables = ctx;
    const uint32_t depth = mr_json_depth(event);
    if (tables->skipped != IN_NONE) {
        const uint32_t own = tables->skipped == IN_ADDED ? 1 : 2; /* depth of the table itself */
        if (depth == own) {
            tables->skipped = IN_NONE;
            return MR_OK;
        }
        switch (tables->skipped) {
        case IN_VOCAB:
            return tables->vocab_is_list ? MR_OK : take_vocab(tables, event, err);
        case IN_MERGES:
            return take_merge(tables, event, err);
        default:
            return take_added(tables, event, err);
        }
    }
    const uint32_t table = depth == 1 || depth == 2 ? table_of(event) : IN_NONE;
    return table != IN_NONE ? begin_table(tables, event, table, err)
                            : mr_json_tree_add(&tables->tree, event, err);
}

void mr_tokenizer_tables_deinit(mr_tokenizer_tables *tables)
{
    mr_json_tree_deinit(&tables->tree);
    mr_buffer_deinit(&tables->texts);
    mr_buffer_deinit(&tables->vocab);
    mr_buffer_deinit(&tables->merges);
    mr_buffer_deinit(&tables->added);
    *tables = (mr_tokenizer_tables){0};
}
