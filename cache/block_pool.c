/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/block_pool.h"

#include "base/checked.h"
#include "kernels/batch.h"

#include <stdlib.h>
#include <string.h>

struct mr_block_pool {
    uint32_t n_blocks; /* the null block included */
    uint32_t block_size;
    uint32_t n_free;
    uint32_t n_live;
    uint32_t *refs;         /* [n_blocks] */
    uint32_t *free;         /* [n_blocks] a stack of n_free blocks */
    uint8_t *seen;          /* [n_blocks] scratch of check() */
    mr_prefix_index *index; /* owns; NULL: nothing is cached */
    mr_block_evict_fn on_evict;
    void *on_evict_ctx;
};

mr_status mr_block_pool_create(uint32_t n_blocks, uint32_t block_size, mr_block_pool **out)
{
    /* A KV slot is block · block_size + offset in 32 bits. */
    if (n_blocks < 2 || block_size == 0 || (uint64_t)n_blocks * block_size > UINT32_MAX) {
        return MR_INVALID_ARGUMENT;
    }
    mr_block_pool *pool = mr_calloc(1, sizeof(*pool));
    if (pool == NULL) {
        return MR_RESOURCE_EXHAUSTED;
    }
    pool->n_blocks = n_blocks;
    pool->block_size = block_size;
    pool->refs = mr_calloc(n_blocks, sizeof(*pool->refs));
    pool->free = mr_calloc(n_blocks, sizeof(*pool->free));
    pool->seen = mr_calloc(n_blocks, sizeof(*pool->seen));
    if (pool->refs == NULL || pool->free == NULL || pool->seen == NULL) {
        mr_block_pool_destroy(pool);
        return MR_RESOURCE_EXHAUSTED;
    }
    for (uint32_t block = n_blocks - 1; block > MR_NULL_BLOCK; block--) {
        pool->free[pool->n_free++] = block;
    }
    *out = pool;
    return MR_OK;
}

void mr_block_pool_destroy(mr_block_pool *pool)
{
    if (pool == NULL) {
        return;
    }
    mr_prefix_index_destroy(pool->index);
    free(pool->refs);
    free(pool->free);
    free(pool->seen);
    free(pool);
}

mr_status mr_block_pool_enable_cache(mr_block_pool *pool)
{
    MR_CHECK(pool->index == NULL && pool->n_live == 0);
    return mr_prefix_index_create(pool->n_blocks, pool->block_size, &pool->index);
}

mr_prefix_index *mr_block_pool_index(mr_block_pool *pool)
{
    return pool->index;
}

static uint32_t n_cached(const mr_block_pool *pool)
{
    return pool->index == NULL ? 0 : mr_prefix_index_idle_count(pool->index);
}

void mr_block_pool_on_evict(mr_block_pool *pool, mr_block_evict_fn fn, void *ctx)
{
    pool->on_evict = fn;
    pool->on_evict_ctx = ctx;
}

/* With its one reference. */
static uint32_t take_block(mr_block_pool *pool)
{
    if (pool->n_free > 0) {
        const uint32_t block = pool->free[--pool->n_free];
        pool->refs[block] = 1;
        return block;
    }
    mr_prefix_index_expect_removals(pool->index);
    const uint32_t block = mr_prefix_index_oldest(pool->index);
    pool->refs[block] = 1;
    if (pool->on_evict != NULL) {
        pool->on_evict(pool->on_evict_ctx, block);
    }
    mr_prefix_index_remove(pool->index, block);
    return block;
}

mr_status mr_block_pool_alloc(mr_block_pool *pool, uint32_t count, uint32_t *blocks)
{
    if (count > mr_block_pool_available(pool)) {
        return MR_RESOURCE_EXHAUSTED;
    }
    for (uint32_t i = 0; i < count; i++) {
        blocks[i] = take_block(pool);
    }
    pool->n_live += count;
    return MR_OK;
}

static bool is_live(const mr_block_pool *pool, uint32_t block)
{
    return block != MR_NULL_BLOCK && block < pool->n_blocks && pool->refs[block] > 0;
}

