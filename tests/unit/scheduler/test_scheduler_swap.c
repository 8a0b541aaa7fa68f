/* SPDX-License-Identifier: Apache-2.0 */
/* Preemption by swap: what it costs, what it keeps, and transfers that hang, fail or end late. */
#include "base/log.h"
#include "rig.h"
#include "scheduler/swap.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void test_swap_pays_by_hand(void **state)
{
    (void)state;
    /* 1000 tokens at 1 ms each: a second. 23 MB at 10 GB/s: 2.3 ms, twice. */
    mr_swap_cost cost = {
        .tokens = 1000, .bytes = 23040000, .prefill_ns_per_token = 1e6, .copy_ns_per_byte = 0.1};
    assert_true(mr_swap_pays(&cost));
    cost.copy_ns_per_byte = 21.6; /* 0.995 s both ways */
    assert_true(mr_swap_pays(&cost));
    cost.copy_ns_per_byte = 21.8; /* 1.005 s */
    assert_false(mr_swap_pays(&cost));
    cost.prefill_ns_per_token = 1.01e6;
    assert_true(mr_swap_pays(&cost));
    cost.tokens = 0;
    assert_false(mr_swap_pays(&cost));
    /* A speed that is not known is to be found out. */
    cost.prefill_ns_per_token = 0;
    assert_true(mr_swap_pays(&cost));
    cost.tokens = 1000;
    cost.prefill_ns_per_token = 1;
    cost.copy_ns_per_byte = 0;
    assert_true(mr_swap_pays(&cost));
}

static mr_scheduler_stats stats_of(const rig *r)
{
    mr_scheduler_stats stats;
    mr_scheduler_stats_get(r->scheduler, &stats);
    return stats;
}

/* Two requests on 6 blocks of 4 tokens: in the 11th step the second one gives way with 12 of its 13
 * tokens computed. */
typedef struct pair {
    rig r;
    mr_request *a;
    mr_request *b;
} pair;

static pair p;

static void open_pair(uint32_t host_blocks)
{
    const mr_scheduler_options options = rig_options();
    rig_open_swapping(&p.r, &options, 4, 7, host_blocks);
    p.a = rig_add(&p.r, 3, 13);
    p.b = rig_add(&p.r, 3, 12);
    for (uint32_t i = 0; i < 10; i++) {
        assert_true(rig_step(&p.r, NULL));
        assert_int_equal(p.r.batch->n_seqs, 2);
    }
    assert_int_equal(stats_of(&p.r).preemptions, 0);
}

static void close_pair(void)
{
    rig_run(&p.r);
    rig_expect_whole(&p.r, p.a);
    if (p.b != NULL) {
        rig_expect_whole(&p.r, p.b);
        mr_request_unref(p.b);
    }
    mr_request_unref(p.a);
    rig_close(&p.r);
}

static void test_swap_keeps_what_was_computed_M1(void **state)
{
    (void)state;
    open_pair(8);
    assert_true(rig_step(&p.r, NULL));
    mr_scheduler_stats stats = stats_of(&p.r);
    assert_int_equal(stats.preemptions, 1);
    assert_int_equal(stats.swapped_out, 1);
    assert_int_equal(stats.host.owned, 3);
    assert_int_equal(rig_live_blocks(&p.r), 4);
    assert_true(rig_step(&p.r, NULL));
    assert_true(rig_step(&p.r, NULL)); /* a has ended */
    assert_true(rig_step(&p.r, NULL));
    assert_int_equal(p.r.batch->n_tokens, 1); /* the 13th token of b, and nothing again */
    assert_int_equal(p.r.batch->positions[0], 12);
    assert_int_equal(p.r.batch->n_rows, 1);
    stats = stats_of(&p.r);
    assert_int_equal(stats.swapped_in, 1);
    assert_int_equal(stats.host.owned, 0);
    assert_int_equal(p.b->usage.preemptions, 1);
    close_pair();
}

static void test_swap_full_tier_recomputes(void **state)
{
    (void)state;
    open_pair(2); /* 3 blocks are wanted */
    assert_true(rig_step(&p.r, NULL));
    const mr_scheduler_stats stats = stats_of(&p.r);
    assert_int_equal(stats.preemptions, 1);
    assert_int_equal(stats.swapped_out, 0);
    assert_int_equal(stats.host.free, 2);
    close_pair();
    assert_int_equal(p.r.exec.transfers.n_started, 0);
}

/* A transfer of one block that takes a second. */
static void slow_transfer(rig *r)
{
    uint32_t block;
    mr_host_handle handle;
    r->exec.transfers.polls = 1;
    assert_int_equal(mr_block_pool_alloc(r->pool, 1, &block), MR_OK);
    assert_int_equal(mr_host_tier_store(r->tier, &block, 1, &handle), MR_OK);
    r->now_ns += MR_NS_PER_S;
    mr_host_tier_poll(r->tier);
    assert_int_equal(mr_host_tier_state(r->tier, handle), MR_HOST_READY);
    mr_host_tier_drop(r->tier, handle);
    mr_block_pool_unref(r->pool, block);
}

