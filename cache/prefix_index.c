/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/prefix_index.h"

#include "base/checked.h"
#include "cache/idle_order.h"
#include "kernels/batch.h"

#include <stdlib.h>
#include <string.h>

/* A line of the processor's cache: they lie apart, and fetching them is most of the work. */
typedef struct entry {
    _Alignas(64) mr_block_hash hash;
    uint64_t serial;        /* of the registration; 0: not registered */
    uint64_t parent_serial; /* of the parent's, 0: none; another one by now: the parent is gone */
    uint32_t parent;        /* block */
    uint32_t n_children;
} entry;

/* How many removals ahead a bucket is fetched; less than MR_IDLE_AHEAD. */
#define NEAR 4u

/* Of the map. The beginning of the hash stands beside the block, so that passing one by reads no
 * entry. */
typedef struct bucket {
    uint32_t block; /* MR_NULL_BLOCK: free */
    uint32_t tag;
} bucket;

struct mr_prefix_index {
    uint32_t n_blocks;
    uint32_t block_size;
    uint32_t mask;    /* buckets − 1 */
    uint32_t n_known; /* registered */
    entry *entries;   /* [n_blocks] */
    uint32_t *tokens; /* [n_blocks][block_size] */
    bucket *buckets;  /* [mask + 1] blocks by hash, linear probing */
    mr_idle_order idle;
    uint32_t *children; /* [n_blocks] scratch of check() */
    uint64_t serial;
    uint64_t tick;
    uint64_t epoch;
    uint32_t generation;
    bool observed;
    mr_ring events;
    uint64_t lost;
};

mr_status mr_prefix_index_create(uint32_t n_blocks, uint32_t block_size, mr_prefix_index **out)
{
    if (n_blocks < 2 || n_blocks > 1u << 30 || block_size == 0) {
        return MR_INVALID_ARGUMENT;
    }
    mr_prefix_index *index = mr_calloc(1, sizeof(*index));
    if (index == NULL) {
        return MR_RESOURCE_EXHAUSTED;
    }
    uint32_t buckets = 4;
    while (buckets < 2 * n_blocks) {
        buckets *= 2;
    }
    index->n_blocks = n_blocks;
    index->block_size = block_size;
    index->mask = buckets - 1;
    index->entries = mr_alloc_aligned(n_blocks * sizeof(*index->entries));
    index->tokens = mr_alloc_aligned((size_t)n_blocks * block_size * sizeof(*index->tokens));
    index->buckets = mr_calloc(buckets, sizeof(*index->buckets));
    index->children = mr_calloc(n_blocks, sizeof(*index->children));
    const mr_status status = mr_idle_order_init(&index->idle, n_blocks);
    if (status != MR_OK || index->entries == NULL || index->tokens == NULL ||
        index->buckets == NULL || index->children == NULL) {
        mr_prefix_index_destroy(index);
        return MR_RESOURCE_EXHAUSTED;
    }
    *out = index;
    return MR_OK;
}

void mr_prefix_index_destroy(mr_prefix_index *index)
{
    if (index == NULL) {
        return;
    }
    if (index->observed) {
        mr_ring_deinit(&index->events);
    }
    free(index->entries);
    free(index->tokens);
    free(index->buckets);
    mr_idle_order_deinit(&index->idle);
    free(index->children);
    free(index);
}

/* ---- events ---- */

mr_status mr_prefix_index_observe(mr_prefix_index *index, uint32_t capacity)
{
    MR_CHECK(!index->observed);
    MR_TRY(mr_ring_init(&index->events, capacity, sizeof(mr_prefix_event)));
    index->observed = true;
    return MR_OK;
}

mr_ring *mr_prefix_index_events(mr_prefix_index *index)
{
    return index->observed ? &index->events : NULL;
}

static bool put_event(mr_prefix_index *index, const mr_prefix_event *event)
{
    mr_prefix_event *place = mr_ring_reserve(&index->events);
    if (place == NULL) {
        return false;
    }
    *place = *event;
    place->epoch = index->epoch;
    place->generation = index->generation;
    mr_ring_commit(&index->events);
    return true;
}

static void tell(mr_prefix_index *index, mr_prefix_event_kind kind, const mr_block_hash *hash)
{
    if (!index->observed || index->generation == 0) {
        return;
    }
    const mr_prefix_event lost = {.kind = MR_PREFIX_LOST, .lost = index->lost};
    if (index->lost > 0 && put_event(index, &lost)) {
        index->lost = 0;
    }
    mr_prefix_event event = {.kind = kind};
    if (hash != NULL) {
        event.hash = *hash;
    }
    index->lost += index->lost > 0 || !put_event(index, &event);
}

/* ---- the map ---- */

static uint32_t tag_of(const mr_block_hash *hash)
{
    uint32_t first;
    memcpy(&first, hash->bytes, sizeof(first));
    return first;
}

