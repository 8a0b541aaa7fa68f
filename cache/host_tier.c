/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/host_tier.h"

#include "base/checked.h"
#include "base/log.h"
#include "cache/host_tier_internal.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- making ---- */

static mr_status check_options(const mr_host_tier_options *o, const mr_exec *exec, mr_error *err)
{
    const mr_exec_vtable *vt = exec->vt;
    if (vt->host_alloc == NULL || vt->transfer_start == NULL) {
        return mr_fail_field(err, MR_FAILED_PRECONDITION, "kv_host_memory",
                             "kv_host_memory: this device copies no KV blocks to host memory; set "
                             "it to 0");
    }
    if (o->block_bytes == 0 || o->block_size == 0 || o->memory_bytes < o->block_bytes) {
        return mr_fail_field(
            err, MR_INVALID_ARGUMENT, "kv_host_memory",
            "kv_host_memory is %llu bytes, less than a KV block of %llu: raise it, "
            "or set it to 0 to do without",
            (unsigned long long)o->memory_bytes, (unsigned long long)o->block_bytes);
    }
    return MR_OK;
}

static bool allocate(mr_host_tier *t)
{
    const uint64_t count = t->options.memory_bytes / t->options.block_bytes;
    t->n_slots = count < UINT32_MAX / 2 ? (uint32_t)count : UINT32_MAX / 2;
    for (t->n_buckets = 1; t->n_buckets < t->n_slots;) {
        t->n_buckets *= 2;
    }
    t->slots = mr_calloc(t->n_slots, sizeof(*t->slots));
    t->tokens = mr_calloc((size_t)t->n_slots * t->options.block_size, sizeof(*t->tokens));
    t->moving = mr_calloc(t->n_slots, sizeof(*t->moving));
    t->blocks = mr_calloc(t->n_slots, sizeof(*t->blocks));
    t->host = mr_calloc(t->n_slots, sizeof(*t->host));
    t->buckets = mr_calloc(t->n_buckets, sizeof(*t->buckets));
    if (t->slots == NULL || t->tokens == NULL || t->moving == NULL || t->blocks == NULL ||
        t->host == NULL || t->buckets == NULL) {
        return false;
    }
    t->memory = t->exec->vt->host_alloc(t->exec, t->n_slots * t->options.block_bytes);
    return t->memory != NULL;
}

static void deallocate(mr_host_tier *t)
{
    if (t->memory != NULL && t->n_moving == 0) {
        t->exec->vt->host_free(t->exec, t->memory, t->n_slots * t->options.block_bytes);
    }
    free(t->slots);
    free(t->tokens);
    free(t->moving);
    free(t->blocks);
    free(t->host);
    free(t->buckets);
    free(t);
}

mr_status mr_host_tier_create(const mr_host_tier_options *options, mr_exec *exec,
                              mr_block_pool *pool, mr_host_tier **out, mr_error *err)
{
    MR_TRY(check_options(options, exec, err));
    mr_host_tier *t = mr_calloc(1, sizeof(*t));
    if (t == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "no memory for the host tier");
    }
    t->exec = exec;
    t->pool = pool;
    t->options = *options;
    if (!allocate(t)) {
        deallocate(t);
        return mr_fail_field(err, MR_RESOURCE_EXHAUSTED, "kv_host_memory",
                             "kv_host_memory: no memory for %llu MiB of KV blocks; lower it",
                             (unsigned long long)(options->memory_bytes >> 20));
    }
    t->newest = MR_HOST_NONE;
    t->oldest = MR_HOST_NONE;
    t->free = MR_HOST_NONE;
    for (uint32_t i = t->n_slots; i-- > 0;) {
        t->slots[i].next = t->free;
        t->free = i;
    }
    t->n_free = t->n_slots;
    for (uint32_t i = 0; i < t->n_buckets; i++) {
        t->buckets[i] = MR_HOST_NONE;
    }
    *out = t;
    return MR_OK;
}

/* ---- transfers ---- */

/* The block of an entry with this number. */
static uint32_t nth(const mr_host_tier *t, uint32_t entry, uint32_t n)
{
    while (n-- > 0) {
        entry = t->slots[entry].next;
    }
    return entry;
}

