/* SPDX-License-Identifier: Apache-2.0 */
#include "base/file_map.h"
#include "service/config_internal.h"
#include "service/config_list.h"
#include "service/unsupported.h"

#include <stdio.h>
#include <string.h>
#include <yaml.h>

#define FILE_MAX_BYTES (1u << 20)
#define DEPTH_MAX      8
#define PATH_BYTES     128
/* Aliases let a short file spell an endless one. */
#define ENTRIES_MAX 4096

typedef struct reader {
    mr_config *config;
    yaml_document_t document;
    uint64_t seen;    /* keys given so far, a bit each */
    uint32_t entries; /* of mappings, read so far */
    mr_error *err;
} reader;

static size_t line_of(const yaml_node_t *node)
{
    return node->start_mark.line + 1;
}

static mr_status fail_at(reader *r, const yaml_node_t *node, const char *path, const char *what)
{
    return mr_fail_field(r->err, MR_INVALID_ARGUMENT, path, "line %zu: %s%s%s", line_of(node), path,
                         path[0] == '\0' ? "" : " ", what);
}

/* `path` has PATH_BYTES; false when the names of all levels do not fit. */
static bool join_path(char *path, const char *parent, const yaml_node_t *key)
{
    const char *name = (const char *)key->data.scalar.value;
    if (strlen(name) != key->data.scalar.length) {
        return false;
    }
    const int length =
        snprintf(path, PATH_BYTES, "%s%s%s", parent, parent[0] == '\0' ? "" : ".", name);
    return length > 0 && length < PATH_BYTES;
}

static mr_status mark_seen(reader *r, const char *path, const yaml_node_t *node)
{
    const int index = mr_config_key_index(path);
    if (index >= 0) {
        const uint64_t bit = UINT64_C(1) << index;
        if ((r->seen & bit) != 0) {
            return fail_at(r, node, path, "is given twice: keep one");
        }
        r->seen |= bit;
    }
    return MR_OK;
}

static mr_status read_scalar(reader *r, const char *path, const yaml_node_t *node)
{
    const char *value = (const char *)node->data.scalar.value;
    if (strlen(value) != node->data.scalar.length) {
        return fail_at(r, node, path, "holds a NUL character");
    }
    MR_TRY(mark_seen(r, path, node));
    const mr_status status = mr_config_set_key(r->config, path, value, r->err);
    if (status != MR_OK) {
        (void)mr_fail_context(r->err, "line %zu", line_of(node));
    }
    return status;
}

static mr_status read_list(reader *r, const char *path, const yaml_node_t *node)
{
    MR_TRY(mark_seen(r, path, node));
    const mr_status status = mr_config_list_read(r->config, path, &r->document, node, r->err);
    if (status != MR_OK) {
        (void)mr_fail_context(r->err, "line %zu", line_of(node));
    }
    return status;
}

/* An empty list of a key that is not built yet asks for nothing. */
static mr_status read_sequence(reader *r, const char *path, const yaml_node_t *node)
{
    if (mr_config_list_known(path)) {
        return read_list(r, path, node);
    }
    const bool empty = node->data.sequence.items.start == node->data.sequence.items.top;
    const bool known = mr_unsupported_find(MR_SURFACE_CONFIG, path) != NULL;
    if (empty && known) {
        return MR_OK;
    }
    if (mr_config_key_index(path) >= 0) {
        return fail_at(r, node, path, "is a list: it takes one value");
    }
    const mr_status status = mr_config_set_key(r->config, path, "", r->err);
    (void)mr_fail_context(r->err, "line %zu", line_of(node));
    return status;
}

static mr_status read_mapping(reader *r, const char *path, const yaml_node_t *node, int depth);

