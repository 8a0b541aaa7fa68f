/* SPDX-License-Identifier: Apache-2.0 */
/* A whole file, mapped read-only. */
#ifndef MILLRACE_BASE_FILE_MAP_H
#define MILLRACE_BASE_FILE_MAP_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

typedef struct mr_file_map {
    const uint8_t *data; /* owns the mapping; NULL for an empty file */
    size_t size;
} mr_file_map;

/* Errors name the path: NOT_FOUND, PERMISSION_DENIED, INVALID_ARGUMENT (a directory, a pipe),
 * RESOURCE_EXHAUSTED. */
MR_MUST_USE mr_status mr_file_map_open(const char *path, mr_file_map *out, mr_error *err);
void mr_file_map_close(mr_file_map *map);

/* Tells the kernel that [offset, offset + bytes) is not needed any more (weights repacked). */
void mr_file_map_release(const mr_file_map *map, const void *data, size_t bytes);

#endif
