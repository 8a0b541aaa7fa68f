/* SPDX-License-Identifier: Apache-2.0 */
#include "model/added_tokens.h"

#include "base/checked.h"

#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX

static bool is_added(uint8_t kind)
{
    return kind == MR_TOKEN_SPECIAL || kind == MR_TOKEN_ADDED;
}

static uint64_t edge_key(uint32_t node, uint8_t byte)
{
    return (uint64_t)node << 8 | byte;
}

static mr_status insert(mr_added_tokens *added, mr_bytes text, uint32_t id)
{
    uint32_t node = 0;
    for (size_t i = 0; i < text.size; i++) {
        const uint64_t key = edge_key(node, text.data[i]);
        if (!mr_u64_map_get(added->edges, key, &node)) {
            node = added->n_nodes++;
            MR_TRY(mr_u64_map_put(added->edges, key, node));
        }
    }
    added->ids[node] = id;
    added->starts[text.data[0]] = true;
    return MR_OK;
}

mr_status mr_added_tokens_init(mr_added_tokens *added, const mr_tokenizer_spec *spec, mr_error *err)
{
    *added = (mr_added_tokens){.n_nodes = 1};
    uint64_t nodes = 1; /* at most one a byte, and the root */
    for (uint32_t id = 0; id < spec->n_tokens; id++) {
        if (is_added(spec->kinds[id]) && !mr_add_u64(nodes, spec->tokens[id].size, &nodes)) {
            nodes = UINT64_MAX;
        }
    }
    mr_status status = MR_RESOURCE_EXHAUSTED;
    if (nodes >= NONE || (added->ids = mr_calloc(nodes, sizeof(*added->ids))) == NULL) {
        goto cleanup;
    }
    memset(added->ids, 0xFF, nodes * sizeof(*added->ids));
    MR_TRY_CLEANUP(status, mr_u64_map_create(nodes, &added->edges));
    for (uint32_t id = 0; id < spec->n_tokens; id++) {
        if (is_added(spec->kinds[id]) && spec->tokens[id].size > 0) {
            MR_TRY_CLEANUP(status, insert(added, spec->tokens[id], id));
        }
    }
    return MR_OK;
cleanup:
    mr_added_tokens_deinit(added);
    return mr_fail(err, status, "no memory for the added tokens");
}

void mr_added_tokens_deinit(mr_added_tokens *added)
{
    mr_u64_map_destroy(added->edges);
    free(added->ids);
    *added = (mr_added_tokens){0};
}

/* End of the longest token that begins at `begin`, `begin` if none does. */
static size_t longest_at(const mr_added_tokens *added, const uint8_t *text, size_t begin,
                         size_t end, uint32_t *id)
{
    size_t found = begin;
    uint32_t node = 0;
    for (size_t at = begin; at < end; at++) {
        if (!mr_u64_map_get(added->edges, edge_key(node, text[at]), &node)) {
            break;
        }
        if (added->ids[node] != NONE) {
            found = at + 1;
            *id = added->ids[node];
        }
    }
    return found;
}

bool mr_added_tokens_find(const mr_added_tokens *added, const uint8_t *text, size_t begin,
                          size_t end, mr_added_match *match)
{
    for (size_t at = begin; at < end; at++) {
        if (!added->starts[text[at]]) {
            continue;
        }
        const size_t found = longest_at(added, text, at, end, &match->id);
        if (found > at) {
            match->begin = at;
            match->end = found;
            return true;
        }
    }
    return false;
}
