/* SPDX-License-Identifier: Apache-2.0 */
/* The prefix index, alone and below the pool, against a plain model of both. */
#include "cache/block_pool.h"
#include "kernels/batch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { BLOCKS = 40, SIZE = 4 };

static mr_block_hash hash_of(uint32_t number)
{
    mr_block_hash hash = {{0}};
    memcpy(hash.bytes + 16, &number, sizeof(number));
    /* Few first bytes, so that entries pass each other in the buckets. */
    hash.bytes[0] = (uint8_t)(number % 5 + 124);
    return hash;
}

static void tokens_of(uint32_t number, uint32_t *out)
{
    for (uint32_t i = 0; i < SIZE; i++) {
        out[i] = number * SIZE + i;
    }
}

static bool add(mr_prefix_index *index, uint32_t block, uint32_t number, uint32_t parent)
{
    uint32_t tokens[SIZE];
    const mr_block_hash hash = hash_of(number);
    const mr_block_hash above = hash_of(parent);
    tokens_of(number, tokens);
    const mr_prefix_entry entry = {
        .hash = &hash, .parent = parent == 0 ? NULL : &above, .tokens = tokens, .block = block};
    return mr_prefix_index_add(index, &entry);
}

static uint32_t find(const mr_prefix_index *index, uint32_t number)
{
    uint32_t tokens[SIZE];
    const mr_block_hash hash = hash_of(number);
    tokens_of(number, tokens);
    return mr_prefix_index_find(index, &hash, tokens);
}

static mr_block_pool *open_pool(uint32_t n_blocks)
{
    mr_block_pool *pool = NULL;
    assert_int_equal(mr_block_pool_create(n_blocks, SIZE, &pool), MR_OK);
    assert_int_equal(mr_block_pool_enable_cache(pool), MR_OK);
    return pool;
}

/* Takes a block and registers it. */
static uint32_t compute(mr_block_pool *pool, uint32_t number, uint32_t parent)
{
    uint32_t block = 0;
    assert_int_equal(mr_block_pool_alloc(pool, 1, &block), MR_OK);
    assert_true(add(mr_block_pool_index(pool), block, number, parent));
    return block;
}

static void test_prefix_index_refuses_bad_sizes(void **state)
{
    (void)state;
    mr_prefix_index *index = NULL;
    assert_int_equal(mr_prefix_index_create(1, 16, &index), MR_INVALID_ARGUMENT);
    assert_int_equal(mr_prefix_index_create(2, 0, &index), MR_INVALID_ARGUMENT);
    assert_int_equal(mr_prefix_index_create(UINT32_MAX, 16, &index), MR_INVALID_ARGUMENT);
    assert_null(index);
}

static void test_prefix_index_compares_tokens_on_a_hit_X3(void **state)
{
    (void)state;
    mr_block_pool *pool = open_pool(8);
    mr_prefix_index *index = mr_block_pool_index(pool);
    const uint32_t block = compute(pool, 1, 0);
    uint32_t tokens[SIZE];
    const mr_block_hash hash = hash_of(1);
    tokens_of(1, tokens);
    assert_int_equal(mr_prefix_index_find(index, &hash, tokens), block);
    /* The same hash of other tokens: a collision. It is not found, nor does it take the place. */
    tokens[SIZE - 1]++;
    assert_int_equal(mr_prefix_index_find(index, &hash, tokens), MR_NULL_BLOCK);
    uint32_t other = 0;
    assert_int_equal(mr_block_pool_alloc(pool, 1, &other), MR_OK);
    const mr_prefix_entry entry = {.hash = &hash, .tokens = tokens, .block = other};
    assert_false(mr_prefix_index_add(index, &entry));
    assert_int_equal(find(index, 1), block);
    mr_block_pool_destroy(pool);
}

