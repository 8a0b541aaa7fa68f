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

/* Of the heap. Keys stand beside the blocks, so that sifting reads no entries, which lie apart. */
typedef struct heap_node {
    uint64_t key; /* lowest goes first */
    uint32_t block;
} heap_node;

/* A node's children share a line of the cache, more or less. */
#define HEAP_ARITY 4u

/* Added to the keys of those that have children. */
#define INNER (UINT64_C(1) << 63)

/* Of the map. The beginning of the hash stands beside the block for the same reason. */
typedef struct bucket {
    uint32_t block; /* MR_NULL_BLOCK: free */
    uint32_t tag;
} bucket;

struct mr_prefix_index {
    uint32_t n_blocks;
    uint32_t block_size;
    uint32_t mask;      /* buckets − 1 */
    uint32_t n_idle;    /* of the heap */
    uint32_t n_known;   /* registered */
    entry *entries;     /* [n_blocks] */
    uint32_t *tokens;   /* [n_blocks][block_size] */
    bucket *buckets;    /* [mask + 1] blocks by hash, linear probing */
    heap_node *heap;    /* [n_blocks] idle blocks, who goes first on top */
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

bool mr_prefix_index_has_hash(const mr_prefix_index *index, const mr_block_hash *hash)
{
    return index->buckets[bucket_of(index, hash)].block != MR_NULL_BLOCK;
}

bool mr_prefix_index_has_block(const mr_prefix_index *index, uint32_t block)
{
    MR_CHECK(block < index->n_blocks);
    return index->entries[block].serial != 0;
}

/* ---- the heap of idle blocks ---- */

static uint64_t key_of(const entry *e)
{
    return e->n_children > 0 ? e->idle_since | INNER : e->idle_since;
}

static void put_at(mr_prefix_index *index, uint32_t at, heap_node node)
{
    index->heap[at] = node;
    index->entries[node.block].place = at + 1;
}

static void sift_up(mr_prefix_index *index, uint32_t at, heap_node node)
{
    while (at > 0 && node.key < index->heap[(at - 1) / HEAP_ARITY].key) {
        put_at(index, at, index->heap[(at - 1) / HEAP_ARITY]);
        at = (at - 1) / HEAP_ARITY;
    }
    put_at(index, at, node);
}

static void sift_down(mr_prefix_index *index, uint32_t at, heap_node node)
{
    for (;;) {
        const uint32_t first = HEAP_ARITY * at + 1;
        const uint32_t end = mr_min_u32(first + HEAP_ARITY, index->n_idle);
        uint32_t least = first;
        for (uint32_t child = first + 1; child < end; child++) {
            least = index->heap[child].key < index->heap[least].key ? child : least;
        }
        if (first >= end || index->heap[least].key >= node.key) {
            break;
        }
        put_at(index, at, index->heap[least]);
        at = least;
    }
    put_at(index, at, node);
}

/* Puts a block where it belongs, from a place that was another's or its own under another key. */
static void settle(mr_prefix_index *index, uint32_t at, heap_node node)
{
    if (at > 0 && node.key < index->heap[(at - 1) / HEAP_ARITY].key) {
        sift_up(index, at, node);
    } else {
        sift_down(index, at, node);
    }
}

/* After the order of a block may have changed; a busy one is in no order. */
static void reorder(mr_prefix_index *index, uint32_t block)
{
    const entry *e = &index->entries[block];
    if (e->place != 0 && index->heap[e->place - 1].key != key_of(e)) {
        settle(index, e->place - 1, (heap_node){key_of(e), block});
    }
}

void mr_prefix_index_idle(mr_prefix_index *index, uint32_t block)
{
    entry *e = &index->entries[block];
    MR_CHECK(e->serial != 0 && e->place == 0);
    e->idle_since = ++index->tick;
    index->n_idle++;
    sift_up(index, index->n_idle - 1, (heap_node){key_of(e), block});
}

void mr_prefix_index_busy(mr_prefix_index *index, uint32_t block)
{
    entry *e = &index->entries[block];
    MR_CHECK(e->serial != 0 && e->place != 0);
    const uint32_t at = e->place - 1;
    const heap_node last = index->heap[--index->n_idle];
    e->place = 0;
    if (last.block != block) {
        settle(index, at, last);
    }
}

uint32_t mr_prefix_index_oldest(const mr_prefix_index *index)
{
    MR_CHECK(index->n_idle > 0);
    return index->heap[0].block;
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

/* Mostly the block before it, which saves looking it up. */
static uint32_t find_parent(const mr_prefix_index *index, const mr_prefix_entry *wanted)
{
    const entry *likely = &index->entries[wanted->before];
    if (likely->serial != 0 && memcmp(&likely->hash, wanted->parent, sizeof(likely->hash)) == 0) {
        return wanted->before;
    }
    return index->buckets[bucket_of(index, wanted->parent)].block;
}

void mr_prefix_index_expect(const mr_prefix_index *index, const mr_block_hash *hash, uint32_t block)
{
    MR_CHECK(block < index->n_blocks);
    __builtin_prefetch(&index->buckets[tag_of(hash) & index->mask], 1);
    __builtin_prefetch(&index->entries[block], 1);
    __builtin_prefetch(index->tokens + (size_t)block * index->block_size, 1);
}

bool mr_prefix_index_add(mr_prefix_index *index, const mr_prefix_entry *wanted)
{
    MR_CHECK(wanted->block != MR_NULL_BLOCK && wanted->block < index->n_blocks);
    entry *e = &index->entries[wanted->block];
    MR_CHECK(e->serial == 0);
    uint32_t parent = MR_NULL_BLOCK;
    if (wanted->parent != NULL) {
        parent = find_parent(index, wanted);
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
    if (index->n_idle > 0) { /* blocks are taken many at a time: mostly this one is next */
        const uint32_t next = index->heap[0].block;
        mr_prefix_index_expect(index, &index->entries[next].hash, next);
    }
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
        const uint32_t block = index->heap[i].block;
        if (block == MR_NULL_BLOCK || block >= index->n_blocks ||
            index->entries[block].serial == 0 || index->entries[block].place != i + 1 ||
            index->heap[i].key != key_of(&index->entries[block]) ||
            (i > 0 && index->heap[(i - 1) / HEAP_ARITY].key >= index->heap[i].key)) {
            return false;
        }
    }
    return true;
}

bool mr_prefix_index_check(const mr_prefix_index *index)
{
    uint32_t in_buckets = 0;
    for (uint32_t i = 0; i <= index->mask; i++) {
        in_buckets += index->buckets[i].block != MR_NULL_BLOCK;
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
    return registered == in_buckets && registered == index->n_known && idle == index->n_idle &&
           check_heap(index);
}
