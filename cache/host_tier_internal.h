/* SPDX-License-Identifier: Apache-2.0 */
/* What host_tier.c (transfers) and host_entries.c (bookkeeping) share. */
#ifndef MILLRACE_CACHE_HOST_TIER_INTERNAL_H
#define MILLRACE_CACHE_HOST_TIER_INTERNAL_H

#include "cache/host_tier.h"

#define MR_HOST_NONE UINT32_MAX

/* A host block, and, in the first one of an entry, the entry: entry i begins with block i. */
typedef struct mr_host_slot {
    uint32_t next;  /* of the entry, or of the free ones */
    uint32_t block; /* of the device, while that is moving */

    uint32_t count; /* blocks of the entry; 0: not the first one of any */
    uint32_t generation;
    bool owned;  /* somebody has the handle */
    bool cached; /* in the table of hashes */
    bool moving;
    bool failed;
    bool stuck;
    bool referenced; /* the device's blocks are, by us */
    mr_transfer_direction direction;
    uint32_t move_first, move_count;
    uint32_t moving_at; /* in the list of those */
    uint64_t ticket;
    uint64_t started_ns;
    uint64_t deadline_ns;

    mr_block_hash hash;
    uint32_t hash_next;
    uint32_t newer, older; /* cached, not owned and not moving: a place in the order of use */
} mr_host_slot;

struct mr_host_tier {
    mr_exec *exec;       /* borrows */
    mr_block_pool *pool; /* borrows */
    mr_host_tier_options options;
    uint8_t *memory;     /* owns, of the device's host_alloc, [n_slots][block_bytes] */
    mr_host_slot *slots; /* owns, [n_slots] */
    uint32_t *tokens;    /* owns, [n_slots][block_size] of cached blocks */
    uint32_t n_slots;
    uint32_t free; /* the first one */
    uint32_t n_free;
    uint32_t newest, oldest;
    uint32_t n_idle;   /* in that order: can be evicted */
    uint32_t *moving;  /* owns, [n_moving] entries */
    uint32_t *buckets; /* owns, [n_buckets], a power of two */
    uint32_t *blocks;  /* owns, [n_slots] scratch of a transfer */
    uint8_t **host;    /* owns, [n_slots] scratch of a transfer */
    uint32_t n_moving;
    uint32_t n_buckets;
    uint32_t n_cached;
    double ns_per_byte;
    mr_host_tier_stats stats; /* counters */
};

/* The handle of an owned entry, and back: MR_HOST_NONE when it is void. */
mr_host_handle mr_host_entry_handle(const mr_host_tier *tier, uint32_t entry);
uint32_t mr_host_entry_of(const mr_host_tier *tier, mr_host_handle handle);

/* An entry of `count` blocks, owned by nobody, for these blocks of the device; evicts cached ones
 * if need be. MR_HOST_NONE, and nothing done, when there is no room. */
uint32_t mr_host_entry_make(mr_host_tier *tier, const uint32_t *blocks, uint32_t count);
/* Of an entry that is neither moving nor in the order of use. */
void mr_host_entry_free(mr_host_tier *tier, uint32_t entry);
/* Puts an entry that does not move any more, or has no owner any more, where it belongs. */
void mr_host_entry_settle(mr_host_tier *tier, uint32_t entry);

/* Into the order of use, as the newest, and out of it. */
void mr_host_entry_idle(mr_host_tier *tier, uint32_t entry);
void mr_host_entry_busy(mr_host_tier *tier, uint32_t entry);

/* The entry under a hash; MR_HOST_NONE: there is none. */
uint32_t mr_host_entry_find(const mr_host_tier *tier, const mr_block_hash *hash);
void mr_host_entry_name(mr_host_tier *tier, uint32_t entry, const mr_host_key *key);
void mr_host_entry_unname(mr_host_tier *tier, uint32_t entry);
/* [block_size] of a cached one. */
uint32_t *mr_host_entry_tokens(const mr_host_tier *tier, uint32_t entry);

#endif
