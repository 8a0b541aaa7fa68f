/* SPDX-License-Identifier: Apache-2.0 */
#include "service/config_list.h"

#include "service/config_value.h"
#include "service/nearest.h"
#include "service/unsupported.h"

#include <stdio.h>
#include <string.h>

#define NAME_BYTES     128
#define TEXT_MAX_BYTES (1u << 20)

/* Where a list is in the configuration. */
typedef struct list_place {
    const char *name;
    size_t items; /* offset of the first */
    size_t item_bytes;
    size_t most;
    size_t count; /* offset of their number, uint32_t */
} list_place;

#define FIRST_OF(field) ((mr_config *)0)->field.items[0]

static const list_place lists[] = {
#define MR_CONFIG_LIST(name, field, meaning)                                                       \
    {name, offsetof(mr_config, field.items), sizeof(FIRST_OF(field)),                              \
     sizeof(((mr_config *)0)->field.items) / sizeof(FIRST_OF(field)),                              \
     offsetof(mr_config, field.count)},
#include "service/config_keys.def"
};

static const mr_config_key fields[] = {
#define MR_CONFIG_ITEM_TEXT(name, type, field, value, meaning)                                     \
    MR_CONFIG_TEXT_ROW(name, MR_KEY_TEXT, type, field, value, "", meaning)
#define MR_CONFIG_ITEM_NUMBER(name, type, field, value, low, high, meaning)                        \
    MR_CONFIG_NUMBER_ROW(name, MR_KEY_NUMBER, type, field, value, low, high, meaning)
#define MR_CONFIG_ITEM_DECIMAL(name, type, field, value, low, high, meaning)                       \
    MR_CONFIG_DECIMAL_ROW(name, type, field, value, low, high, meaning)
#define MR_CONFIG_ITEM_DIGESTS(name, type, field, count, meaning)                                  \
    MR_CONFIG_ROW(name, MR_KEY_DIGESTS, type, field, meaning, .text_default = "",                  \
                  .count_offset = offsetof(type, count))
#define MR_CONFIG_ITEM_IDENTITIES(name, type, field, count, meaning)                               \
    MR_CONFIG_ROW(name, MR_KEY_IDENTITIES, type, field, meaning, .text_default = "",               \
                  .count_offset = offsetof(type, count))
#include "service/config_keys.def"
};

#define FIELD_COUNT (sizeof(fields) / sizeof(fields[0]))

static const list_place *look_up(const char *key)
{
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        if (strcmp(lists[i].name, key) == 0) {
            return &lists[i];
        }
    }
    return NULL;
}

static const list_place *find_list(const char *key)
{
    const list_place *list = look_up(key);
    MR_CHECK(list != NULL);
    return list;
}

bool mr_config_list_known(const char *key)
{
    return look_up(key) != NULL;
}

static uint32_t *count_of(mr_config *config, const list_place *list)
{
    return (uint32_t *)(void *)((uint8_t *)config + list->count);
}

/* The name of a field within its entry; NULL: it is another list's. */
static const char *name_within(const mr_config_key *field, const char *list)
{
    const size_t length = strlen(list);
    const bool of_list =
        strncmp(field->name, list, length) == 0 && strncmp(field->name + length, "[].", 3) == 0;
    return of_list ? field->name + length + 3 : NULL;
}

/* Index of the field, or FIELD_COUNT with an error that names the nearest one. */
static size_t find_field(const char *list, const char *name, mr_error *err)
{
    mr_nearest nearest;
    mr_nearest_init(&nearest, name);
    for (size_t i = 0; i < FIELD_COUNT; i++) {
        const char *known = name_within(&fields[i], list);
        if (known != NULL && strcmp(known, name) == 0) {
            return i;
        }
        if (known != NULL) {
            mr_nearest_offer(&nearest, known);
        }
    }
    (void)mr_fail_field(err, MR_INVALID_ARGUMENT, list, "%s have no field %s%s%s%s", list, name,
                        nearest.best != NULL ? "; did you mean " : "",
                        nearest.best != NULL ? nearest.best : "",
                        nearest.best != NULL ? "?" : "; millrace config --help lists them");
    return FIELD_COUNT;
}

