/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pool of KV blocks: bookkeeping only, the bytes are the backend's. A block is free, live
 * (referenced by a sequence) or cached (unreferenced, but its content may be found again).
 *
 *     free ──alloc──► live ──unref to 0──► free        free + live + cached = n_blocks − 1
 *
 * Block 0 is the null block: never allocated, it takes the writes of padding rows. Freed blocks are
 * taken again last-in first-out, so that a lightly loaded server touches little memory. Owned by
 * the engine thread; nothing here locks or allocates after create.
 */
#ifndef MILLRACE_CACHE_BLOCK_POOL_H
#define MILLRACE_CACHE_BLOCK_POOL_H

#include "base/status.h"

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

/* Takes `count` blocks, each with one reference, into `blocks`: all or nothing.
 * RESOURCE_EXHAUSTED, and nothing taken, when fewer are free. */
MR_MUST_USE mr_status mr_block_pool_alloc(mr_block_pool *pool, uint32_t count, uint32_t *blocks);
void mr_block_pool_ref(mr_block_pool *pool, uint32_t block);
void mr_block_pool_unref(mr_block_pool *pool, uint32_t block);
uint32_t mr_block_pool_refs(const mr_block_pool *pool, uint32_t block);

/* Blocks that alloc could give now. */
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
