/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"
#include "cache/host_tier.h"
#include "scripted_transfers.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { BYTES = 8, N_BLOCKS = 17, HOST_BLOCKS = 6 };
#define TIMEOUT_NS (10 * MR_NS_PER_MS)

typedef struct fixture {
    mr_exec exec; /* first: the device */
    scripted_transfers script;
    uint8_t device[N_BLOCKS][BYTES];
    uint64_t now_ns;
    mr_block_pool *pool;
    mr_host_tier *tier;
} fixture;

static scripted_transfers *script_of(mr_exec *exec)
{
    return &((fixture *)exec)->script;
}

static void *host_alloc(mr_exec *exec, uint64_t bytes)
{
    return scripted_host_alloc(script_of(exec), bytes);
}

static void host_free(mr_exec *exec, void *memory, uint64_t bytes)
{
    (void)bytes;
    scripted_host_free(script_of(exec), memory);
}

static mr_status start(mr_exec *exec, const mr_transfer *transfer, uint64_t *ticket, mr_error *err)
{
    return scripted_transfer_start(script_of(exec), transfer, ticket, err);
}

static mr_transfer_state poll(mr_exec *exec, uint64_t ticket)
{
    return scripted_transfer_poll(script_of(exec), ticket);
}

static bool cancel(mr_exec *exec, uint64_t ticket)
{
    return scripted_transfer_cancel(script_of(exec), ticket);
}

static const mr_exec_vtable vtable = {.host_alloc = host_alloc,
                                      .host_free = host_free,
                                      .transfer_start = start,
                                      .transfer_poll = poll,
                                      .transfer_cancel = cancel};

static void read_block(void *ctx, uint32_t block, uint8_t *out)
{
    memcpy(out, ((fixture *)ctx)->device[block], BYTES);
}

static void write_block(void *ctx, uint32_t block, const uint8_t *in)
{
    memcpy(((fixture *)ctx)->device[block], in, BYTES);
}

static uint64_t now(void *ctx)
{
    return ((fixture *)ctx)->now_ns;
}

static mr_host_tier_options options_of(fixture *f)
{
    return (mr_host_tier_options){.memory_bytes = HOST_BLOCKS * BYTES + BYTES / 2,
                                  .block_bytes = BYTES,
                                  .block_size = 2,
                                  .timeout_ns = TIMEOUT_NS,
                                  .clock = {.now_ns = now, .ctx = f}};
}

static int setup(void **state)
{
    static fixture fixtures;
    fixture *f = &fixtures;
    *f = (fixture){.exec.vt = &vtable, .now_ns = MR_NS_PER_S};
    f->script = (scripted_transfers){
        .block_bytes = BYTES, .read = read_block, .write = write_block, .ctx = f};
    const mr_host_tier_options options = options_of(f);
    mr_error err = {0};
    assert_int_equal(mr_block_pool_create(N_BLOCKS, 16, &f->pool), MR_OK);
    assert_int_equal(mr_host_tier_create(&options, &f->exec, f->pool, &f->tier, &err), MR_OK);
    *state = f;
    return 0;
}

/* Everything has come back. */
static int teardown(void **state)
{
    fixture *f = *state;
    mr_block_pool_stats blocks;
    mr_block_pool_stats_get(f->pool, &blocks);
    assert_int_equal(blocks.live, 0);
    assert_true(mr_host_tier_check(f->tier));
    mr_host_tier_destroy(f->tier);
    mr_block_pool_destroy(f->pool);
    assert_int_equal(f->script.n_allocated, 0);
    assert_int_equal(f->script.n_unfinished, 0);
    return 0;
}

static mr_host_tier_stats stats_of(const fixture *f)
{
    mr_host_tier_stats stats;
    assert_true(mr_host_tier_check(f->tier));
    mr_host_tier_stats_get(f->tier, &stats);
    assert_int_equal(stats.owned + stats.cached + stats.free, stats.total);
    return stats;
}

static uint32_t live(const fixture *f)
{
    mr_block_pool_stats blocks;
    assert_true(mr_block_pool_check(f->pool));
    mr_block_pool_stats_get(f->pool, &blocks);
    return blocks.live;
}

/* Live blocks that hold first, first + 1 … */
static void take(fixture *f, uint32_t count, uint8_t first, uint32_t *blocks)
{
    assert_int_equal(mr_block_pool_alloc(f->pool, count, blocks), MR_OK);
    for (uint32_t i = 0; i < count; i++) {
        memset(f->device[blocks[i]], first + (int)i, BYTES);
    }
}

