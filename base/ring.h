/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bounded single-producer single-consumer ring of fixed-size entries.
 *
 *      read                     write
 *        v                        v
 *   [ . | e | e | e | e | e | e | . | . ]     capacity is a power of two; the two counters
 *                                             run free and are reduced by a mask
 *
 * The producer and the consumer may be different threads; each side has one thread at a time.
 */
#ifndef MILLRACE_BASE_RING_H
#define MILLRACE_BASE_RING_H

#include "base/status.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define MR_RING_MAX_CAPACITY (1u << 20)

typedef struct mr_ring {
    uint8_t *entries;  /* owns, capacity * stride bytes */
    uint32_t stride;   /* bytes an entry, a multiple of 8 */
    uint32_t capacity; /* entries, a power of two */
    /* Padding keeps the counters on lines of their own; _Alignas would forbid plain malloc for
     * every struct that holds a ring. */
    uint8_t pad_header[64];
    atomic_uint written;
    uint8_t pad_written[64 - sizeof(atomic_uint)];
    atomic_uint taken;
    uint8_t pad_taken[64 - sizeof(atomic_uint)];
} mr_ring;

/* Room for at least `capacity` entries (1..MR_RING_MAX_CAPACITY) of `stride` bytes.
 * INVALID_ARGUMENT outside these limits, RESOURCE_EXHAUSTED when memory is short. */
MR_MUST_USE mr_status mr_ring_init(mr_ring *ring, uint32_t capacity, uint32_t stride);
void mr_ring_deinit(mr_ring *ring);

/* Producer: free entries, a lower bound of what the next puts may use. */
uint32_t mr_ring_space(const mr_ring *ring);
/* Producer: the next entry to fill, NULL when full; mr_ring_commit makes it visible. */
void *mr_ring_reserve(mr_ring *ring);
void mr_ring_commit(mr_ring *ring);
/* Producer: the entry committed last (it may have been popped meanwhile), NULL when there was none
 * yet; it stays readable until the next reserve. */
const void *mr_ring_newest(const mr_ring *ring);

/* Consumer: the `index`-th waiting entry (0 is the oldest), NULL when there are fewer; it stays
 * valid until it is popped. */
const void *mr_ring_peek(const mr_ring *ring, uint32_t index);
void mr_ring_pop(mr_ring *ring, uint32_t count);
/* Either side: entries waiting. */
uint32_t mr_ring_count(const mr_ring *ring);

#endif
