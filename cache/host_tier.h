/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The second tier of the KV cache: blocks in host memory, copied there and back by the device.
 *
 *   entries  owned   blocks of one preempted sequence, found by a handle, never evicted
 *            cached  one block of a prefix, found by its hash, the least recently used goes first
 *
 *   store / cache ──► moving (out) ──► ready ◄──► moving (in) ◄── load
 *                           └───────► failed ◄─────────┘
 *
 * Who owns what while a transfer is unfinished (C5): the tier holds a reference on every device
 * block, and the host blocks, until the device says that it is over; so whoever started it may end,
 * be cancelled or forget it at any time. A transfer that takes longer than timeout_ns has failed
 * for its owner. If the device can stop it, everything is given back then; if not, what it may
 * still write is kept out of use, and counted as stuck, until it ends after all.
 *
 * The engine thread's alone. Nothing here blocks or allocates after create.
 */
#ifndef MILLRACE_CACHE_HOST_TIER_H
#define MILLRACE_CACHE_HOST_TIER_H

#include "base/clock.h"
#include "base/status.h"
#include "cache/block_pool.h"
#include "cache/prefix_hash.h"
#include "kernels/backend.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct mr_host_tier mr_host_tier;
typedef uint64_t mr_host_handle; /* 0: none; stale ones are recognised */

typedef struct mr_host_tier_options {
    uint64_t memory_bytes; /* at most so much; at least a block */
    uint64_t block_bytes;  /* mr_kv_block_bytes() */
    uint32_t block_size;   /* tokens of a block */
    uint64_t timeout_ns;   /* of a transfer */
    bool immediate;        /* the device's transfers are over when they have started */
    mr_clock clock;
} mr_host_tier_options;

/* What a cached block is found by, and compared with. Borrowed for the call. */
typedef struct mr_host_key {
    const mr_block_hash *hash;
    const uint32_t *tokens; /* [block_size] */
} mr_host_key;

typedef enum mr_host_state {
    MR_HOST_GONE, /* no such entry */
    MR_HOST_MOVING,
    MR_HOST_READY,  /* in host memory; after a load on the device too */
    MR_HOST_FAILED, /* the last transfer; after a load nothing is known of the device's blocks */
} mr_host_state;

typedef struct mr_host_tier_stats {
    uint32_t total; /* blocks; = owned + cached + free */
    uint32_t owned; /* moving ones are here */
    uint32_t cached;
    uint32_t free;
    uint32_t moving;     /* transfers that are unfinished */
    uint32_t stuck;      /* of them those that took too long and cannot be stopped */
    uint64_t blocks_out; /* copied */
    uint64_t blocks_in;
    uint64_t done; /* transfers */
    uint64_t failed;
    uint64_t timed_out;
} mr_host_tier_stats;

/* Borrows `exec`, which must have transfers (FAILED_PRECONDITION), and `pool` until destroy.
 * INVALID_ARGUMENT: memory_bytes is less than a block. RESOURCE_EXHAUSTED: there is no such memory.
 */
MR_MUST_USE mr_status mr_host_tier_create(const mr_host_tier_options *options, mr_exec *exec,
                                          mr_block_pool *pool, mr_host_tier **out, mr_error *err);
/* Before exec and pool. Stops transfers, or waits for their end, at most timeout_ns; memory that is
 * still written then is never freed. */
void mr_host_tier_destroy(mr_host_tier *tier);

/* Starts to copy live blocks out, into an entry that the caller owns. RESOURCE_EXHAUSTED, and
 * nothing done, when too few host blocks are free or cached; else as the device fails. */
MR_MUST_USE mr_status mr_host_tier_store(mr_host_tier *tier, const uint32_t *blocks, uint32_t count,
                                         mr_host_handle *out);
/* Starts to copy `count` blocks of a READY entry, from `first` on, into live blocks of the device.
 */
MR_MUST_USE mr_status mr_host_tier_load(mr_host_tier *tier, mr_host_handle handle, uint32_t first,
                                        const uint32_t *blocks, uint32_t count);
mr_host_state mr_host_tier_state(const mr_host_tier *tier, mr_host_handle handle);
/* Gives the entry up, in any state; the handle is void. A cached one stays cached. */
void mr_host_tier_drop(mr_host_tier *tier, mr_host_handle handle);

/* Starts to copy a live block out, to be found again until it is evicted. OK too if its hash is
 * there already. Errors as store(). */
MR_MUST_USE mr_status mr_host_tier_cache(mr_host_tier *tier, const mr_host_key *key,
                                         uint32_t block);
/* Whether pin() would give it. */
bool mr_host_tier_has(const mr_host_tier *tier, const mr_host_key *key);
/* A handle on a cached block, READY, for load(); it is not evicted before it is dropped. NOT_FOUND
 * when there is none, or another has it. */
MR_MUST_USE mr_status mr_host_tier_pin(mr_host_tier *tier, const mr_host_key *key,
                                       mr_host_handle *out);
/* Forgets all cached blocks. */
void mr_host_tier_clear(mr_host_tier *tier);

/* Sees what has ended or takes too long. */
void mr_host_tier_poll(mr_host_tier *tier);
/* True while a transfer is unfinished that somebody waits for: not of stuck ones. */
bool mr_host_tier_moving(const mr_host_tier *tier);
/* Device blocks that become free when the transfers out end: nobody else holds them. */
uint32_t mr_host_tier_freeing(const mr_host_tier *tier);
/* Nanoseconds that a byte took lately, one way; 0: not known yet. */
double mr_host_tier_ns_per_byte(const mr_host_tier *tier);
/* Whether transfers are over when they have started: then blocks may be copied out in the moment
 * that they are given to somebody else. */
bool mr_host_tier_immediate(const mr_host_tier *tier);
mr_exec *mr_host_tier_exec(const mr_host_tier *tier);
uint64_t mr_host_tier_block_bytes(const mr_host_tier *tier);
void mr_host_tier_stats_get(const mr_host_tier *tier, mr_host_tier_stats *out);

/* Walks everything; for tests and debug builds. */
bool mr_host_tier_check(const mr_host_tier *tier);

#endif