/* NULL: no text without NUL characters. */
static const char *scalar_text(const yaml_node_t *node)
{
    if (node == NULL || node->type != YAML_SCALAR_NODE) {
        return NULL;
    }
    const char *text = (const char *)node->data.scalar.value;
    return strlen(text) == node->data.scalar.length ? text : NULL;
}

static mr_status fail_kind(const mr_config_key *field, const char *wanted, mr_error *err)
{
    return mr_fail_field(err, MR_INVALID_ARGUMENT, field->name, "%s must be %s", field->name,
                         wanted);
}

static mr_status read_values(yaml_document_t *document, const yaml_node_t *node,
                             const mr_config_key *field, void *item, mr_error *err)
{
    if (node == NULL || node->type != YAML_SEQUENCE_NODE) {
        return fail_kind(field, "a list", err);
    }
    const bool is_digests = field->kind == MR_KEY_DIGESTS;
    const yaml_node_item_t *end = node->data.sequence.items.top;
    for (const yaml_node_item_t *at = node->data.sequence.items.start; at < end; at++) {
        const char *text = scalar_text(yaml_document_get_node(document, *at));
        MR_TRY(text == NULL
                   ? fail_kind(field, is_digests ? "a list of digests" : "a list of texts", err)
                   : mr_config_value_set(item, field, text, err));
    }
    return MR_OK;
}

static mr_status read_field(yaml_document_t *document, const yaml_node_pair_t *pair,
                            const char *list, uint64_t *seen, void *item, mr_error *err)
{
    const char *name = scalar_text(yaml_document_get_node(document, pair->key));
    const yaml_node_t *value = yaml_document_get_node(document, pair->value);
    const size_t index = find_field(list, name == NULL ? "" : name, err);
    if (index == FIELD_COUNT) {
        return MR_INVALID_ARGUMENT;
    }
    const mr_config_key *field = &fields[index];
    if (mr_unsupported_find(MR_SURFACE_CONFIG, field->name) != NULL) {
        return mr_unsupported_fail(MR_SURFACE_CONFIG, field->name, err);
    }
    if ((*seen >> index & 1) != 0) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, field->name, "%s is given twice: keep one",
                             field->name);
    }
    *seen |= UINT64_C(1) << index;
    if (mr_config_key_plural(field)) {
        return read_values(document, value, field, item, err);
    }
    const char *text = scalar_text(value);
    return text == NULL ? fail_kind(field, "one value", err)
                        : mr_config_value_set(item, field, text, err);
}

static mr_status read_entry(yaml_document_t *document, const yaml_node_t *node, const char *list,
                            void *item, mr_error *err)
{
    for (size_t i = 0; i < FIELD_COUNT; i++) {
        if (name_within(&fields[i], list) != NULL) {
            mr_config_value_init(item, &fields[i]);
        }
    }
    if (node == NULL || node->type != YAML_MAPPING_NODE) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, list,
                             "an entry must be a mapping, such as {name: a}");
    }
    uint64_t seen = 0;
    const yaml_node_pair_t *end = node->data.mapping.pairs.top;
    for (const yaml_node_pair_t *at = node->data.mapping.pairs.start; at < end; at++) {
        MR_TRY(read_field(document, at, list, &seen, item, err));
    }
    return MR_OK;
}

_Static_assert(FIELD_COUNT <= 64, "the fields that were seen are a 64-bit mask");

mr_status mr_config_list_read(mr_config *config, const char *key, yaml_document_t *document,
                              const yaml_node_t *node, mr_error *err)
{
    const list_place *list = find_list(key);
    uint8_t *items = (uint8_t *)config + list->items;
    uint32_t *count = count_of(config, list);
    memset(items, 0, list->most * list->item_bytes);
    *count = 0;
    config->given |= UINT64_C(1) << mr_config_key_index(key);
    if (node->type != YAML_SEQUENCE_NODE) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, key,
                             "%s must be a list, such as [{name: a}]", key);
    }
    const yaml_node_item_t *end = node->data.sequence.items.top;
    for (const yaml_node_item_t *at = node->data.sequence.items.start; at < end; at++) {
        if (*count == list->most) {
            return mr_fail_field(err, MR_INVALID_ARGUMENT, key, "%s has more than %zu entries", key,
                                 list->most);
        }
        const yaml_node_t *entry = yaml_document_get_node(document, *at);
        const mr_status status =
            read_entry(document, entry, key, items + *count * list->item_bytes, err);
        if (status != MR_OK) {
            (void)mr_fail_context(err, "%s[%u]", key, *count);
            return status;
        }
        ++*count;
    }
    MR_TRY(mr_tenants_check(&config->tenants, err));
    return mr_admins_check(&config->admins, err);
}