static void test_swap_is_not_made_where_it_costs_more(void **state)
{
    (void)state;
    rig r;
    const mr_scheduler_options options = rig_options();
    rig_open_swapping(&r, &options, 4, 7, 8);
    slow_transfer(&r);
    mr_request *a = rig_add(&r, 8, 8); /* a step of prompts of 8 tokens in a millisecond */
    mr_request *b = rig_add(&r, 8, 7);
    rig_run(&r);
    mr_scheduler_stats stats = stats_of(&r);
    assert_int_equal(stats.preemptions, 1);
    assert_int_equal(stats.swapped_out, 0);
    assert_int_equal(stats.host.done, 1);
    rig_expect_whole(&r, a);
    rig_expect_whole(&r, b);
    mr_request_unref(a);
    mr_request_unref(b);
    rig_close(&r);
}

/* A step takes a millisecond in the rig's time. */
static void test_swap_learns_the_speed_of_prompts(void **state)
{
    (void)state;
    rig r;
    const mr_scheduler_options options = rig_options();
    rig_open(&r, &options, 4, 65);
    mr_request *request = rig_add(&r, 16, 4);
    assert_true(rig_step(&r, NULL));
    assert_int_equal(r.batch->n_tokens, 8);
    assert_true(r.scheduler->prefill_ns_per_token == 1e6 / 8);
    assert_true(rig_step(&r, NULL));
    assert_true(rig_step(&r, NULL)); /* a decode teaches nothing */
    assert_int_equal(r.batch->n_tokens, 1);
    assert_true(r.scheduler->prefill_ns_per_token == 1e6 / 8);
    rig_run(&r);
    rig_expect_whole(&r, request);
    mr_request_unref(request);
    rig_close(&r);
}

/* The victim's blocks come when the transfer ends: who wants them sits out, and is not ended. */
static void test_swap_waits_for_a_late_transfer(void **state)
{
    (void)state;
    open_pair(8);
    p.r.exec.transfers.polls = 2;
    assert_false(rig_step(&p.r, NULL)); /* neither has a block for its next token */
    assert_true(p.r.wake_ns != MR_NEVER && p.r.wake_ns > p.r.now_ns);
    assert_int_equal(rig_live_blocks(&p.r), 6);
    assert_int_equal(stats_of(&p.r).preemptions, 1);
    assert_false(rig_step(&p.r, NULL)); /* as often as need be */
    assert_int_equal(stats_of(&p.r).preemptions, 1);
    assert_true(rig_step(&p.r, NULL));
    assert_int_equal(p.r.batch->n_seqs, 1);
    assert_int_equal(rig_live_blocks(&p.r), 4);
    assert_true(rig_step(&p.r, NULL));
    assert_true(rig_step(&p.r, NULL)); /* a has ended; b is fetched, which takes its time too */
    assert_false(rig_step(&p.r, NULL));
    assert_false(rig_step(&p.r, NULL));
    assert_int_equal(stats_of(&p.r).swapped_in, 0);
    assert_true(rig_step(&p.r, NULL));
    assert_int_equal(p.r.batch->n_tokens, 1);
    assert_int_equal(stats_of(&p.r).swapped_in, 1);
    close_pair();
}

typedef enum when {
    ON_THE_WAY_OUT,
    ON_THE_WAY_IN,
} when;

/* b is moving. */
static void open_moving(when w, uint32_t polls)
{
    open_pair(8);
    if (w == ON_THE_WAY_OUT) {
        p.r.exec.transfers.polls = polls;
        rig_step(&p.r, NULL);
        return;
    }
    for (uint32_t i = 0; i < 3; i++) {
        assert_true(rig_step(&p.r, NULL));
    }
    p.r.exec.transfers.polls = polls;
    assert_false(rig_step(&p.r, NULL));
}

static void test_swap_cancelled_while_moving_leaks_nothing_C5(void **state)
{
    (void)state;
    for (when w = ON_THE_WAY_OUT; w <= ON_THE_WAY_IN; w++) {
        for (uint32_t never = 0; never < 2; never++) {
            open_moving(w, never ? SCRIPTED_NEVER : 4);
            assert_int_equal(stats_of(&p.r).host.moving, 1);
            mr_flag_set(&p.b->cancelled);
            rig_step(&p.r, NULL);
            rig_expect_end(p.b, MR_FINISH_CANCELLED, MR_CANCELLED);
            mr_request_unref(p.b);
            p.b = NULL;
            if (w == ON_THE_WAY_IN) {
                assert_true(mr_scheduler_idle(p.r.scheduler)); /* but it looks after the transfer */
                assert_true(p.r.wake_ns != MR_NEVER);
                assert_int_equal(rig_live_blocks(&p.r), 3);
            }
            for (uint32_t i = 0; i < 20; i++) {
                p.r.now_ns += MR_NS_PER_MS;
                rig_step(&p.r, NULL);
            }
            assert_int_equal(rig_live_blocks(&p.r), 0);
            assert_int_equal(stats_of(&p.r).host.free, 8);
            assert_int_equal(stats_of(&p.r).host.timed_out, never);
            assert_true(p.r.wake_ns == MR_NEVER);
            close_pair();
        }
    }
}

