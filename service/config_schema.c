/* SPDX-License-Identifier: Apache-2.0 */
/* The table of keys as JSON Schema (draft 7): for editors, and for the values of the Helm chart. */
#include "base/sha256.h"
#include "service/config_list.h"
#include "service/config_value.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* As mr_config_value_set takes them. */
#define SIZE_PATTERN   "^[0-9]+(B|KiB|MiB|GiB|TiB)?$"
#define DIGEST_PATTERN "^[0-9a-fA-F]{64}$"

/* Where one piece found no memory, the whole is refused. */
typedef struct builder {
    bool failed;
} builder;

/* Takes `value`, which may be NULL: there was no memory. */
static void put(builder *b, json_t *object, const char *name, json_t *value)
{
    if (json_object_set_new(object, name, value) != 0) {
        b->failed = true;
    }
}

static void push(builder *b, json_t *array, json_t *value)
{
    if (json_array_append_new(array, value) != 0) {
        b->failed = true;
    }
}

static json_t *typed(builder *b, const char *type)
{
    json_t *schema = json_object();
    put(b, schema, "type", json_string(type));
    return schema;
}

static json_t *pattern(builder *b, const char *expression)
{
    json_t *schema = typed(b, "string");
    put(b, schema, "pattern", json_string(expression));
    return schema;
}

/* A number of the table, of DECIMAL in thousandths. */
static json_t *bound(const mr_config_key *key, uint64_t value)
{
    if (key->kind != MR_KEY_DECIMAL) {
        return json_integer((json_int_t)value);
    }
    return value % 1000 == 0 ? json_integer((json_int_t)(value / 1000))
                             : json_real((double)value / 1000.0);
}

static json_t *number_form(builder *b, const mr_config_key *key)
{
    json_t *schema = typed(b, key->kind == MR_KEY_DECIMAL ? "number" : "integer");
    put(b, schema, "minimum", bound(key, key->low));
    if (key->high <= INT64_MAX) {
        put(b, schema, "maximum", bound(key, key->high));
    }
    return schema;
}

static json_t *number_schema(builder *b, const mr_config_key *key)
{
    const bool automatic = mr_config_key_automatic(key);
    json_t *number = number_form(b, key);
    if (key->kind != MR_KEY_BYTES && !automatic) {
        return number;
    }
    json_t *forms = json_array();
    push(b, forms, number);
    if (key->kind == MR_KEY_BYTES) {
        push(b, forms, pattern(b, SIZE_PATTERN));
    }
    if (automatic) {
        json_t *word = json_object();
        put(b, word, "const", json_string("auto"));
        push(b, forms, word);
    }
    json_t *schema = json_object();
    put(b, schema, "anyOf", forms);
    return schema;
}

/* YAML reads some words as other than text: those count too. */
static void push_choice(builder *b, json_t *choices, const char *word, size_t length)
{
    if (length == 4 && memcmp(word, "true", 4) == 0) {
        push(b, choices, json_true());
    } else if (length == 5 && memcmp(word, "false", 5) == 0) {
        push(b, choices, json_false());
    } else if (strspn(word, "0123456789") >= length) {
        push(b, choices, json_integer(strtoll(word, NULL, 10)));
    }
    push(b, choices, json_stringn(word, length));
}

static json_t *choice_schema(builder *b, const char *choices)
{
    json_t *words = json_array();
    for (const char *at = choices; *at != '\0';) {
        const size_t length = strcspn(at, "|");
        push_choice(b, words, at, length);
        at += length + (at[length] == '|' ? 1 : 0);
    }
    json_t *schema = json_object();
    put(b, schema, "enum", words);
    return schema;
}

static json_t *text_schema(builder *b, const mr_config_key *key)
{
    if (key->choices[0] != '\0') {
        return choice_schema(b, key->choices);
    }
    /* A number without quotes is its digits to the program. */
    json_t *types = json_array();
    push(b, types, json_string("string"));
    push(b, types, json_string("number"));
    json_t *schema = json_object();
    put(b, schema, "type", types);
    put(b, schema, "maxLength", json_integer((json_int_t)key->size - 1));
    if (key->kind != MR_KEY_TEXT) {
        put(b, schema, "writeOnly", json_true()); /* a secret, or what may hold one */
    }
    return schema;
}

