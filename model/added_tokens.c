/* SPDX-License-Identifier: Apache-2.0 */
#include "model/added_tokens.h"

#include "base/checked.h"
#include "model/unicode_form.h"

#include <stdlib.h>

#define NONE UINT32_MAX
/* Matching may look at this much for every byte of a text. */
#define MAX_BYTES 512u

static uint64_t edge_key(uint32_t node, uint8_t byte)
{
    return (uint64_t)node << 8 | byte;
}

/* Makes room for `more` nodes. */
static mr_status reserve_nodes(mr_added_tokens *added, size_t more)
{
    uint64_t nodes = 0;
    if (!mr_add_u64(added->n_nodes, more, &nodes) || nodes >= NONE) {
        return MR_RESOURCE_EXHAUSTED;
    }
    uint32_t *tokens = mr_reallocarray(added->tokens, nodes, sizeof(*tokens));
    if (tokens == NULL) {
        return MR_RESOURCE_EXHAUSTED;
    }
    added->tokens = tokens;
    return MR_OK;
}

static mr_status insert(mr_added_tokens *added, const uint8_t *text, size_t bytes,
                        const mr_added_token *item)
{
    MR_TRY(reserve_nodes(added, bytes));
    uint32_t node = 0;
    for (size_t i = 0; i < bytes; i++) {
        const uint64_t key = edge_key(node, text[i]);
        if (!mr_u64_map_get(added->edges, key, &node)) {
            node = added->n_nodes++;
            added->tokens[node] = NONE;
            MR_TRY(mr_u64_map_put(added->edges, key, node));
        }
    }
    added->tokens[node] = added->n_flags;
    added->flags[added->n_flags++] = (mr_added_flags){.id = item->id,
                                                      .lstrip = item->lstrip,
                                                      .rstrip = item->rstrip,
                                                      .single_word = item->single_word};
    added->starts[text[0]] = true;
    return MR_OK;
}

static mr_status insert_all(mr_added_tokens *added, const mr_added_token *items, uint32_t count,
                            bool normalized, const mr_text_steps *steps)
{
    added->flags = mr_calloc((size_t)count + 1, sizeof(*added->flags));
    if (added->flags == NULL) {
        return MR_RESOURCE_EXHAUSTED;
    }
    MR_TRY(mr_u64_map_create(count, &added->edges));
    MR_TRY(reserve_nodes(added, 1));
    added->tokens[added->n_nodes++] = NONE;
    mr_text_work work = {0};
    mr_status status = MR_OK;
    for (uint32_t i = 0; i < count && status == MR_OK; i++) {
        if (items[i].normalized != normalized) {
            continue;
        }
        status = mr_text_work_set(&work, items[i].text.data, items[i].text.size);
        if (status == MR_OK && steps != NULL) {
            status = mr_text_steps_run(steps, true, &work);
        }
        if (status == MR_OK && work.text.size > 0) {
            status = work.text.size <= MAX_BYTES
                         ? insert(added, work.text.data, work.text.size, &items[i])
                         : MR_UNIMPLEMENTED;
        }
    }
    mr_text_work_deinit(&work);
    return status;
}

mr_status mr_added_tokens_init(mr_added_tokens *added, const mr_added_token *items, uint32_t count,
                               bool normalized, const mr_text_steps *steps, mr_error *err)
{
    *added = (mr_added_tokens){0};
    const mr_status status = insert_all(added, items, count, normalized, steps);
    if (status != MR_OK) {
        mr_added_tokens_deinit(added);
        if (status == MR_UNIMPLEMENTED) {
            return mr_fail(err, status,
                           "an added token of more than %u bytes is not supported; take it out of "
                           "added_tokens, or send token ids",
                           MAX_BYTES);
        }
        if (status == MR_INVALID_ARGUMENT) {
            return mr_fail(err, status,
                           "the normalizer makes more than %u times as much of an "
                           "added token; the file is corrupt",
                           MR_TEXT_GROWTH);
        }
        return mr_fail(err, status, "no memory for the added tokens");
    }
    return MR_OK;
}

void mr_added_tokens_deinit(mr_added_tokens *added)
{
    mr_u64_map_destroy(added->edges);
    free(added->tokens);
    free(added->flags);
    *added = (mr_added_tokens){0};
}

/* End of the longest token that begins at `begin`, `begin` if none does. */
static size_t longest_at(const mr_added_tokens *added, const uint8_t *text, size_t begin,
                         size_t end, uint32_t *token)
{
    size_t found = begin;
    uint32_t node = 0;
    for (size_t at = begin; at < end; at++) {
        if (!mr_u64_map_get(added->edges, edge_key(node, text[at]), &node)) {
            break;
        }
        if (added->tokens[node] != NONE) {
            found = at + 1;
            *token = added->tokens[node];
        }
    }
    return found;
}

/* --- Neighbours ----------------------------------------------------------------------------- */

/* Where the character that ends at `end` begins. */
static size_t character_before(const uint8_t *text, size_t end)
{
    size_t at = end - 1;
    while (at > 0 && (text[at] & 0xC0) == 0x80) {
        at--;
    }
    return at;
}

static bool stands_alone(const mr_added_scope *scope, size_t begin, size_t end)
{
    size_t after;
    if (begin > 0 && mr_unicode_is_word(mr_unicode_read(
                         scope->text, character_before(scope->text, begin), &after))) {
        return false;
    }
    return end == scope->bytes || !mr_unicode_is_word(mr_unicode_read(scope->text, end, &after));
}

static size_t skip_space_before(const mr_added_scope *scope, size_t begin)
{
    while (begin > scope->taken) {
        size_t after;
        const size_t at = character_before(scope->text, begin);
        if (!mr_unicode_is_space(mr_unicode_read(scope->text, at, &after))) {
            break;
        }
        begin = at;
    }
    return begin;
}

static size_t skip_space_behind(const mr_added_scope *scope, size_t end)
{
    /* What the match before took beyond its own text is white space: seen once is enough. */
    end = end < scope->taken ? scope->taken : end;
    while (end < scope->bytes) {
        size_t after;
        if (!mr_unicode_is_space(mr_unicode_read(scope->text, end, &after))) {
            break;
        }
        end = after;
    }
    return end;
}

bool mr_added_tokens_find(const mr_added_tokens *added, const mr_added_scope *scope,
                          mr_added_match *match)
{
    uint32_t token = NONE;
    for (size_t at = scope->begin; at < scope->end;) {
        const size_t end = added->starts[scope->text[at]]
                               ? longest_at(added, scope->text, at, scope->end, &token)
                               : at;
        if (end == at) {
            at++;
            continue;
        }
        const mr_added_flags *flags = &added->flags[token];
        if (flags->single_word && !stands_alone(scope, at, end)) {
            at = end; /* it is passed over as a whole */
            continue;
        }
        *match = (mr_added_match){
            .begin = flags->lstrip ? skip_space_before(scope, at) : at,
            .end = flags->rstrip ? skip_space_behind(scope, end) : end,
            .next = end,
            .id = flags->id,
        };
        return true;
    }
    return false;
}
