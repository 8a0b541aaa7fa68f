/* SPDX-License-Identifier: Apache-2.0 */
#include "service/connection_table.h"

#include "base/checked.h"
#include "service/open_places.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

/* Addresses that are remembered, and how many connections without a call each may have in
 * MR_CONNECTION_STRIKES_NS. */
#define ADDRESSES_MOST 256
/* What of a refused call's message may be on its way before its sender, who was never let in,
 * knows: some windows of HTTP/2. How many are refused is bounded by strikes. */
#define STRANGERS_BYTES (UINT64_C(256) << 10)
#define CALLLESS_MOST   64
/* Calls that need no credential: of limits.calls this part, and of that a connection has half. */
#define OPEN_SHARE 8u

/* What addresses of IPv4 begin with among those of IPv6. */
static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};

typedef struct address_record {
    uint8_t address[16];
    uint64_t until_ns; /* no new connections before */
    uint64_t since_ns; /* of the next */
    uint32_t callless; /* connections that went without having made a call */
    uint64_t unearned; /* bytes of those that went, for no message */
} address_record;

struct mr_connection_table {
    mr_connection_limits limits;
    mr_connection *items; /* limits.connections */
    uint64_t *keys;       /* of their peers, 0: a free place; what a search runs over */
    uint32_t used;        /* places below have been taken at some time */
    uint32_t count;
    uint32_t calls;
    mr_open_places *open; /* owns; for those that need no credential */
    uint32_t n_open;      /* how many there are */
    uint32_t last_serial;
    address_record addresses[ADDRESSES_MOST];
};

/* FNV-1a (Fowler, Noll, Vo), 64 bits; never 0. */
static uint64_t key_of(const mr_remote *peer)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < sizeof(peer->address); i++) {
        hash = (hash ^ peer->address[i]) * UINT64_C(0x100000001b3);
    }
    hash = (hash ^ peer->port) * UINT64_C(0x100000001b3);
    return hash == 0 ? 1 : hash;
}

/* What a stranger has of its own: an address of IPv4, a network of IPv6. */
static mr_remote home_of(const mr_remote *peer)
{
    mr_remote home = {0};
    const bool v4 = memcmp(peer->address, mapped, sizeof(mapped)) == 0;
    memcpy(home.address, peer->address, v4 ? sizeof(home.address) : 8);
    return home;
}

static bool same_peer(const mr_remote *a, const mr_remote *b)
{
    return a->port == b->port && memcmp(a->address, b->address, sizeof(a->address)) == 0;
}

/* Text between what is before and after, without the zone of a link-local address. */
static bool copy_host(const char *from, const char *to, char *out, size_t bytes)
{
    size_t length = (size_t)(to - from);
    const char *zone = memchr(from, '%', length);
    if (zone != NULL) {
        length = (size_t)(zone - from);
    }
    if (length >= bytes) {
        return false;
    }
    memcpy(out, from, length);
    out[length] = '\0';
    return true;
}

static bool parse_port(const char *text, uint16_t *out)
{
    char *end = NULL;
    const unsigned long value = strtoul(text, &end, 10);
    *out = (uint16_t)value;
    return text[0] >= '0' && text[0] <= '9' && *end == '\0' && value <= UINT16_MAX;
}

bool mr_remote_parse(const char *name, mr_remote *out)
{
    char host[INET6_ADDRSTRLEN];
    *out = (mr_remote){0};
    const char *colon = strrchr(name, ':');
    if (colon == NULL || !parse_port(colon + 1, &out->port)) {
        return false;
    }
    if (strncmp(name, "ipv4:", 5) == 0 && colon > name + 5) {
        memcpy(out->address, mapped, sizeof(mapped));
        return copy_host(name + 5, colon, host, sizeof(host)) &&
               inet_pton(AF_INET, host, out->address + sizeof(mapped)) == 1;
    }
    const size_t open = strlen("ipv6:%5B");
    const size_t close = strlen("%5D");
    if (strncmp(name, "ipv6:%5B", open) == 0 && colon >= name + open + close &&
        strncmp(colon - close, "%5D", close) == 0) {
        return copy_host(name + open, colon - close, host, sizeof(host)) &&
               inet_pton(AF_INET6, host, out->address) == 1;
    }
    return false;
}

mr_status mr_connection_table_create(const mr_connection_limits *limits, mr_connection_table **out,
                                     mr_error *err)
{
    mr_connection_table *table = mr_calloc(1, sizeof(*table));
    if (table != NULL) {
        table->n_open = limits->calls / OPEN_SHARE + 2;
        table->limits = *limits;
        table->items = mr_calloc(limits->connections, sizeof(*table->items));
        table->keys = mr_calloc(limits->connections, sizeof(*table->keys));
    }
    const bool short_of_memory = table == NULL || table->items == NULL || table->keys == NULL;
    if (short_of_memory || mr_open_places_create(table->n_open, &table->open, NULL) != MR_OK) {
        mr_connection_table_destroy(table);
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "out of memory for %u connections",
                       limits->connections);
    }
    *out = table;
    return MR_OK;
}