static void unref_blocks(mr_host_tier *t, uint32_t entry)
{
    mr_host_slot *e = &t->slots[entry];
    uint32_t at = nth(t, entry, e->move_first);
    for (uint32_t i = 0; e->referenced && i < e->move_count; i++, at = t->slots[at].next) {
        mr_block_pool_unref(t->pool, t->slots[at].block);
    }
    e->referenced = false;
}

static void measure(mr_host_tier *t, const mr_host_slot *e)
{
    const uint64_t now_ns = mr_clock_now(&t->options.clock);
    const double bytes = (double)e->move_count * (double)t->options.block_bytes;
    if (now_ns > e->started_ns) {
        const double found = (double)(now_ns - e->started_ns) / bytes;
        t->ns_per_byte = t->ns_per_byte > 0 ? 0.75 * t->ns_per_byte + 0.25 * found : found;
    }
}

/* The transfer is over, well or not. */
static void finish(mr_host_tier *t, uint32_t entry, bool well)
{
    mr_host_slot *e = &t->slots[entry];
    if (well && !e->stuck) {
        t->stats.done++;
        *(e->direction == MR_TRANSFER_OUT ? &t->stats.blocks_out : &t->stats.blocks_in) +=
            e->move_count;
        measure(t, e);
    }
    unref_blocks(t, entry);
    const uint32_t last = t->moving[--t->n_moving];
    t->moving[e->moving_at] = last;
    t->slots[last].moving_at = e->moving_at;
    t->stats.stuck -= e->stuck;
    e->failed = e->failed || !well;
    e->moving = false;
    e->stuck = false;
    if (e->cached && e->failed && e->direction == MR_TRANSFER_OUT) {
        mr_host_entry_unname(t, entry); /* there is nothing to find */
    }
    mr_host_entry_settle(t, entry);
}

/* It took too long. What a transfer out reads can be given back whatever it still does. */
static void give_up(mr_host_tier *t, uint32_t entry)
{
    mr_host_slot *e = &t->slots[entry];
    t->stats.timed_out++;
    mr_log_folded(MR_LOG_WARN, "cache", "a KV transfer took too long",
                  "direction=%s blocks=%u timeout_ms=%llu",
                  e->direction == MR_TRANSFER_OUT ? "out" : "in", e->move_count,
                  (unsigned long long)(t->options.timeout_ns / MR_NS_PER_MS));
    if (t->exec->vt->transfer_cancel(t->exec, e->ticket)) {
        finish(t, entry, false);
        return;
    }
    e->failed = true;
    e->stuck = true;
    t->stats.stuck++;
    if (e->direction == MR_TRANSFER_OUT) {
        unref_blocks(t, entry);
    }
}

static void poll_entry(mr_host_tier *t, uint32_t entry)
{
    mr_host_slot *e = &t->slots[entry];
    const mr_transfer_state state = t->exec->vt->transfer_poll(t->exec, e->ticket);
    if (state == MR_TRANSFER_RUNS) {
        if (!e->stuck && mr_clock_now(&t->options.clock) >= e->deadline_ns) {
            give_up(t, entry);
        }
        return;
    }
    t->stats.failed += state == MR_TRANSFER_FAILED && !e->stuck;
    finish(t, entry, state == MR_TRANSFER_DONE);
}

void mr_host_tier_poll(mr_host_tier *t)
{
    for (uint32_t i = t->n_moving; i-- > 0;) {
        poll_entry(t, t->moving[i]);
    }
}