/* The bucket of `hash`, or the free one where it would go. */
static uint32_t bucket_of(const mr_prefix_index *index, const mr_block_hash *hash)
{
    const uint32_t tag = tag_of(hash);
    uint32_t at = tag & index->mask;
    while (index->buckets[at].block != MR_NULL_BLOCK &&
           (index->buckets[at].tag != tag ||
            memcmp(&index->entries[index->buckets[at].block].hash, hash, sizeof(*hash)) != 0)) {
        at = (at + 1) & index->mask;
    }
    return at;
}

/* Empties a bucket and moves up who had to pass it. */
static void empty_bucket(mr_prefix_index *index, uint32_t hole)
{
    uint32_t at = hole;
    for (;;) {
        at = (at + 1) & index->mask;
        const bucket next = index->buckets[at];
        if (next.block == MR_NULL_BLOCK) {
            break;
        }
        if (((at - next.tag) & index->mask) >= ((at - hole) & index->mask)) {
            index->buckets[hole] = next;
            hole = at;
        }
    }
    index->buckets[hole].block = MR_NULL_BLOCK;
}

static const uint32_t *tokens_of(const mr_prefix_index *index, uint32_t block)
{
    return index->tokens + (size_t)block * index->block_size;
}

uint32_t mr_prefix_index_find(const mr_prefix_index *index, const mr_block_hash *hash,
                              const uint32_t *tokens)
{
    const uint32_t block = index->buckets[bucket_of(index, hash)].block;
    const size_t bytes = index->block_size * sizeof(*tokens);
    return block != MR_NULL_BLOCK && memcmp(tokens_of(index, block), tokens, bytes) == 0
               ? block
               : MR_NULL_BLOCK;
}

/* Looks at the block where the hash is likely to be first: its entry is needed anyway. */
static uint32_t find_from(const mr_prefix_index *index, const mr_block_hash *hash, uint32_t likely)
{
    const entry *e = &index->entries[likely];
    if (e->serial != 0 && memcmp(&e->hash, hash, sizeof(*hash)) == 0) {
        return likely;
    }
    return index->buckets[bucket_of(index, hash)].block;
}

bool mr_prefix_index_has_hash(const mr_prefix_index *index, const mr_block_hash *hash,
                              uint32_t likely)
{
    MR_CHECK(likely < index->n_blocks);
    return find_from(index, hash, likely) != MR_NULL_BLOCK;
}

bool mr_prefix_index_has_block(const mr_prefix_index *index, uint32_t block)
{
    MR_CHECK(block < index->n_blocks);
    return index->entries[block].serial != 0;
}

/* ---- idle blocks ---- */

void mr_prefix_index_idle(mr_prefix_index *index, uint32_t block)
{
    const entry *e = &index->entries[block];
    MR_CHECK(e->serial != 0);
    mr_idle_order_add(&index->idle, block, e->n_children > 0);
}

void mr_prefix_index_busy(mr_prefix_index *index, uint32_t block)
{
    MR_CHECK(index->entries[block].serial != 0);
    mr_idle_order_remove(&index->idle, block);
}

uint32_t mr_prefix_index_oldest(const mr_prefix_index *index)
{
    return mr_idle_order_first(&index->idle);
}

const mr_block_hash *mr_prefix_index_hash(const mr_prefix_index *index, uint32_t block)
{
    MR_CHECK(mr_prefix_index_has_block(index, block));
    return &index->entries[block].hash;
}

const uint32_t *mr_prefix_index_tokens(const mr_prefix_index *index, uint32_t block)
{
    MR_CHECK(mr_prefix_index_has_block(index, block));
    return index->tokens + (size_t)block * index->block_size;
}

uint32_t mr_prefix_index_idle_count(const mr_prefix_index *index)
{
    return mr_idle_order_count(&index->idle);
}

uint32_t mr_prefix_index_count(const mr_prefix_index *index)
{
    return index->n_known;
}

/* ---- registering ---- */

/* The registered parent of a block, MR_NULL_BLOCK when there is none (any more). */
static uint32_t parent_of(const mr_prefix_index *index, const entry *e)
{
    const bool there =
        e->parent_serial != 0 && index->entries[e->parent].serial == e->parent_serial;
    return there ? e->parent : MR_NULL_BLOCK;
}

void mr_prefix_index_expect(const mr_prefix_index *index, const mr_block_hash *hash, uint32_t block)
{
    MR_CHECK(block < index->n_blocks);
    __builtin_prefetch(&index->buckets[tag_of(hash) & index->mask], 1);
    __builtin_prefetch(&index->entries[block], 1);
    __builtin_prefetch(index->tokens + (size_t)block * index->block_size, 1);
}

void mr_prefix_index_expect_idle(const mr_prefix_index *index, uint32_t block)
{
    MR_CHECK(block < index->n_blocks);
    __builtin_prefetch(&index->entries[block], 1);
    mr_idle_order_expect(&index->idle, block);
}

