/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/redis_store.h"

#include "base/checked.h"
#include "base/digits.h"
#include "cache/redis_store_internal.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEY_BYTES   16u
#define RING_SIZE   16384u /* a power of two */
#define BATCH       64u
#define MAX_BATCHES 8u /* on their way */
#define RETRY_NS    (100 * MR_NS_PER_MS)

typedef struct ring_entry {
    uint8_t key[KEY_BYTES];
    bool withdrawn;
} ring_entry;

typedef struct redis_store {
    mr_metadata_store base; /* first */
    mr_redis_link *link;
    pthread_mutex_t mutex; /* of these */
    mr_replica self;
    bool record_due;
    ring_entry *ring; /* owns, [RING_SIZE] */
    uint32_t oldest, waiting;
    mr_store_stats stats;

    /* The link's thread's own. */
    uint64_t refresh_due_ns;
    uint32_t batches;
} redis_store;

typedef struct store_command {
    mr_redis_command command; /* first */
    redis_store *store;
} store_command;

/* Any thread. */

static void put(redis_store *redis, const uint8_t *hashes, uint32_t n, bool withdrawn)
{
    pthread_mutex_lock(&redis->mutex);
    const bool was_empty = redis->waiting == 0;
    uint32_t taken = 0;
    for (; taken < n && redis->waiting < RING_SIZE; taken++) {
        ring_entry *entry = &redis->ring[(redis->oldest + redis->waiting) % RING_SIZE];
        memcpy(entry->key, hashes + (size_t)taken * MR_BLOCK_HASH_BYTES, KEY_BYTES);
        entry->withdrawn = withdrawn;
        redis->waiting++;
    }
    redis->stats.dropped += n - taken;
    pthread_mutex_unlock(&redis->mutex);
    if (was_empty && taken > 0) {
        mr_redis_link_wake(redis->link);
    }
}

static void publish(mr_metadata_store *store, const uint8_t *hashes, uint32_t n)
{
    put((redis_store *)store, hashes, n, false);
}

static void withdraw(mr_metadata_store *store, const uint8_t *hashes, uint32_t n)
{
    put((redis_store *)store, hashes, n, true);
}

/* What waits was claimed of the old cache; what is on its way says so by its epoch. */
static void reset(mr_metadata_store *store)
{
    redis_store *redis = (redis_store *)store;
    pthread_mutex_lock(&redis->mutex);
    redis->self.epoch++;
    redis->record_due = true;
    redis->waiting = 0;
    pthread_mutex_unlock(&redis->mutex);
    mr_redis_link_wake(redis->link);
}

static void set_state(mr_metadata_store *store, const char *state)
{
    redis_store *redis = (redis_store *)store;
    pthread_mutex_lock(&redis->mutex);
    snprintf(redis->self.state, sizeof(redis->self.state), "%s", state);
    redis->record_due = true;
    pthread_mutex_unlock(&redis->mutex);
    mr_redis_link_wake(redis->link);
}

static void lookup(mr_metadata_store *store, mr_store_lookup *asked)
{
    mr_redis_lookup(((redis_store *)store)->link, asked);
}

static void stats(mr_metadata_store *store, mr_store_stats *out)
{
    redis_store *redis = (redis_store *)store;
    pthread_mutex_lock(&redis->mutex);
    *out = redis->stats;
    pthread_mutex_unlock(&redis->mutex);
}

/* The link's thread. */

mr_store_key mr_redis_store_claim_key(const uint8_t *hash)
{
    static const char prefix[] = "millrace:1:px:";
    mr_store_key key;
    memcpy(key.text, prefix, sizeof(prefix));
    mr_digits_hex_write(hash, KEY_BYTES, key.text + sizeof(prefix) - 1);
    return key;
}

mr_store_key mr_redis_store_record_key(const char *id)
{
    mr_store_key key;
    snprintf(key.text, sizeof(key.text), "millrace:1:replica:%s", id);
    return key;
}

static store_command *new_command(redis_store *redis,
                                  void (*on_done)(mr_redis_command *command, mr_status status))
{
    store_command *made = mr_calloc(1, sizeof(*made));
    if (made != NULL) {
        made->store = redis;
        made->command.timeout_ns = MR_STORE_TIMEOUT_NS;
        made->command.on_done = on_done;
    }
    return made;
}

static void free_command(store_command *command)
{
    mr_redis_command_deinit(&command->command);
    free(command);
}

static bool submit(redis_store *redis, store_command *command, mr_status made)
{
    if (made == MR_OK && mr_redis_link_submit(redis->link, &command->command)) {
        return true;
    }
    free_command(command);
    return false;
}

static mr_status add_lifetime(mr_redis_command *command, const mr_store_key *key, uint32_t ms)
{
    char text[16];
    snprintf(text, sizeof(text), "%u", (unsigned)ms);
    const mr_redis_arg args[] = {mr_redis_text("PEXPIRE"), mr_redis_text(key->text),
                                 mr_redis_text(text)};
    return mr_redis_command_add(command, args, 3);
}

static mr_status fill_record(mr_redis_command *command, const mr_replica *self)
{
    const mr_store_key key = mr_redis_store_record_key(self->id);
    char epoch[20];
    snprintf(epoch, sizeof(epoch), MR_EPOCH_FORMAT, self->epoch);
    const mr_redis_arg args[] = {
        mr_redis_text("HSET"),      mr_redis_text(key.text),       mr_redis_text("epoch"),
        mr_redis_text(epoch),       mr_redis_text("addr"),         mr_redis_text(self->addr),
        mr_redis_text("numerics"),  mr_redis_text(self->numerics), mr_redis_text("state"),
        mr_redis_text(self->state),
    };
    MR_TRY(mr_redis_command_add(command, args, sizeof(args) / sizeof(args[0])));
    return add_lifetime(command, &key, MR_STORE_RECORD_MS);
}

