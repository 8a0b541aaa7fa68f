/* SPDX-License-Identifier: Apache-2.0 */
/* Safetensors files for tests, byte by byte. */
#ifndef MILLRACE_TESTS_SAFETENSORS_WRITER_H
#define MILLRACE_TESTS_SAFETENSORS_WRITER_H

#include "../base/temp_dir.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct safetensors_bytes {
    uint8_t *data; /* owns */
    size_t size;
} safetensors_bytes;

/* The header's length, the header, and `body` bytes that count up from 0. */
static inline safetensors_bytes safetensors_make(const char *header, size_t body)
{
    const size_t length = strlen(header);
    safetensors_bytes file = {.size = 8 + length + body};
    file.data = malloc(file.size > 0 ? file.size : 1);
    assert_non_null(file.data);
    for (unsigned i = 0; i < 8; i++) {
        file.data[i] = (uint8_t)((uint64_t)length >> (8 * i));
    }
    memcpy(file.data + 8, header, length);
    for (size_t i = 0; i < body; i++) {
        file.data[8 + length + i] = (uint8_t)i;
    }
    return file;
}

/* Such a file in a folder. */
static inline void safetensors_write(const temp_dir *dir, const char *name, const char *header,
                                     size_t body)
{
    char path[PATH_MAX];
    safetensors_bytes bytes = safetensors_make(header, body);
    FILE *file = fopen(temp_dir_join(dir, name, path), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes.data, 1, bytes.size, file), bytes.size);
    assert_int_equal(fclose(file), 0);
    free(bytes.data);
}

#endif