/* Once a chain's end is gone, the rest of it goes in the order of the list. The places and entries
 * of those up to NEAR were asked for when blocks before them went. */
void mr_prefix_index_expect_removals(const mr_prefix_index *index)
{
    const mr_idle_order *idle = &index->idle;
    uint32_t block = mr_idle_order_next_listed(idle, MR_NULL_BLOCK);
    const uint32_t later = mr_idle_order_later_listed(idle, block);
    __builtin_prefetch(&index->entries[later], 1);
    mr_idle_order_expect(idle, later);
    for (uint32_t i = 0; i < NEAR && block != MR_NULL_BLOCK; i++) {
        block = mr_idle_order_next_listed(idle, block);
    }
    __builtin_prefetch(&index->buckets[tag_of(&index->entries[block].hash) & index->mask], 1);
}

bool mr_prefix_index_add(mr_prefix_index *index, const mr_prefix_entry *wanted)
{
    MR_CHECK(wanted->block != MR_NULL_BLOCK && wanted->block < index->n_blocks &&
             wanted->before < index->n_blocks);
    entry *e = &index->entries[wanted->block];
    MR_CHECK(e->serial == 0);
    uint32_t parent = MR_NULL_BLOCK;
    if (wanted->parent != NULL) {
        parent = find_from(index, wanted->parent, wanted->before);
        if (parent == MR_NULL_BLOCK) {
            return false;
        }
    }
    bucket *place = &index->buckets[bucket_of(index, wanted->hash)];
    if (place->block != MR_NULL_BLOCK) {
        return false;
    }
    *place = (bucket){wanted->block, tag_of(wanted->hash)};
    *e = (entry){.hash = *wanted->hash, .serial = ++index->serial, .parent = parent};
    memcpy(index->tokens + (size_t)wanted->block * index->block_size, wanted->tokens,
           index->block_size * sizeof(*wanted->tokens));
    if (parent != MR_NULL_BLOCK) {
        e->parent_serial = index->entries[parent].serial;
        index->entries[parent].n_children++;
        mr_idle_order_update(&index->idle, parent, true);
    }
    index->n_known++;
    tell(index, MR_PREFIX_ADDED, &e->hash);
    return true;
}

void mr_prefix_index_remove(mr_prefix_index *index, uint32_t block)
{
    MR_CHECK(mr_prefix_index_has_block(index, block));
    entry *e = &index->entries[block];
    if (mr_idle_order_has(&index->idle, block)) {
        mr_idle_order_remove(&index->idle, block);
    }
    const uint32_t parent = parent_of(index, e);
    if (parent != MR_NULL_BLOCK) {
        entry *above = &index->entries[parent];
        above->n_children--;
        mr_idle_order_update(&index->idle, parent, above->n_children > 0);
    }
    empty_bucket(index, bucket_of(index, &e->hash));
    tell(index, MR_PREFIX_REMOVED, &e->hash);
    e->serial = 0;
    index->n_known--;
}

void mr_prefix_index_renew(mr_prefix_index *index, uint32_t generation)
{
    memset(index->buckets, 0, ((size_t)index->mask + 1) * sizeof(*index->buckets));
    for (uint32_t block = 1; block < index->n_blocks; block++) {
        index->entries[block].serial = 0;
    }
    mr_idle_order_clear(&index->idle);
    index->n_known = 0;
    index->epoch++;
    index->generation = generation;
    tell(index, MR_PREFIX_RESET, NULL);
}

uint64_t mr_prefix_index_epoch(const mr_prefix_index *index)
{
    return index->epoch;
}

uint32_t mr_prefix_index_generation(const mr_prefix_index *index)
{
    return index->generation;
}

/* ---- the invariant ---- */

bool mr_prefix_index_check(const mr_prefix_index *index)
{
    uint32_t in_buckets = 0;
    for (uint32_t i = 0; i <= index->mask; i++) {
        in_buckets += index->buckets[i].block != MR_NULL_BLOCK;
    }
    memset(index->children, 0, index->n_blocks * sizeof(*index->children));
    uint32_t registered = 0;
    uint32_t idle = 0; /* of the registered ones, so that no other is */
    for (uint32_t block = 1; block < index->n_blocks; block++) {
        const entry *e = &index->entries[block];
        if (e->serial != 0) {
            registered++;
            idle += mr_idle_order_has(&index->idle, block);
            index->children[parent_of(index, e)]++;
            if (index->buckets[bucket_of(index, &e->hash)].block != block) {
                return false;
            }
        }
    }
    for (uint32_t block = 1; block < index->n_blocks; block++) {
        const entry *e = &index->entries[block];
        if (e->serial != 0 && e->n_children != index->children[block]) {
            return false;
        }
    }
    return registered == in_buckets && registered == index->n_known &&
           idle == mr_idle_order_count(&index->idle) && mr_idle_order_check(&index->idle);
}
