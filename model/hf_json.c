/* SPDX-License-Identifier: Apache-2.0 */
#include "model/hf_json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

mr_status mr_hf_path(const char *dir, const char *file, char **out, mr_error *err)
{
    if (asprintf(out, "%s/%s", dir, file) < 0) {
        *out = NULL;
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "no memory for the path of %s", file);
    }
    return MR_OK;
}

mr_status mr_hf_map_file(const char *dir, const char *file, mr_file_map *out, bool *found,
                         mr_error *err)
{
    char *path;
    mr_error local = {0};
    *out = (mr_file_map){0};
    MR_TRY(mr_hf_path(dir, file, &path, err));
    const mr_status status = mr_file_map_open(path, out, &local);
    free(path);
    *found = status == MR_OK;
    if (status != MR_OK && status != MR_NOT_FOUND) {
        return mr_fail(err, status, "%s", local.message);
    }
    return MR_OK;
}

mr_status mr_hf_json_parse(const void *data, size_t size, const char *label, json_t **out,
                           mr_error *err)
{
    *out = NULL;
    json_error_t error;
    if (size > MR_HF_JSON_MAX_BYTES) {
        return mr_fail(err, MR_DATA_LOSS, "%s has %zu bytes where at most %u are allowed", label,
                       size, MR_HF_JSON_MAX_BYTES);
    }
    json_t *root = json_loadb(data, size, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL) {
        return mr_fail(err, MR_DATA_LOSS, "%s, line %d: %.200s", label, error.line, error.text);
    }
    if (!json_is_object(root)) {
        json_decref(root);
        return mr_fail(err, MR_DATA_LOSS, "%s holds no JSON object", label);
    }
    *out = root;
    return MR_OK;
}

mr_status mr_hf_json_read(const char *dir, const char *file, json_t **out, mr_error *err)
{
    mr_file_map map;
    bool found;
    *out = NULL;
    MR_TRY(mr_hf_map_file(dir, file, &map, &found, err));
    if (!found) {
        return MR_OK;
    }
    const void *data = map.size > 0 ? (const void *)map.data : "";
    const mr_status status = mr_hf_json_parse(data, map.size, file, out, err);
    mr_file_map_close(&map);
    return status;
}

static const json_t *value_of(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

static mr_status fail_type(const char *key, const char *wanted, mr_error *err)
{
    return mr_fail(err, MR_DATA_LOSS, "the key '%s' is not %s", key, wanted);
}

mr_status mr_hf_json_u32(const json_t *object, const char *key, uint32_t *out, mr_error *err)
{
    const json_t *value = value_of(object, key);
    if (value == NULL) {
        return MR_OK;
    }
    /* Some files have 8192.0 for 8192. */
    const double number = json_is_number(value) ? json_number_value(value) : -1.0;
    if (!(number >= 0.0 && number <= (double)UINT32_MAX) || number != floor(number)) {
        return fail_type(key, "a whole number from 0 to 2^32 - 1", err);
    }
    *out = (uint32_t)number;
    return MR_OK;
}

mr_status mr_hf_json_double(const json_t *object, const char *key, double *out, mr_error *err)
{
    const json_t *value = value_of(object, key);
    if (value == NULL) {
        return MR_OK;
    }
    if (!json_is_number(value) || !isfinite(json_number_value(value))) {
        return fail_type(key, "a finite number", err);
    }
    *out = json_number_value(value);
    return MR_OK;
}

mr_status mr_hf_json_bool(const json_t *object, const char *key, bool *out, mr_error *err)
{
    const json_t *value = value_of(object, key);
    if (value == NULL) {
        return MR_OK;
    }
    if (!json_is_boolean(value)) {
        return fail_type(key, "true or false", err);
    }
    *out = json_is_true(value);
    return MR_OK;
}

mr_status mr_hf_json_string(const json_t *object, const char *key, const char **out, mr_error *err)
{
    const json_t *value = value_of(object, key);
    if (value == NULL) {
        return MR_OK;
    }
    if (!json_is_string(value)) {
        return fail_type(key, "a string", err);
    }
    *out = json_string_value(value);
    return MR_OK;
}