/* A transfer that fails or hangs costs a recomputation, and nobody anything else. */
static void test_swap_failed_transfer_recomputes_C5(void **state)
{
    (void)state;
    for (when w = ON_THE_WAY_OUT; w <= ON_THE_WAY_IN; w++) {
        for (uint32_t how = 0; how < 4; how++) {
            open_pair(8);
            for (uint32_t i = 0; w == ON_THE_WAY_IN && i < 3; i++) {
                assert_true(rig_step(&p.r, NULL));
            }
            p.r.exec.transfers.start_fails = how == 0;
            p.r.exec.transfers.fails = how == 1 || how == 2;
            p.r.exec.transfers.polls = how == 3 ? SCRIPTED_NEVER : how == 2 ? 1 : 0;
            rig_run(&p.r);
            const mr_scheduler_stats stats = stats_of(&p.r);
            assert_int_equal(stats.swapped_in, 0);
            assert_int_equal(stats.host.free, 8);
            assert_int_equal(stats.host.failed, how < 3);
            assert_int_equal(stats.host.timed_out, how == 3);
            assert_int_equal(stats.preemptions, 1);
            close_pair();
        }
    }
}

/* A device that cannot be stopped writes long after: into blocks that nobody has meanwhile. */
static void test_swap_late_write_meets_nobody_C5(void **state)
{
    (void)state;
    rig r;
    const mr_scheduler_options options = rig_options();
    rig_open_swapping(&r, &options, 4, 7, 8); /* 6 blocks */
    mr_request *a = rig_add(&r, 3, 18);
    for (uint32_t i = 0; i < 9; i++) {
        assert_true(rig_step(&r, NULL));
    }
    mr_request *b = rig_add(&r, 3, 9);
    while (mr_ring_count(&a->events) < 18) {
        assert_true(rig_step(&r, NULL)); /* a takes its fifth block from b, which had two */
    }
    assert_int_equal(stats_of(&r).host.owned, 2);
    r.exec.transfers.polls = SCRIPTED_NEVER;
    r.exec.transfers.cannot_stop = true;
    assert_false(rig_step(&r, NULL));
    r.now_ns += RIG_TRANSFER_TIMEOUT_NS;
    assert_true(rig_step(&r, NULL)); /* b, from the beginning, on other blocks */
    assert_int_equal(r.batch->positions[0], 0);
    assert_int_equal(stats_of(&r).host.stuck, 1);
    assert_true(rig_live_blocks(&r) >= 4);
    assert_true(rig_step(&r, NULL));
    mr_request *c = rig_add(&r, 2, 3);
    assert_true(rig_step(&r, NULL));
    scripted_transfers_hurry(&r.exec.transfers);
    rig_run(&r);
    rig_expect_whole(&r, a);
    rig_expect_whole(&r, b);
    rig_expect_whole(&r, c);
    assert_int_equal(stats_of(&r).host.stuck, 0);
    mr_request_unref(a);
    mr_request_unref(b);
    mr_request_unref(c);
    rig_close(&r);
}

/* Swapped out before a reset and in after it: what was computed before is registered no more. */
static void test_swap_over_a_reset_registers_nothing_old_X4(void **state)
{
    (void)state;
    static const mr_prefix_root root = {.hash = {{0xaa}}, .block_size = 4};
    const mr_scheduler_options options = rig_options();
    rig_open_swapping(&p.r, &options, 4, 7, 8);
    assert_int_equal(mr_block_pool_enable_cache(p.r.pool), MR_OK);
    p.a = rig_add(&p.r, 3, 13);
    mr_request_spec spec = {.params = rig_params(16), .prefix = &root};
    p.b = rig_request_of(&p.r, 3, &spec);
    rig_submit(&p.r, p.b);
    while (stats_of(&p.r).swapped_out == 0) {
        assert_true(rig_step(&p.r, NULL));
    }
    assert_true(stats_of(&p.r).prefix_blocks > 0);
    mr_scheduler_reset_prefix_cache(p.r.scheduler, 0);
    rig_run(&p.r);
    assert_int_equal(stats_of(&p.r).swapped_in, 1);
    assert_int_equal(stats_of(&p.r).prefix_blocks, 0);
    close_pair();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_swap_pays_by_hand),
        cmocka_unit_test(test_swap_keeps_what_was_computed_M1),
        cmocka_unit_test(test_swap_full_tier_recomputes),
        cmocka_unit_test(test_swap_is_not_made_where_it_costs_more),
        cmocka_unit_test(test_swap_learns_the_speed_of_prompts),
        cmocka_unit_test(test_swap_waits_for_a_late_transfer),
        cmocka_unit_test(test_swap_cancelled_while_moving_leaks_nothing_C5),
        cmocka_unit_test(test_swap_failed_transfer_recomputes_C5),
        cmocka_unit_test(test_swap_late_write_meets_nobody_C5),
        cmocka_unit_test(test_swap_over_a_reset_registers_nothing_old_X4),
    };
    mr_log_set_level(MR_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