static void give(fixture *f, const uint32_t *blocks, uint32_t count)
{
    for (uint32_t i = count; i-- > 0;) {
        mr_block_pool_unref(f->pool, blocks[i]);
    }
}

static void expect(const fixture *f, uint32_t block, uint8_t value)
{
    for (uint32_t i = 0; i < BYTES; i++) {
        assert_int_equal(f->device[block][i], value);
    }
}

static void later(fixture *f, uint64_t ns)
{
    f->now_ns += ns;
    mr_host_tier_poll(f->tier);
}

static void test_host_tier_out_and_in_again(void **state)
{
    fixture *f = *state;
    uint32_t blocks[4];
    mr_host_handle handle;
    take(f, 3, 10, blocks);
    assert_int_equal(mr_host_tier_store(f->tier, blocks, 3, &handle), MR_OK);
    assert_int_equal(mr_host_tier_state(f->tier, handle), MR_HOST_READY);
    give(f, blocks, 3);
    assert_int_equal(live(f), 0);
    memset(f->device, 0, sizeof(f->device));
    take(f, 4, 90, blocks);
    /* Only what is missing is fetched. */
    assert_int_equal(mr_host_tier_load(f->tier, handle, 1, blocks + 1, 2), MR_OK);
    assert_int_equal(mr_host_tier_state(f->tier, handle), MR_HOST_READY);
    expect(f, blocks[0], 90);
    expect(f, blocks[1], 11);
    expect(f, blocks[2], 12);
    expect(f, blocks[3], 93);
    mr_host_tier_stats stats = stats_of(f);
    assert_int_equal(stats.total, HOST_BLOCKS);
    assert_int_equal(stats.owned, 3);
    assert_int_equal(stats.blocks_out, 3);
    assert_int_equal(stats.blocks_in, 2);
    assert_int_equal(stats.done, 2);
    mr_host_tier_drop(f->tier, handle);
    assert_int_equal(mr_host_tier_state(f->tier, handle), MR_HOST_GONE);
    mr_host_tier_drop(f->tier, handle); /* void, and harmless */
    assert_int_equal(stats_of(f).free, HOST_BLOCKS);
    give(f, blocks, 4);
}

static void test_host_tier_a_handle_is_of_one_entry_only(void **state)
{
    fixture *f = *state;
    uint32_t block;
    mr_host_handle old;
    mr_host_handle fresh;
    take(f, 1, 1, &block);
    assert_int_equal(mr_host_tier_store(f->tier, &block, 1, &old), MR_OK);
    mr_host_tier_drop(f->tier, old);
    assert_int_equal(mr_host_tier_store(f->tier, &block, 1, &fresh), MR_OK);
    assert_true(old != fresh);
    assert_int_equal(mr_host_tier_state(f->tier, old), MR_HOST_GONE);
    mr_host_tier_drop(f->tier, old);
    assert_int_equal(mr_host_tier_state(f->tier, fresh), MR_HOST_READY);
    mr_host_tier_drop(f->tier, fresh);
    give(f, &block, 1);
}

static void test_host_tier_full_takes_nothing(void **state)
{
    fixture *f = *state;
    uint32_t blocks[8];
    mr_host_handle first;
    mr_host_handle second = 77;
    take(f, 8, 1, blocks);
    assert_int_equal(mr_host_tier_store(f->tier, blocks, 4, &first), MR_OK);
    assert_int_equal(mr_host_tier_store(f->tier, blocks, 3, &second), MR_RESOURCE_EXHAUSTED);
    assert_int_equal(second, 77);
    assert_int_equal(stats_of(f).free, 2);
    assert_int_equal(f->script.n_started, 1);
    f->script.start_fails = true;
    assert_int_equal(mr_host_tier_store(f->tier, blocks, 2, &second), MR_INTERNAL);
    assert_int_equal(stats_of(f).free, 2);
    assert_int_equal(stats_of(f).failed, 1);
    mr_host_tier_drop(f->tier, first);
    give(f, blocks, 8);
}

static void test_host_tier_holds_blocks_until_a_late_end_C5(void **state)
{
    fixture *f = *state;
    uint32_t blocks[2];
    mr_host_handle handle;
    f->script.polls = 3;
    take(f, 2, 40, blocks);
    assert_int_equal(mr_host_tier_store(f->tier, blocks, 2, &handle), MR_OK);
    give(f, blocks, 2); /* the sequence is gone: the transfer is their owner */
    assert_int_equal(mr_host_tier_state(f->tier, handle), MR_HOST_MOVING);
    assert_int_equal(mr_host_tier_freeing(f->tier), 2);
    assert_int_equal(live(f), 2);
    later(f, MR_NS_PER_MS);
    later(f, MR_NS_PER_MS);
    assert_int_equal(live(f), 2);
    later(f, MR_NS_PER_MS);
    assert_int_equal(mr_host_tier_state(f->tier, handle), MR_HOST_READY);
    assert_int_equal(live(f), 0);
    assert_int_equal(mr_host_tier_freeing(f->tier), 0);
    /* 3 ms for 16 bytes */
    assert_true(mr_host_tier_ns_per_byte(f->tier) == 3e6 / 16);
    mr_host_tier_drop(f->tier, handle);
}

