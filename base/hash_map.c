/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys come from files that nobody vouches for, so each map mixes two secret words into its hash:
 * a chosen set of keys cannot pile up on one slot. Tables have a power of two of slots and are at
 * most three quarters full, so that a probe always meets an empty slot.
 */
#include "base/hash_map.h"

#include "base/checked.h"
#include "base/clock.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define MIN_SLOTS 16u
#define NO_KEY    UINT64_MAX

__extension__ typedef unsigned __int128 uint128;

typedef struct hash_secret {
    uint64_t add;
    uint64_t mul; /* odd */
} hash_secret;

static hash_secret secret_draw(const void *address)
{
    hash_secret secret;
    if (getrandom(&secret, sizeof(secret), GRND_NONBLOCK) != (ssize_t)sizeof(secret)) {
        /* Early boot or an old kernel: address-space layout and time are better than a constant. */
        const mr_clock clock = mr_clock_monotonic();
        secret.add = (uint64_t)(uintptr_t)address * 0x9E3779B97F4A7C15u;
        secret.mul = mr_clock_now(&clock) * 0xD1342543DE82EF95u ^ (uint64_t)(uintptr_t)&secret;
    }
    secret.mul |= 1;
    return secret;
}

/* Both halves of the full product: every bit of the input reaches every bit of the result. */
static uint64_t fold(uint64_t a, uint64_t b)
{
    const uint128 product = (uint128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint64_t hash_u64(hash_secret secret, uint64_t key)
{
    return fold(fold(key ^ secret.add, secret.mul) ^ secret.add, 0x9E3779B97F4A7C15u);
}

static uint64_t hash_bytes(hash_secret secret, const uint8_t *key, size_t bytes)
{
    uint64_t hash = secret.add ^ bytes;
    while (bytes > 0) {
        const size_t part = bytes < sizeof(uint64_t) ? bytes : sizeof(uint64_t);
        uint64_t word = 0;
        memcpy(&word, key, part);
        hash = fold(hash ^ word, secret.mul) + secret.add;
        key += part;
        bytes -= part;
    }
    return fold(hash ^ secret.add, 0x9E3779B97F4A7C15u);
}

/* Slots for `expected` keys at three quarters load; false when that does not fit. */
static bool slots_for(size_t expected, size_t *slots)
{
    uint64_t need;
    if (!mr_mul_u64(expected, 4, &need) || need / 3 >= (uint64_t)PTRDIFF_MAX / 2) {
        return false;
    }
    *slots = MIN_SLOTS;
    while (*slots <= need / 3) {
        *slots *= 2;
    }
    return true;
}

static bool is_full(size_t count, size_t slots)
{
    return count >= slots / 4 * 3;
}

typedef struct string_slot {
    const uint8_t *key; /* borrows; NULL: empty */
    size_t bytes;
    uint32_t hash; /* high half: spares most comparisons */
    uint32_t value;
} string_slot;

struct mr_string_map {
    string_slot *slots; /* owns, [mask + 1] */
    size_t mask;
    size_t count;
    hash_secret secret;
};

mr_status mr_string_map_create(size_t expected, mr_string_map **out)
{
    *out = NULL;
    size_t slots;
    if (!slots_for(expected, &slots)) {
        return MR_RESOURCE_EXHAUSTED;
    }
    mr_string_map *map = mr_calloc(1, sizeof(*map));
    if (map == NULL) {
        return MR_RESOURCE_EXHAUSTED;
    }
    map->slots = mr_calloc(slots, sizeof(*map->slots));
    if (map->slots == NULL) {
        free(map);
        return MR_RESOURCE_EXHAUSTED;
    }
    map->mask = slots - 1;
    map->secret = secret_draw(map);
    *out = map;
    return MR_OK;
}

void mr_string_map_destroy(mr_string_map *map)
{
    if (map != NULL) {
        free(map->slots);
        free(map);
    }
}

/* The slot that holds the key, or the empty one where it belongs. */
static string_slot *string_find(const mr_string_map *map, const uint8_t *key, size_t bytes,
                                uint64_t hash)
{
    for (size_t at = hash & map->mask;; at = (at + 1) & map->mask) {
        string_slot *slot = &map->slots[at];
        if (slot->key == NULL) {
            return slot;
        }
        if (slot->hash == (uint32_t)(hash >> 32) && slot->bytes == bytes &&
            memcmp(slot->key, key, bytes) == 0) {
            return slot;
        }
    }
}

static mr_status string_grow(mr_string_map *map)
{
    mr_string_map grown = *map;
    if (map->mask >= (size_t)PTRDIFF_MAX / 2) {
        return MR_RESOURCE_EXHAUSTED;
    }
    grown.mask = 2 * map->mask + 1;
    grown.slots = mr_calloc(grown.mask + 1, sizeof(*grown.slots));
    if (grown.slots == NULL) {
        return MR_RESOURCE_EXHAUSTED;
    }
    for (size_t i = 0; i <= map->mask; i++) {
        const string_slot *slot = &map->slots[i];
        if (slot->key != NULL) {
            const uint64_t hash = hash_bytes(map->secret, slot->key, slot->bytes);
            *string_find(&grown, slot->key, slot->bytes, hash) = *slot;
        }
    }
    free(map->slots);
    *map = grown;
    return MR_OK;
}

mr_status mr_string_map_put(mr_string_map *map, const void *key, size_t bytes, uint32_t value)
{
    if (is_full(map->count, map->mask + 1)) {
        MR_TRY(string_grow(map));
    }
    const uint8_t *text = bytes > 0 ? key : (const void *)"";
    const uint64_t hash = hash_bytes(map->secret, text, bytes);
    string_slot *slot = string_find(map, text, bytes, hash);
    if (slot->key != NULL) {
        return MR_ALREADY_EXISTS;
    }
    *slot =
        (string_slot){.key = text, .bytes = bytes, .hash = (uint32_t)(hash >> 32), .value = value};
    map->count++;
    return MR_OK;
}

bool mr_string_map_get(const mr_string_map *map, const void *key, size_t bytes, uint32_t *value)
{
    const uint8_t *text = bytes > 0 ? key : (const void *)"";
    const string_slot *slot = string_find(map, text, bytes, hash_bytes(map->secret, text, bytes));
    if (slot->key == NULL) {
        return false;
    }
    *value = slot->value;
    return true;
}

typedef struct u64_slot {
    uint64_t key; /* NO_KEY: empty */
    uint32_t value;
} u64_slot;

struct mr_u64_map {
    u64_slot *slots; /* owns, [mask + 1] */
    size_t mask;
    size_t count;
    hash_secret secret;
};

static u64_slot *u64_slots_create(size_t slots)
{
    u64_slot *made = mr_calloc(slots, sizeof(*made));
    for (size_t i = 0; made != NULL && i < slots; i++) {
        made[i].key = NO_KEY;
    }
    return made;
}

mr_status mr_u64_map_create(size_t expected, mr_u64_map **out)
{
    *out = NULL;
    size_t slots;
    if (!slots_for(expected, &slots)) {
        return MR_RESOURCE_EXHAUSTED;
    }
    mr_u64_map *map = mr_calloc(1, sizeof(*map));
    if (map == NULL) {
        return MR_RESOURCE_EXHAUSTED;
    }
    map->slots = u64_slots_create(slots);
    if (map->slots == NULL) {
        free(map);
        return MR_RESOURCE_EXHAUSTED;
    }
    map->mask = slots - 1;
    map->secret = secret_draw(map);
    *out = map;
    return MR_OK;
}

void mr_u64_map_destroy(mr_u64_map *map)
{
    if (map != NULL) {
        free(map->slots);
        free(map);
    }
}

static u64_slot *u64_find(const mr_u64_map *map, uint64_t key)
{
    size_t at = hash_u64(map->secret, key) & map->mask;
    while (map->slots[at].key != NO_KEY && map->slots[at].key != key) {
        at = (at + 1) & map->mask;
    }
    return &map->slots[at];
}

static mr_status u64_grow(mr_u64_map *map)
{
    mr_u64_map grown = *map;
    if (map->mask >= (size_t)PTRDIFF_MAX / 2) {
        return MR_RESOURCE_EXHAUSTED;
    }
    grown.mask = 2 * map->mask + 1;
    grown.slots = u64_slots_create(grown.mask + 1);
    if (grown.slots == NULL) {
        return MR_RESOURCE_EXHAUSTED;
    }
    for (size_t i = 0; i <= map->mask; i++) {
        if (map->slots[i].key != NO_KEY) {
            *u64_find(&grown, map->slots[i].key) = map->slots[i];
        }
    }
    free(map->slots);
    *map = grown;
    return MR_OK;
}

mr_status mr_u64_map_put(mr_u64_map *map, uint64_t key, uint32_t value)
{
    if (key == NO_KEY) {
        return MR_INVALID_ARGUMENT;
    }
    if (is_full(map->count, map->mask + 1)) {
        MR_TRY(u64_grow(map));
    }
    u64_slot *slot = u64_find(map, key);
    if (slot->key != NO_KEY) {
        return MR_ALREADY_EXISTS;
    }
    *slot = (u64_slot){.key = key, .value = value};
    map->count++;
    return MR_OK;
}

bool mr_u64_map_get(const mr_u64_map *map, uint64_t key, uint32_t *value)
{
    const u64_slot *slot = u64_find(map, key);
    if (key == NO_KEY || slot->key == NO_KEY) {
        return false;
    }
    *value = slot->value;
    return true;
}
