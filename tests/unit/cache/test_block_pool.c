/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/block_pool.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void test_block_pool_refuses_bad_sizes(void **state)
{
    (void)state;
    mr_block_pool *pool = NULL;
    assert_int_equal(mr_block_pool_create(1, 16, &pool), MR_INVALID_ARGUMENT);
    assert_int_equal(mr_block_pool_create(2, 0, &pool), MR_INVALID_ARGUMENT);
    /* block · block_size + offset must fit 32 bits */
    assert_int_equal(mr_block_pool_create(1u << 30, 16, &pool), MR_INVALID_ARGUMENT);
    assert_null(pool);
}

static void test_blocks_for_rounds_up(void **state)
{
    (void)state;
    assert_int_equal(mr_blocks_for(0, 16), 0);
    assert_int_equal(mr_blocks_for(1, 16), 1);
    assert_int_equal(mr_blocks_for(16, 16), 1);
    assert_int_equal(mr_blocks_for(17, 16), 2);
    assert_int_equal(mr_blocks_for(UINT32_MAX, 16), 1u << 28);
}

static void test_block_pool_alloc_is_all_or_nothing_C3(void **state)
{
    (void)state;
    mr_block_pool *pool = NULL;
    uint32_t blocks[8] = {0};
    assert_int_equal(mr_block_pool_create(6, 4, &pool), MR_OK);
    assert_int_equal(mr_block_pool_available(pool), 5);
    assert_int_equal(mr_block_pool_alloc(pool, 3, blocks), MR_OK);
    assert_int_equal(mr_block_pool_alloc(pool, 3, blocks + 3), MR_RESOURCE_EXHAUSTED);
    assert_int_equal(mr_block_pool_available(pool), 2);
    assert_int_equal(blocks[3], 0);
    assert_true(mr_block_pool_check(pool));
    assert_int_equal(mr_block_pool_alloc(pool, 2, blocks + 3), MR_OK);
    assert_int_equal(mr_block_pool_available(pool), 0);
    assert_int_equal(mr_block_pool_alloc(pool, 0, NULL), MR_OK);
    assert_true(mr_block_pool_check(pool));
    mr_block_pool_destroy(pool);
}

static void test_block_pool_is_last_in_first_out(void **state)
{
    (void)state;
    mr_block_pool *pool = NULL;
    uint32_t blocks[4] = {0};
    uint32_t again[2] = {0};
    assert_int_equal(mr_block_pool_create(100, 4, &pool), MR_OK);
    assert_int_equal(mr_block_pool_alloc(pool, 4, blocks), MR_OK);
    mr_block_pool_unref(pool, blocks[1]);
    mr_block_pool_unref(pool, blocks[3]);
    assert_int_equal(mr_block_pool_alloc(pool, 2, again), MR_OK);
    assert_int_equal(again[0], blocks[3]);
    assert_int_equal(again[1], blocks[1]);
    mr_block_pool_destroy(pool);
}

static void test_block_pool_frees_at_the_last_reference(void **state)
{
    (void)state;
    mr_block_pool *pool = NULL;
    mr_block_pool_stats stats;
    uint32_t block = 0;
    assert_int_equal(mr_block_pool_create(3, 4, &pool), MR_OK);
    assert_int_equal(mr_block_pool_block_size(pool), 4);
    assert_int_equal(mr_block_pool_alloc(pool, 1, &block), MR_OK);
    assert_int_equal(mr_block_pool_refs(pool, block), 1);
    mr_block_pool_ref(pool, block);
    mr_block_pool_unref(pool, block);
    mr_block_pool_stats_get(pool, &stats);
    assert_int_equal(stats.total, 2);
    assert_int_equal(stats.live, 1);
    assert_int_equal(stats.cached, 0);
    assert_int_equal(stats.free, 1);
    mr_block_pool_unref(pool, block);
    assert_int_equal(mr_block_pool_refs(pool, block), 0);
    assert_int_equal(mr_block_pool_available(pool), 2);
    assert_true(mr_block_pool_check(pool));
    mr_block_pool_destroy(pool);
}

#define BLOCKS 64u

/* What the pool should hold, counted anew at every question. */
typedef struct oracle {
    uint32_t refs[BLOCKS];
} oracle;

static uint32_t oracle_live(const oracle *o)
{
    uint32_t live = 0;
    for (uint32_t i = 0; i < BLOCKS; i++) {
        live += o->refs[i] > 0;
    }
    return live;
}

static uint32_t oracle_pick(const oracle *o, uint32_t number)
{
    for (uint32_t i = 0;; i = (i + 1) % BLOCKS) {
        if (o->refs[i] > 0 && number-- == 0) {
            return i;
        }
    }
}

static uint32_t draw(uint64_t *seed, uint32_t below)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*seed >> 33) % below;
}

static void random_alloc(mr_block_pool *pool, oracle *o, uint32_t count)
{
    uint32_t blocks[BLOCKS] = {0};
    const uint32_t available = BLOCKS - 1 - oracle_live(o);
    const mr_status status = mr_block_pool_alloc(pool, count, blocks);
    if (count > available) {
        assert_int_equal(status, MR_RESOURCE_EXHAUSTED);
        return;
    }
    assert_int_equal(status, MR_OK);
    for (uint32_t i = 0; i < count; i++) {
        assert_in_range(blocks[i], 1, BLOCKS - 1);
        assert_int_equal(o->refs[blocks[i]], 0);
        o->refs[blocks[i]] = 1;
    }
}

static void test_block_pool_random_steps_keep_the_invariant_C3(void **state)
{
    (void)state;
    mr_block_pool *pool = NULL;
    oracle o = {{0}};
    uint64_t seed = 20261130;
    assert_int_equal(mr_block_pool_create(BLOCKS, 16, &pool), MR_OK);
    for (uint32_t step = 0; step < 20000; step++) {
        const uint32_t live = oracle_live(&o);
        const uint32_t what = draw(&seed, 10);
        if (what < 3 || live == 0) {
            random_alloc(pool, &o, draw(&seed, 12));
        } else if (what < 5) {
            const uint32_t block = oracle_pick(&o, draw(&seed, live));
            mr_block_pool_ref(pool, block);
            o.refs[block]++;
        } else {
            const uint32_t block = oracle_pick(&o, draw(&seed, live));
            mr_block_pool_unref(pool, block);
            o.refs[block]--;
        }
        mr_block_pool_stats stats;
        mr_block_pool_stats_get(pool, &stats);
        assert_int_equal(stats.live, oracle_live(&o));
        assert_int_equal(stats.free + stats.live + stats.cached, BLOCKS - 1);
        assert_int_equal(mr_block_pool_available(pool), stats.free + stats.cached);
        for (uint32_t i = 0; i < BLOCKS; i++) {
            assert_int_equal(mr_block_pool_refs(pool, i), o.refs[i]);
        }
        assert_true(mr_block_pool_check(pool));
    }
    mr_block_pool_destroy(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_block_pool_refuses_bad_sizes),
        cmocka_unit_test(test_blocks_for_rounds_up),
        cmocka_unit_test(test_block_pool_alloc_is_all_or_nothing_C3),
        cmocka_unit_test(test_block_pool_is_last_in_first_out),
        cmocka_unit_test(test_block_pool_frees_at_the_last_reference),
        cmocka_unit_test(test_block_pool_random_steps_keep_the_invariant_C3),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
