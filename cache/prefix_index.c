/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/prefix_index.h"

#include "base/checked.h"
#include "kernels/batch.h"

#include <stdlib.h>
#include <string.h>

typedef struct entry {
    mr_block_hash hash;
    uint64_t serial;        /* of the registration; 0: not registered */
    uint64_t parent_serial; /* of the parent's, 0: none; another one by now: the parent is gone */
    uint64_t idle_since;    /* tick */
    uint32_t parent;        /* block */
    uint32_t n_children;
    uint32_t place; /* in the heap, from 1 on; 0: busy */
} entry;

struct mr_prefix_index {
    uint32_t n_blocks;
    uint32_t block_size;
    uint32_t mask;      /* buckets − 1 */
    uint32_t n_idle;    /* of the heap */
    uint32_t n_known;   /* registered */
    entry *entries;     /* [n_blocks] */
    uint32_t *tokens;   /* [n_blocks][block_size] */
    uint32_t *buckets;  /* [mask + 1] blocks by hash, linear probing; MR_NULL_BLOCK: free */
    uint32_t *heap;     /* [n_blocks] idle blocks, who goes first on top */
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
    index->entries = mr_calloc(n_blocks, sizeof(*index->entries));
    index->tokens = mr_calloc((size_t)n_blocks * block_size, sizeof(*index->tokens));
    index->buckets = mr_calloc(buckets, sizeof(*index->buckets));
    index->heap = mr_calloc(n_blocks, sizeof(*index->heap));
    index->children = mr_calloc(n_blocks, sizeof(*index->children));
    if (index->entries == NULL || index->tokens == NULL || index->buckets == NULL ||
        index->heap == NULL || index->children == NULL) {
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
    free(index->heap);
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

static uint32_t home_of(const mr_prefix_index *index, const mr_block_hash *hash)
{
    uint32_t first;
    memcpy(&first, hash->bytes, sizeof(first));
    return first & index->mask;
}

/* The bucket of `hash`, or the free one where it would go. */
static uint32_t bucket_of(const mr_prefix_index *index, const mr_block_hash *hash)
{
    uint32_t at = home_of(index, hash);
    while (index->buckets[at] != MR_NULL_BLOCK &&
           memcmp(&index->entries[index->buckets[at]].hash, hash, sizeof(*hash)) != 0) {
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
        const uint32_t block = index->buckets[at];
        if (block == MR_NULL_BLOCK) {
            break;
        }
        const uint32_t home = home_of(index, &index->entries[block].hash);
        if (((at - home) & index->mask) >= ((at - hole) & index->mask)) {
            index->buckets[hole] = block;
            hole = at;
        }
    }
    index->buckets[hole] = MR_NULL_BLOCK;
}

static const uint32_t *tokens_of(const mr_prefix_index *index, uint32_t block)
{
    return index->tokens + (size_t)block * index->block_size;
}

uint32_t mr_prefix_index_find(const mr_prefix_index *index, const mr_block_hash *hash,
                              const uint32_t *tokens)
{
    const uint32_t block = index->buckets[bucket_of(index, hash)];
    const size_t bytes = index->block_size * sizeof(*tokens);
    return block != MR_NULL_BLOCK && memcmp(tokens_of(index, block), tokens, bytes) == 0
               ? block
               : MR_NULL_BLOCK;
}

bool mr_prefix_index_has_hash(const mr_prefix_index *index, const mr_block_hash *hash)
{
    return index->buckets[bucket_of(index, hash)] != MR_NULL_BLOCK;
}

bool mr_prefix_index_has_block(const mr_prefix_index *index, uint32_t block)
{
    MR_CHECK(block < index->n_blocks);
    return index->entries[block].serial != 0;
}

/* ---- the heap of idle blocks ---- */

static bool goes_before(const mr_prefix_index *index, uint32_t a, uint32_t b)
{
    const entry *x = &index->entries[a];
    const entry *y = &index->entries[b];
    const bool inner_x = x->n_children > 0;
    const bool inner_y = y->n_children > 0;
    return inner_x != inner_y ? inner_y : x->idle_since < y->idle_since;
}

static void put_at(mr_prefix_index *index, uint32_t at, uint32_t block)
{
    index->heap[at] = block;
    index->entries[block].place = at + 1;
}

static void sift_up(mr_prefix_index *index, uint32_t at)
{
    const uint32_t block = index->heap[at];
    while (at > 0 && goes_before(index, block, index->heap[(at - 1) / 2])) {
        put_at(index, at, index->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    put_at(index, at, block);
}

static void sift_down(mr_prefix_index *index, uint32_t at)
{
    const uint32_t block = index->heap[at];
    for (uint32_t child = 2 * at + 1; child < index->n_idle; child = 2 * at + 1) {
        if (child + 1 < index->n_idle &&
            goes_before(index, index->heap[child + 1], index->heap[child])) {
            child++;
        }
        if (!goes_before(index, index->heap[child], block)) {
            break;
        }
        put_at(index, at, index->heap[child]);
        at = child;
    }
    put_at(index, at, block);
}

/* After the order of a block may have changed; a busy one is in no order. */
static void reorder(mr_prefix_index *index, uint32_t block)
{
    if (index->entries[block].place != 0) {
        sift_up(index, index->entries[block].place - 1);
        sift_down(index, index->entries[block].place - 1);
    }
}

void mr_prefix_index_idle(mr_prefix_index *index, uint32_t block)
{
    entry *e = &index->entries[block];
    MR_CHECK(e->serial != 0 && e->place == 0);
    e->idle_since = ++index->tick;
    put_at(index, index->n_idle++, block);
    sift_up(index, index->n_idle - 1);
}

void mr_prefix_index_busy(mr_prefix_index *index, uint32_t block)
{
    entry *e = &index->entries[block];
    MR_CHECK(e->serial != 0 && e->place != 0);
    const uint32_t at = e->place - 1;
    const uint32_t last = index->heap[--index->n_idle];
    e->place = 0;
    if (last != block) {
        put_at(index, at, last);
        reorder(index, last);
    }
}

uint32_t mr_prefix_index_oldest(const mr_prefix_index *index)
{
    MR_CHECK(index->n_idle > 0);
    return index->heap[0];
}

uint32_t mr_prefix_index_idle_count(const mr_prefix_index *index)
{
    return index->n_idle;
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

bool mr_prefix_index_add(mr_prefix_index *index, const mr_prefix_entry *wanted)
{
    MR_CHECK(wanted->block != MR_NULL_BLOCK && wanted->block < index->n_blocks);
    entry *e = &index->entries[wanted->block];
    MR_CHECK(e->serial == 0);
    uint32_t parent = MR_NULL_BLOCK;
    if (wanted->parent != NULL) {
        parent = index->buckets[bucket_of(index, wanted->parent)];
        if (parent == MR_NULL_BLOCK) {
            return false;
        }
    }
    const uint32_t bucket = bucket_of(index, wanted->hash);
    if (index->buckets[bucket] != MR_NULL_BLOCK) {
        return false;
    }
    index->buckets[bucket] = wanted->block;
    *e = (entry){.hash = *wanted->hash, .serial = ++index->serial, .parent = parent};
    memcpy(index->tokens + (size_t)wanted->block * index->block_size, wanted->tokens,
           index->block_size * sizeof(*wanted->tokens));
    if (parent != MR_NULL_BLOCK) {
        e->parent_serial = index->entries[parent].serial;
        index->entries[parent].n_children++;
        reorder(index, parent);
    }
    index->n_known++;
    tell(index, MR_PREFIX_ADDED, &e->hash);
    return true;
}

void mr_prefix_index_remove(mr_prefix_index *index, uint32_t block)
{
    MR_CHECK(mr_prefix_index_has_block(index, block));
    entry *e = &index->entries[block];
    if (e->place != 0) {
        mr_prefix_index_busy(index, block);
    }
    const uint32_t parent = parent_of(index, e);
    if (parent != MR_NULL_BLOCK) {
        index->entries[parent].n_children--;
        reorder(index, parent);
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
        index->entries[block].place = 0;
    }
    index->n_idle = 0;
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

static bool check_heap(const mr_prefix_index *index)
{
    for (uint32_t i = 0; i < index->n_idle; i++) {
        const uint32_t block = index->heap[i];
        if (block == MR_NULL_BLOCK || block >= index->n_blocks ||
            index->entries[block].serial == 0 || index->entries[block].place != i + 1 ||
            (i > 0 && !goes_before(index, index->heap[(i - 1) / 2], block))) {
            return false;
        }
    }
    return true;
}

bool mr_prefix_index_check(const mr_prefix_index *index)
{
    uint32_t in_buckets = 0;
    for (uint32_t i = 0; i <= index->mask; i++) {
        in_buckets += index->buckets[i] != MR_NULL_BLOCK;
    }
    memset(index->children, 0, index->n_blocks * sizeof(*index->children));
    uint32_t registered = 0;
    uint32_t idle = 0;
    for (uint32_t block = 1; block < index->n_blocks; block++) {
        const entry *e = &index->entries[block];
        if (e->serial != 0) {
            registered++;
            idle += e->place != 0;
            index->children[parent_of(index, e)]++;
            if (index->buckets[bucket_of(index, &e->hash)] != block) {
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
    return registered == in_buckets && registered == index->n_known && idle == index->n_idle &&
           check_heap(index);
}
