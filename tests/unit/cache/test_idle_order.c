/* SPDX-License-Identifier: Apache-2.0 */
/* The order of idle blocks, against a model that looks at all of them. */
#include "cache/idle_order.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { BLOCKS = 48, STEPS = 20000 };

static void test_idle_order_lets_ends_of_chains_go_first(void **state)
{
    (void)state;
    mr_idle_order order;
    assert_int_equal(mr_idle_order_init(&order, 8), MR_OK);
    /* Chains 1 ← 2 ← 3 and 4 ← 5, the end of each idle first; 6 is on its own. */
    const struct {
        uint32_t block;
        bool has_children;
    } added[] = {{3, false}, {2, true}, {1, true}, {6, false}, {5, false}, {4, true}};
    for (uint32_t i = 0; i < 6; i++) {
        mr_idle_order_add(&order, added[i].block, added[i].has_children);
    }
    const uint32_t parents[] = {0, 0, 1, 2, 0, 4, 0};
    const uint32_t expected[] = {3, 2, 1, 6, 5, 4};
    for (uint32_t i = 0; i < 6; i++) {
        assert_true(mr_idle_order_check(&order));
        const uint32_t first = mr_idle_order_first(&order);
        assert_int_equal(first, expected[i]);
        mr_idle_order_remove(&order, first);
        mr_idle_order_update(&order, parents[first], false);
    }
    assert_int_equal(mr_idle_order_count(&order), 0);
    mr_idle_order_deinit(&order);
}

static void test_idle_order_without_ends_lets_the_longest_idle_go(void **state)
{
    (void)state;
    mr_idle_order order;
    assert_int_equal(mr_idle_order_init(&order, 5), MR_OK);
    mr_idle_order_add(&order, 4, false); /* gets a child while it is idle */
    mr_idle_order_add(&order, 3, true);
    mr_idle_order_add(&order, 2, true);
    mr_idle_order_add(&order, 1, false);
    mr_idle_order_update(&order, 4, true);
    const uint32_t expected[] = {1, 4, 3, 2};
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(mr_idle_order_first(&order), expected[i]);
        mr_idle_order_remove(&order, expected[i]);
        assert_true(mr_idle_order_check(&order));
    }
    mr_idle_order_deinit(&order);
}

typedef struct model {
    uint64_t since[BLOCKS]; /* 0: in no order */
    bool has_children[BLOCKS];
    uint64_t now;
} model;

static uint32_t first_of(const model *m)
{
    uint32_t best = 0;
    for (uint32_t b = 1; b < BLOCKS; b++) {
        if (m->since[b] == 0) {
            continue;
        }
        if (best == 0 || m->has_children[b] < m->has_children[best] ||
            (m->has_children[b] == m->has_children[best] && m->since[b] < m->since[best])) {
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

static void step(mr_idle_order *order, model *m, uint64_t *seed)
{
    const uint32_t block = 1 + draw(seed, BLOCKS - 1);
    const bool flag = draw(seed, 2) == 0;
    const uint32_t what = draw(seed, 1000);
    if (what == 0) {
        mr_idle_order_clear(order);
        memset(m->since, 0, sizeof(m->since));
    } else if (what < 400) {
        mr_idle_order_update(order, block, flag);
        m->has_children[block] = flag;
    } else if (m->since[block] == 0) {
        mr_idle_order_add(order, block, m->has_children[block]);
        m->since[block] = ++m->now;
    } else if (flag) {
        mr_idle_order_remove(order, block);
        m->since[block] = 0;
    }
}

static void test_idle_order_random_steps_against_a_model(void **state)
{
    (void)state;
    mr_idle_order order;
    static model m;
    uint64_t seed = 1;
    assert_int_equal(mr_idle_order_init(&order, BLOCKS), MR_OK);
    for (uint32_t i = 0; i < STEPS; i++) {
        step(&order, &m, &seed);
        uint32_t count = 0;
        for (uint32_t b = 1; b < BLOCKS; b++) {
            count += m.since[b] != 0;
            assert_int_equal(mr_idle_order_has(&order, b), m.since[b] != 0);
        }
        assert_int_equal(mr_idle_order_count(&order), count);
        assert_true(mr_idle_order_check(&order));
        if (count > 0) {
            assert_int_equal(mr_idle_order_first(&order), first_of(&m));
        }
    }
    mr_idle_order_deinit(&order);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_idle_order_lets_ends_of_chains_go_first),
        cmocka_unit_test(test_idle_order_without_ends_lets_the_longest_idle_go),
        cmocka_unit_test(test_idle_order_random_steps_against_a_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
