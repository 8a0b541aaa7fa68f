/* SPDX-License-Identifier: Apache-2.0 */
#include "model/piece_cache.h"

#include "base/checked.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define ENTRIES 16384u /* a power of two */
#define CACHES  8u

/* One line of the processor's cache. */
typedef struct entry {
    uint32_t ids[MR_PIECE_CACHE_IDS];
    uint64_t hash;
    uint8_t bytes; /* 0: empty */
    uint8_t count;
    uint8_t piece[MR_PIECE_CACHE_BYTES];
} entry;

_Static_assert(sizeof(entry) == 64, "a line");

struct mr_piece_cache {
    entry *entries; /* owns, [ENTRIES] */
    pthread_mutex_t lent;
};

struct mr_piece_caches {
    mr_piece_cache caches[CACHES];
};

static uint64_t load(const uint8_t *data, size_t bytes)
{
    uint64_t word = 0;
    memcpy(&word, data, bytes);
    return word;
}

/* Mixes eight bytes at a time by multiplying with odd constants. Collisions only cost time. */
static uint64_t hash_of(mr_bytes piece)
{
    uint64_t hash = piece.size * 0x9E3779B97F4A7C15u;
    size_t at = 0;
    for (; at + 8 <= piece.size; at += 8) {
        hash = (hash ^ load(piece.data + at, 8)) * 0xD6E8FEB86659FD93u;
        hash ^= hash >> 32;
    }
    hash = (hash ^ load(piece.data + at, piece.size - at)) * 0xD6E8FEB86659FD93u;
    return hash ^ hash >> 29;
}

size_t mr_piece_cache_get(const mr_piece_cache *cache, mr_bytes piece, const uint32_t **ids)
{
    if (piece.size > MR_PIECE_CACHE_BYTES) {
        return 0;
    }
    const uint64_t hash = hash_of(piece);
    const entry *found = &cache->entries[hash % ENTRIES];
    if (found->hash != hash || found->bytes != piece.size ||
        memcmp(found->piece, piece.data, piece.size) != 0) {
        return 0;
    }
    *ids = found->ids;
    return found->count;
}

void mr_piece_cache_put(mr_piece_cache *cache, mr_bytes piece, const uint32_t *ids, size_t count)
{
    if (piece.size == 0 || piece.size > MR_PIECE_CACHE_BYTES || count == 0 ||
        count > MR_PIECE_CACHE_IDS) {
        return;
    }
    const uint64_t hash = hash_of(piece);
    entry *place = &cache->entries[hash % ENTRIES];
    place->hash = hash;
    place->bytes = (uint8_t)piece.size;
    place->count = (uint8_t)count;
    memcpy(place->piece, piece.data, piece.size);
    memcpy(place->ids, ids, count * sizeof(*ids));
}

mr_status mr_piece_caches_create(mr_piece_caches **out)
{
    *out = mr_calloc(1, sizeof(**out));
    if (*out == NULL) {
        return MR_RESOURCE_EXHAUSTED;
    }
    for (size_t i = 0; i < CACHES; i++) {
        if (pthread_mutex_init(&(*out)->caches[i].lent, NULL) != 0) {
            while (i-- > 0) {
                pthread_mutex_destroy(&(*out)->caches[i].lent);
            }
            free(*out);
            *out = NULL;
            return MR_RESOURCE_EXHAUSTED;
        }
    }
    return MR_OK;
}

void mr_piece_caches_destroy(mr_piece_caches *caches)
{
    if (caches == NULL) {
        return;
    }
    for (size_t i = 0; i < CACHES; i++) {
        pthread_mutex_destroy(&caches->caches[i].lent);
        free(caches->caches[i].entries);
    }
    free(caches);
}

mr_piece_cache *mr_piece_caches_take(mr_piece_caches *caches)
{
    for (size_t i = 0; i < CACHES; i++) {
        mr_piece_cache *cache = &caches->caches[i];
        if (pthread_mutex_trylock(&cache->lent) != 0) {
            continue;
        }
        if (cache->entries == NULL) {
            cache->entries = mr_alloc_aligned(ENTRIES * sizeof(entry));
        }
        if (cache->entries != NULL) {
            return cache;
        }
        pthread_mutex_unlock(&cache->lent);
    }
    return NULL;
}

void mr_piece_cache_give(mr_piece_cache *cache)
{
    if (cache != NULL) {
        pthread_mutex_unlock(&cache->lent);
    }
}
