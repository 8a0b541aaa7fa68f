/* SPDX-License-Identifier: Apache-2.0 */
/* Both metadata stores: that of the process, and Redis's with a redis-server of the test's own,
 * skipped where there is none. */
#include "base/clock.h"
#include "base/event.h"
#include "cache/redis_store.h"
#include "redis_server.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <hiredis.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHAIN 100u

static uint64_t virtual_now;

static uint64_t read_virtual(void *ctx)
{
    (void)ctx;
    return virtual_now;
}

/* [CHAIN][32], all different. */
static const uint8_t *chain(void)
{
    static uint8_t hashes[CHAIN * MR_BLOCK_HASH_BYTES];
    for (uint32_t i = 0; i < CHAIN; i++) {
        memset(hashes + (size_t)i * MR_BLOCK_HASH_BYTES, (int)(i + 1), MR_BLOCK_HASH_BYTES);
    }
    return hashes;
}

static const uint8_t *block(uint32_t index)
{
    return chain() + (size_t)index * MR_BLOCK_HASH_BYTES;
}

typedef struct question {
    mr_store_lookup lookup; /* first */
    mr_event event;
    mr_status status;
} question;

static void on_found(mr_store_lookup *lookup, mr_status status)
{
    question *q = (question *)lookup;
    q->status = status;
    mr_event_set(&q->event);
}

static void look_up(mr_metadata_store *store, question *q, uint32_t n)
{
    memset(q, 0, sizeof(*q));
    q->lookup = (mr_store_lookup){.hashes = chain(), .n = n, .on_found = on_found};
    mr_event_init(&q->event);
    mr_metadata_store_lookup(store, &q->lookup);
    assert_true(mr_event_wait(&q->event, MR_NEVER));
    mr_event_deinit(&q->event);
}

/* How many blocks of the chain `id` has, as `store` sees it. */
static uint32_t blocks_of(mr_metadata_store *store, const char *id)
{
    question q;
    look_up(store, &q, CHAIN);
    /* On a busy machine an answer may come too late, which is no fault. */
    for (int more = 100; more > 0 && q.status == MR_DEADLINE_EXCEEDED; more--) {
        look_up(store, &q, CHAIN);
    }
    assert_int_equal(q.status, MR_OK);
    for (uint32_t i = 0; i < q.lookup.n_claims; i++) {
        if (strcmp(q.lookup.claims[i].replica.id, id) == 0) {
            return q.lookup.claims[i].blocks;
        }
    }
    return 0;
}

/* What was published is seen a moment later. */
static void assert_sees(mr_metadata_store *store, const char *id, uint32_t wanted)
{
    uint32_t blocks = 0;
    for (int turn = 0; turn < REDIS_SERVER_TURNS; turn++) {
        blocks = blocks_of(store, id);
        if (blocks == wanted) {
            return;
        }
        redis_server_pause(5);
    }
    fail_msg("%s has %u blocks, %u are wanted", id, blocks, wanted);
}

static mr_replica named(const char *id)
{
    mr_replica self = {.state = "ready", .numerics = "cpu-f32"};
    snprintf(self.id, sizeof(self.id), "%s", id);
    snprintf(self.addr, sizeof(self.addr), "%s.internal:8001", id);
    return self;
}

typedef struct replica {
    mr_redis_link *link;
    mr_metadata_store *store;
} replica;

static void open_replica(replica *r, const redis_server *server, const char *id)
{
    mr_redis_url url;
    const mr_replica self = named(id);
    assert_int_equal(mr_redis_url_parse(server->url, &url, NULL), MR_OK);
    assert_int_equal(mr_redis_link_create(&url, &r->link, NULL), MR_OK);
    assert_int_equal(mr_redis_store_create(&self, r->link, &r->store, NULL), MR_OK);
    assert_int_equal(mr_redis_link_start(r->link, NULL), MR_OK);
    redis_server_wait_available(r->link, true);
}

static void close_replica(replica *r)
{
    mr_redis_link_destroy(r->link);
    mr_metadata_store_destroy(r->store);
}

