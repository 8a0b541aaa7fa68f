/* SPDX-License-Identifier: Apache-2.0 */
#include "model/json_tree.h"

static json_t *value_of(const mr_json_event *event)
{
    double number = 0.0;
    uint64_t whole = 0;
    switch (event->kind) {
    case MR_JSON_NULL:
        return json_null();
    case MR_JSON_BOOL:
        return json_boolean(event->boolean);
    case MR_JSON_NUMBER:
        if (mr_json_u64(event, INT64_MAX, &whole)) {
            return json_integer((json_int_t)whole);
        }
        return mr_json_double(event, &number) ? json_real(number) : json_null();
    case MR_JSON_STRING:
        return json_stringn(event->text.size > 0 ? (const char *)event->text.data : "",
                            event->text.size);
    case MR_JSON_OBJECT_BEGIN:
        return json_object();
    case MR_JSON_ARRAY_BEGIN:
        return json_array();
    case MR_JSON_OBJECT_END:
    case MR_JSON_ARRAY_END:
        break;
    }
    return NULL;
}

/* Puts the value where it belongs, which takes it. */
static mr_status place(mr_json_tree *tree, const mr_json_event *event, json_t *value, mr_error *err)
{
    json_t *in = tree->depth > 0 ? tree->open[tree->depth - 1] : NULL;
    int failed = 0;
    if (in == NULL) {
        json_decref(tree->root);
        tree->root = value;
    } else if (json_is_object(in)) {
        const char *key = event->key.size > 0 ? (const char *)event->key.data : "";
        if (json_object_getn(in, key, event->key.size) != NULL) {
            json_decref(value);
            return mr_fail(err, MR_DATA_LOSS, "the key \"%.*s\" is there twice",
                           event->key.size < 60 ? (int)event->key.size : 60, key);
        }
        failed = json_object_setn_new(in, key, event->key.size, value);
    } else {
        failed = json_array_append_new(in, value);
    }
    return failed == 0 ? MR_OK : mr_fail(err, MR_RESOURCE_EXHAUSTED, "no memory for a JSON file");
}

mr_status mr_json_tree_add(mr_json_tree *tree, const mr_json_event *event, mr_error *err)
{
    if (event->kind == MR_JSON_OBJECT_END || event->kind == MR_JSON_ARRAY_END) {
        tree->depth -= tree->depth > 0;
        return MR_OK;
    }
    if (tree->nodes++ == MR_JSON_TREE_MAX_NODES) {
        return mr_fail(err, MR_DATA_LOSS, "more than %u values", MR_JSON_TREE_MAX_NODES);
    }
    json_t *value = value_of(event);
    if (value == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "no memory for a JSON file");
    }
    MR_TRY(place(tree, event, value, err));
    if (json_is_object(value) || json_is_array(value)) {
        tree->open[tree->depth++] = value;
    }
    return MR_OK;
}

void mr_json_tree_deinit(mr_json_tree *tree)
{
    json_decref(tree->root);
    *tree = (mr_json_tree){0};
}

mr_bytes mr_json_tree_string(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_string(value)) {
        return (mr_bytes){0};
    }
    return (mr_bytes){.data = (const uint8_t *)json_string_value(value),
                      .size = json_string_length(value)};
}
