/* SPDX-License-Identifier: Apache-2.0 */
/* Without Redis, in virtual time. With it: test_redis_limits.c. */
#include "base/philox.h"
#include "cache/rate_limiter.h"
#include "cache/redis_limits.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define MS MR_NS_PER_MS

static uint64_t virtual_now;

static uint64_t read_virtual(void *ctx)
{
    (void)ctx;
    return virtual_now;
}

static mr_rate_limiter *new_limiter(void)
{
    const mr_rate_options options = {.clock = {.now_ns = read_virtual}};
    mr_rate_limiter *limiter = NULL;
    virtual_now = 77 * MR_NS_PER_S;
    assert_int_equal(mr_rate_limiter_create(&options, &limiter, NULL), MR_OK);
    return limiter;
}

static void unexpected(mr_rate_ticket *ticket)
{
    (void)ticket;
    fail_msg("decided a second time");
}

static const mr_rate_decision *take(mr_rate_limiter *limiter, mr_rate_ticket *ticket,
                                    const mr_rate_limits *limits, uint64_t tokens)
{
    *ticket = (mr_rate_ticket){
        .tenant = "acme", .limits = *limits, .tokens = tokens, .on_decided = unexpected};
    assert_true(mr_rate_limiter_take(limiter, ticket));
    assert_int_equal(ticket->decision.mode, MR_RATE_BY_PROCESS);
    return &ticket->decision;
}

static void test_rate_limiter_requests_a_second(void **state)
{
    (void)state;
    mr_rate_limiter *limiter = new_limiter();
    const mr_rate_limits limits = {.requests_per_s = 4, .burst_requests = 2};
    mr_rate_ticket tickets[4];
    assert_true(take(limiter, &tickets[0], &limits, 10)->granted);
    assert_true(take(limiter, &tickets[1], &limits, 10)->granted);
    const mr_rate_decision *refused = take(limiter, &tickets[2], &limits, 10);
    assert_false(refused->granted);
    assert_int_equal(refused->short_of, MR_RATE_REQUESTS);
    assert_int_equal(refused->retry_after_ms, 250);
    virtual_now += 250 * MS;
    assert_true(take(limiter, &tickets[3], &limits, 10)->granted);
    mr_rate_stats stats;
    mr_rate_limiter_stats_get(limiter, &stats);
    assert_int_equal(stats.decisions[MR_RATE_BY_PROCESS], 4);
    assert_int_equal(stats.refusals[MR_RATE_REQUESTS], 1);
    mr_rate_limiter_destroy(limiter);
}

static void test_rate_limiter_unused_tokens_come_back(void **state)
{
    (void)state;
    mr_rate_limiter *limiter = new_limiter();
    /* 10 tokens a second. */
    const mr_rate_limits limits = {.tokens_per_min = 600, .burst_tokens = 100};
    mr_rate_ticket first, second, third;
    assert_true(take(limiter, &first, &limits, 80)->granted);
    const mr_rate_decision *refused = take(limiter, &second, &limits, 50);
    assert_int_equal(refused->short_of, MR_RATE_TOKENS);
    assert_int_equal(refused->retry_after_ms, 3000);
    /* It used 30 of its 80: 20 + 50 are there. */
    mr_rate_limiter_finish(&first, 30);
    assert_true(take(limiter, &third, &limits, 70)->granted);
    refused = take(limiter, &second, &limits, 1);
    assert_int_equal(refused->retry_after_ms, 100);
    /* A second end gives nothing; one that used more than it took neither. */
    mr_rate_limiter_finish(&first, 0);
    mr_rate_limiter_finish(&third, 1000);
    assert_false(take(limiter, &second, &limits, 1)->granted);
    mr_rate_limiter_destroy(limiter);
}

static void test_rate_limiter_all_or_nothing(void **state)
{
    (void)state;
    mr_rate_limiter *limiter = new_limiter();
    const mr_rate_limits limits = {.requests_per_s = 1,
                                   .burst_requests = 2,
                                   .tokens_per_min = 60,
                                   .burst_tokens = 10,
                                   .max_concurrent = 2};
    mr_rate_ticket first, second, third;
    assert_true(take(limiter, &first, &limits, 8)->granted);
    /* Refused for its tokens, it takes no request either. */
    for (int i = 0; i < 5; i++) {
        const mr_rate_decision *refused = take(limiter, &second, &limits, 8);
        assert_int_equal(refused->short_of, MR_RATE_TOKENS);
        assert_int_equal(refused->retry_after_ms, 6000);
    }
    assert_true(take(limiter, &second, &limits, 2)->granted);
    mr_rate_limiter_finish(&first, 8);
    mr_rate_limiter_finish(&second, 2);
    /* Both buckets are empty: told when both will do. */
    const mr_rate_decision *refused = take(limiter, &third, &limits, 3);
    assert_int_equal(refused->short_of, MR_RATE_TOKENS);
    assert_int_equal(refused->retry_after_ms, 3000);
    mr_rate_limiter_destroy(limiter);
}

static void test_rate_limiter_requests_at_a_time(void **state)
{
    (void)state;
    mr_rate_limiter *limiter = new_limiter();
    const mr_rate_limits limits = {.max_concurrent = 2};
    mr_rate_ticket first, second, third;
    assert_true(take(limiter, &first, &limits, 1)->granted);
    assert_true(take(limiter, &second, &limits, 1)->granted);
    const mr_rate_decision *refused = take(limiter, &third, &limits, 1);
    assert_int_equal(refused->short_of, MR_RATE_CONCURRENT);
    assert_true(refused->retry_after_ms > 0);
    mr_rate_limiter_finish(&third, 0); /* holds nothing */
    assert_false(take(limiter, &third, &limits, 1)->granted);
    mr_rate_limiter_finish(&first, 1);
    mr_rate_limiter_finish(&first, 1);
    assert_true(take(limiter, &third, &limits, 1)->granted);
    assert_false(take(limiter, &first, &limits, 1)->granted);
    mr_rate_limiter_destroy(limiter);
}

