/* SPDX-License-Identifier: Apache-2.0 */
/* Shares of tenants, priorities, overtaking: in virtual time, a step is a millisecond. */
#include "base/log.h"
#include "rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MS MR_NS_PER_MS

static mr_request *add_with_priority(rig *r, int32_t priority, uint32_t n_prompt,
                                     uint32_t max_tokens)
{
    return rig_add_of(r, 0, 1, priority, n_prompt, max_tokens);
}

/* ---- shares ---- */

#define BACKLOG 12u

/* A tenant that always has requests waiting. */
typedef struct saturator {
    uint32_t tenant, weight;
    uint32_t least_prompt, most_prompt, least_output, most_output;
    mr_request *requests[BACKLOG];
    uint64_t tokens; /* prompts that were begun, and output */
    bool begun[BACKLOG];
} saturator;

static uint32_t draw(scripted_random *random, uint32_t low, uint32_t high)
{
    return low + scripted_draw(random, high - low + 1);
}

/* Counts what the tenant got since the last call, and replaces what has ended. */
static void attend(rig *r, scripted_random *random, saturator *t)
{
    for (uint32_t i = 0; i < BACKLOG; i++) {
        mr_request *request = t->requests[i];
        if (request != NULL && !t->begun[i] && request->usage.scheduled_ns != 0) {
            t->begun[i] = true;
            t->tokens += request->n_prompt;
        }
        bool ended = request == NULL;
        while (request != NULL && mr_ring_count(&request->events) > 0) {
            ended = rig_read(request).last;
            t->tokens++;
        }
        if (ended) {
            if (request != NULL) {
                mr_request_unref(request);
            }
            t->requests[i] = rig_add_of(r, t->tenant, t->weight, 0,
                                        draw(random, t->least_prompt, t->most_prompt),
                                        draw(random, t->least_output, t->most_output));
            t->begun[i] = false;
        }
    }
}

static void dismiss(rig *r, saturator *t)
{
    for (uint32_t i = 0; i < BACKLOG; i++) {
        if (t->requests[i] != NULL) {
            mr_flag_set(&t->requests[i]->cancelled);
        }
    }
    rig_step(r, NULL);
    for (uint32_t i = 0; i < BACKLOG; i++) {
        if (t->requests[i] != NULL) {
            mr_request_unref(t->requests[i]);
        }
    }
}

static void open_wide(rig *r)
{
    mr_scheduler_options options = rig_options();
    options.max_batch_tokens = 16;
    options.max_queue = 2 * BACKLOG;
    rig_open(r, &options, 4, 129);
}

/* Asserts that tokens went a : b as weights do, within `percent`. */
static void expect_shares(const saturator *a, const saturator *b, double percent)
{
    const double got = (double)a->tokens / (double)b->tokens;
    const double wanted = (double)a->weight / b->weight;
    if (got < wanted * (1 - percent / 100) || got > wanted * (1 + percent / 100)) {
        fail_msg("%llu : %llu tokens, weights %u : %u", (unsigned long long)a->tokens,
                 (unsigned long long)b->tokens, a->weight, b->weight);
    }
}

static void run_two(saturator *a, saturator *b, uint32_t steps)
{
    rig r;
    scripted_random random = {.state = 7};
    open_wide(&r);
    for (uint32_t i = 0; i < steps; i++) {
        attend(&r, &random, a);
        attend(&r, &random, b);
        assert_true(rig_step(&r, NULL));
    }
    dismiss(&r, a);
    dismiss(&r, b);
    rig_close(&r);
}

static void test_fairness_saturating_tenants_share_by_weight_M7(void **state)
{
    (void)state;
    saturator a = {1, 3, 2, 12, 2, 20, {NULL}, 0, {false}};
    saturator b = {2, 1, 2, 12, 2, 20, {NULL}, 0, {false}};
    run_two(&a, &b, 20000);
    assert_true(a.tokens + b.tokens > 60000);
    expect_shares(&a, &b, 2);
}

static void test_fairness_counts_tokens_not_requests_M7(void **state)
{
    (void)state;
    /* Long prompts with short answers, against short prompts with long answers. */
    saturator a = {0, 3, 20, 40, 1, 2, {NULL}, 0, {false}};
    saturator b = {255, 1, 1, 3, 20, 50, {NULL}, 0, {false}};
    run_two(&a, &b, 20000);
    expect_shares(&a, &b, 2);
    saturator c = {4, 1000, 2, 8, 2, 8, {NULL}, 0, {false}};
    saturator d = {3, 999, 10, 30, 2, 8, {NULL}, 0, {false}};
    run_two(&c, &d, 20000);
    expect_shares(&c, &d, 2);
}