/* What holds for either store, seen from the replica itself. */
static void check_one_replica(mr_metadata_store *store, const char *id)
{
    assert_int_equal(blocks_of(store, id), 0);
    mr_metadata_store_publish(store, chain(), 40);
    assert_sees(store, id, 40);
    /* A hole ends what counts, whatever comes behind it. */
    mr_metadata_store_withdraw(store, block(7), 1);
    assert_sees(store, id, 7);
    mr_metadata_store_publish(store, block(7), 1);
    assert_sees(store, id, 40);
    mr_metadata_store_reset(store);
    assert_sees(store, id, 0);
    mr_metadata_store_publish(store, chain(), 70);
    assert_sees(store, id, 70);
    mr_store_stats stats;
    mr_metadata_store_stats(store, &stats);
    assert_int_equal(stats.published, 111);
    assert_int_equal(stats.withdrawn, 1);
    assert_int_equal(stats.dropped, 0);
    question q;
    look_up(store, &q, 0);
    assert_int_equal(q.status, MR_OK);
    assert_int_equal(q.lookup.n_claims, 0);
}

static void test_local_store(void **state)
{
    (void)state;
    const mr_clock clock = {.now_ns = read_virtual};
    const mr_replica self = named("alone");
    mr_metadata_store *store = NULL;
    virtual_now = MR_NS_PER_S;
    assert_int_equal(mr_local_store_create(&self, 1000, &clock, &store, NULL), MR_OK);
    check_one_replica(store, "alone");
    virtual_now += MR_STORE_CLAIM_MS * MR_NS_PER_MS - 1;
    assert_int_equal(blocks_of(store, "alone"), 70);
    virtual_now += 1;
    assert_int_equal(blocks_of(store, "alone"), 0);
    mr_metadata_store_destroy(store);
}

/* A small table forgets the oldest claims and never more than it must. */
static void test_local_store_is_bounded(void **state)
{
    (void)state;
    const mr_clock clock = {.now_ns = read_virtual};
    const mr_replica self = named("alone");
    mr_metadata_store *store = NULL;
    assert_int_equal(mr_local_store_create(&self, 1, &clock, &store, NULL), MR_OK);
    for (uint32_t i = CHAIN; i > 0; i--) {
        virtual_now++;
        mr_metadata_store_publish(store, block(i - 1), 1);
    }
    assert_int_equal(blocks_of(store, "alone"), 8);
    mr_metadata_store_destroy(store);
}

static void test_redis_store(void **state)
{
    (void)state;
    redis_server server;
    if (!redis_server_start(&server, NULL)) {
        skip();
    }
    replica one;
    open_replica(&one, &server, "one");
    check_one_replica(one.store, "one");
    close_replica(&one);
    redis_server_end(&server);
}

/* The keys and lives that the design fixes. */
static void test_redis_store_keys(void **state)
{
    (void)state;
    redis_server server;
    if (!redis_server_start(&server, NULL)) {
        skip();
    }
    replica one;
    open_replica(&one, &server, "one");
    mr_metadata_store_publish(one.store, block(0x62), 1); /* its bytes are 0x63 */
    static const char key[] = "millrace:1:px:63636363636363636363636363636363";
    redis_server_wait_reply(&server, "1", "EXISTS", key);
    char epoch[32];
    snprintf(epoch, sizeof(epoch), "%s", redis_server_ask(&server, "HGET", key, "one", NULL));
    assert_int_equal(strlen(epoch), 16);
    const long life = atol(redis_server_ask(&server, "PTTL", key, NULL, NULL));
    assert_true(life > 0 && life <= 600000);
    static const char record[] = "millrace:1:replica:one";
    assert_string_equal(redis_server_ask(&server, "HGET", record, "epoch", NULL), epoch);
    assert_string_equal(redis_server_ask(&server, "HGET", record, "addr", NULL),
                        "one.internal:8001");
    assert_string_equal(redis_server_ask(&server, "HGET", record, "numerics", NULL), "cpu-f32");
    assert_string_equal(redis_server_ask(&server, "HGET", record, "state", NULL), "ready");
    const long record_life = atol(redis_server_ask(&server, "PTTL", record, NULL, NULL));
    assert_true(record_life > 0 && record_life <= 15000);
    close_replica(&one);
    redis_server_end(&server);
}

