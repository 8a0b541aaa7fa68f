/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Remembers what short pieces became, in a table of fixed size: of two pieces that want the same
 * place the later one stays. A pool lends a cache to one thread at a time and never waits; who gets
 * none works without.
 */
#ifndef MILLRACE_MODEL_PIECE_CACHE_H
#define MILLRACE_MODEL_PIECE_CACHE_H

#include "base/bytes.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MR_PIECE_CACHE_BYTES 30u /* of the longest piece that is remembered */
#define MR_PIECE_CACHE_IDS   6u  /* and what it may become */

typedef struct mr_piece_cache mr_piece_cache;

/* Ids of a piece; 0 if it is not there. Borrowed until the next put. One thread at a time. */
size_t mr_piece_cache_get(const mr_piece_cache *cache, mr_bytes piece, const uint32_t **ids);
/* Remembers the ids of a piece, if they fit. */
void mr_piece_cache_put(mr_piece_cache *cache, mr_bytes piece, const uint32_t *ids, size_t count);

typedef struct mr_piece_caches mr_piece_caches;

/* Caches of 1 MiB for up to 8 threads at once, made when they are first lent. RESOURCE_EXHAUSTED.
 */
MR_MUST_USE mr_status mr_piece_caches_create(mr_piece_caches **out);
void mr_piece_caches_destroy(mr_piece_caches *caches);
/* Lends a cache, NULL if all are lent out or memory is short. Any thread. */
mr_piece_cache *mr_piece_caches_take(mr_piece_caches *caches);
/* Gives a cache back (NULL: does nothing). The thread that took it. */
void mr_piece_cache_give(mr_piece_cache *cache);

#endif