static void test_fairness_holds_at_any_time_while_both_wait_M7(void **state)
{
    (void)state;
    rig r;
    scripted_random random = {.state = 8};
    saturator a = {1, 3, 2, 12, 2, 20, {NULL}, 0, {false}};
    saturator b = {2, 1, 2, 12, 2, 20, {NULL}, 0, {false}};
    open_wide(&r);
    for (uint32_t i = 0; i < 5000; i++) {
        attend(&r, &random, &a);
        attend(&r, &random, &b);
        assert_true(rig_step(&r, NULL));
        /* Theorem 4.4 of the paper, for shares: twice what can run at a time, 4 sequences of 32
         * tokens, by the smaller weight. */
        const double gap = (double)a.tokens / 3 - (double)b.tokens;
        assert_true(gap < 2 * 4 * 32 && gap > -2 * 4 * 32);
    }
    dismiss(&r, &a);
    dismiss(&r, &b);
    rig_close(&r);
}

static void test_fairness_nobody_saves_up_M7(void **state)
{
    (void)state;
    rig r;
    scripted_random random = {.state = 9};
    saturator a = {1, 1, 4, 8, 4, 8, {NULL}, 0, {false}};
    saturator b = {2, 1, 4, 8, 4, 8, {NULL}, 0, {false}};
    open_wide(&r);
    for (uint32_t i = 0; i < 3000; i++) {
        attend(&r, &random, &a);
        assert_true(rig_step(&r, NULL));
    }
    const uint64_t alone = a.tokens;
    assert_true(alone > 9000);
    a.tokens = 0;
    for (uint32_t i = 0; i < 3000; i++) {
        attend(&r, &random, &a);
        attend(&r, &random, &b);
        assert_true(rig_step(&r, NULL));
    }
    expect_shares(&a, &b, 4); /* not all for b, which had nothing while a ran alone */
    dismiss(&r, &a);
    dismiss(&r, &b);
    rig_close(&r);
}

static void test_fairness_recomputation_is_not_charged_M7(void **state)
{
    (void)state;
    rig r;
    mr_scheduler_options options = rig_options();
    rig_open(&r, &options, 4, 7); /* 6 blocks: two of 16 tokens do not fit together */
    mr_request *a = rig_add_of(&r, 1, 1, 0, 3, 13);
    mr_request *b = rig_add_of(&r, 2, 1, 0, 3, 13);
    rig_run(&r);
    assert_int_equal(a->usage.preemptions + b->usage.preemptions, 1);
    /* 3 tokens of prompt and 13 of output. */
    assert_true(r.scheduler->fair.tenants[1].served == 16 * MR_FAIR_UNIT);
    assert_true(r.scheduler->fair.tenants[2].served == 16 * MR_FAIR_UNIT);
    rig_expect_whole(&r, a);
    rig_expect_whole(&r, b);
    mr_request_unref(a);
    mr_request_unref(b);
    rig_close(&r);
}

/* ---- priorities ---- */

static void open_narrow(rig *r, uint64_t ageing_ns)
{
    mr_scheduler_options options = rig_options();
    options.max_batch_size = 1;
    options.fair.ageing_ns = ageing_ns;
    rig_open(r, &options, 4, 65);
}

static void test_priority_goes_first_and_equals_by_arrival_M7(void **state)
{
    (void)state;
    rig r;
    open_narrow(&r, MR_NEVER);
    static const int32_t priorities[] = {0, -5, 3, 0, 1000, 3, -1000};
    static const uint32_t order[] = {4, 2, 5, 0, 3, 1, 6};
    mr_request *requests[7];
    for (size_t i = 0; i < 7; i++) {
        requests[i] = add_with_priority(&r, priorities[i], 2, 2);
        r.now_ns++;
    }
    rig_run(&r);
    for (size_t i = 1; i < 7; i++) {
        assert_true(requests[order[i - 1]]->usage.scheduled_ns <
                    requests[order[i]]->usage.scheduled_ns);
    }
    for (size_t i = 0; i < 7; i++) {
        rig_expect_whole(&r, requests[i]);
        mr_request_unref(requests[i]);
    }
    rig_close(&r);
}

