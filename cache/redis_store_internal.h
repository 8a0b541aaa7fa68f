/* SPDX-License-Identifier: Apache-2.0 */
/* What redis_store.c (claims and records) and redis_lookup.c (questions) share. */
#ifndef MILLRACE_CACHE_REDIS_STORE_INTERNAL_H
#define MILLRACE_CACHE_REDIS_STORE_INTERNAL_H

#include "cache/redis_store.h"

#include <inttypes.h>

#define MR_EPOCH_FORMAT     "%016" PRIx64
#define MR_STORE_KEY_BYTES  192
#define MR_STORE_TIMEOUT_NS (5 * MR_NS_PER_S)

typedef struct mr_store_key {
    char text[MR_STORE_KEY_BYTES];
} mr_store_key;

mr_store_key mr_redis_store_claim_key(const uint8_t *hash);
mr_store_key mr_redis_store_record_key(const char *id);

/* The store's lookup. */
void mr_redis_lookup(mr_redis_link *link, mr_store_lookup *lookup);

#endif