/* Limits may change while requests run. */
static void test_rate_limiter_limits_change(void **state)
{
    (void)state;
    mr_rate_limiter *limiter = new_limiter();
    const mr_rate_limits wide = {.tokens_per_min = 6000, .burst_tokens = 1000};
    const mr_rate_limits narrow = {.tokens_per_min = 60, .burst_tokens = 10};
    mr_rate_ticket first, second;
    assert_true(take(limiter, &first, &wide, 500)->granted);
    /* What is above the new burst is gone. */
    assert_true(take(limiter, &second, &narrow, 10)->granted);
    mr_rate_limiter_finish(&second, 10);
    assert_int_equal(take(limiter, &second, &narrow, 1)->retry_after_ms, 1000);
    mr_rate_limiter_finish(&first, 0);
    assert_true(take(limiter, &second, &wide, 500)->granted);
    mr_rate_limiter_destroy(limiter);
}

/* A request from before the limits were raised ends: what has come in by the new ones stays. */
static void test_rate_limiter_an_old_request_ends_by_the_new_limits(void **state)
{
    (void)state;
    mr_rate_limiter *limiter = new_limiter();
    const mr_rate_limits narrow = {.tokens_per_min = 600, .burst_tokens = 100};
    const mr_rate_limits wide = {.tokens_per_min = 60000, .burst_tokens = 10000};
    mr_rate_ticket old, second, third;
    assert_true(take(limiter, &old, &narrow, 60)->granted);
    assert_true(take(limiter, &second, &wide, 40)->granted);
    virtual_now += 5000 * MS; /* 5000 tokens */
    mr_rate_limiter_finish(&old, 10);
    assert_true(take(limiter, &third, &wide, 5050)->granted);
    assert_false(take(limiter, &second, &wide, 1)->granted);
    /* The other way round nothing is left above the lower burst. */
    assert_false(take(limiter, &second, &narrow, 101)->granted);
    mr_rate_limiter_finish(&third, 0);
    assert_true(take(limiter, &second, &narrow, 100)->granted);
    assert_false(take(limiter, &third, &narrow, 1)->granted);
    mr_rate_limiter_destroy(limiter);
}

/* Against the definition: over any history, used tokens ≤ burst + rate · time, and who is told to
 * wait is served then if nobody else comes. */
static void test_rate_limiter_random_histories(void **state)
{
    (void)state;
    enum { RUNNING = 16, STEPS = 10000 };
    mr_rate_limiter *limiter = new_limiter();
    const uint64_t began = virtual_now;
    const mr_rate_limits limits = {.requests_per_s = 50,
                                   .burst_requests = 20,
                                   .tokens_per_min = 60000,
                                   .burst_tokens = 4000,
                                   .max_concurrent = RUNNING / 2};
    static mr_rate_ticket tickets[RUNNING];
    memset(tickets, 0, sizeof(tickets));
    uint64_t used = 0, reserved = 0, granted = 0;
    uint32_t running = 0;
    for (uint32_t step = 0; step < STEPS; step++) {
        uint32_t bits[4];
        mr_philox4x32((uint32_t[4]){step}, (uint32_t[2]){11, 12}, bits);
        virtual_now += bits[0] % (30 * MS);
        mr_rate_ticket *ticket = &tickets[bits[1] % RUNNING];
        if (ticket->holds) {
            const uint64_t spent = bits[2] % (ticket->tokens + 1);
            reserved -= ticket->tokens;
            used += spent;
            running--;
            mr_rate_limiter_finish(ticket, spent);
        } else if (take(limiter, ticket, &limits, 1 + bits[3] % 1000)->granted) {
            granted++;
            running++;
            reserved += ticket->tokens;
        } else if (ticket->decision.short_of != MR_RATE_CONCURRENT && bits[2] % 4 == 0) {
            virtual_now += ticket->decision.retry_after_ms * MS;
            assert_true(take(limiter, ticket, &limits, ticket->tokens)->granted);
            granted++;
            running++;
            reserved += ticket->tokens;
        }
        const double seconds = (double)(virtual_now - began) / (double)MR_NS_PER_S;
        assert_true(running <= limits.max_concurrent);
        assert_true((double)granted <= 20 + 50 * seconds + 0.01);
        assert_true((double)(used + reserved) <= 4000 + 1000 * seconds + 0.01);
    }
    assert_true(granted > 1000);
    mr_rate_limiter_destroy(limiter);
}

/* SHA-256("acme") by sha256sum. */
static void test_tenant_key_is_a_hash(void **state)
{
    (void)state;
    char key[MR_TENANT_KEY_BYTES];
    mr_redis_tenant_key("acme", key);
    assert_string_equal(key, "822b33ad87c148a0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rate_limiter_requests_a_second),
        cmocka_unit_test(test_rate_limiter_unused_tokens_come_back),
        cmocka_unit_test(test_rate_limiter_all_or_nothing),
        cmocka_unit_test(test_rate_limiter_requests_at_a_time),
        cmocka_unit_test(test_rate_limiter_limits_change),
        cmocka_unit_test(test_rate_limiter_an_old_request_ends_by_the_new_limits),
        cmocka_unit_test(test_rate_limiter_random_histories),
        cmocka_unit_test(test_tenant_key_is_a_hash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