void mr_connection_table_destroy(mr_connection_table *table)
{
    if (table != NULL) {
        mr_open_places_destroy(table->open);
        free(table->items);
        free(table->keys);
        free(table);
    }
}

static bool is_free(const mr_connection_table *table, uint32_t index)
{
    return table->keys[index] == 0;
}

/* Of those that showed no credential; limits.connections: none. */
static uint32_t oldest_stranger(const mr_connection_table *table, bool without_calls)
{
    const uint32_t limit = table->limits.connections;
    uint32_t oldest = limit;
    for (uint32_t i = 0; i < limit; i++) {
        const mr_connection *item = &table->items[i];
        if (!item->proven && (item->calls == 0 || !without_calls) &&
            (oldest == limit || item->accepted_ns < table->items[oldest].accepted_ns)) {
            oldest = i;
        }
    }
    return oldest;
}

/* A free place, or that of a stranger, one without a call first; limits.connections: none. */
static uint32_t choose_place(const mr_connection_table *table)
{
    const uint32_t limit = table->limits.connections;
    if (table->count < limit) {
        uint32_t index = 0;
        while (index < table->used && !is_free(table, index)) {
            index++;
        }
        return index;
    }
    const uint32_t idle = oldest_stranger(table, true);
    return idle < limit ? idle : oldest_stranger(table, false);
}

mr_connection_id mr_connection_table_admit(mr_connection_table *table, const mr_connection *fresh,
                                           mr_connection *evicted)
{
    *evicted = (mr_connection){0};
    const uint32_t index = choose_place(table);
    if (index == table->limits.connections) {
        return (mr_connection_id){0};
    }
    mr_connection *item = &table->items[index];
    if (is_free(table, index)) {
        table->count++;
        table->used = index == table->used ? index + 1 : table->used;
    } else {
        *evicted = *item;
    }
    table->last_serial = table->last_serial == UINT32_MAX ? 1 : table->last_serial + 1;
    *item = *fresh;
    item->serial = table->last_serial;
    mr_connection_account_init(&item->account, table->limits.message_bytes,
                               table->limits.header_bytes);
    table->keys[index] = key_of(&item->peer);
    return (mr_connection_id){index, item->serial};
}

static address_record *find_record(mr_connection_table *table, const mr_remote *peer)
{
    const mr_remote home = home_of(peer);
    for (size_t i = 0; i < ADDRESSES_MOST; i++) {
        if (memcmp(table->addresses[i].address, home.address, sizeof(home.address)) == 0) {
            return &table->addresses[i];
        }
    }
    return NULL;
}

/* A new one takes the place of the one that was heard of the longest time ago. */
static address_record *record_of(mr_connection_table *table, const mr_remote *peer, uint64_t now_ns)
{
    address_record *found = find_record(table, peer);
    if (found == NULL) {
        found = &table->addresses[0];
        for (size_t i = 1; i < ADDRESSES_MOST; i++) {
            const address_record *other = &table->addresses[i];
            const uint64_t heard = other->since_ns + other->until_ns;
            found = heard < found->since_ns + found->until_ns ? &table->addresses[i] : found;
        }
        *found = (address_record){.since_ns = now_ns};
        const mr_remote home = home_of(peer);
        memcpy(found->address, home.address, sizeof(home.address));
    }
    return found;
}

void mr_connection_table_punish(mr_connection_table *table, const mr_remote *peer, uint64_t now_ns)
{
    record_of(table, peer, now_ns)->until_ns = now_ns + table->limits.penalty_ns;
}

bool mr_connection_table_is_punished(mr_connection_table *table, const mr_remote *peer,
                                     uint64_t now_ns)
{
    const address_record *record = find_record(table, peer);
    return record != NULL && record->until_ns > now_ns;
}

void mr_connection_table_gone(mr_connection_table *table, const mr_connection *connection,
                              uint64_t now_ns)
{
    const bool made_calls = connection->proven || connection->served;
    const uint64_t unearned =
        connection->closing ? 0 : mr_connection_account_unearned(&connection->account);
    if (made_calls && unearned == 0) {
        return;
    }
    address_record *record = record_of(table, &connection->peer, now_ns);
    if (now_ns - record->since_ns > MR_CONNECTION_STRIKES_NS) {
        record->since_ns = now_ns;
        record->callless = 0;
        record->unearned = 0;
    }
    record->callless += made_calls ? 0 : 1;
    record->unearned += unearned;
    if (record->callless > CALLLESS_MOST ||
        record->unearned > 2 * connection->account.budget_most) {
        record->callless = 0;
        record->unearned = 0;
        record->until_ns = now_ns + table->limits.penalty_ns;
    }
}

