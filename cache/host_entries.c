/* SPDX-License-Identifier: Apache-2.0 */
/* Bookkeeping of the host tier: blocks, entries, the order of use, the table of hashes. */
#include "cache/host_tier_internal.h"

#include <string.h>

mr_host_handle mr_host_entry_handle(const mr_host_tier *t, uint32_t entry)
{
    return (uint64_t)t->slots[entry].generation << 32 | (entry + 1);
}

/* MR_HOST_NONE: it is void. */
uint32_t mr_host_entry_of(const mr_host_tier *t, mr_host_handle handle)
{
    const uint32_t entry = (uint32_t)handle - 1;
    const bool known = (uint32_t)handle != 0 && entry < t->n_slots && t->slots[entry].owned &&
                       t->slots[entry].generation == handle >> 32;
    return known ? entry : MR_HOST_NONE;
}

/* The order of use. */

void mr_host_entry_idle(mr_host_tier *t, uint32_t entry)
{
    t->slots[entry].older = t->newest;
    t->slots[entry].newer = MR_HOST_NONE;
    if (t->newest != MR_HOST_NONE) {
        t->slots[t->newest].newer = entry;
    } else {
        t->oldest = entry;
    }
    t->newest = entry;
    t->n_idle++;
}

void mr_host_entry_busy(mr_host_tier *t, uint32_t entry)
{
    const mr_host_slot *e = &t->slots[entry];
    if (e->newer != MR_HOST_NONE) {
        t->slots[e->newer].older = e->older;
    } else {
        t->newest = e->older;
    }
    if (e->older != MR_HOST_NONE) {
        t->slots[e->older].newer = e->newer;
    } else {
        t->oldest = e->newer;
    }
    t->n_idle--;
}

/* The table of hashes. */

static uint32_t *bucket_of(const mr_host_tier *t, const mr_block_hash *hash)
{
    uint32_t bits;
    memcpy(&bits, hash->bytes, sizeof(bits)); /* a cryptographic hash needs no other */
    return &t->buckets[bits & (t->n_buckets - 1)];
}

uint32_t mr_host_entry_find(const mr_host_tier *t, const mr_block_hash *hash)
{
    uint32_t entry = *bucket_of(t, hash);
    while (entry != MR_HOST_NONE && memcmp(&t->slots[entry].hash, hash, sizeof(*hash)) != 0) {
        entry = t->slots[entry].hash_next;
    }
    return entry;
}

uint32_t *mr_host_entry_tokens(const mr_host_tier *t, uint32_t entry)
{
    return t->tokens + (size_t)entry * t->options.block_size;
}

void mr_host_entry_name(mr_host_tier *t, uint32_t entry, const mr_host_key *key)
{
    uint32_t *bucket = bucket_of(t, key->hash);
    t->slots[entry].hash = *key->hash;
    memcpy(mr_host_entry_tokens(t, entry), key->tokens,
           t->options.block_size * sizeof(*key->tokens));
    t->slots[entry].cached = true;
    t->slots[entry].hash_next = *bucket;
    *bucket = entry;
    t->n_cached++;
}

void mr_host_entry_unname(mr_host_tier *t, uint32_t entry)
{
    uint32_t *at = bucket_of(t, &t->slots[entry].hash);
    while (*at != entry) {
        at = &t->slots[*at].hash_next;
    }
    *at = t->slots[entry].hash_next;
    t->slots[entry].cached = false;
    t->n_cached--;
}

/* Of an entry that is neither moving nor in the order of use. */
void mr_host_entry_free(mr_host_tier *t, uint32_t entry)
{
    mr_host_slot *e = &t->slots[entry];
    if (e->cached) {
        mr_host_entry_unname(t, entry);
    }
    t->n_free += e->count;
    e->count = 0;
    e->owned = false;
    e->generation++;
    uint32_t last = entry;
    while (t->slots[last].next != MR_HOST_NONE) {
        last = t->slots[last].next;
    }
    t->slots[last].next = t->free;
    t->free = entry;
}

/* Where an entry that does not move any more, or has no owner any more, belongs. */
void mr_host_entry_settle(mr_host_tier *t, uint32_t entry)
{
    mr_host_slot *e = &t->slots[entry];
    if (e->moving || e->owned) {
        return;
    }
    if (e->cached) {
        mr_host_entry_idle(t, entry);
    } else {
        mr_host_entry_free(t, entry);
    }
}

/* An entry of `count` blocks, owned by nobody; MR_HOST_NONE when there is no room. */
uint32_t mr_host_entry_make(mr_host_tier *t, const uint32_t *blocks, uint32_t count)
{
    if (count == 0 || count > t->n_free + t->n_idle) {
        return MR_HOST_NONE;
    }
    while (t->n_free < count) {
        const uint32_t oldest = t->oldest;
        mr_host_entry_busy(t, oldest);
        mr_host_entry_free(t, oldest);
    }
    const uint32_t entry = t->free;
    uint32_t at = entry;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t next = t->slots[at].next;
        t->slots[at].block = blocks[i];
        if (i + 1 == count) {
            t->slots[at].next = MR_HOST_NONE;
            t->free = next;
        }
        at = next;
    }
    t->n_free -= count;
    mr_host_slot *e = &t->slots[entry];
    e->count = count;
    e->failed = false;
    return entry;
}

bool mr_host_tier_check(const mr_host_tier *t)
{
    uint32_t used = 0;
    uint32_t cached = 0;
    uint32_t moving = 0;
    uint32_t stuck = 0;
    uint32_t idle = 0;
    for (uint32_t i = 0; i < t->n_slots; i++) {
        const mr_host_slot *e = &t->slots[i];
        uint32_t length = e->count > 0;
        for (uint32_t at = i; e->count > 0 && t->slots[at].next != MR_HOST_NONE; length++) {
            at = t->slots[at].next;
        }
        if (length != e->count || (e->cached && e->count != 1) ||
            (e->moving && t->moving[e->moving_at] != i)) {
            return false;
        }
        used += e->count;
        cached += e->count > 0 && e->cached;
        moving += e->count > 0 && e->moving;
        stuck += e->count > 0 && e->stuck;
    }
    for (uint32_t i = t->newest; i != MR_HOST_NONE && idle <= t->n_idle;
         i = t->slots[i].older, idle++) {
        if (t->slots[i].owned || t->slots[i].moving || !t->slots[i].cached) {
            return false;
        }
    }
    return used + t->n_free == t->n_slots && cached == t->n_cached && moving == t->n_moving &&
           stuck == t->stats.stuck && idle == t->n_idle;
}