/* An owner that goes away in the middle of a transfer, either way, leaks nothing. */
static void test_host_tier_cancelled_owner_leaks_nothing_C5(void **state)
{
    fixture *f = *state;
    uint32_t blocks[2];
    mr_host_handle handle;
    take(f, 2, 1, blocks);
    f->script.polls = 2;
    assert_int_equal(mr_host_tier_store(f->tier, blocks, 2, &handle), MR_OK);
    mr_host_tier_drop(f->tier, handle);
    give(f, blocks, 2);
    assert_int_equal(mr_host_tier_state(f->tier, handle), MR_HOST_GONE);
    assert_int_equal(live(f), 2);
    assert_int_equal(stats_of(f).moving, 1);
    later(f, 0);
    later(f, 0);
    assert_int_equal(live(f), 0);
    assert_int_equal(stats_of(f).free, HOST_BLOCKS);

    f->script.polls = 0;
    take(f, 2, 1, blocks);
    assert_int_equal(mr_host_tier_store(f->tier, blocks, 2, &handle), MR_OK);
    f->script.polls = 2;
    assert_int_equal(mr_host_tier_load(f->tier, handle, 0, blocks, 2), MR_OK);
    mr_host_tier_drop(f->tier, handle);
    give(f, blocks, 2);
    assert_int_equal(live(f), 2); /* the device still writes them */
    later(f, 0);
    later(f, 0);
    assert_int_equal(live(f), 0);
}

static void test_host_tier_a_hang_ends_at_its_timeout_C5(void **state)
{
    fixture *f = *state;
    uint32_t blocks[2];
    mr_host_handle out;
    mr_host_handle in;
    take(f, 2, 1, blocks);
    assert_int_equal(mr_host_tier_store(f->tier, blocks, 2, &in), MR_OK);
    f->script.polls = SCRIPTED_NEVER;
    assert_int_equal(mr_host_tier_store(f->tier, blocks, 2, &out), MR_OK);
    assert_int_equal(mr_host_tier_load(f->tier, in, 0, blocks, 2), MR_OK);
    give(f, blocks, 2);
    later(f, TIMEOUT_NS - 1);
    assert_int_equal(mr_host_tier_state(f->tier, out), MR_HOST_MOVING);
    assert_int_equal(live(f), 2);
    later(f, 1);
    assert_int_equal(mr_host_tier_state(f->tier, out), MR_HOST_FAILED);
    assert_int_equal(mr_host_tier_state(f->tier, in), MR_HOST_FAILED);
    assert_int_equal(live(f), 0);
    assert_int_equal(stats_of(f).timed_out, 2);
    assert_int_equal(stats_of(f).moving, 0);
    mr_host_tier_drop(f->tier, out);
    mr_host_tier_drop(f->tier, in);
    assert_int_equal(stats_of(f).free, HOST_BLOCKS);
}

/* What a device that cannot be stopped may still write stays out of use until it ends. */
static void test_host_tier_a_hang_that_cannot_be_stopped_C5(void **state)
{
    fixture *f = *state;
    uint32_t blocks[2];
    mr_host_handle out;
    mr_host_handle in;
    f->script.cannot_stop = true;
    take(f, 2, 1, blocks);
    assert_int_equal(mr_host_tier_store(f->tier, blocks, 2, &in), MR_OK);
    f->script.polls = SCRIPTED_NEVER;
    assert_int_equal(mr_host_tier_load(f->tier, in, 0, blocks, 2), MR_OK);
    give(f, blocks, 2);
    uint32_t others[2];
    take(f, 2, 5, others);
    assert_int_equal(mr_host_tier_store(f->tier, others, 2, &out), MR_OK);
    give(f, others, 2);
    later(f, TIMEOUT_NS);
    assert_int_equal(mr_host_tier_state(f->tier, out), MR_HOST_FAILED);
    assert_int_equal(mr_host_tier_state(f->tier, in), MR_HOST_FAILED);
    assert_int_equal(stats_of(f).stuck, 2);
    assert_false(mr_host_tier_moving(f->tier)); /* nobody waits for it */
    assert_int_equal(live(f), 2);               /* those it writes; what it reads is free */
    mr_host_tier_drop(f->tier, out);
    mr_host_tier_drop(f->tier, in);
    assert_int_equal(stats_of(f).free, HOST_BLOCKS - 4);
    later(f, TIMEOUT_NS);
    assert_int_equal(stats_of(f).timed_out, 2); /* counted once */
    scripted_transfers_hurry(&f->script);
    later(f, 0);
    assert_int_equal(live(f), 0);
    assert_int_equal(stats_of(f).stuck, 0);
    assert_int_equal(stats_of(f).free, HOST_BLOCKS);
    assert_int_equal(stats_of(f).done, 1); /* the first; an end that came too late is none */
}

