/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/claims.h"
#include "cache/prefix_index.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static uint64_t still(void *ctx)
{
    (void)ctx;
    return 1;
}

typedef struct fixture {
    mr_ring events;
    mr_metadata_store *store;
    mr_claims claims;
    uint64_t epoch;
    uint8_t chain[8 * MR_BLOCK_HASH_BYTES];
} fixture;

static void open_fixture(fixture *f)
{
    const mr_clock clock = {.now_ns = still};
    const mr_replica self = {.id = "one"};
    assert_int_equal(mr_ring_init(&f->events, 256, sizeof(mr_prefix_event)), MR_OK);
    assert_int_equal(mr_local_store_create(&self, 100, &clock, &f->store, NULL), MR_OK);
    f->claims = (mr_claims){.events = &f->events, .store = f->store};
    f->epoch = 5;
    for (uint32_t i = 0; i < sizeof(f->chain); i++) {
        f->chain[i] = (uint8_t)(i / MR_BLOCK_HASH_BYTES + 1);
    }
}

static void close_fixture(fixture *f)
{
    mr_metadata_store_destroy(f->store);
    mr_ring_deinit(&f->events);
}

static void put(fixture *f, uint32_t kind, uint32_t block)
{
    mr_prefix_event *event = mr_ring_reserve(&f->events);
    assert_non_null(event);
    f->epoch += kind == MR_PREFIX_RESET ? 1 : 0; /* it carries the new one */
    *event = (mr_prefix_event){.kind = kind, .epoch = f->epoch};
    memcpy(event->hash.bytes, f->chain + (size_t)block * MR_BLOCK_HASH_BYTES, MR_BLOCK_HASH_BYTES);
    mr_ring_commit(&f->events);
}

static void ignore(mr_store_lookup *lookup, mr_status status)
{
    (void)lookup;
    assert_int_equal(status, MR_OK);
}

static uint32_t claimed(fixture *f)
{
    mr_store_lookup lookup = {.hashes = f->chain, .n = 8, .on_found = ignore};
    mr_metadata_store_lookup(f->store, &lookup);
    return lookup.n_claims == 0 ? 0 : lookup.claims[0].blocks;
}

static void test_claims_follow_the_index(void **state)
{
    (void)state;
    static fixture f;
    memset(&f, 0, sizeof(f));
    open_fixture(&f);
    assert_int_equal(mr_claims_forward(&f.claims), 0);
    for (uint32_t i = 0; i < 8; i++) {
        put(&f, MR_PREFIX_ADDED, i);
    }
    put(&f, MR_PREFIX_REMOVED, 6);
    put(&f, MR_PREFIX_LOST, 0);
    assert_int_equal(mr_claims_forward(&f.claims), 10);
    assert_int_equal(claimed(&f), 6);
    put(&f, MR_PREFIX_ADDED, 6);
    assert_int_equal(mr_claims_forward(&f.claims), 1);
    assert_int_equal(claimed(&f), 8);
    close_fixture(&f);
}

/* In one sweep: what was added before a reset is gone, what came after is not. */
static void test_claims_reset_keeps_its_place_X5(void **state)
{
    (void)state;
    static fixture f;
    memset(&f, 0, sizeof(f));
    open_fixture(&f);
    for (uint32_t i = 0; i < 5; i++) {
        put(&f, MR_PREFIX_ADDED, i);
    }
    put(&f, MR_PREFIX_RESET, 0);
    put(&f, MR_PREFIX_ADDED, 0);
    put(&f, MR_PREFIX_ADDED, 1);
    assert_int_equal(mr_claims_forward(&f.claims), 8);
    assert_int_equal(claimed(&f), 2);
    close_fixture(&f);
}

/* Its own event did not fit into the ring: the next one tells. */
static void test_claims_reset_that_was_lost_X5(void **state)
{
    (void)state;
    static fixture f;
    memset(&f, 0, sizeof(f));
    open_fixture(&f);
    for (uint32_t i = 0; i < 5; i++) {
        put(&f, MR_PREFIX_ADDED, i);
    }
    assert_int_equal(mr_claims_forward(&f.claims), 5);
    assert_int_equal(claimed(&f), 5);
    f.epoch++;
    put(&f, MR_PREFIX_LOST, 0);
    put(&f, MR_PREFIX_ADDED, 0);
    assert_int_equal(mr_claims_forward(&f.claims), 2);
    assert_int_equal(claimed(&f), 1);
    close_fixture(&f);
}

/* More than go in one call. */
static void test_claims_of_many(void **state)
{
    (void)state;
    static fixture f;
    memset(&f, 0, sizeof(f));
    open_fixture(&f);
    for (uint32_t i = 0; i < 200; i++) {
        put(&f, MR_PREFIX_ADDED, i % 8);
    }
    assert_int_equal(mr_claims_forward(&f.claims), 200);
    mr_store_stats stats;
    mr_metadata_store_stats(f.store, &stats);
    assert_int_equal(stats.published, 200);
    assert_int_equal(claimed(&f), 8);
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_claims_follow_the_index),
        cmocka_unit_test(test_claims_reset_keeps_its_place_X5),
        cmocka_unit_test(test_claims_reset_that_was_lost_X5),
        cmocka_unit_test(test_claims_of_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
