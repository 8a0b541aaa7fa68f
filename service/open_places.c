/* SPDX-License-Identifier: Apache-2.0 */
#include "service/open_places.h"

#include "base/checked.h"

#include <stdlib.h>
#include <string.h>

typedef struct holder {
    uint8_t address[16];
    uint32_t held; /* 0: nobody's record */
} holder;

typedef struct taken {
    uint64_t place; /* the smaller, the older */
    uint32_t holder;
} taken;

struct mr_open_places {
    taken *items;    /* [count], `used` of them, in no order */
    holder *holders; /* [count], as there are at most so many */
    uint32_t count;
    uint32_t used;
    uint32_t n_holders; /* records below have been used at some time */
    uint64_t last;
};

mr_status mr_open_places_create(uint32_t count, mr_open_places **out, mr_error *err)
{
    mr_open_places *places = mr_calloc(1, sizeof(*places));
    if (places != NULL) {
        places->count = count;
        places->items = mr_calloc(count, sizeof(*places->items));
        places->holders = mr_calloc(count, sizeof(*places->holders));
    }
    if (places == NULL || places->items == NULL || places->holders == NULL) {
        mr_open_places_destroy(places);
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "out of memory for %u health checks", count);
    }
    *out = places;
    return MR_OK;
}

void mr_open_places_destroy(mr_open_places *places)
{
    if (places != NULL) {
        free(places->items);
        free(places->holders);
        free(places);
    }
}

/* `count`: it has none. */
static uint32_t find_holder(const mr_open_places *places, const uint8_t address[16])
{
    for (uint32_t h = 0; h < places->n_holders; h++) {
        const holder *item = &places->holders[h];
        if (item->held > 0 && memcmp(item->address, address, sizeof(item->address)) == 0) {
            return h;
        }
    }
    return places->count;
}

static uint32_t new_holder(mr_open_places *places, const uint8_t address[16])
{
    uint32_t h = 0;
    while (h < places->n_holders && places->holders[h].held > 0) {
        h++;
    }
    places->n_holders += h == places->n_holders ? 1 : 0;
    memcpy(places->holders[h].address, address, sizeof(places->holders[h].address));
    return h;
}

static void drop(mr_open_places *places, uint32_t index)
{
    places->holders[places->items[index].holder].held--;
    places->used--;
    places->items[index] = places->items[places->used];
}

/* The oldest of whoever has the most, `asking` counting one more. */
static uint32_t choose_victim(const mr_open_places *places, uint32_t asking)
{
    uint32_t victim = 0;
    uint32_t most = 0;
    for (uint32_t i = 0; i < places->used; i++) {
        const taken *item = &places->items[i];
        const uint32_t held =
            places->holders[item->holder].held + (item->holder == asking ? 1u : 0u);
        const bool older = item->place < places->items[victim].place;
        if (held > most || (held == most && older)) {
            victim = i;
            most = held;
        }
    }
    return victim;
}

uint64_t mr_open_places_take(mr_open_places *places, const uint8_t address[16])
{
    if (places->used == places->count) {
        drop(places, choose_victim(places, find_holder(places, address)));
    }
    uint32_t h = find_holder(places, address);
    if (h == places->count) {
        h = new_holder(places, address);
    }
    places->holders[h].held++;
    places->last++;
    places->items[places->used++] = (taken){.place = places->last, .holder = h};
    return places->last;
}

static uint32_t find(const mr_open_places *places, uint64_t place)
{
    uint32_t index = 0;
    while (index < places->used && places->items[index].place != place) {
        index++;
    }
    return index;
}

bool mr_open_places_holds(const mr_open_places *places, uint64_t place)
{
    return find(places, place) < places->used;
}

void mr_open_places_give_back(mr_open_places *places, uint64_t place)
{
    const uint32_t index = find(places, place);
    if (index < places->used) {
        drop(places, index);
    }
}
