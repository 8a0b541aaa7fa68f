/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pool of KV blocks: bookkeeping only, the bytes are the backend's. A block is free, live
 * (referenced by a sequence) or cached (unreferenced, but its content may be found again).
 *
 *     free ──alloc──► live ──unref to 0, not registered──► free
 *                     │  ▲
 *   unref to 0,       │  │ reuse                         free + live + cached = n_blocks − 1
 *   registered        ▼  │
 *                    cached ──evicted by alloc, forgotten, reset──► free
 *
 * Registered blocks are those that the prefix index knows; without one nothing is ever cached.
 * Block 0 is the null block: never allocated, it takes the writes of padding rows. Freed blocks are
 * taken again last-in first-out, so that a lightly loaded server touches little memory; cached ones
 * give way only when none is free, in the order that the index tells. Owned by the engine thread;
 * nothing here locks or allocates after create.
 */
#ifndef MILLRACE_CACHE_BLOCK_POOL_H
#define MILLRACE_CACHE_BLOCK_POOL_H

#include "base/status.h"
#include "cache/prefix_index.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct mr_block_pool mr_block_pool;

typedef struct mr_block_pool_stats {
    uint32_t total; /* without the null block */
    uint32_t live;
    uint32_t cached;
    uint32_t free;
} mr_block_pool_stats;

/* `n_blocks` includes block 0 and is at least 2. */
MR_MUST_USE mr_status mr_block_pool_create(uint32_t n_blocks, uint32_t block_size,
                                           mr_block_pool **out);
void mr_block_pool_destroy(mr_block_pool *pool);

/* Gives a fresh pool a prefix index, which it owns. RESOURCE_EXHAUSTED when memory is short. */
MR_MUST_USE mr_status mr_block_pool_enable_cache(mr_block_pool *pool);
/* To find blocks and to register live ones; everything else goes through the pool. NULL: none. */
mr_prefix_index *mr_block_pool_index(mr_block_pool *pool);

/* Who is told of a registered block that alloc evicts, before anybody else has it: it is live, and
 * still in the index. NULL: nobody. */
typedef void (*mr_block_evict_fn)(void *ctx, uint32_t block);
void mr_block_pool_on_evict(mr_block_pool *pool, mr_block_evict_fn fn, void *ctx);

/* Takes `count` blocks, each with one reference, into `blocks`: all or nothing. Evicts cached
 * blocks when too few are free. RESOURCE_EXHAUSTED, and nothing taken or evicted, when live ones
 * leave fewer. */
MR_MUST_USE mr_status mr_block_pool_alloc(mr_block_pool *pool, uint32_t count, uint32_t *blocks);
void mr_block_pool_ref(mr_block_pool *pool, uint32_t block);
void mr_block_pool_unref(mr_block_pool *pool, uint32_t block);
/* A hint: this live block is to be unreferenced soon. */
void mr_block_pool_expect_unref(const mr_block_pool *pool, uint32_t block);
/* A reference to a registered block, cached or live. */
void mr_block_pool_reuse(mr_block_pool *pool, uint32_t block);
/* Makes the index forget a registered block: it is free at its last unref, or now. */
void mr_block_pool_forget(mr_block_pool *pool, uint32_t block);
/* Makes it forget all: a new epoch, of this generation. Live blocks stay live. With an index
 * only. */
void mr_block_pool_reset_cache(mr_block_pool *pool, uint32_t generation);
uint32_t mr_block_pool_refs(const mr_block_pool *pool, uint32_t block);

/* Blocks that alloc could give now: free and cached ones. */
uint32_t mr_block_pool_available(const mr_block_pool *pool);
uint32_t mr_block_pool_block_size(const mr_block_pool *pool);
void mr_block_pool_stats_get(const mr_block_pool *pool, mr_block_pool_stats *out);

/* Walks everything and checks the invariant above; for tests and debug builds. */
bool mr_block_pool_check(const mr_block_pool *pool);

/* Blocks that `tokens` tokens need. */
static inline uint32_t mr_blocks_for(uint32_t tokens, uint32_t block_size)
{
    return tokens / block_size + (tokens % block_size != 0);
}

#endif