void mr_block_pool_ref(mr_block_pool *pool, uint32_t block)
{
    MR_CHECK(is_live(pool, block) && pool->refs[block] < UINT32_MAX);
    pool->refs[block]++;
}

void mr_block_pool_unref(mr_block_pool *pool, uint32_t block)
{
    MR_CHECK(is_live(pool, block));
    if (--pool->refs[block] > 0) {
        return;
    }
    pool->n_live--;
    if (pool->index != NULL && mr_prefix_index_has_block(pool->index, block)) {
        mr_prefix_index_idle(pool->index, block);
    } else {
        pool->free[pool->n_free++] = block;
    }
}

void mr_block_pool_expect_unref(const mr_block_pool *pool, uint32_t block)
{
    MR_CHECK(block < pool->n_blocks);
    __builtin_prefetch(&pool->refs[block], 1);
    if (pool->index != NULL) {
        mr_prefix_index_expect_idle(pool->index, block);
    }
}

void mr_block_pool_reuse(mr_block_pool *pool, uint32_t block)
{
    MR_CHECK(pool->index != NULL && mr_prefix_index_has_block(pool->index, block));
    if (pool->refs[block] == 0) {
        mr_prefix_index_busy(pool->index, block);
        pool->refs[block] = 1;
        pool->n_live++;
    } else {
        mr_block_pool_ref(pool, block);
    }
}

void mr_block_pool_forget(mr_block_pool *pool, uint32_t block)
{
    MR_CHECK(pool->index != NULL);
    mr_prefix_index_remove(pool->index, block);
    if (pool->refs[block] == 0) {
        pool->free[pool->n_free++] = block;
    }
}

void mr_block_pool_reset_cache(mr_block_pool *pool, uint32_t generation)
{
    MR_CHECK(pool->index != NULL);
    for (uint32_t block = 1; block < pool->n_blocks; block++) {
        if (pool->refs[block] == 0 && mr_prefix_index_has_block(pool->index, block)) {
            pool->free[pool->n_free++] = block;
        }
    }
    mr_prefix_index_renew(pool->index, generation);
}

uint32_t mr_block_pool_refs(const mr_block_pool *pool, uint32_t block)
{
    MR_CHECK(block < pool->n_blocks);
    return pool->refs[block];
}

uint32_t mr_block_pool_available(const mr_block_pool *pool)
{
    return pool->n_free + n_cached(pool);
}

uint32_t mr_block_pool_block_size(const mr_block_pool *pool)
{
    return pool->block_size;
}

void mr_block_pool_stats_get(const mr_block_pool *pool, mr_block_pool_stats *out)
{
    const uint32_t total = pool->n_blocks - 1;
    *out = (mr_block_pool_stats){
        .total = total,
        .live = pool->n_live,
        .cached = n_cached(pool),
        .free = pool->n_free,
    };
}

/* Every block is in exactly one of the three states. */
static bool check_states(const mr_block_pool *pool)
{
    uint32_t live = 0;
    uint32_t cached = 0;
    for (uint32_t block = 1; block < pool->n_blocks; block++) {
        const bool registered =
            pool->index != NULL && mr_prefix_index_has_block(pool->index, block);
        const bool in_use = pool->refs[block] > 0;
        if (pool->seen[block] + (in_use || registered) != 1) {
            return false;
        }
        live += in_use;
        cached += registered && !in_use;
    }
    return live == pool->n_live && cached == n_cached(pool);
}

bool mr_block_pool_check(const mr_block_pool *pool)
{
    if (pool->n_free + pool->n_live + n_cached(pool) != pool->n_blocks - 1 ||
        pool->refs[MR_NULL_BLOCK] != 0) {
        return false;
    }
    memset(pool->seen, 0, pool->n_blocks);
    for (uint32_t i = 0; i < pool->n_free; i++) {
        const uint32_t block = pool->free[i];
        if (block == MR_NULL_BLOCK || block >= pool->n_blocks || pool->seen[block] != 0) {
            return false;
        }
        pool->seen[block] = 1;
    }
    return check_states(pool) && (pool->index == NULL || mr_prefix_index_check(pool->index));
}