mr_connection_id mr_connection_table_find(const mr_connection_table *table, const mr_remote *peer)
{
    const uint64_t key = key_of(peer);
    const mr_connection *newest = NULL; /* one before it may be gone, and not known to be */
    mr_connection_id found = {0};
    for (uint32_t i = 0; i < table->used; i++) {
        const mr_connection *item = &table->items[i];
        if (table->keys[i] == key && same_peer(&item->peer, peer) && !item->closing &&
            (newest == NULL || item->accepted_ns > newest->accepted_ns)) {
            newest = item;
            found = (mr_connection_id){i, item->serial};
        }
    }
    return found;
}

mr_connection *mr_connection_table_get(mr_connection_table *table, mr_connection_id id)
{
    if (id.serial == 0 || table->items[id.index].serial != id.serial) {
        return NULL;
    }
    return &table->items[id.index];
}

void mr_connection_table_remove(mr_connection_table *table, mr_connection_id id)
{
    mr_connection *item = mr_connection_table_get(table, id);
    if (item != NULL) {
        item->serial = 0;
        table->keys[id.index] = 0;
        table->count--;
    }
}

uint32_t mr_connection_table_count(const mr_connection_table *table)
{
    return table->count;
}

mr_connection *mr_connection_table_next(mr_connection_table *table, uint32_t *index)
{
    while (*index < table->used) {
        const uint32_t at = (*index)++;
        if (!is_free(table, at)) {
            return &table->items[at];
        }
    }
    return NULL;
}

/* Places for calls that need no credential. */
static mr_call_ticket begin_open(mr_connection_table *table, mr_connection *item)
{
    mr_remote home = {0};
    if (item != NULL) {
        if (item->open_calls >= table->n_open / 2) {
            return (mr_call_ticket){.fit = MR_CALL_CONNECTION_FULL};
        }
        item->open_calls++;
        home = home_of(&item->peer);
    }
    return (mr_call_ticket){.fit = MR_CALL_FITS_OPEN,
                            .place = mr_open_places_take(table->open, home.address)};
}

mr_call_ticket mr_connection_table_begin_call(mr_connection_table *table, mr_connection_id id,
                                              bool open)
{
    mr_connection *item = mr_connection_table_get(table, id);
    if (item != NULL) {
        item->calls++;
        mr_connection_account_call(&item->account);
        if (item->calls > table->limits.connection_calls) {
            return (mr_call_ticket){.fit = MR_CALL_CONNECTION_FULL};
        }
    }
    if (open) {
        return begin_open(table, item);
    }
    if (table->calls >= table->limits.calls) {
        return (mr_call_ticket){.fit = MR_CALL_SERVER_FULL};
    }
    table->calls++;
    return (mr_call_ticket){.fit = MR_CALL_FITS};
}

bool mr_connection_table_holds(const mr_connection_table *table, const mr_call_ticket *ticket)
{
    return ticket->fit != MR_CALL_FITS_OPEN || mr_open_places_holds(table->open, ticket->place);
}

void mr_connection_table_await(mr_connection_table *table, mr_connection_id id)
{
    mr_connection *item = mr_connection_table_get(table, id);
    if (item != NULL) {
        item->proven = true;
        mr_connection_account_await(&item->account);
    }
}

void mr_connection_table_refuse(mr_connection_table *table, mr_connection_id id)
{
    mr_connection *item = mr_connection_table_get(table, id);
    if (item != NULL) {
        mr_connection_account_refuse(&item->account, item->proven ? UINT64_MAX : STRANGERS_BYTES);
    }
}

bool mr_connection_table_end_call(mr_connection_table *table, mr_connection_id id,
                                  const mr_call_ticket *ticket, bool strike, uint64_t now_ns)
{
    const bool open = ticket->fit == MR_CALL_FITS_OPEN;
    table->calls -= ticket->fit == MR_CALL_FITS ? 1 : 0;
    if (open) {
        mr_open_places_give_back(table->open, ticket->place);
    }
    mr_connection *item = mr_connection_table_get(table, id);
    if (item == NULL) {
        return false;
    }
    item->calls--;
    item->open_calls -= open ? 1 : 0;
    item->idle_ns = now_ns;
    if (!strike) {
        item->served = true;
        return false;
    }
    if (now_ns - item->strikes_since > MR_CONNECTION_STRIKES_NS) {
        item->strikes_since = now_ns;
        item->strikes = 0;
    }
    item->strikes++;
    return item->strikes > table->limits.connection_calls && !item->closing;
}

bool mr_connection_is_idle(const mr_connection *connection, uint64_t idle_ns, uint64_t now_ns)
{
    const uint64_t since_ns =
        connection->idle_ns != 0 ? connection->idle_ns : connection->accepted_ns;
    return connection->calls == 0 && now_ns - since_ns >= idle_ns;
}
