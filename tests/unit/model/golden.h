/* SPDX-License-Identifier: Apache-2.0 */
/* Reading the golden files in tests/data; MR_TEST_DATA names the folder. */
#ifndef MILLRACE_TESTS_GOLDEN_H
#define MILLRACE_TESTS_GOLDEN_H

#include "model/tokenizer.h"

#include <jansson.h>

/* Flags under which a string may hold U+0000. */
#define GOLDEN_FLAGS JSON_ALLOW_NUL

/* The root of tests/data/<name>; fails the test when it cannot be read. json_decref it. */
static inline json_t *golden_load(const char *name)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/%s", MR_TEST_DATA, name);
    json_error_t error;
    json_t *root = json_load_file(path, GOLDEN_FLAGS, &error);
    if (root == NULL) {
        fail_msg("%s: %s at line %d", path, error.text, error.line);
    }
    return root;
}

/* A string of an object, borrowed from it. */
static inline mr_bytes golden_bytes(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    assert_true(json_is_string(value));
    return (mr_bytes){(const uint8_t *)json_string_value(value), json_string_length(value)};
}

#endif