/* Starts to move blocks [first, first + count) of an entry; their device blocks are noted. */
static mr_status start(mr_host_tier *t, uint32_t entry, mr_transfer_direction direction,
                       uint32_t first, uint32_t count)
{
    mr_host_slot *e = &t->slots[entry];
    uint32_t at = nth(t, entry, first);
    for (uint32_t i = 0; i < count; i++, at = t->slots[at].next) {
        t->blocks[i] = t->slots[at].block;
        t->host[i] = t->memory + at * t->options.block_bytes;
    }
    const mr_transfer transfer = {
        .direction = direction, .count = count, .blocks = t->blocks, .host = t->host};
    e->started_ns = mr_clock_now(&t->options.clock);
    const mr_status status = t->exec->vt->transfer_start(t->exec, &transfer, &e->ticket, NULL);
    if (status != MR_OK) {
        t->stats.failed++;
        return status;
    }
    for (uint32_t i = 0; i < count; i++) {
        mr_block_pool_ref(t->pool, t->blocks[i]);
    }
    e->referenced = true;
    e->moving = true;
    e->failed = false;
    e->direction = direction;
    e->move_first = first;
    e->move_count = count;
    e->deadline_ns = mr_time_add(e->started_ns, t->options.timeout_ns);
    e->moving_at = t->n_moving;
    t->moving[t->n_moving++] = entry;
    return MR_OK;
}

mr_status mr_host_tier_store(mr_host_tier *t, const uint32_t *blocks, uint32_t count,
                             mr_host_handle *out)
{
    const uint32_t entry = mr_host_entry_make(t, blocks, count);
    if (entry == MR_HOST_NONE) {
        return MR_RESOURCE_EXHAUSTED;
    }
    const mr_status status = start(t, entry, MR_TRANSFER_OUT, 0, count);
    if (status != MR_OK) {
        mr_host_entry_free(t, entry);
        return status;
    }
    t->slots[entry].owned = true;
    *out = mr_host_entry_handle(t, entry);
    poll_entry(t, entry); /* it may be over already */
    return MR_OK;
}

mr_status mr_host_tier_load(mr_host_tier *t, mr_host_handle handle, uint32_t first,
                            const uint32_t *blocks, uint32_t count)
{
    const uint32_t entry = mr_host_entry_of(t, handle);
    MR_CHECK(entry != MR_HOST_NONE && !t->slots[entry].moving && !t->slots[entry].failed);
    MR_CHECK(count > 0 && first <= t->slots[entry].count && count <= t->slots[entry].count - first);
    uint32_t at = nth(t, entry, first);
    for (uint32_t i = 0; i < count; i++, at = t->slots[at].next) {
        t->slots[at].block = blocks[i];
    }
    MR_TRY(start(t, entry, MR_TRANSFER_IN, first, count));
    poll_entry(t, entry);
    return MR_OK;
}

mr_host_state mr_host_tier_state(const mr_host_tier *t, mr_host_handle handle)
{
    const uint32_t entry = mr_host_entry_of(t, handle);
    if (entry == MR_HOST_NONE) {
        return MR_HOST_GONE;
    }
    const mr_host_slot *e = &t->slots[entry];
    /* A stuck one has failed as far as its owner is concerned. */
    return e->failed ? MR_HOST_FAILED : e->moving ? MR_HOST_MOVING : MR_HOST_READY;
}

void mr_host_tier_drop(mr_host_tier *t, mr_host_handle handle)
{
    const uint32_t entry = mr_host_entry_of(t, handle);
    if (entry == MR_HOST_NONE) {
        return;
    }
    t->slots[entry].owned = false;
    t->slots[entry].generation++;
    mr_host_entry_settle(t, entry);
}

/* ---- cached blocks ---- */

mr_status mr_host_tier_cache(mr_host_tier *t, const mr_host_key *key, uint32_t block)
{
    uint32_t entry = mr_host_entry_find(t, key->hash);
    if (entry != MR_HOST_NONE) {
        const mr_host_slot *e = &t->slots[entry];
        if (!e->owned && !e->moving) {
            mr_host_entry_busy(t, entry);
            mr_host_entry_idle(t, entry);
        }
        return MR_OK;
    }
    entry = mr_host_entry_make(t, &block, 1);
    if (entry == MR_HOST_NONE) {
        return MR_RESOURCE_EXHAUSTED;
    }
    const mr_status status = start(t, entry, MR_TRANSFER_OUT, 0, 1);
    if (status != MR_OK) {
        mr_host_entry_free(t, entry);
        return status;
    }
    mr_host_entry_name(t, entry, key);
    poll_entry(t, entry);
    return MR_OK;
}