static void test_pool_caches_what_is_registered_C3(void **state)
{
    (void)state;
    mr_block_pool *pool = open_pool(5);
    mr_block_pool_stats stats;
    const uint32_t first = compute(pool, 1, 0);
    const uint32_t second = compute(pool, 2, 1);
    uint32_t plain = 0;
    assert_int_equal(mr_block_pool_alloc(pool, 1, &plain), MR_OK);
    mr_block_pool_unref(pool, plain);
    mr_block_pool_unref(pool, second);
    mr_block_pool_unref(pool, first);
    mr_block_pool_stats_get(pool, &stats);
    assert_int_equal(stats.live, 0);
    assert_int_equal(stats.cached, 2);
    assert_int_equal(stats.free, 2);
    assert_int_equal(mr_block_pool_available(pool), 4);
    mr_block_pool_reuse(pool, first);
    mr_block_pool_reuse(pool, first);
    assert_int_equal(mr_block_pool_refs(pool, first), 2);
    mr_block_pool_stats_get(pool, &stats);
    assert_int_equal(stats.live, 1);
    assert_int_equal(stats.cached, 1);
    assert_true(mr_block_pool_check(pool));
    mr_block_pool_forget(pool, second);
    mr_block_pool_forget(pool, first);
    mr_block_pool_stats_get(pool, &stats);
    assert_int_equal(stats.live, 1);
    assert_int_equal(stats.free, 3);
    assert_true(mr_block_pool_check(pool));
    mr_block_pool_destroy(pool);
}

/* Free ones first, then leaves, the longest idle first; a parent becomes a leaf. */
static void test_pool_evicts_leaves_first(void **state)
{
    (void)state;
    mr_block_pool *pool = open_pool(6);
    mr_prefix_index *index = mr_block_pool_index(pool);
    const uint32_t a = compute(pool, 1, 0);
    const uint32_t b = compute(pool, 2, 1);
    const uint32_t c = compute(pool, 3, 2);
    const uint32_t d = compute(pool, 4, 1);
    /* Idle since: a, b, c, d. */
    mr_block_pool_unref(pool, a);
    mr_block_pool_unref(pool, b);
    mr_block_pool_unref(pool, c);
    mr_block_pool_unref(pool, d);
    const uint32_t order[] = {0, c, b, d, a};
    for (uint32_t i = 0; i < 5; i++) {
        uint32_t got = 0;
        assert_int_equal(mr_block_pool_alloc(pool, 1, &got), MR_OK);
        assert_true(i == 0 || got == order[i]);
        assert_true(mr_block_pool_check(pool));
    }
    assert_int_equal(find(index, 1), MR_NULL_BLOCK);
    assert_int_equal(mr_block_pool_available(pool), 0);
    mr_block_pool_destroy(pool);
}

/* A twin holds the end of a chain whose beginning it has computed itself. */
static void test_pool_evicts_an_idle_parent_of_a_live_block(void **state)
{
    (void)state;
    mr_block_pool *pool = open_pool(3);
    mr_prefix_index *index = mr_block_pool_index(pool);
    const uint32_t parent = compute(pool, 1, 0);
    const uint32_t child = compute(pool, 2, 1);
    uint32_t got = 0;
    mr_block_pool_unref(pool, parent);
    assert_int_equal(mr_block_pool_alloc(pool, 1, &got), MR_OK);
    assert_int_equal(got, parent);
    assert_true(mr_block_pool_check(pool));
    /* The block is another's now, and not the child's parent. */
    assert_true(add(index, got, 9, 0));
    mr_block_pool_unref(pool, got);
    mr_block_pool_unref(pool, child);
    assert_true(mr_block_pool_check(pool));
    assert_int_equal(mr_block_pool_alloc(pool, 1, &got), MR_OK);
    assert_int_equal(got, parent);
    assert_int_equal(find(index, 2), child);
    mr_block_pool_destroy(pool);
}