static mr_status read_text(mr_config *config, const char *key, yaml_parser_t *parser, mr_error *err)
{
    yaml_document_t document;
    if (!yaml_parser_load(parser, &document)) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, key, "%s is no list in YAML or JSON: %s",
                             key, parser->problem == NULL ? "out of memory" : parser->problem);
    }
    const yaml_node_t *root = yaml_document_get_root_node(&document);
    const mr_status status = root == NULL
                                 ? mr_fail_field(err, MR_INVALID_ARGUMENT, key,
                                                 "%s is empty: it must be a list, such as []", key)
                                 : mr_config_list_read(config, key, &document, root, err);
    yaml_document_delete(&document);
    return status;
}

mr_status mr_config_list_parse(mr_config *config, const char *key, const char *text, mr_error *err)
{
    const size_t bytes = strlen(text);
    yaml_parser_t parser;
    if (bytes > TEXT_MAX_BYTES) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, key, "%s has %zu bytes, too many", key,
                             bytes);
    }
    if (!yaml_parser_initialize(&parser)) {
        return mr_fail_field(err, MR_RESOURCE_EXHAUSTED, key, "out of memory for %s", key);
    }
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, bytes);
    const mr_status status = read_text(config, key, &parser, err);
    yaml_parser_delete(&parser);
    return status;
}

uint32_t mr_config_list_count(const mr_config *config, const char *key)
{
    uint32_t count;
    memcpy(&count, (const uint8_t *)config + find_list(key)->count, sizeof(count));
    return count;
}

const mr_config_key *mr_config_list_field(const char *key, size_t index)
{
    for (size_t i = 0; i < FIELD_COUNT; i++) {
        const mr_config_key *field = &fields[i];
        const bool shown = name_within(field, key) != NULL &&
                           mr_unsupported_find(MR_SURFACE_CONFIG, field->name) == NULL;
        if (shown && index-- == 0) {
            return field;
        }
    }
    return NULL;
}

bool mr_config_list_about(const char *key, size_t index, mr_config_about *out)
{
    const mr_config_key *field = mr_config_list_field(key, index);
    if (field != NULL) {
        mr_config_key_describe(field, out);
    }
    return field != NULL;
}

size_t mr_config_list_most(const char *key)
{
    return find_list(key)->most;
}

static mr_status append_entry(const void *item, const char *list, mr_buffer *out)
{
    const char *lead = "  - ";
    for (size_t i = 0; i < FIELD_COUNT; i++) {
        const char *name = name_within(&fields[i], list);
        if (name == NULL || mr_unsupported_find(MR_SURFACE_CONFIG, fields[i].name) != NULL ||
            mr_config_value_automatic(item, &fields[i])) {
            continue;
        }
        MR_TRY(mr_buffer_printf(out, "%s%s: ", lead, name));
        MR_TRY(mr_config_value_format(item, &fields[i], out));
        MR_TRY(mr_buffer_append(out, "\n", 1));
        lead = "    ";
    }
    return MR_OK;
}

mr_status mr_config_list_yaml(const mr_config *config, const char *key, mr_buffer *out)
{
    const list_place *list = find_list(key);
    const uint32_t count = mr_config_list_count(config, key);
    MR_TRY(mr_buffer_printf(out, "%s\n", count == 0 ? " []" : ""));
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *item = (const uint8_t *)config + list->items + i * list->item_bytes;
        MR_TRY(append_entry(item, key, out));
    }
    return MR_OK;
}
