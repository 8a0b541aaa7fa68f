/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/idle_order.h"

#include "base/checked.h"
#include "kernels/batch.h"

#include <stdlib.h>
#include <string.h>

/* Keys are ticks; this is added to those of blocks that have children. */
#define INNER (UINT64_C(1) << 63)

/* A node's children share a line of the cache, more or less. */
#define HEAP_ARITY 4u

/* mr_idle_place.at of those in the list. */
#define LISTED UINT32_MAX

mr_status mr_idle_order_init(mr_idle_order *order, uint32_t n_blocks)
{
    *order = (mr_idle_order){.n_blocks = n_blocks};
    order->places = mr_calloc(n_blocks, sizeof(*order->places));
    order->heap = mr_calloc(n_blocks, sizeof(*order->heap));
    return order->places != NULL && order->heap != NULL ? MR_OK : MR_RESOURCE_EXHAUSTED;
}

void mr_idle_order_deinit(mr_idle_order *order)
{
    free(order->places);
    free(order->heap);
}

/* ---- the heap ---- */

static void put_at(mr_idle_order *order, uint32_t at, mr_idle_node node)
{
    order->heap[at] = node;
    order->places[node.block].at = at + 1;
}

static void sift_up(mr_idle_order *order, uint32_t at, mr_idle_node node)
{
    while (at > 0 && node.key < order->heap[(at - 1) / HEAP_ARITY].key) {
        put_at(order, at, order->heap[(at - 1) / HEAP_ARITY]);
        at = (at - 1) / HEAP_ARITY;
    }
    put_at(order, at, node);
}

static void sift_down(mr_idle_order *order, uint32_t at, mr_idle_node node)
{
    for (;;) {
        const uint32_t first = HEAP_ARITY * at + 1;
        const uint32_t end = mr_min_u32(first + HEAP_ARITY, order->n_heap);
        uint32_t least = first;
        for (uint32_t child = first + 1; child < end; child++) {
            least = order->heap[child].key < order->heap[least].key ? child : least;
        }
        if (first >= end || order->heap[least].key >= node.key) {
            break;
        }
        put_at(order, at, order->heap[least]);
        at = least;
    }
    put_at(order, at, node);
}

/* Puts a block where it belongs, from a place that was another's or its own under another key. */
static void settle(mr_idle_order *order, uint32_t at, mr_idle_node node)
{
    if (at > 0 && node.key < order->heap[(at - 1) / HEAP_ARITY].key) {
        sift_up(order, at, node);
    } else {
        sift_down(order, at, node);
    }
}

static void heap_push(mr_idle_order *order, uint32_t block)
{
    order->n_heap++;
    sift_up(order, order->n_heap - 1, (mr_idle_node){order->places[block].key, block});
}

static void heap_remove(mr_idle_order *order, uint32_t block)
{
    const uint32_t at = order->places[block].at - 1;
    const mr_idle_node last = order->heap[--order->n_heap];
    if (last.block != block) {
        settle(order, at, last);
    }
}

/* ---- the list ---- */

static void list_append(mr_idle_order *order, uint32_t block)
{
    mr_idle_place *ends = &order->places[MR_NULL_BLOCK];
    mr_idle_place *place = &order->places[block];
    place->at = LISTED;
    place->prev = ends->prev;
    place->next = MR_NULL_BLOCK;
    order->places[ends->prev].next = block;
    ends->prev = block;
    order->n_listed++;
    uint32_t *earlier = &order->appended[order->n_appended++ % MR_IDLE_AHEAD];
    order->places[*earlier].later = block;
    *earlier = block;
}

static void list_remove(mr_idle_order *order, uint32_t block)
{
    const mr_idle_place *place = &order->places[block];
    order->places[place->prev].next = place->next;
    order->places[place->next].prev = place->prev;
    order->n_listed--;
}

/* ---- both ---- */

