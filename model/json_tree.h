/* SPDX-License-Identifier: Apache-2.0 */
/* The small parts of a large JSON file, kept as jansson values; the rest goes by as events. */
#ifndef MILLRACE_MODEL_JSON_TREE_H
#define MILLRACE_MODEL_JSON_TREE_H

#include "model/json_sax.h"

#include <jansson.h>

#define MR_JSON_TREE_MAX_NODES 65536u

/* Zero-initialised is valid and empty. */
typedef struct mr_json_tree {
    json_t *root;                        /* owns; NULL before the first event */
    json_t *open[MR_JSON_MAX_DEPTH + 1]; /* containers around the next value, from the root on */
    uint32_t depth;
    uint32_t nodes;
} mr_json_tree;

/* Takes the next event; a container is added with its begin, its end and all between, or not at
 * all. DATA_LOSS (a key that is there twice, more than MR_JSON_TREE_MAX_NODES values),
 * RESOURCE_EXHAUSTED. */
MR_MUST_USE mr_status mr_json_tree_add(mr_json_tree *tree, const mr_json_event *event,
                                       mr_error *err);
void mr_json_tree_deinit(mr_json_tree *tree);

/* The string of an object, borrowed; NULL and 0 if there is none. */
mr_bytes mr_json_tree_string(const json_t *object, const char *key);

#endif
