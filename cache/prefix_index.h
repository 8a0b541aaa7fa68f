/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which block holds which prefix: a fixed table over the pool's blocks, found by hash.
 *
 *   root ── 5 ── 9 ── 2 ── 7        a block hangs below the one before it
 *                 └── 4 ── 3        3 and 7 are leaves
 *
 * A registered block is busy (some sequence references it) or idle (cached). Of the idle ones those
 * without registered children go first, the longest idle first: a prefix that is found again loses
 * its end before its beginning. Only when every idle block has children, which other sequences
 * hold, goes one of those; its children cannot be found from then on, and are no longer counted as
 * anybody's.
 *
 * An epoch is the time between two resets. Who computed a block in one epoch does not register it
 * in the next (X4). A generation is the identity of the model that the roots were made from
 * (prefix_hash.h): a new one begins a new epoch, and chains of an older one match nothing.
 *
 * Owned by the pool and the engine thread; nothing here locks or allocates after create.
 *
 * Events, for whoever tells other replicas what is here: with _observe() every change is written
 * into a ring that another thread empties at its leisure, by mr_ring_peek and mr_ring_pop; nobody
 * is woken for it. A full ring never holds up the engine: what did not fit is dropped, and the next
 * event that fits says how many were (MR_PREFIX_LOST): after it a claim may be one of a block that
 * is gone, which the claims' own expiry mends. A higher epoch than before says what a reset says,
 * should that be lost. In generation 0 there are no events, as nobody else can have its roots.
 */
#ifndef MILLRACE_CACHE_PREFIX_INDEX_H
#define MILLRACE_CACHE_PREFIX_INDEX_H

#include "base/ring.h"
#include "base/status.h"
#include "cache/prefix_hash.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct mr_prefix_index mr_prefix_index;

typedef enum mr_prefix_event_kind {
    MR_PREFIX_ADDED = 1,
    MR_PREFIX_REMOVED,
    MR_PREFIX_RESET, /* a new epoch: everything added before is gone */
    MR_PREFIX_LOST,  /* `lost` events before this one did not fit */
} mr_prefix_event_kind;

typedef struct mr_prefix_event {
    uint64_t epoch;
    uint64_t lost;
    mr_block_hash hash; /* ADDED, REMOVED */
    uint32_t kind;      /* mr_prefix_event_kind */
    uint32_t generation;
} mr_prefix_event;

/* For blocks 1 … n_blocks − 1 of `block_size` tokens. RESOURCE_EXHAUSTED when memory is short. */
MR_MUST_USE mr_status mr_prefix_index_create(uint32_t n_blocks, uint32_t block_size,
                                             mr_prefix_index **out);
void mr_prefix_index_destroy(mr_prefix_index *index);

/* The block registered under `hash` if it holds these tokens (X3), else MR_NULL_BLOCK. */
uint32_t mr_prefix_index_find(const mr_prefix_index *index, const mr_block_hash *hash,
                              const uint32_t *tokens);

typedef struct mr_prefix_entry {
    const mr_block_hash *hash;
    const mr_block_hash *parent; /* NULL: the first of its chain */
    const uint32_t *tokens;      /* [block_size] copied */
    uint32_t block;              /* busy, computed, not registered */
    uint32_t before;             /* where the parent is likely to be; MR_NULL_BLOCK: no idea */
} mr_prefix_entry;

/* Hints: what follows is mostly waiting for memory, which is fetched meanwhile. A block will be
 * registered under this hash soon, or become idle; or one is removed, and others of its chain are
 * next. */
void mr_prefix_index_expect(const mr_prefix_index *index, const mr_block_hash *hash,
                            uint32_t block);
void mr_prefix_index_expect_idle(const mr_prefix_index *index, uint32_t block);
void mr_prefix_index_expect_removals(const mr_prefix_index *index);
/* Registers a block. False, and nothing done, when the hash is there already (under a twin, or one
 * that collides), or its parent is not, so that nobody would find it. */
bool mr_prefix_index_add(mr_prefix_index *index, const mr_prefix_entry *entry);
/* Whether a block is registered under this hash: the likely one, or another. */
bool mr_prefix_index_has_hash(const mr_prefix_index *index, const mr_block_hash *hash,
                              uint32_t likely);
bool mr_prefix_index_has_block(const mr_prefix_index *index, uint32_t block);

/* The pool's side. A registered block lost its last reference, or has one again. */
void mr_prefix_index_idle(mr_prefix_index *index, uint32_t block);
void mr_prefix_index_busy(mr_prefix_index *index, uint32_t block);
/* Forgets a registered block, busy or idle. */
void mr_prefix_index_remove(mr_prefix_index *index, uint32_t block);
/* The idle block to go first; there is one. */
uint32_t mr_prefix_index_oldest(const mr_prefix_index *index);
/* What a registered block is found by: hash and tokens, borrowed until it is removed. */
const mr_block_hash *mr_prefix_index_hash(const mr_prefix_index *index, uint32_t block);
const uint32_t *mr_prefix_index_tokens(const mr_prefix_index *index, uint32_t block);
uint32_t mr_prefix_index_idle_count(const mr_prefix_index *index);
/* Registered blocks, busy and idle. */
uint32_t mr_prefix_index_count(const mr_prefix_index *index);
/* All are removed: a new epoch begins, of this generation. */
void mr_prefix_index_renew(mr_prefix_index *index, uint32_t generation);

uint64_t mr_prefix_index_epoch(const mr_prefix_index *index);
uint32_t mr_prefix_index_generation(const mr_prefix_index *index);

/* Makes the ring of events, once, before there are any. As mr_ring_init. */
MR_MUST_USE mr_status mr_prefix_index_observe(mr_prefix_index *index, uint32_t capacity);
/* Its consumer's side is another thread's. NULL: not observed. */
mr_ring *mr_prefix_index_events(mr_prefix_index *index);

/* Walks everything; for tests and debug builds. */
bool mr_prefix_index_check(const mr_prefix_index *index);

#endif
