/* SPDX-License-Identifier: Apache-2.0 */
#include "service/api_key.h"

#include "base/file_map.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* Checks what stands in `text` and copies it. `source` names it in messages. */
static mr_status take_key(const char *text, size_t bytes, const char *source, char *key,
                          mr_error *err)
{
    while (bytes > 0 && is_space(text[bytes - 1])) {
        bytes--;
    }
    if (bytes == 0 || bytes > MR_API_KEY_MAX) {
        return mr_fail(err, MR_INVALID_ARGUMENT, "%s must hold a key of 1 to %u bytes", source,
                       MR_API_KEY_MAX);
    }
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] <= ' ' || text[i] > '~') {
            return mr_fail(err, MR_INVALID_ARGUMENT,
                           "%s: byte %zu of the key is no printable ASCII character; a key stands "
                           "on one line, without spaces",
                           source, i);
        }
    }
    memcpy(key, text, bytes);
    key[bytes] = '\0';
    return MR_OK;
}

mr_status mr_api_key_load(const char *path, char key[MR_API_KEY_MAX + 1], mr_error *err)
{
    key[0] = '\0';
    if (path == NULL) {
        const char *value = getenv(MR_API_KEY_VARIABLE);
        return value == NULL || value[0] == '\0'
                   ? MR_OK
                   : take_key(value, strlen(value), MR_API_KEY_VARIABLE, key, err);
    }
    mr_file_map map;
    MR_TRY(mr_file_map_open(path, &map, err));
    const mr_status status = take_key((const char *)map.data, map.size, path, key, err);
    mr_file_map_close(&map);
    return status;
}