static void on_record_done(mr_redis_command *command, mr_status status)
{
    store_command *done = (store_command *)command;
    redis_store *redis = done->store;
    if (status != MR_OK) {
        pthread_mutex_lock(&redis->mutex);
        redis->record_due = true;
        pthread_mutex_unlock(&redis->mutex);
    }
    free_command(done);
}

/* False: it is still to be sent. */
static bool send_record(redis_store *redis)
{
    store_command *command = new_command(redis, on_record_done);
    if (command == NULL) {
        return false;
    }
    pthread_mutex_lock(&redis->mutex);
    const mr_replica self = redis->self;
    redis->record_due = false;
    pthread_mutex_unlock(&redis->mutex);
    if (submit(redis, command, fill_record(&command->command, &self))) {
        return true;
    }
    pthread_mutex_lock(&redis->mutex);
    redis->record_due = true;
    pthread_mutex_unlock(&redis->mutex);
    return false;
}

static mr_status add_claim(mr_redis_command *command, const mr_replica *self,
                           const ring_entry *entry)
{
    const mr_store_key key = mr_redis_store_claim_key(entry->key);
    if (entry->withdrawn) {
        const mr_redis_arg args[] = {mr_redis_text("HDEL"), mr_redis_text(key.text),
                                     mr_redis_text(self->id)};
        return mr_redis_command_add(command, args, 3);
    }
    char epoch[20];
    snprintf(epoch, sizeof(epoch), MR_EPOCH_FORMAT, self->epoch);
    const mr_redis_arg args[] = {mr_redis_text("HSET"), mr_redis_text(key.text),
                                 mr_redis_text(self->id), mr_redis_text(epoch)};
    MR_TRY(mr_redis_command_add(command, args, 4));
    return add_lifetime(command, &key, MR_STORE_CLAIM_MS);
}

static void on_batch_done(mr_redis_command *command, mr_status status)
{
    (void)status;
    store_command *done = (store_command *)command;
    done->store->batches--;
    mr_redis_link_wake(done->store->link); /* more may wait */
    free_command(done);
}

/* Sends the oldest claims; false when there are none or they have to wait. */
static bool send_batch(redis_store *redis)
{
    ring_entry entries[BATCH];
    store_command *command =
        redis->batches < MAX_BATCHES ? new_command(redis, on_batch_done) : NULL;
    if (command == NULL) {
        return false;
    }
    pthread_mutex_lock(&redis->mutex);
    const mr_replica self = redis->self;
    const uint32_t n = mr_min_u32(redis->waiting, BATCH);
    for (uint32_t i = 0; i < n; i++) {
        entries[i] = redis->ring[(redis->oldest + i) % RING_SIZE];
    }
    redis->oldest = (redis->oldest + n) % RING_SIZE;
    redis->waiting -= n;
    pthread_mutex_unlock(&redis->mutex);
    if (n == 0) {
        free_command(command);
        return false;
    }
    mr_status status = MR_OK;
    uint32_t withdrawn = 0;
    for (uint32_t i = 0; i < n && status == MR_OK; i++) {
        status = add_claim(&command->command, &self, &entries[i]);
        withdrawn += entries[i].withdrawn ? 1 : 0;
    }
    const bool sent = submit(redis, command, status);
    redis->batches += sent ? 1 : 0;
    pthread_mutex_lock(&redis->mutex);
    redis->stats.dropped += sent ? 0 : n;
    redis->stats.withdrawn += sent ? withdrawn : 0;
    redis->stats.published += sent ? n - withdrawn : 0;
    pthread_mutex_unlock(&redis->mutex);
    return sent;
}

static bool record_is_due(redis_store *redis)
{
    pthread_mutex_lock(&redis->mutex);
    const bool due = redis->record_due;
    pthread_mutex_unlock(&redis->mutex);
    return due;
}

static uint64_t tick(void *ctx, uint64_t now_ns, bool fresh)
{
    redis_store *redis = ctx;
    if (fresh || now_ns >= redis->refresh_due_ns || record_is_due(redis)) {
        if (!send_record(redis)) {
            return now_ns + RETRY_NS;
        }
        redis->refresh_due_ns = now_ns + MR_STORE_REFRESH_MS * MR_NS_PER_MS;
    }
    while (send_batch(redis)) {
    }
    return redis->refresh_due_ns;
}

static void destroy(mr_metadata_store *store)
{
    redis_store *redis = (redis_store *)store;
    pthread_mutex_destroy(&redis->mutex);
    free(redis->ring);
    free(redis);
}

mr_status mr_redis_store_create(const mr_replica *self, mr_redis_link *link,
                                mr_metadata_store **out, mr_error *err)
{
    static const mr_metadata_vtable vt = {
        .destroy = destroy,
        .publish = publish,
        .withdraw = withdraw,
        .reset = reset,
        .set_state = set_state,
        .lookup = lookup,
        .stats = stats,
    };
    uint64_t epoch;
    MR_TRY(mr_store_draw_epoch(&epoch, err));
    redis_store *redis = mr_calloc(1, sizeof(*redis));
    ring_entry *ring = mr_calloc(RING_SIZE, sizeof(*ring));
    if (redis == NULL || ring == NULL) {
        free(redis);
        free(ring);
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "out of memory for what Redis is told");
    }
    redis->base.vt = &vt;
    redis->link = link;
    redis->self = *self;
    redis->self.epoch = epoch;
    redis->ring = ring;
    pthread_mutex_init(&redis->mutex, NULL);
    mr_redis_link_hook(link, (mr_redis_hook){.tick = tick, .ctx = redis});
    *out = &redis->base;
    return MR_OK;
}
