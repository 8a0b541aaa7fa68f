/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/claims.h"

#include "cache/prefix_index.h"

#include <string.h>

#define BATCH 64u

_Static_assert(sizeof(mr_block_hash) == MR_BLOCK_HASH_BYTES, "a hash is its bytes");

/* Hashes that go the same way, one behind the other. */
typedef struct batch {
    mr_metadata_store *store;
    uint8_t hashes[BATCH * MR_BLOCK_HASH_BYTES];
    uint32_t n;
    uint32_t kind;
} batch;

static void send(batch *b)
{
    if (b->n > 0 && b->kind == MR_PREFIX_ADDED) {
        mr_metadata_store_publish(b->store, b->hashes, b->n);
    } else if (b->n > 0) {
        mr_metadata_store_withdraw(b->store, b->hashes, b->n);
    }
    b->n = 0;
}

static void add(batch *b, const mr_prefix_event *event)
{
    if (b->n == BATCH || b->kind != event->kind) {
        send(b);
    }
    b->kind = event->kind;
    memcpy(b->hashes + (size_t)b->n * MR_BLOCK_HASH_BYTES, event->hash.bytes, MR_BLOCK_HASH_BYTES);
    b->n++;
}

/* LOST events: claims may be missing, or of blocks that are gone; their expiry mends both. */
uint32_t mr_claims_forward(mr_claims *claims)
{
    batch b = {.store = claims->store};
    uint32_t count = 0;
    const mr_prefix_event *event = mr_ring_peek(claims->events, 0);
    for (; event != NULL; event = mr_ring_peek(claims->events, 0)) {
        if (claims->begun && event->epoch != claims->epoch) {
            send(&b);
            mr_metadata_store_reset(claims->store);
        }
        claims->begun = true;
        claims->epoch = event->epoch;
        if (event->kind == MR_PREFIX_ADDED || event->kind == MR_PREFIX_REMOVED) {
            add(&b, event);
        }
        mr_ring_pop(claims->events, 1);
        count++;
    }
    send(&b);
    return count;
}