static void test_prefix_index_wants_a_parent(void **state)
{
    (void)state;
    mr_block_pool *pool = open_pool(4);
    mr_prefix_index *index = mr_block_pool_index(pool);
    uint32_t block = 0;
    assert_int_equal(mr_block_pool_alloc(pool, 1, &block), MR_OK);
    assert_false(add(index, block, 2, 1));
    assert_false(mr_prefix_index_has_block(index, block));
    assert_true(add(index, block, 1, 0));
    assert_true(mr_prefix_index_check(index));
    mr_block_pool_destroy(pool);
}

static void test_reset_begins_an_epoch_and_hurts_nobody_X4(void **state)
{
    (void)state;
    mr_block_pool *pool = open_pool(8);
    mr_prefix_index *index = mr_block_pool_index(pool);
    mr_block_pool_stats stats;
    const uint32_t held = compute(pool, 1, 0);
    const uint32_t left = compute(pool, 2, 1);
    mr_block_pool_unref(pool, left);
    const uint64_t epoch = mr_prefix_index_epoch(index);
    assert_int_equal(mr_prefix_index_count(index), 2);
    mr_block_pool_reset_cache(pool, 3);
    assert_int_equal(mr_prefix_index_count(index), 0);
    assert_true(mr_prefix_index_epoch(index) == epoch + 1);
    assert_int_equal(mr_prefix_index_generation(index), 3);
    assert_int_equal(find(index, 1), MR_NULL_BLOCK);
    assert_int_equal(mr_block_pool_refs(pool, held), 1);
    assert_true(mr_block_pool_check(pool));
    mr_block_pool_unref(pool, held);
    mr_block_pool_stats_get(pool, &stats);
    assert_int_equal(stats.free, 7);
    mr_block_pool_destroy(pool);
}

/* ---- events ---- */

static void expect_event(mr_ring *events, mr_prefix_event_kind kind, uint32_t number)
{
    const mr_prefix_event *event = mr_ring_peek(events, 0);
    const mr_block_hash hash = hash_of(number);
    assert_non_null(event);
    assert_int_equal(event->kind, kind);
    if (kind == MR_PREFIX_ADDED || kind == MR_PREFIX_REMOVED) {
        assert_memory_equal(&event->hash, &hash, sizeof(hash));
    }
    mr_ring_pop(events, 1);
}

static void test_prefix_events_tell_every_change_X5(void **state)
{
    (void)state;
    mr_block_pool *pool = open_pool(4);
    mr_prefix_index *index = mr_block_pool_index(pool);
    assert_null(mr_prefix_index_events(index));
    assert_int_equal(mr_prefix_index_observe(index, 16), MR_OK);
    mr_ring *events = mr_prefix_index_events(index);
    /* Generation 0 is this process's own business. */
    const uint32_t local = compute(pool, 1, 0);
    assert_int_equal(mr_ring_count(events), 0);
    mr_block_pool_unref(pool, local);
    mr_block_pool_reset_cache(pool, 1);
    const uint32_t block = compute(pool, 2, 0);
    (void)compute(pool, 3, 2);
    mr_block_pool_forget(pool, block);
    const mr_prefix_event *first = mr_ring_peek(events, 0);
    assert_true(first->epoch == 1 && first->generation == 1);
    expect_event(events, MR_PREFIX_RESET, 0);
    expect_event(events, MR_PREFIX_ADDED, 2);
    expect_event(events, MR_PREFIX_ADDED, 3);
    expect_event(events, MR_PREFIX_REMOVED, 2);
    assert_int_equal(mr_ring_count(events), 0);
    mr_block_pool_destroy(pool);
}