static void test_host_tier_failures_are_told(void **state)
{
    fixture *f = *state;
    uint32_t blocks[2];
    mr_host_handle handle;
    take(f, 2, 1, blocks);
    f->script.fails = true;
    assert_int_equal(mr_host_tier_store(f->tier, blocks, 2, &handle), MR_OK);
    assert_int_equal(mr_host_tier_state(f->tier, handle), MR_HOST_FAILED);
    mr_host_tier_drop(f->tier, handle);
    f->script.fails = false;
    assert_int_equal(mr_host_tier_store(f->tier, blocks, 2, &handle), MR_OK);
    f->script.fails = true;
    f->script.polls = 1;
    assert_int_equal(mr_host_tier_load(f->tier, handle, 0, blocks, 2), MR_OK);
    assert_int_equal(mr_host_tier_state(f->tier, handle), MR_HOST_MOVING);
    later(f, 0);
    assert_int_equal(mr_host_tier_state(f->tier, handle), MR_HOST_FAILED);
    assert_int_equal(stats_of(f).failed, 2);
    mr_host_tier_drop(f->tier, handle);
    give(f, blocks, 2);
}

/* ---- by hash ---- */

static const mr_host_key *key_of(uint8_t n)
{
    static mr_block_hash hash;
    static uint32_t tokens[2];
    static const mr_host_key key = {.hash = &hash, .tokens = tokens};
    hash = (mr_block_hash){.bytes[20] = n}; /* all in one bucket of the table */
    tokens[0] = n;
    tokens[1] = 1000u + n;
    return &key;
}

static void cache(fixture *f, uint8_t n)
{
    uint32_t block;
    take(f, 1, n, &block);
    assert_int_equal(mr_host_tier_cache(f->tier, key_of(n), block), MR_OK);
    give(f, &block, 1);
}

static void expect_cached(fixture *f, uint8_t n)
{
    uint32_t block;
    mr_host_handle handle;
    take(f, 1, 200, &block);
    assert_int_equal(mr_host_tier_pin(f->tier, key_of(n), &handle), MR_OK);
    assert_int_equal(mr_host_tier_load(f->tier, handle, 0, &block, 1), MR_OK);
    assert_int_equal(mr_host_tier_state(f->tier, handle), MR_HOST_READY);
    expect(f, block, n);
    mr_host_tier_drop(f->tier, handle);
    give(f, &block, 1);
}

static void test_host_tier_cached_blocks_are_found_by_hash_and_tokens_X3(void **state)
{
    fixture *f = *state;
    for (uint8_t n = 1; n <= 3; n++) {
        cache(f, n);
    }
    assert_int_equal(stats_of(f).cached, 3);
    assert_false(mr_host_tier_has(f->tier, key_of(4)));
    for (uint8_t n = 3; n > 0; n--) {
        expect_cached(f, n);
    }
    const uint32_t others[2] = {1, 1002};
    const mr_host_key collides = {.hash = key_of(1)->hash, .tokens = others};
    assert_false(mr_host_tier_has(f->tier, &collides)); /* X3: tokens are compared */
    cache(f, 2);                                        /* known: nothing is copied */
    assert_int_equal(stats_of(f).blocks_out, 3);
    mr_host_tier_clear(f->tier);
    assert_false(mr_host_tier_has(f->tier, key_of(1)));
    assert_int_equal(stats_of(f).free, HOST_BLOCKS);
}