/* A mapping is known where a key, of this build or refused, lies below it. */
static mr_status read_section(reader *r, const char *path, const yaml_node_t *node, int depth)
{
    if (mr_config_key_index(path) >= 0) {
        return fail_at(r, node, path, "is a mapping: it takes one value");
    }
    if (!mr_config_has_below(path)) {
        const mr_status status = mr_config_set_key(r->config, path, "", r->err);
        (void)mr_fail_context(r->err, "line %zu", line_of(node));
        return status;
    }
    return read_mapping(r, path, node, depth);
}

static mr_status read_mapping(reader *r, const char *path, const yaml_node_t *node, int depth)
{
    if (depth > DEPTH_MAX) {
        return fail_at(r, node, path, "is nested too deeply");
    }
    for (const yaml_node_pair_t *pair = node->data.mapping.pairs.start;
         pair < node->data.mapping.pairs.top; pair++) {
        const yaml_node_t *key = yaml_document_get_node(&r->document, pair->key);
        const yaml_node_t *value = yaml_document_get_node(&r->document, pair->value);
        char below[PATH_BYTES];
        if (++r->entries > ENTRIES_MAX) {
            return fail_at(r, node, path, "makes the file too long, aliases written out");
        }
        if (key == NULL || value == NULL || key->type != YAML_SCALAR_NODE ||
            !join_path(below, path, key)) {
            return fail_at(r, node, path, "has a key that is no name of a setting");
        }
        if (value->type == YAML_SCALAR_NODE) {
            MR_TRY(read_scalar(r, below, value));
        } else if (value->type == YAML_SEQUENCE_NODE) {
            MR_TRY(read_sequence(r, below, value));
        } else {
            MR_TRY(read_section(r, below, value, depth + 1));
        }
    }
    return MR_OK;
}

static mr_status fail_syntax(const yaml_parser_t *parser, mr_error *err)
{
    return mr_fail(err, MR_INVALID_ARGUMENT, "line %zu: not YAML: %s",
                   parser->problem_mark.line + 1,
                   parser->problem == NULL ? "out of memory" : parser->problem);
}

static mr_status read_document(reader *r)
{
    const yaml_node_t *root = yaml_document_get_root_node(&r->document);
    if (root == NULL) {
        return MR_OK;
    }
    if (root->type != YAML_MAPPING_NODE) {
        return fail_at(r, root, "", "the file must be a mapping of keys to values");
    }
    return read_mapping(r, "", root, 0);
}

static mr_status read_text(reader *r, yaml_parser_t *parser)
{
    if (!yaml_parser_load(parser, &r->document)) {
        return fail_syntax(parser, r->err);
    }
    const mr_status status = read_document(r);
    yaml_document_delete(&r->document);
    MR_TRY(status);
    if (!yaml_parser_load(parser, &r->document)) {
        return fail_syntax(parser, r->err);
    }
    const bool more = yaml_document_get_root_node(&r->document) != NULL;
    yaml_document_delete(&r->document);
    return more ? mr_fail(r->err, MR_INVALID_ARGUMENT, "it holds more than one YAML document")
                : MR_OK;
}

mr_status mr_config_load_file(mr_config *config, const char *path, mr_error *err)
{
    mr_file_map map;
    MR_TRY(mr_file_map_open(path, &map, err));
    mr_status status = MR_OK;
    yaml_parser_t parser;
    if (map.size > FILE_MAX_BYTES) {
        status = mr_fail(err, MR_INVALID_ARGUMENT,
                         "%zu bytes are too many for a configuration; give a YAML file of "
                         "KEY: VALUE lines",
                         map.size);
    } else if (!yaml_parser_initialize(&parser)) {
        status = mr_fail(err, MR_RESOURCE_EXHAUSTED, "out of memory");
    } else {
        static const unsigned char nothing[1];
        yaml_parser_set_input_string(&parser, map.data == NULL ? nothing : map.data, map.size);
        reader r = {.config = config, .err = err};
        status = read_text(&r, &parser);
        yaml_parser_delete(&parser);
    }
    mr_file_map_close(&map);
    if (status != MR_OK) {
        (void)mr_fail_context(err, "%s", path);
        return status;
    }
    return mr_config_apply_environment(config, err);
}