static void test_prefix_events_that_do_not_fit_are_counted(void **state)
{
    (void)state;
    mr_block_pool *pool = open_pool(16);
    mr_prefix_index *index = mr_block_pool_index(pool);
    assert_int_equal(mr_prefix_index_observe(index, 4), MR_OK);
    mr_ring *events = mr_prefix_index_events(index);
    mr_block_pool_reset_cache(pool, 1);
    for (uint32_t number = 1; number <= 6; number++) {
        (void)compute(pool, number, 0);
    }
    assert_int_equal(mr_ring_count(events), 4); /* the reset, 1, 2 and 3; three were lost */
    mr_ring_pop(events, 3);
    (void)compute(pool, 7, 0);
    expect_event(events, MR_PREFIX_ADDED, 3);
    const mr_prefix_event *lost = mr_ring_peek(events, 0);
    assert_non_null(lost);
    assert_true(lost->lost == 3);
    expect_event(events, MR_PREFIX_LOST, 0);
    expect_event(events, MR_PREFIX_ADDED, 7);
    assert_int_equal(mr_ring_count(events), 0);
    mr_block_pool_destroy(pool);
}

/* ---- random steps against a model that walks everything ---- */

typedef struct model {
    uint32_t refs[BLOCKS];
    uint32_t number[BLOCKS]; /* 0: not registered */
    uint32_t parent[BLOCKS]; /* number */
    uint64_t since[BLOCKS];  /* when it lost its last reference */
    uint64_t birth[BLOCKS];
    uint64_t parent_birth[BLOCKS];
    uint64_t now;
    uint64_t births;
    uint32_t evictions;
} model;

static uint32_t block_of(const model *m, uint32_t number)
{
    for (uint32_t b = 1; number != 0 && b < BLOCKS; b++) {
        if (m->number[b] == number) {
            return b;
        }
    }
    return MR_NULL_BLOCK;
}

static bool has_children(const model *m, uint32_t block)
{
    for (uint32_t b = 1; b < BLOCKS; b++) {
        if (m->number[b] != 0 && m->parent[b] == m->number[block] &&
            m->parent_birth[b] == m->birth[block]) {
            return true;
        }
    }
    return false;
}

static uint32_t count(const model *m, bool live, bool registered)
{
    uint32_t n = 0;
    for (uint32_t b = 1; b < BLOCKS; b++) {
        n += (m->refs[b] > 0) == live && (live || (m->number[b] != 0) == registered);
    }
    return n;
}

/* Who must be evicted next. */
static uint32_t victim_of(const model *m)
{
    uint32_t best = MR_NULL_BLOCK;
    for (uint32_t b = 1; b < BLOCKS; b++) {
        if (m->refs[b] > 0 || m->number[b] == 0) {
            continue;
        }
        if (best == MR_NULL_BLOCK || has_children(m, b) < has_children(m, best) ||
            (has_children(m, b) == has_children(m, best) && m->since[b] < m->since[best])) {
            best = b;
        }
    }
    return best;
}

static uint32_t draw(uint64_t *seed, uint32_t below)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*seed >> 33) % below;
}

static uint32_t pick_live(const model *m, uint64_t *seed)
{
    uint32_t left = draw(seed, count(m, true, true));
    for (uint32_t b = 1;; b++) {
        if (m->refs[b] > 0 && left-- == 0) {
            return b;
        }
    }
}

static void model_alloc(mr_block_pool *pool, model *m, uint32_t wanted)
{
    uint32_t blocks[BLOCKS] = {0};
    const uint32_t available = count(m, false, false) + count(m, false, true);
    const mr_status status = mr_block_pool_alloc(pool, wanted, blocks);
    assert_int_equal(status, wanted <= available ? MR_OK : MR_RESOURCE_EXHAUSTED);
    for (uint32_t i = 0; status == MR_OK && i < wanted; i++) {
        const uint32_t b = blocks[i];
        assert_int_equal(m->refs[b], 0);
        if (count(m, false, false) > 0) {
            assert_int_equal(m->number[b], 0);
        } else {
            assert_int_equal(b, victim_of(m));
            m->evictions++;
        }
        m->number[b] = 0;
        m->refs[b] = 1;
    }
}

