/* SPDX-License-Identifier: Apache-2.0 */
#include "base/ring.h"

#include "base/checked.h"

#include <stdlib.h>

mr_status mr_ring_init(mr_ring *ring, uint32_t capacity, uint32_t stride)
{
    if (capacity == 0 || capacity > MR_RING_MAX_CAPACITY || stride == 0 || stride % 8 != 0) {
        return MR_INVALID_ARGUMENT;
    }
    uint32_t rounded = 1;
    while (rounded < capacity) {
        rounded *= 2;
    }
    ring->entries = mr_calloc(rounded, stride);
    if (ring->entries == NULL) {
        return MR_RESOURCE_EXHAUSTED;
    }
    ring->stride = stride;
    ring->capacity = rounded;
    atomic_init(&ring->written, 0);
    atomic_init(&ring->taken, 0);
    return MR_OK;
}

void mr_ring_deinit(mr_ring *ring)
{
    free(ring->entries);
    ring->entries = NULL;
}

static uint8_t *entry_at(const mr_ring *ring, uint32_t number)
{
    return ring->entries + (size_t)(number & (ring->capacity - 1)) * ring->stride;
}

uint32_t mr_ring_count(const mr_ring *ring)
{
    /* `taken` first: it never passes a `written` that is read later, so the difference is no less
     * than 0; it may exceed the capacity when both sides move in between. */
    const uint32_t taken = atomic_load_explicit(&ring->taken, memory_order_acquire);
    const uint32_t written = atomic_load_explicit(&ring->written, memory_order_acquire);
    const uint32_t count = written - taken;
    return count < ring->capacity ? count : ring->capacity;
}

uint32_t mr_ring_space(const mr_ring *ring)
{
    return ring->capacity - mr_ring_count(ring);
}

void *mr_ring_reserve(mr_ring *ring)
{
    const uint32_t written = atomic_load_explicit(&ring->written, memory_order_relaxed);
    /* Acquire: the consumer has read its last byte of the entry before we write over it. */
    const uint32_t taken = atomic_load_explicit(&ring->taken, memory_order_acquire);
    return written - taken < ring->capacity ? entry_at(ring, written) : NULL;
}

void mr_ring_commit(mr_ring *ring)
{
    const uint32_t written = atomic_load_explicit(&ring->written, memory_order_relaxed);
    MR_CHECK(written - atomic_load_explicit(&ring->taken, memory_order_relaxed) < ring->capacity);
    atomic_store_explicit(&ring->written, written + 1, memory_order_release);
}

const void *mr_ring_newest(const mr_ring *ring)
{
    /* The counter wraps after 2^32 entries; whoever asks then asks about a ring in use. */
    const uint32_t written = atomic_load_explicit(&ring->written, memory_order_relaxed);
    return written == 0 ? NULL : entry_at(ring, written - 1);
}

const void *mr_ring_peek(const mr_ring *ring, uint32_t index)
{
    const uint32_t taken = atomic_load_explicit(&ring->taken, memory_order_relaxed);
    const uint32_t written = atomic_load_explicit(&ring->written, memory_order_acquire);
    return index < written - taken ? entry_at(ring, taken + index) : NULL;
}

void mr_ring_pop(mr_ring *ring, uint32_t count)
{
    const uint32_t taken = atomic_load_explicit(&ring->taken, memory_order_relaxed);
    MR_CHECK(count <= atomic_load_explicit(&ring->written, memory_order_relaxed) - taken);
    atomic_store_explicit(&ring->taken, taken + count, memory_order_release);
}