bool mr_host_tier_has(const mr_host_tier *t, const mr_host_key *key)
{
    const uint32_t entry = mr_host_entry_find(t, key->hash);
    return entry != MR_HOST_NONE && !t->slots[entry].owned && !t->slots[entry].moving &&
           memcmp(mr_host_entry_tokens(t, entry), key->tokens,
                  t->options.block_size * sizeof(*key->tokens)) == 0;
}

mr_status mr_host_tier_pin(mr_host_tier *t, const mr_host_key *key, mr_host_handle *out)
{
    if (!mr_host_tier_has(t, key)) {
        return MR_NOT_FOUND;
    }
    const uint32_t entry = mr_host_entry_find(t, key->hash);
    mr_host_entry_busy(t, entry);
    t->slots[entry].owned = true;
    t->slots[entry].failed = false;
    *out = mr_host_entry_handle(t, entry);
    return MR_OK;
}

void mr_host_tier_clear(mr_host_tier *t)
{
    for (uint32_t i = 0; i < t->n_slots; i++) {
        mr_host_slot *e = &t->slots[i];
        if (e->count == 0 || !e->cached) {
            continue;
        }
        if (!e->owned && !e->moving) {
            mr_host_entry_busy(t, i);
            mr_host_entry_free(t, i);
        } else {
            mr_host_entry_unname(t, i);
        }
    }
}

/* ---- looking at it ---- */

bool mr_host_tier_moving(const mr_host_tier *t)
{
    return t->n_moving > t->stats.stuck;
}

uint32_t mr_host_tier_freeing(const mr_host_tier *t)
{
    uint32_t count = 0;
    for (uint32_t m = 0; m < t->n_moving; m++) {
        const mr_host_slot *e = &t->slots[t->moving[m]];
        uint32_t at = nth(t, t->moving[m], e->move_first);
        for (uint32_t i = 0; e->direction == MR_TRANSFER_OUT && e->referenced && i < e->move_count;
             i++, at = t->slots[at].next) {
            count += mr_block_pool_refs(t->pool, t->slots[at].block) == 1;
        }
    }
    return count;
}

double mr_host_tier_ns_per_byte(const mr_host_tier *t)
{
    return t->ns_per_byte;
}

bool mr_host_tier_immediate(const mr_host_tier *t)
{
    return t->options.immediate;
}

mr_exec *mr_host_tier_exec(const mr_host_tier *t)
{
    return t->exec;
}

uint64_t mr_host_tier_block_bytes(const mr_host_tier *t)
{
    return t->options.block_bytes;
}

void mr_host_tier_stats_get(const mr_host_tier *t, mr_host_tier_stats *out)
{
    *out = t->stats;
    out->total = t->n_slots;
    out->cached = t->n_cached;
    out->free = t->n_free;
    out->owned = t->n_slots - t->n_cached - t->n_free;
    out->moving = t->n_moving;
}

/* ---- the end ---- */

static void stop_all(mr_host_tier *t)
{
    for (uint32_t i = t->n_moving; i-- > 0;) {
        const uint32_t entry = t->moving[i];
        if (t->exec->vt->transfer_poll(t->exec, t->slots[entry].ticket) != MR_TRANSFER_RUNS ||
            t->exec->vt->transfer_cancel(t->exec, t->slots[entry].ticket)) {
            finish(t, entry, false);
        }
    }
}

void mr_host_tier_destroy(mr_host_tier *t)
{
    if (t == NULL) {
        return;
    }
    const struct timespec pause = {.tv_nsec = (long)MR_NS_PER_MS};
    for (uint64_t waited_ns = 0; t->n_moving > 0; waited_ns += MR_NS_PER_MS) {
        stop_all(t);
        if (t->n_moving == 0 || waited_ns >= t->options.timeout_ns) {
            break;
        }
        (void)nanosleep(&pause, NULL);
    }
    if (t->n_moving > 0) {
        mr_log(MR_LOG_ERROR, "cache", "KV transfers do not end; their memory is not freed",
               "transfers=%u", t->n_moving);
    }
    deallocate(t);
}