static void model_add(mr_prefix_index *index, model *m, uint32_t block, uint32_t number,
                      uint32_t parent)
{
    if (m->number[block] != 0) {
        return;
    }
    const uint32_t above = block_of(m, parent);
    const bool fits = block_of(m, number) == MR_NULL_BLOCK && (parent == 0 || above != 0);
    assert_int_equal(add(index, block, number, parent), fits);
    if (fits) {
        m->number[block] = number;
        m->parent[block] = parent;
        m->birth[block] = ++m->births;
        m->parent_birth[block] = parent == 0 ? 0 : m->birth[above];
    }
}

static void model_step(mr_block_pool *pool, model *m, uint64_t *seed)
{
    mr_prefix_index *index = mr_block_pool_index(pool);
    const uint32_t what = draw(seed, 100);
    const uint32_t number = 1 + draw(seed, 60);
    const bool any = count(m, true, true) > 0;
    if (what < 25 || !any) {
        model_alloc(pool, m, draw(seed, 4));
    } else if (what < 55) {
        for (uint32_t tries = 0; tries < 6; tries++) {
            const uint32_t another = 1 + draw(seed, 60);
            /* a fixed tree of hashes */
            model_add(index, m, pick_live(m, seed), another, another / 4);
        }
    } else if (what < 65) {
        const uint32_t block = find(index, number);
        assert_int_equal(block, block_of(m, number));
        if (block != MR_NULL_BLOCK) {
            mr_block_pool_reuse(pool, block);
            m->refs[block]++;
        }
    } else if (what < 98) {
        const uint32_t block = pick_live(m, seed);
        mr_block_pool_unref(pool, block);
        m->since[block] = ++m->now;
        m->refs[block]--;
    } else if (what < 99 && number < 20) {
        const uint32_t block = block_of(m, number);
        if (block != MR_NULL_BLOCK) {
            mr_block_pool_forget(pool, block);
            m->number[block] = 0;
        }
    } else if (draw(seed, 15) == 0) {
        mr_block_pool_reset_cache(pool, draw(seed, 3));
        memset(m->number, 0, sizeof(m->number));
    }
}

static void test_pool_and_index_random_steps_against_a_model_C3(void **state)
{
    (void)state;
    static model m;
    uint64_t seed = 20261130;
    mr_block_pool *pool = open_pool(BLOCKS);
    for (uint32_t step = 0; step < 10000; step++) {
        model_step(pool, &m, &seed);
        mr_block_pool_stats stats;
        mr_block_pool_stats_get(pool, &stats);
        assert_int_equal(stats.live, count(&m, true, true));
        assert_int_equal(stats.cached, count(&m, false, true));
        assert_int_equal(stats.free, count(&m, false, false));
        assert_int_equal(stats.live + stats.cached + stats.free, BLOCKS - 1);
        for (uint32_t b = 0; b < BLOCKS; b++) {
            assert_int_equal(mr_block_pool_refs(pool, b), m.refs[b]);
        }
        for (uint32_t number = 1; number <= 60; number++) {
            assert_int_equal(find(mr_block_pool_index(pool), number), block_of(&m, number));
        }
        assert_true(mr_block_pool_check(pool));
    }
    assert_true(m.evictions > 500);
    mr_block_pool_destroy(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prefix_index_refuses_bad_sizes),
        cmocka_unit_test(test_prefix_index_compares_tokens_on_a_hit_X3),
        cmocka_unit_test(test_pool_caches_what_is_registered_C3),
        cmocka_unit_test(test_pool_evicts_leaves_first),
        cmocka_unit_test(test_pool_evicts_an_idle_parent_of_a_live_block),
        cmocka_unit_test(test_prefix_index_wants_a_parent),
        cmocka_unit_test(test_reset_begins_an_epoch_and_hurts_nobody_X4),
        cmocka_unit_test(test_prefix_events_tell_every_change_X5),
        cmocka_unit_test(test_prefix_events_that_do_not_fit_are_counted),
        cmocka_unit_test(test_pool_and_index_random_steps_against_a_model_C3),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