static void test_redis_store_replicas_see_each_other(void **state)
{
    (void)state;
    redis_server server;
    if (!redis_server_start(&server, NULL)) {
        skip();
    }
    replica one, two;
    open_replica(&one, &server, "one");
    open_replica(&two, &server, "two");
    mr_metadata_store_publish(one.store, chain(), 20);
    mr_metadata_store_publish(two.store, chain(), CHAIN);
    assert_sees(one.store, "two", CHAIN);
    assert_sees(one.store, "one", 20);
    question q;
    look_up(one.store, &q, CHAIN);
    assert_int_equal(q.lookup.n_claims, 2);
    assert_string_equal(q.lookup.claims[0].replica.id, "two"); /* most first */
    assert_string_equal(q.lookup.claims[0].replica.addr, "two.internal:8001");
    assert_string_equal(q.lookup.claims[1].replica.state, "ready");
    /* A shorter question than the claims. */
    look_up(one.store, &q, 5);
    assert_int_equal(q.lookup.n_claims, 2);
    assert_int_equal(q.lookup.claims[0].blocks, 5);
    mr_metadata_store_set_state(two.store, "draining");
    for (int turn = 0; turn < REDIS_SERVER_TURNS; turn++) {
        look_up(one.store, &q, CHAIN);
        if (strcmp(q.lookup.claims[0].replica.state, "draining") == 0) {
            break;
        }
        redis_server_pause(5);
    }
    assert_string_equal(q.lookup.claims[0].replica.state, "draining");
    close_replica(&two);
    close_replica(&one);
    redis_server_end(&server);
}

/* A replica died and came back under its name, with an empty cache: nothing that it had claimed is
 * believed, though all of it is still in Redis. */
static void test_redis_store_restart_leaves_no_claim_X5(void **state)
{
    (void)state;
    redis_server server;
    if (!redis_server_start(&server, NULL)) {
        skip();
    }
    replica one, two;
    open_replica(&one, &server, "one");
    open_replica(&two, &server, "two");
    mr_metadata_store_publish(two.store, chain(), 50);
    assert_sees(one.store, "two", 50);
    close_replica(&two);
    open_replica(&two, &server, "two");
    assert_sees(one.store, "two", 0);
    assert_string_equal(redis_server_ask(&server, "EXISTS",
                                         "millrace:1:px:01010101010101010101010101010101", NULL,
                                         NULL),
                        "1");
    mr_metadata_store_publish(two.store, chain(), 3);
    assert_sees(one.store, "two", 3);
    close_replica(&two);
    close_replica(&one);
    redis_server_end(&server);
}

/* Without its record, whoever claimed it, a claim is nothing. */
static void test_redis_store_dead_replica_has_no_claim_X5(void **state)
{
    (void)state;
    redis_server server;
    if (!redis_server_start(&server, NULL)) {
        skip();
    }
    replica one, two;
    open_replica(&one, &server, "one");
    open_replica(&two, &server, "two");
    mr_metadata_store_publish(two.store, chain(), 5);
    assert_sees(one.store, "two", 5);
    close_replica(&two);
    redis_server_ask(&server, "DEL", "millrace:1:replica:two", NULL, NULL); /* fifteen seconds on */
    assert_int_equal(blocks_of(one.store, "two"), 0);
    close_replica(&one);
    redis_server_end(&server);
}

/* What still waited to be claimed when the cache was reset is claimed no more: under the new epoch
 * it would be believed. */
static void test_redis_store_reset_forgets_what_waits_X5(void **state)
{
    (void)state;
    redis_server server;
    if (!redis_server_start(&server, NULL)) {
        skip();
    }
    replica one;
    open_replica(&one, &server, "one");
    redis_server_kill(&server);
    redis_server_wait_available(one.link, false);
    mr_metadata_store_publish(one.store, chain(), 5);
    mr_metadata_store_reset(one.store);
    mr_metadata_store_publish(one.store, block(5), 1);
    redis_server_restart(&server);
    redis_server_wait_reply(&server, "1", "EXISTS",
                            "millrace:1:px:06060606060606060606060606060606");
    assert_string_equal(redis_server_ask(&server, "KEYS", "millrace:1:px:*", NULL, NULL),
                        "millrace:1:px:06060606060606060606060606060606");
    close_replica(&one);
    redis_server_end(&server);
}