static void test_priority_of_one_tenant_takes_nothing_from_another_M7(void **state)
{
    (void)state;
    rig r;
    open_narrow(&r, MR_NEVER);
    mr_request *loud[4];
    mr_request *quiet[4];
    for (size_t i = 0; i < 4; i++) {
        loud[i] = rig_add_of(&r, 1, 1, 1000, 2, 3);
        quiet[i] = rig_add_of(&r, 2, 1, -1000, 2, 3);
    }
    rig_run(&r);
    /* In turns. */
    for (size_t i = 0; i + 1 < 4; i++) {
        assert_true(loud[i]->usage.scheduled_ns < quiet[i]->usage.scheduled_ns);
        assert_true(quiet[i]->usage.scheduled_ns < loud[i + 1]->usage.scheduled_ns);
    }
    for (size_t i = 0; i < 4; i++) {
        mr_request_unref(loud[i]);
        mr_request_unref(quiet[i]);
    }
    rig_close(&r);
}

/* Keeps the queue full of high priorities until the low one has begun; how long it waited, ms. */
static uint64_t wait_among_higher(uint64_t ageing_ns, uint32_t limit_ms)
{
    rig r;
    open_narrow(&r, ageing_ns);
    mr_request *high[3] = {NULL, NULL, NULL};
    mr_request *low = NULL;
    const uint64_t start_ns = r.now_ns;
    while ((low == NULL || low->usage.scheduled_ns == 0) && r.now_ns < start_ns + limit_ms * MS) {
        for (size_t i = 0; i < 3; i++) {
            if (high[i] == NULL || high[i]->usage.finished_ns != 0) {
                if (high[i] != NULL) {
                    mr_request_unref(high[i]);
                }
                high[i] = add_with_priority(&r, 9, 2, 4); /* 5 ms each */
            }
        }
        low = low == NULL ? add_with_priority(&r, -9, 2, 4) : low;
        assert_true(rig_step(&r, NULL));
    }
    const uint64_t waited_ns =
        low->usage.scheduled_ns == 0 ? MR_NEVER : low->usage.scheduled_ns - low->arrived_ns;
    rig_run(&r);
    for (size_t i = 0; i < 3; i++) {
        mr_request_unref(high[i]);
    }
    mr_request_unref(low);
    rig_close(&r);
    return waited_ns == MR_NEVER ? MR_NEVER : waited_ns / MS;
}

static void test_priority_ageing_bound_M7(void **state)
{
    (void)state;
    assert_true(wait_among_higher(MR_NEVER, 500) == MR_NEVER); /* it is starved indeed */
    static const uint32_t bounds[] = {0, 1, 20, 100, 400};
    for (size_t i = 0; i < sizeof(bounds) / sizeof(bounds[0]); i++) {
        const uint64_t waited = wait_among_higher(bounds[i] * MS, 1000);
        /* Then only those go before it that run already, and that waited longer: none. */
        assert_true(waited <= bounds[i] + 15);
        assert_true(bounds[i] < 20 || waited >= bounds[i]);
    }
}

static void test_priority_decides_who_is_preempted_then_age(void **state)
{
    (void)state;
    rig r;
    mr_scheduler_options options = rig_options();
    options.fair.ageing_ns = MR_NEVER;
    rig_open(&r, &options, 4, 10); /* 9 blocks */
    mr_request *low = add_with_priority(&r, -1, 3, 30);
    mr_request *old = add_with_priority(&r, 5, 3, 30);
    mr_request *new = add_with_priority(&r, 5, 3, 30);
    while (low->usage.preemptions == 0) {
        assert_true(rig_step(&r, NULL));
        assert_int_equal(old->usage.preemptions + new->usage.preemptions, 0);
    }
    while (new->usage.preemptions == 0) {
        assert_true(rig_step(&r, NULL));
        assert_int_equal(old->usage.preemptions, 0);
    }
    rig_run(&r);
    assert_int_equal(old->usage.preemptions, 0);
    assert_true(old->usage.finished_ns < new->usage.finished_ns);
    assert_true(new->usage.finished_ns < low->usage.finished_ns);
    rig_expect_whole(&r, low);
    rig_expect_whole(&r, old);
    rig_expect_whole(&r, new);
    mr_request_unref(low);
    mr_request_unref(old);
    mr_request_unref(new);
    rig_close(&r);
}