void mr_idle_order_add(mr_idle_order *order, uint32_t block, bool has_children)
{
    mr_idle_place *place = &order->places[block];
    MR_CHECK(block != MR_NULL_BLOCK && block < order->n_blocks && place->at == 0);
    place->key = ++order->tick | (has_children ? INNER : 0);
    if (has_children) {
        list_append(order, block);
    } else {
        heap_push(order, block);
    }
}

void mr_idle_order_remove(mr_idle_order *order, uint32_t block)
{
    mr_idle_place *place = &order->places[block];
    MR_CHECK(place->at != 0);
    if (place->at == LISTED) {
        list_remove(order, block);
    } else {
        heap_remove(order, block);
    }
    place->at = 0;
}

void mr_idle_order_update(mr_idle_order *order, uint32_t block, bool has_children)
{
    mr_idle_place *place = &order->places[block];
    const uint64_t key = has_children ? place->key | INNER : place->key & ~INNER;
    if (place->at == 0 || key == place->key) {
        return;
    }
    place->key = key;
    if (place->at == LISTED) {
        list_remove(order, block);
        heap_push(order, block);
    } else {
        settle(order, place->at - 1, (mr_idle_node){key, block});
    }
}

void mr_idle_order_clear(mr_idle_order *order)
{
    memset(order->places, 0, order->n_blocks * sizeof(*order->places));
    order->n_heap = 0;
    order->n_listed = 0;
}

bool mr_idle_order_has(const mr_idle_order *order, uint32_t block)
{
    return order->places[block].at != 0;
}

uint32_t mr_idle_order_count(const mr_idle_order *order)
{
    return order->n_heap + order->n_listed;
}

uint32_t mr_idle_order_first(const mr_idle_order *order)
{
    MR_CHECK(mr_idle_order_count(order) > 0);
    const uint32_t listed = order->places[MR_NULL_BLOCK].next;
    const bool from_list = listed != MR_NULL_BLOCK &&
                           (order->n_heap == 0 || order->places[listed].key < order->heap[0].key);
    return from_list ? listed : order->heap[0].block;
}

void mr_idle_order_expect(const mr_idle_order *order, uint32_t block)
{
    __builtin_prefetch(&order->places[block], 1);
}

uint32_t mr_idle_order_next_listed(const mr_idle_order *order, uint32_t block)
{
    return order->places[block].next;
}

uint32_t mr_idle_order_later_listed(const mr_idle_order *order, uint32_t block)
{
    return order->places[block].later;
}

/* ---- the invariant ---- */

static bool check_heap(const mr_idle_order *order)
{
    for (uint32_t i = 0; i < order->n_heap; i++) {
        const mr_idle_node node = order->heap[i];
        if (node.block == MR_NULL_BLOCK || node.block >= order->n_blocks ||
            order->places[node.block].at != i + 1 || order->places[node.block].key != node.key ||
            (i > 0 && order->heap[(i - 1) / HEAP_ARITY].key >= node.key)) {
            return false;
        }
    }
    return true;
}

static bool check_list(const mr_idle_order *order)
{
    uint32_t count = 0;
    uint32_t prev = MR_NULL_BLOCK;
    uint64_t key = INNER;
    for (uint32_t block = order->places[MR_NULL_BLOCK].next; block != MR_NULL_BLOCK;
         block = order->places[block].next) {
        const mr_idle_place *place = &order->places[block];
        if (++count > order->n_listed || place->at != LISTED || place->prev != prev ||
            place->key <= key) {
            return false;
        }
        key = place->key;
        prev = block;
    }
    return count == order->n_listed && order->places[MR_NULL_BLOCK].prev == prev;
}

bool mr_idle_order_check(const mr_idle_order *order)
{
    uint32_t in_order = 0;
    for (uint32_t block = 1; block < order->n_blocks; block++) {
        in_order += order->places[block].at != 0;
    }
    return in_order == mr_idle_order_count(order) && check_heap(order) && check_list(order);
}
