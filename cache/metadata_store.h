/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What replicas tell each other: which blocks of KV each of them has. Never the blocks themselves.
 *
 * A replica claims blocks by their hashes (the first 16 bytes of each), under its epoch: a number
 * that no earlier process and no earlier cache had. A claim counts only while the replica's record
 * is alive and has that epoch; so what a restarted or cleared replica had claimed is nothing at
 * once, whatever is left of it in the store.
 *
 * publish, withdraw and reset never block for anybody and allocate nothing: the engine may call
 * them. What does not fit is dropped and counted; a missing claim costs a computation, no more.
 */
#ifndef MILLRACE_CACHE_METADATA_STORE_H
#define MILLRACE_CACHE_METADATA_STORE_H

#include "base/clock.h"
#include "base/status.h"

#include <stdint.h>

#define MR_BLOCK_HASH_BYTES 32
#define MR_STORE_TEXT_MAX   128 /* bytes of a text below, with its end */
#define MR_STORE_MAX_CLAIMS 16
#define MR_STORE_CLAIM_MS   600000u
#define MR_STORE_RECORD_MS  15000u
#define MR_STORE_REFRESH_MS 5000u

/* What a replica says of itself. */
typedef struct mr_replica {
    char id[MR_STORE_TEXT_MAX];       /* the same after a restart */
    char addr[MR_STORE_TEXT_MAX];     /* HOST:PORT for other replicas */
    char numerics[MR_STORE_TEXT_MAX]; /* whose blocks it can use */
    char state[MR_STORE_TEXT_MAX];    /* "loading", "ready", "draining" */
    uint64_t epoch;
} mr_replica;

/* A replica and how much of a chain it has. */
typedef struct mr_store_claim {
    mr_replica replica;
    uint32_t blocks; /* the first so many of the chain */
} mr_store_claim;

/* A question, and its answer. Stays alive until on_found. */
typedef struct mr_store_lookup {
    const uint8_t *hashes; /* borrows, [n][MR_BLOCK_HASH_BYTES], in the chain's order */
    uint32_t n;
    mr_store_claim claims[MR_STORE_MAX_CLAIMS]; /* [n_claims] most blocks first */
    uint32_t n_claims;
    /* MR_OK; UNAVAILABLE or DEADLINE_EXCEEDED: the store did not answer. Once, from the store's
     * thread or within lookup. */
    void (*on_found)(struct mr_store_lookup *lookup, mr_status status);
} mr_store_lookup;

typedef struct mr_store_stats {
    uint64_t published; /* claims */
    uint64_t withdrawn;
    uint64_t dropped; /* of both, since the store was down or full */
} mr_store_stats;

typedef struct mr_metadata_store mr_metadata_store;

typedef struct mr_metadata_vtable {
    void (*destroy)(mr_metadata_store *store);
    void (*publish)(mr_metadata_store *store, const uint8_t *hashes, uint32_t n);
    void (*withdraw)(mr_metadata_store *store, const uint8_t *hashes, uint32_t n);
    void (*reset)(mr_metadata_store *store);
    void (*set_state)(mr_metadata_store *store, const char *state);
    void (*lookup)(mr_metadata_store *store, mr_store_lookup *lookup);
    void (*stats)(mr_metadata_store *store, mr_store_stats *out);
} mr_metadata_vtable;

struct mr_metadata_store {
    const mr_metadata_vtable *vt;
};

/* The default: this process alone, `n_blocks` of its latest claims. Takes a copy of `self`, whose
 * epoch it draws. */
MR_MUST_USE mr_status mr_local_store_create(const mr_replica *self, uint32_t n_blocks,
                                            const mr_clock *clock, mr_metadata_store **out,
                                            mr_error *err);
void mr_metadata_store_destroy(mr_metadata_store *store);

/* This replica has these blocks: [n][MR_BLOCK_HASH_BYTES]. Any thread. */
void mr_metadata_store_publish(mr_metadata_store *store, const uint8_t *hashes, uint32_t n);
/* It has them no longer. Any thread. */
void mr_metadata_store_withdraw(mr_metadata_store *store, const uint8_t *hashes, uint32_t n);
/* It has none of all that it claimed: a new epoch. Any thread. */
void mr_metadata_store_reset(mr_metadata_store *store);
/* Any thread. */
void mr_metadata_store_set_state(mr_metadata_store *store, const char *state);
/* Which live replicas hold the beginning of a chain. Any thread; waits for nothing. */
void mr_metadata_store_lookup(mr_metadata_store *store, mr_store_lookup *lookup);
void mr_metadata_store_stats(mr_metadata_store *store, mr_store_stats *out);

/* A random epoch; INTERNAL when the system gives no random bytes. */
MR_MUST_USE mr_status mr_store_draw_epoch(uint64_t *out, mr_error *err);

#endif