static void test_priority_overcommit_of_tenants_ends_M1(void **state)
{
    (void)state;
    for (uint32_t bound = 0; bound <= 3; bound++) {
        rig r;
        mr_scheduler_options options = rig_options();
        mr_request *requests[12];
        options.max_preemptions = bound;
        options.max_batch_size = 12;
        options.fair = (mr_fair_options){20 * MS, 2, 30 * MS};
        rig_open(&r, &options, 4, 45); /* 44 blocks; 12 requests want 11 each: three times that */
        for (uint32_t i = 0; i < 12; i++) {
            requests[i] = rig_add_of(&r, i % 3, 1 + i % 3, (int32_t)(i * 7 % 5) - 2, 4 + i % 2, 40);
        }
        rig_run(&r);
        uint32_t preemptions = 0;
        for (size_t i = 0; i < 12; i++) {
            assert_true(requests[i]->usage.preemptions <= bound);
            preemptions += requests[i]->usage.preemptions;
            rig_expect_whole(&r, requests[i]);
            mr_request_unref(requests[i]);
        }
        assert_true(bound == 0 || preemptions > 0);
        rig_close(&r);
    }
}

/* ---- overtaking ---- */

/* A request that holds most blocks, one behind it that does not fit, and small ones behind that
 * one. Gives how many of the small ones came in before the big one. */
static uint32_t count_overtakers(uint32_t max_overtakes, uint64_t overtake_ns, bool *all_whole)
{
    rig r;
    mr_scheduler_options options = rig_options();
    mr_request *small[12];
    options.max_batch_size = 3;
    options.fair.max_overtakes = max_overtakes;
    options.fair.overtake_ns = overtake_ns;
    rig_open(&r, &options, 4, 14);           /* 13 blocks */
    mr_request *holder = rig_add(&r, 2, 38); /* up to 10 */
    for (uint32_t i = 0; i < 12; i++) {
        assert_true(rig_step(&r, NULL)); /* 13 tokens now: 4 blocks */
    }
    mr_request *big = rig_add(&r, 40, 2); /* 10, and 1 more */
    for (size_t i = 0; i < 12; i++) {
        small[i] = rig_add(&r, 2, 3);
    }
    rig_run(&r);
    uint32_t before = 0;
    *all_whole = true;
    for (size_t i = 0; i < 12; i++) {
        before += small[i]->usage.scheduled_ns < big->usage.scheduled_ns;
        rig_expect_whole(&r, small[i]);
        mr_request_unref(small[i]);
    }
    rig_expect_whole(&r, holder);
    rig_expect_whole(&r, big);
    mr_request_unref(holder);
    mr_request_unref(big);
    rig_close(&r);
    return before;
}

static void test_overtaking_is_bounded_by_count_M6(void **state)
{
    (void)state;
    bool whole = false;
    assert_int_equal(count_overtakers(0, MR_NEVER, &whole), 0);
    assert_int_equal(count_overtakers(1, MR_NEVER, &whole), 1);
    assert_int_equal(count_overtakers(5, MR_NEVER, &whole), 5);
    assert_int_equal(count_overtakers(1000, MR_NEVER, &whole), 12); /* they all fit beside it */
}

static void test_overtaking_is_bounded_by_time_M6(void **state)
{
    (void)state;
    bool whole = false;
    assert_int_equal(count_overtakers(1000, 0, &whole), 0);
    /* Two slots, 3 steps each: two at 0 ms, two at 3 ms, none at 6 ms. */
    assert_int_equal(count_overtakers(1000, 5 * MS, &whole), 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fairness_saturating_tenants_share_by_weight_M7),
        cmocka_unit_test(test_fairness_counts_tokens_not_requests_M7),
        cmocka_unit_test(test_fairness_holds_at_any_time_while_both_wait_M7),
        cmocka_unit_test(test_fairness_nobody_saves_up_M7),
        cmocka_unit_test(test_fairness_recomputation_is_not_charged_M7),
        cmocka_unit_test(test_priority_goes_first_and_equals_by_arrival_M7),
        cmocka_unit_test(test_priority_of_one_tenant_takes_nothing_from_another_M7),
        cmocka_unit_test(test_priority_ageing_bound_M7),
        cmocka_unit_test(test_priority_decides_who_is_preempted_then_age),
        cmocka_unit_test(test_priority_overcommit_of_tenants_ends_M1),
        cmocka_unit_test(test_overtaking_is_bounded_by_count_M6),
        cmocka_unit_test(test_overtaking_is_bounded_by_time_M6),
    };
    mr_log_set_level(MR_LOG_WARN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