static json_t *closed_object(builder *b)
{
    json_t *schema = typed(b, "object");
    put(b, schema, "additionalProperties", json_false());
    put(b, schema, "properties", json_object());
    return schema;
}

static json_t *array_schema(builder *b, json_t *items, size_t most)
{
    json_t *schema = typed(b, "array");
    put(b, schema, "maxItems", json_integer((json_int_t)most));
    put(b, schema, "items", items);
    return schema;
}

static json_t *identity_schema(builder *b)
{
    json_t *schema = typed(b, "string");
    put(b, schema, "minLength", json_integer(1));
    put(b, schema, "maxLength", json_integer(MR_IDENTITY_MAX));
    return schema;
}

/* Of one value; lists apart. */
static json_t *value_schema(builder *b, const mr_config_key *key)
{
    switch (key->kind) {
    case MR_KEY_NUMBER:
    case MR_KEY_BYTES:
    case MR_KEY_DECIMAL:
        return number_schema(b, key);
    case MR_KEY_FIXED:
        return choice_schema(b, key->choices);
    case MR_KEY_DIGESTS:
        return array_schema(b, pattern(b, DIGEST_PATTERN), key->size / MR_SHA256_BYTES);
    case MR_KEY_IDENTITIES:
        return array_schema(b, identity_schema(b), key->size / (MR_IDENTITY_MAX + 1));
    default:
        return text_schema(b, key);
    }
}

static void describe(builder *b, json_t *schema, const mr_config_key *key)
{
    mr_config_about about;
    mr_config_key_describe(key, &about);
    put(b, schema, "description", json_string(about.meaning));
    const bool is_number =
        key->kind == MR_KEY_NUMBER || key->kind == MR_KEY_BYTES || key->kind == MR_KEY_DECIMAL;
    if (is_number && !mr_config_key_automatic(key)) {
        put(b, schema, "default", bound(key, key->number_default));
    } else if (about.initial[0] != '\0' && key->kind != MR_KEY_LIST && !mr_config_key_plural(key)) {
        put(b, schema, "default", json_string(about.initial));
    }
}

static json_t *list_schema(builder *b, const char *list)
{
    json_t *entry = closed_object(b);
    json_t *properties = json_object_get(entry, "properties");
    const mr_config_key *field;
    for (size_t i = 0; (field = mr_config_list_field(list, i)) != NULL; i++) {
        json_t *schema = value_schema(b, field);
        describe(b, schema, field);
        put(b, properties, strstr(field->name, "[].") + 3, schema);
    }
    return array_schema(b, entry, mr_config_list_most(list));
}

/* The properties that a dotted name's last part belongs to; *name is that part afterwards. */
static json_t *section_of(builder *b, json_t *properties, const char **name)
{
    for (const char *dot; (dot = strchr(*name, '.')) != NULL; *name = dot + 1) {
        char part[128] = {0};
        const size_t length = (size_t)(dot - *name);
        memcpy(part, *name, length < sizeof(part) ? length : sizeof(part) - 1);
        if (json_object_get(properties, part) == NULL) {
            put(b, properties, part, closed_object(b));
        }
        properties = json_object_get(json_object_get(properties, part), "properties");
    }
    return properties;
}

static void add_key(builder *b, json_t *root, const mr_config_key *key)
{
    const char *name = key->name;
    json_t *properties = section_of(b, json_object_get(root, "properties"), &name);
    json_t *schema = key->kind == MR_KEY_LIST ? list_schema(b, key->name) : value_schema(b, key);
    describe(b, schema, key);
    put(b, properties, name, schema);
}

mr_status mr_config_schema(mr_buffer *out)
{
    builder b = {0};
    json_t *root = closed_object(&b);
    put(&b, root, "$schema", json_string("http://json-schema.org/draft-07/schema#"));
    put(&b, root, "title", json_string("millrace configuration file"));
    const mr_config_key *key;
    for (size_t i = 0; (key = mr_config_key_at(i)) != NULL; i++) {
        add_key(&b, root, key);
    }
    char *text = b.failed ? NULL : json_dumps(root, JSON_INDENT(2));
    json_decref(root);
    if (text == NULL) {
        return MR_RESOURCE_EXHAUSTED;
    }
    const mr_status status = mr_buffer_printf(out, "%s\n", text);
    free(text);
    return status;
}
