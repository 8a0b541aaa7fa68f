/* SPDX-License-Identifier: Apache-2.0 */
/* The metadata store of one process: a set-associative table, so that a claim always finds a place
 * and the oldest of its set goes. */
#include "base/checked.h"
#include "cache/metadata_store.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WAYS      8u
#define KEY_BYTES 16u

typedef struct local_claim {
    uint8_t key[KEY_BYTES];
    uint64_t epoch;
    uint64_t until_ns; /* 0: no claim */
} local_claim;

typedef struct local_store {
    mr_metadata_store base; /* first */
    mr_clock clock;
    pthread_mutex_t mutex; /* of what follows */
    mr_replica self;
    local_claim *claims; /* owns, [n_sets][WAYS] */
    uint64_t n_sets;
    mr_store_stats stats;
} local_store;

static local_claim *set_of(const local_store *local, const uint8_t *key)
{
    uint64_t number;
    memcpy(&number, key, sizeof(number)); /* of a hash: spread evenly as it is */
    return &local->claims[number % local->n_sets * WAYS];
}

static local_claim *find(const local_store *local, const uint8_t *key)
{
    local_claim *set = set_of(local, key);
    for (uint32_t i = 0; i < WAYS; i++) {
        if (set[i].until_ns != 0 && memcmp(set[i].key, key, KEY_BYTES) == 0) {
            return &set[i];
        }
    }
    return NULL;
}

static local_claim *oldest(const local_store *local, const uint8_t *key)
{
    local_claim *set = set_of(local, key);
    local_claim *found = set;
    for (uint32_t i = 1; i < WAYS; i++) {
        found = set[i].until_ns < found->until_ns ? &set[i] : found;
    }
    return found;
}

static void publish(mr_metadata_store *store, const uint8_t *hashes, uint32_t n)
{
    local_store *local = (local_store *)store;
    const uint64_t until_ns =
        mr_time_add(mr_clock_now(&local->clock), MR_STORE_CLAIM_MS * MR_NS_PER_MS);
    pthread_mutex_lock(&local->mutex);
    for (uint32_t i = 0; i < n; i++) {
        const uint8_t *key = hashes + (size_t)i * MR_BLOCK_HASH_BYTES;
        local_claim *claim = find(local, key);
        claim = claim != NULL ? claim : oldest(local, key);
        memcpy(claim->key, key, KEY_BYTES);
        claim->epoch = local->self.epoch;
        claim->until_ns = until_ns;
    }
    local->stats.published += n;
    pthread_mutex_unlock(&local->mutex);
}

static void withdraw(mr_metadata_store *store, const uint8_t *hashes, uint32_t n)
{
    local_store *local = (local_store *)store;
    pthread_mutex_lock(&local->mutex);
    for (uint32_t i = 0; i < n; i++) {
        local_claim *claim = find(local, hashes + (size_t)i * MR_BLOCK_HASH_BYTES);
        if (claim != NULL) {
            claim->until_ns = 0;
        }
    }
    local->stats.withdrawn += n;
    pthread_mutex_unlock(&local->mutex);
}

static void reset(mr_metadata_store *store)
{
    local_store *local = (local_store *)store;
    pthread_mutex_lock(&local->mutex);
    local->self.epoch++;
    pthread_mutex_unlock(&local->mutex);
}

static void set_state(mr_metadata_store *store, const char *state)
{
    local_store *local = (local_store *)store;
    pthread_mutex_lock(&local->mutex);
    snprintf(local->self.state, sizeof(local->self.state), "%s", state);
    pthread_mutex_unlock(&local->mutex);
}

static void lookup(mr_metadata_store *store, mr_store_lookup *asked)
{
    local_store *local = (local_store *)store;
    const uint64_t now_ns = mr_clock_now(&local->clock);
    pthread_mutex_lock(&local->mutex);
    uint32_t blocks = 0;
    for (; blocks < asked->n; blocks++) {
        const local_claim *claim =
            find(local, asked->hashes + (size_t)blocks * MR_BLOCK_HASH_BYTES);
        if (claim == NULL || claim->epoch != local->self.epoch || claim->until_ns <= now_ns) {
            break;
        }
    }
    asked->n_claims = blocks > 0 ? 1 : 0;
    asked->claims[0] = (mr_store_claim){.replica = local->self, .blocks = blocks};
    pthread_mutex_unlock(&local->mutex);
    asked->on_found(asked, MR_OK);
}

static void stats(mr_metadata_store *store, mr_store_stats *out)
{
    local_store *local = (local_store *)store;
    pthread_mutex_lock(&local->mutex);
    *out = local->stats;
    pthread_mutex_unlock(&local->mutex);
}

static void destroy(mr_metadata_store *store)
{
    local_store *local = (local_store *)store;
    pthread_mutex_destroy(&local->mutex);
    free(local->claims);
    free(local);
}

mr_status mr_local_store_create(const mr_replica *self, uint32_t n_blocks, const mr_clock *clock,
                                mr_metadata_store **out, mr_error *err)
{
    static const mr_metadata_vtable vt = {
        .destroy = destroy,
        .publish = publish,
        .withdraw = withdraw,
        .reset = reset,
        .set_state = set_state,
        .lookup = lookup,
        .stats = stats,
    };
    uint64_t epoch;
    MR_TRY(mr_store_draw_epoch(&epoch, err));
    local_store *local = mr_calloc(1, sizeof(*local));
    /* Half full, so that few sets overflow. */
    const uint64_t n_sets = (uint64_t)n_blocks / (WAYS / 2) + 1;
    local_claim *claims = mr_calloc(n_sets * WAYS, sizeof(*claims));
    if (local == NULL || claims == NULL) {
        free(local);
        free(claims);
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "out of memory for the claims on %u blocks",
                       (unsigned)n_blocks);
    }
    local->base.vt = &vt;
    local->clock = *clock;
    local->self = *self;
    local->self.epoch = epoch;
    local->claims = claims;
    local->n_sets = n_sets;
    pthread_mutex_init(&local->mutex, NULL);
    *out = &local->base;
    return MR_OK;
}
