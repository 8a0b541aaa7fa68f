/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two open-addressing maps with linear probing, filled once and then only read (any thread):
 * byte strings → u32 (vocabularies, field names) and u64 → u32 (merge ranks).
 */
#ifndef MILLRACE_BASE_HASH_MAP_H
#define MILLRACE_BASE_HASH_MAP_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct mr_string_map mr_string_map;

/* Room for `expected` keys; it grows when there are more. Keys are borrowed until destroy. */
MR_MUST_USE mr_status mr_string_map_create(size_t expected, mr_string_map **out);
void mr_string_map_destroy(mr_string_map *map);
/* ALREADY_EXISTS for a key that is inside (the old value stays). */
MR_MUST_USE mr_status mr_string_map_put(mr_string_map *map, const void *key, size_t bytes,
                                        uint32_t value);
bool mr_string_map_get(const mr_string_map *map, const void *key, size_t bytes, uint32_t *value);

typedef struct mr_u64_map mr_u64_map;

MR_MUST_USE mr_status mr_u64_map_create(size_t expected, mr_u64_map **out);
void mr_u64_map_destroy(mr_u64_map *map);
/* Any key but UINT64_MAX. ALREADY_EXISTS as above. */
MR_MUST_USE mr_status mr_u64_map_put(mr_u64_map *map, uint64_t key, uint32_t value);
bool mr_u64_map_get(const mr_u64_map *map, uint64_t key, uint32_t *value);

#endif