static void test_host_tier_evicts_the_least_recently_used_for_others(void **state)
{
    fixture *f = *state;
    uint32_t blocks[4];
    mr_host_handle handle;
    mr_host_handle pinned;
    for (int n = 1; n <= HOST_BLOCKS; n++) {
        cache(f, (uint8_t)n);
    }
    expect_cached(f, 1);
    cache(f, 7);
    assert_false(mr_host_tier_has(f->tier, key_of(2)));
    assert_true(mr_host_tier_has(f->tier, key_of(1)));
    assert_int_equal(mr_host_tier_pin(f->tier, key_of(3), &pinned), MR_OK);
    assert_int_equal(mr_host_tier_pin(f->tier, key_of(3), &handle), MR_NOT_FOUND);
    take(f, 4, 50, blocks);
    assert_int_equal(mr_host_tier_store(f->tier, blocks, 4, &handle), MR_OK);
    assert_int_equal(stats_of(f).owned, 4);
    assert_int_equal(stats_of(f).cached, 2); /* the pinned one, and the last one cached */
    assert_true(mr_host_tier_has(f->tier, key_of(7)));
    mr_host_tier_drop(f->tier, pinned);
    expect_cached(f, 3);
    mr_host_handle none;
    assert_int_equal(mr_host_tier_store(f->tier, blocks, 3, &none), MR_RESOURCE_EXHAUSTED);
    assert_int_equal(stats_of(f).cached, 2); /* and nothing was evicted for it */
    mr_host_tier_drop(f->tier, handle);
    give(f, blocks, 4);
}

static void test_host_tier_what_did_not_arrive_is_not_found(void **state)
{
    fixture *f = *state;
    f->script.polls = 1;
    cache(f, 1);
    assert_false(mr_host_tier_has(f->tier, key_of(1))); /* not yet */
    later(f, 0);
    f->script.polls = 0;
    expect_cached(f, 1);
    f->script.polls = 1;
    f->script.fails = true;
    cache(f, 2);
    later(f, 0);
    later(f, 0);
    assert_false(mr_host_tier_has(f->tier, key_of(2)));
    assert_int_equal(stats_of(f).cached, 1);
    cache(f, 3);
    mr_host_tier_clear(f->tier); /* while it moves */
    later(f, 0);
    later(f, 0);
    assert_int_equal(stats_of(f).free, HOST_BLOCKS);
}

/* ---- making it ---- */

static void test_host_tier_refuses(void **state)
{
    fixture *f = *state;
    mr_host_tier *tier = NULL;
    mr_error err = {0};
    mr_host_tier_options options = options_of(f);
    options.memory_bytes = BYTES - 1;
    assert_int_equal(mr_host_tier_create(&options, &f->exec, f->pool, &tier, &err),
                     MR_INVALID_ARGUMENT);
    assert_string_equal(err.field, "kv_host_memory");
    static const mr_exec_vtable without = {0};
    mr_exec other = {.vt = &without};
    options = options_of(f);
    assert_int_equal(mr_host_tier_create(&options, &other, f->pool, &tier, &err),
                     MR_FAILED_PRECONDITION);
}

static void test_host_tier_destroy_stops_what_runs(void **state)
{
    fixture *f = *state;
    uint32_t block;
    mr_host_handle handle;
    mr_host_tier *tier = NULL;
    const mr_host_tier_options options = options_of(f);
    assert_int_equal(mr_host_tier_create(&options, &f->exec, f->pool, &tier, NULL), MR_OK);
    take(f, 1, 1, &block);
    f->script.polls = SCRIPTED_NEVER;
    assert_int_equal(mr_host_tier_store(tier, &block, 1, &handle), MR_OK);
    mr_host_tier_destroy(tier);
    give(f, &block, 1);
    assert_int_equal(live(f), 0);
    assert_int_equal(f->script.n_allocated, 1); /* the other tier's */
    mr_host_tier_destroy(NULL);
}

int main(void)
{
#define WITH_TIER(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        WITH_TIER(test_host_tier_out_and_in_again),
        WITH_TIER(test_host_tier_a_handle_is_of_one_entry_only),
        WITH_TIER(test_host_tier_full_takes_nothing),
        WITH_TIER(test_host_tier_holds_blocks_until_a_late_end_C5),
        WITH_TIER(test_host_tier_cancelled_owner_leaks_nothing_C5),
        WITH_TIER(test_host_tier_a_hang_ends_at_its_timeout_C5),
        WITH_TIER(test_host_tier_a_hang_that_cannot_be_stopped_C5),
        WITH_TIER(test_host_tier_failures_are_told),
        WITH_TIER(test_host_tier_cached_blocks_are_found_by_hash_and_tokens_X3),
        WITH_TIER(test_host_tier_evicts_the_least_recently_used_for_others),
        WITH_TIER(test_host_tier_what_did_not_arrive_is_not_found),
        WITH_TIER(test_host_tier_refuses),
        WITH_TIER(test_host_tier_destroy_stops_what_runs),
    };
    mr_log_set_level(MR_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
