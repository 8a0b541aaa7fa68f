/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In which order idle blocks are evicted: those without children first, the longest idle first.
 *
 * Those that had children when they became idle stand in a list, in that order: each came last. The
 * others stand in a heap, and so does who left the list because its last child is gone. Of a chain
 * that is idle the heap has the end alone, so that it stays small and evicting a chain is cheap:
 * the block before the one that goes is the next on top.
 *
 *     list   oldest ⇄ … ⇄ newest                  with children, appended and unlinked only
 *     heap   {idle since | has children, block}   the rest
 *
 * Part of the prefix index (prefix_index.h), whose thread calls; no function locks or allocates but
 * _init().
 */
#ifndef MILLRACE_CACHE_IDLE_ORDER_H
#define MILLRACE_CACHE_IDLE_ORDER_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct mr_idle_place {
    uint64_t key;        /* lowest goes first; see idle_order.c */
    uint32_t at;         /* in the heap, from 1 on; 0: in no order; or in the list */
    uint32_t prev, next; /* in the list: blocks, of which block 0 is both ends */
    uint32_t later;      /* a hint: who came into the list MR_IDLE_AHEAD blocks after it */
} mr_idle_place;

#define MR_IDLE_AHEAD 8u

/* Keys stand beside the blocks, so that sifting reads no places, which lie apart. */
typedef struct mr_idle_node {
    uint64_t key;
    uint32_t block;
} mr_idle_node;

typedef struct mr_idle_order {
    mr_idle_place *places; /* [n_blocks] owns */
    mr_idle_node *heap;    /* [n_blocks] owns; who goes first on top */
    uint32_t n_blocks;     /* 0 is none of them */
    uint32_t n_heap;
    uint32_t n_listed;
    uint32_t appended[MR_IDLE_AHEAD]; /* the last ones, a ring */
    uint32_t n_appended;
    uint64_t tick;
} mr_idle_order;

/* RESOURCE_EXHAUSTED when memory is short; _deinit() is right after that too. */
MR_MUST_USE mr_status mr_idle_order_init(mr_idle_order *order, uint32_t n_blocks);
void mr_idle_order_deinit(mr_idle_order *order);

/* A block that is in no order becomes the newest of its kind. */
void mr_idle_order_add(mr_idle_order *order, uint32_t block, bool has_children);
/* A block that is in the order leaves it. */
void mr_idle_order_remove(mr_idle_order *order, uint32_t block);
/* A block, in the order or not, has children from now on, or none. */
void mr_idle_order_update(mr_idle_order *order, uint32_t block, bool has_children);
void mr_idle_order_clear(mr_idle_order *order);

bool mr_idle_order_has(const mr_idle_order *order, uint32_t block);
uint32_t mr_idle_order_count(const mr_idle_order *order);
/* Who goes first; there is one. */
uint32_t mr_idle_order_first(const mr_idle_order *order);

/* The memory of a block's place is fetched for when it is added. */
void mr_idle_order_expect(const mr_idle_order *order, uint32_t block);
/* The block after this one in the list, after block 0 its oldest; 0: none. */
uint32_t mr_idle_order_next_listed(const mr_idle_order *order, uint32_t block);
/* About MR_IDLE_AHEAD blocks further; any block if it has left the list since. */
uint32_t mr_idle_order_later_listed(const mr_idle_order *order, uint32_t block);

/* Walks everything; for tests and debug builds. */
bool mr_idle_order_check(const mr_idle_order *order);

#endif
