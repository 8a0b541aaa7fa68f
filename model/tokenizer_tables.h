/* SPDX-License-Identifier: Apache-2.0 */
/* The large parts of a tokenizer.json, taken from its stream of events. */
#ifndef MILLRACE_MODEL_TOKENIZER_TABLES_H
#define MILLRACE_MODEL_TOKENIZER_TABLES_H

#include "base/buffer.h"
#include "base/hash_map.h"
#include "model/json_tree.h"
#include "model/tokenizer_spec.h"

/* A text in mr_tokenizer_tables.texts. */
typedef struct mr_text_ref {
    size_t begin;
    size_t size;
} mr_text_ref;

typedef struct mr_vocab_entry {
    mr_text_ref text;
    uint32_t id;
} mr_vocab_entry;

typedef struct mr_merge_entry {
    mr_text_ref text; /* "left right" */
    size_t cut;       /* bytes of left */
} mr_merge_entry;

typedef struct mr_added_entry {
    mr_text_ref text;
    mr_added_token token; /* its text is not set */
    bool special;
    bool has_id;
    bool has_text;
} mr_added_entry;

/* Zero-initialised is valid and empty. */
typedef struct mr_tokenizer_tables {
    uint64_t max_id;    /* set before the first event: larger ids are refused */
    mr_json_tree tree;  /* owns: all but the tables */
    mr_buffer texts;    /* owns */
    mr_buffer vocab;    /* owns: mr_vocab_entry[] */
    mr_buffer merges;   /* owns: mr_merge_entry[] */
    mr_buffer added;    /* owns: mr_added_entry[] */
    uint32_t skipped;   /* the table whose events go by, 0: none */
    size_t merge_begin; /* of the merge that is being put together from a pair */
    uint32_t merge_parts;
    bool vocab_is_list; /* as other kinds of models have it */
} mr_tokenizer_tables;

/* A handler for mr_json_sax_parse; ctx is the tables. */
MR_MUST_USE mr_status mr_tokenizer_tables_take(void *ctx, const mr_json_event *event,
                                               mr_error *err);
void mr_tokenizer_tables_deinit(mr_tokenizer_tables *tables);

static inline mr_bytes mr_tokenizer_tables_text(const mr_tokenizer_tables *tables, mr_text_ref ref)
{
    return (mr_bytes){.data = tables->texts.data + ref.begin, .size = ref.size};
}

#endif