/* The record has an end, which moves on while the replica lives. */
static void test_redis_store_refreshes_its_record_X5(void **state)
{
    (void)state;
    redis_server server;
    if (!redis_server_start(&server, NULL)) {
        skip();
    }
    replica one;
    open_replica(&one, &server, "one");
    for (int refresh = 0; refresh < 2; refresh++) {
        redis_server_wait_reply(&server, "1", "EXISTS", "millrace:1:replica:one");
        const char *left = redis_server_ask(&server, "PTTL", "millrace:1:replica:one", NULL, NULL);
        assert_true(atoi(left) > 0 && atoi(left) <= (int)MR_STORE_RECORD_MS);
        redis_server_ask(&server, "DEL", "millrace:1:replica:one", NULL, NULL);
    }
    close_replica(&one);
    redis_server_end(&server);
}

/* What is claimed while Redis is away goes out when it is back, up to what fits. */
static void test_redis_store_down_drops_and_counts(void **state)
{
    (void)state;
    redis_server server;
    if (!redis_server_start(&server, NULL)) {
        skip();
    }
    replica one;
    open_replica(&one, &server, "one");
    redis_server_kill(&server);
    redis_server_wait_available(one.link, false);
    question q;
    look_up(one.store, &q, CHAIN);
    assert_int_equal(q.status, MR_UNAVAILABLE);
    for (int i = 0; i < 200; i++) {
        mr_metadata_store_publish(one.store, chain(), CHAIN); /* 20000 claims */
    }
    mr_store_stats stats;
    mr_metadata_store_stats(one.store, &stats);
    assert_int_equal(stats.dropped, 20000 - 16384);
    redis_server_restart(&server);
    assert_int_equal(stats.published, 0);
    redis_server_wait_available(one.link, true);
    assert_sees(one.store, "one", CHAIN);
    close_replica(&one);
    redis_server_end(&server);
}

/* Whatever stands under our keys is read with care. */
static void test_redis_store_reads_foreign_values_with_care(void **state)
{
    (void)state;
    redis_server server;
    if (!redis_server_start(&server, NULL)) {
        skip();
    }
    replica one;
    open_replica(&one, &server, "one");
    static const char key[] = "millrace:1:px:01010101010101010101010101010101";
    redis_server_ask(&server, "SET", key, "no hash", NULL);
    assert_int_equal(blocks_of(one.store, "one"), 0);
    redis_server_ask(&server, "DEL", key, NULL, NULL);
    redis_server_ask(&server, "HSET", key, "other", "no epoch");
    redis_server_ask(&server, "HSET", key, "", "0123456789abcdef");
    redis_server_ask(&server, "HSET", key, "ghost", "0123456789abcdef");
    redis_server_ask(&server, "HSET", "millrace:1:replica:ghost", "epoch", "0123456789abcdef");
    question q;
    look_up(one.store, &q, 1);
    assert_int_equal(q.status, MR_OK);
    assert_int_equal(q.lookup.n_claims, 0); /* the ghost's record lacks what makes it one */
    close_replica(&one);
    redis_server_end(&server);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_local_store),
        cmocka_unit_test(test_local_store_is_bounded),
        cmocka_unit_test(test_redis_store),
        cmocka_unit_test(test_redis_store_keys),
        cmocka_unit_test(test_redis_store_replicas_see_each_other),
        cmocka_unit_test(test_redis_store_restart_leaves_no_claim_X5),
        cmocka_unit_test(test_redis_store_dead_replica_has_no_claim_X5),
        cmocka_unit_test(test_redis_store_reset_forgets_what_waits_X5),
        cmocka_unit_test(test_redis_store_refreshes_its_record_X5),
        cmocka_unit_test(test_redis_store_down_drops_and_counts),
        cmocka_unit_test(test_redis_store_reads_foreign_values_with_care),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
