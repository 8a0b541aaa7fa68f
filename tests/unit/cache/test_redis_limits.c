/* SPDX-License-Identifier: Apache-2.0 */
/* Rate limits in a redis-server of the test's own; skipped where there is none. */
#include "base/clock.h"
#include "base/event.h"
#include "base/philox.h"
#include "cache/rate_limiter.h"
#include "cache/redis_limits.h"
#include "redis_server.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <hiredis.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TENANT   "acme"
#define REPLICAS 2

/* The monotonic clock, so many nanoseconds off. */
static uint64_t read_shifted(void *ctx)
{
    const mr_clock clock = mr_clock_monotonic();
    return mr_clock_now(&clock) + *(uint64_t *)ctx;
}

typedef struct replica {
    mr_redis_link *link;
    mr_rate_limiter *limiter;
    uint64_t shift_ns;
} replica;

typedef struct bench {
    redis_server server;
    replica replicas[REPLICAS];
    char tenant_key[MR_TENANT_KEY_BYTES];
    char requests[64], tokens[64], leases[64]; /* keys */
} bench;

static void open_replica(replica *r, const char *url_text, mr_rate_mode mode, uint64_t timeout_ms)
{
    mr_redis_url url;
    assert_int_equal(mr_redis_url_parse(url_text, &url, NULL), MR_OK);
    assert_int_equal(mr_redis_link_create(&url, &r->link, NULL), MR_OK);
    const mr_rate_options options = {
        .clock = {.now_ns = read_shifted, .ctx = &r->shift_ns},
        .link = r->link,
        .on_failure = mode,
        .timeout_ns = timeout_ms * MR_NS_PER_MS,
    };
    assert_int_equal(mr_rate_limiter_create(&options, &r->limiter, NULL), MR_OK);
    assert_int_equal(mr_redis_link_start(r->link, NULL), MR_OK);
    redis_server_wait_available(r->link, true);
}

static bool open_bench(bench *b, mr_rate_mode mode, uint64_t timeout_ms)
{
    memset(b, 0, sizeof(*b));
    if (!redis_server_start(&b->server, NULL)) {
        return false;
    }
    mr_redis_tenant_key(TENANT, b->tenant_key);
    snprintf(b->requests, sizeof(b->requests), "millrace:1:rl:%s:req", b->tenant_key);
    snprintf(b->tokens, sizeof(b->tokens), "millrace:1:rl:%s:tok", b->tenant_key);
    snprintf(b->leases, sizeof(b->leases), "millrace:1:cc:%s", b->tenant_key);
    for (int i = 0; i < REPLICAS; i++) {
        b->replicas[i].shift_ns = (uint64_t)i * 600 * MR_NS_PER_S; /* ten minutes off */
        open_replica(&b->replicas[i], b->server.url, mode, timeout_ms);
    }
    return true;
}

static void close_bench(bench *b)
{
    for (int i = 0; i < REPLICAS; i++) {
        mr_redis_link_destroy(b->replicas[i].link);
        mr_rate_limiter_destroy(b->replicas[i].limiter);
    }
    redis_server_end(&b->server);
}

typedef struct asked {
    mr_rate_ticket ticket; /* first */
    mr_event event;
    uint32_t decisions;
} asked;

static void on_decided(mr_rate_ticket *ticket)
{
    asked *a = (asked *)ticket;
    a->decisions++;
    mr_event_set(&a->event);
}

/* Takes and waits for the decision. */
static const mr_rate_decision *take(replica *r, asked *a, const mr_rate_limits *limits,
                                    uint64_t tokens)
{
    static uint32_t number;
    memset(a, 0, sizeof(*a));
    a->ticket = (mr_rate_ticket){
        .tenant = TENANT, .limits = *limits, .tokens = tokens, .on_decided = on_decided};
    snprintf(a->ticket.lease, sizeof(a->ticket.lease), "request-%u", ++number);
    mr_event_init(&a->event);
    if (!mr_rate_limiter_take(r->limiter, &a->ticket)) {
        assert_true(mr_event_wait(&a->event, MR_NEVER));
        assert_int_equal(a->decisions, 1);
    }
    mr_event_deinit(&a->event);
    return &a->ticket.decision;
}

static double field(const bench *b, const char *key, const char *name)
{
    return strtod(redis_server_ask(&b->server, "HGET", key, name, NULL), NULL);
}

/* What two replicas grant together is what one bucket gives, to the microsecond of Redis's clock:
 * granted = burst + rate · time − what is left, as long as the bucket was never full. */
static void test_redis_limits_hold_across_replicas_E1(void **state)
{
    (void)state;
    static bench b;
    if (!open_bench(&b, MR_RATE_CLOSED, 5000)) {
        skip();
    }
    const mr_rate_limits limits = {.requests_per_s = 400, .burst_requests = 400};
    asked a;
    assert_true(take(&b.replicas[0], &a, &limits, 1)->granted);
    const double first_us = field(&b, b.requests, "t");
    double granted = 1;
    double refused = 0;
    while (granted < 1200) {
        for (int i = 0; i < REPLICAS; i++) {
            const mr_rate_decision *decision = take(&b.replicas[i], &a, &limits, 1);
            assert_int_equal(decision->mode, MR_RATE_BY_REDIS);
            granted += decision->granted ? 1 : 0;
            refused += decision->granted ? 0 : 1;
        }
    }
    assert_true(refused > 0);
    const double seconds = (field(&b, b.requests, "t") - first_us) / 1e6;
    const double wanted = 400 + 400 * seconds - field(&b, b.requests, "n");
    if (fabs(granted - wanted) > 0.01 * wanted) {
        fail_msg("granted %g, wanted %g", granted, wanted);
    }
    close_bench(&b);
}

static void test_redis_limits_tokens_refund_and_burst(void **state)
{
    (void)state;
    static bench b;
    if (!open_bench(&b, MR_RATE_CLOSED, 5000)) {
        skip();
    }
    /* So slow that time adds nothing: one token a minute. */
    const mr_rate_limits limits = {.tokens_per_min = 1, .burst_tokens = 1000};
    asked first, second, third;
    assert_true(take(&b.replicas[0], &first, &limits, 900)->granted);
    const mr_rate_decision *decision = take(&b.replicas[1], &second, &limits, 200);
    assert_int_equal(decision->short_of, MR_RATE_TOKENS);
    /* 100 tokens at one a minute, less what has come in. */
    assert_true(decision->retry_after_ms > 5900000 && decision->retry_after_ms <= 6000000);
    mr_rate_limiter_finish(&first.ticket, 400);
    mr_rate_limiter_finish(&first.ticket, 0);
    /* The refund went ahead on the same connection. */
    assert_true(take(&b.replicas[0], &third, &limits, 600)->granted);
    assert_false(take(&b.replicas[1], &second, &limits, 1)->granted);
    close_bench(&b);
}

static void run_raw(replica *r, asked *a, const mr_rate_limits *limits, uint64_t tokens)
{
    (void)take(r, a, limits, tokens);
}

static void ignore_end(mr_redis_command *command, mr_status status)
{
    (void)command;
    (void)status;
}

/* The script itself refuses costs that no bucket may be asked for. */
static void test_redis_limits_bad_cost_mints_nothing_E4(void **state)
{
    (void)state;
    static bench b;
    if (!open_bench(&b, MR_RATE_CLOSED, 5000)) {
        skip();
    }
    const mr_rate_limits limits = {.tokens_per_min = 1, .burst_tokens = 100};
    asked a;
    assert_true(take(&b.replicas[0], &a, &limits, 60)->granted);
    const double level = field(&b, b.tokens, "n");
    run_raw(&b.replicas[0], &a, &limits, 0);
    assert_int_equal(a.ticket.decision.mode, MR_RATE_CLOSED);
    run_raw(&b.replicas[0], &a, &limits, 101);
    assert_int_equal(a.ticket.decision.mode, MR_RATE_CLOSED);
    assert_true(field(&b, b.tokens, "n") == level);
    assert_true(fabs(level - 40) < 0.5);
    /* Nor does more come back than a bucket could have given. */
    const uint64_t amounts[] = {0, 101};
    for (int i = 0; i < 2; i++) {
        mr_redis_command refund = {.timeout_ns = 5 * MR_NS_PER_S, .on_done = ignore_end};
        assert_int_equal(mr_redis_limits_refund(&refund, b.tenant_key, &limits, amounts[i]), MR_OK);
        assert_true(mr_redis_link_submit(b.replicas[0].link, &refund));
        run_raw(&b.replicas[0], &a, &limits, 0); /* behind it */
        assert_true(field(&b, b.tokens, "n") == level);
        mr_redis_command_deinit(&refund);
    }
    close_bench(&b);
}

/* The last refill is later than Redis's own clock, as after a failover: nothing flows in, and it
 * does not move back. */
static void test_redis_limits_refill_never_goes_back_E2(void **state)
{
    (void)state;
    static bench b;
    if (!open_bench(&b, MR_RATE_CLOSED, 5000)) {
        skip();
    }
    const mr_rate_limits limits = {.requests_per_s = 100, .burst_requests = 1000};
    asked a;
    assert_true(take(&b.replicas[0], &a, &limits, 1)->granted);
    char later[32];
    snprintf(later, sizeof(later), "%.0f", field(&b, b.requests, "t") + 600e6);
    redis_server_ask(&b.server, "HSET", b.requests, "t", later);
    redis_server_ask(&b.server, "HSET", b.requests, "n", "3");
    int granted = 0;
    for (int i = 0; i < 50; i++) {
        granted += take(&b.replicas[i % REPLICAS], &a, &limits, 1)->granted ? 1 : 0;
    }
    assert_int_equal(granted, 3);
    assert_string_equal(redis_server_ask(&b.server, "HGET", b.requests, "t", NULL), later);
    /* Nor does a refund move it. */
    const mr_rate_limits tokens = {.tokens_per_min = 60000, .burst_tokens = 10000};
    asked held;
    assert_true(take(&b.replicas[0], &held, &tokens, 5000)->granted);
    redis_server_ask(&b.server, "HSET", b.tokens, "t", later);
    redis_server_ask(&b.server, "HSET", b.tokens, "n", "0");
    mr_rate_limiter_finish(&held.ticket, 4900);
    assert_true(take(&b.replicas[0], &a, &tokens, 100)->granted); /* behind the refund */
    assert_false(take(&b.replicas[0], &a, &tokens, 1)->granted);
    assert_string_equal(redis_server_ask(&b.server, "HGET", b.tokens, "t", NULL), later);
    close_bench(&b);
}

static void test_redis_limits_leases_across_replicas(void **state)
{
    (void)state;
    static bench b;
    if (!open_bench(&b, MR_RATE_CLOSED, 5000)) {
        skip();
    }
    const mr_rate_limits limits = {.max_concurrent = 3};
    asked held[3], a;
    for (int i = 0; i < 3; i++) {
        assert_true(take(&b.replicas[i % REPLICAS], &held[i], &limits, 1)->granted);
    }
    assert_int_equal(take(&b.replicas[1], &a, &limits, 1)->short_of, MR_RATE_CONCURRENT);
    mr_rate_limiter_finish(&held[0].ticket, 1);
    assert_true(take(&b.replicas[0], &held[0], &limits, 1)->granted);
    /* A replica was killed with a lease, and its time is over: it counts no more. */
    mr_rate_limiter_finish(&held[0].ticket, 1);
    mr_rate_limiter_finish(&held[1].ticket, 1);
    mr_rate_limiter_finish(&held[2].ticket, 1);
    redis_server_ask(&b.server, "ZADD", b.leases, "1000", "of-the-dead");
    for (int i = 0; i < 3; i++) {
        assert_true(take(&b.replicas[0], &held[i], &limits, 1)->granted);
    }
    assert_string_equal(redis_server_ask(&b.server, "ZCARD", b.leases, NULL, NULL), "3");
    for (int i = 0; i < 3; i++) {
        mr_rate_limiter_finish(&held[i].ticket, 1);
    }
    assert_true(take(&b.replicas[0], &a, &limits, 1)->granted);
    close_bench(&b);
}

/* Redis lost everything: the leases of what runs are there again with the new connection. */
static void test_redis_limits_leases_survive_a_restart(void **state)
{
    (void)state;
    static bench b;
    if (!open_bench(&b, MR_RATE_CLOSED, 5000)) {
        skip();
    }
    const mr_rate_limits limits = {.max_concurrent = 2};
    asked first, second, third;
    assert_true(take(&b.replicas[0], &first, &limits, 1)->granted);
    assert_true(take(&b.replicas[1], &second, &limits, 1)->granted);
    redis_server_restart(&b.server);
    for (int i = 0; i < REPLICAS; i++) {
        redis_server_wait_available(b.replicas[i].link, true);
    }
    redis_server_wait_reply(&b.server, "2", "ZCARD", b.leases);
    assert_int_equal(take(&b.replicas[0], &third, &limits, 1)->short_of, MR_RATE_CONCURRENT);
    mr_rate_limiter_finish(&first.ticket, 1);
    mr_rate_limiter_finish(&second.ticket, 1);
    assert_true(take(&b.replicas[0], &third, &limits, 1)->granted);
    close_bench(&b);
}

/* While a request runs its lease is renewed, every ten seconds: also one that somebody removed. */
static void test_redis_limits_leases_are_renewed(void **state)
{
    (void)state;
    static bench b;
    if (!open_bench(&b, MR_RATE_CLOSED, 5000)) {
        skip();
    }
    const mr_rate_limits limits = {.max_concurrent = 1};
    asked held, a;
    assert_true(take(&b.replicas[0], &held, &limits, 1)->granted);
    redis_server_ask(&b.server, "DEL", b.leases, NULL, NULL);
    const char *count = "0";
    for (int turn = 0; turn < 2 * REDIS_SERVER_TURNS && strcmp(count, "0") == 0; turn++) {
        redis_server_pause(5);
        count = redis_server_ask(&b.server, "ZCARD", b.leases, NULL, NULL);
    }
    assert_string_equal(count, "1");
    assert_int_equal(take(&b.replicas[1], &a, &limits, 1)->short_of, MR_RATE_CONCURRENT);
    mr_rate_limiter_finish(&held.ticket, 1);
    close_bench(&b);
}

/* The script and the buckets of the process decide alike. */
static void test_redis_limits_script_is_the_process_bucket(void **state)
{
    (void)state;
    static bench b;
    if (!open_bench(&b, MR_RATE_CLOSED, 5000)) {
        skip();
    }
    enum { RUNNING = 12 };
    replica process = {0};
    const mr_rate_options options = {.clock = {.now_ns = read_shifted, .ctx = &process.shift_ns}};
    assert_int_equal(mr_rate_limiter_create(&options, &process.limiter, NULL), MR_OK);
    /* Time adds less than one of either in an hour. */
    const mr_rate_limits limits = {.requests_per_s = 0.0001,
                                   .burst_requests = 150,
                                   .tokens_per_min = 1,
                                   .burst_tokens = 20000,
                                   .max_concurrent = RUNNING / 2};
    static asked shared[RUNNING], alone[RUNNING];
    memset(shared, 0, sizeof(shared));
    memset(alone, 0, sizeof(alone));
    uint32_t granted = 0;
    for (uint32_t step = 0; step < 1000; step++) {
        uint32_t bits[4];
        mr_philox4x32((uint32_t[4]){step}, (uint32_t[2]){21, 22}, bits);
        const uint32_t i = bits[0] % RUNNING;
        if (shared[i].ticket.holds) {
            const uint64_t spent = bits[1] % (shared[i].ticket.tokens + 1);
            mr_rate_limiter_finish(&shared[i].ticket, spent);
            mr_rate_limiter_finish(&alone[i].ticket, spent);
            continue;
        }
        const uint64_t cost = 1 + bits[2] % 2000;
        const mr_rate_decision *one = take(&b.replicas[0], &shared[i], &limits, cost);
        const mr_rate_decision *two = take(&process, &alone[i], &limits, cost);
        assert_int_equal(one->granted, two->granted);
        if (!one->granted) {
            assert_int_equal(one->short_of, two->short_of);
        }
        granted += one->granted ? 1 : 0;
    }
    assert_true(granted > 20 && granted <= 150);
    mr_rate_limiter_destroy(process.limiter);
    close_bench(&b);
}

static void assert_decisions(replica *r, mr_rate_mode mode, uint64_t wanted)
{
    mr_rate_stats stats;
    mr_rate_limiter_stats_get(r->limiter, &stats);
    assert_int_equal(stats.decisions[mode], wanted);
}

/* Redis is gone: each mode decides as it says, at once, and is counted. */
static void test_redis_limits_down_by_mode_E3(void **state)
{
    (void)state;
    const mr_rate_limits limits = {.requests_per_s = 0.001, .burst_requests = 5};
    const mr_rate_mode modes[] = {MR_RATE_OPEN, MR_RATE_CLOSED, MR_RATE_LOCAL};
    /* Two of the five were taken through Redis before: the process has three left. */
    const int wanted[] = {8, 0, 3};
    for (int m = 0; m < 3; m++) {
        static bench b;
        if (!open_bench(&b, modes[m], 5000)) {
            skip();
        }
        replica *r = &b.replicas[0];
        asked a;
        assert_true(take(r, &a, &limits, 1)->granted);
        assert_true(take(r, &a, &limits, 1)->granted);
        redis_server_kill(&b.server);
        redis_server_wait_available(r->link, false);
        int granted = 0;
        for (int i = 0; i < 8; i++) {
            const mr_rate_decision *decision = take(r, &a, &limits, 1);
            assert_int_equal(decision->mode, modes[m]);
            assert_int_equal(a.decisions, 0); /* nobody was asked */
            granted += decision->granted ? 1 : 0;
            assert_true(decision->granted || decision->retry_after_ms > 0);
        }
        assert_int_equal(granted, wanted[m]);
        assert_decisions(r, MR_RATE_BY_REDIS, 2);
        assert_decisions(r, modes[m], 8);
        redis_server_restart(&b.server);
        redis_server_wait_available(r->link, true);
        assert_int_equal(take(r, &a, &limits, 1)->mode, MR_RATE_BY_REDIS);
        close_bench(&b);
    }
}

/* Redis stands still: a decision comes all the same, and what Redis grants too late is given back
 * as far as it holds others up. */
static void test_redis_limits_stalled_decides_and_undoes_E3(void **state)
{
    (void)state;
    static bench b;
    if (!open_bench(&b, MR_RATE_CLOSED, 30)) {
        skip();
    }
    const mr_rate_limits limits = {.max_concurrent = 1};
    asked a;
    redis_server_ask(&b.server, "CLIENT", "PAUSE", "300", NULL);
    const mr_rate_decision *decision = take(&b.replicas[0], &a, &limits, 1);
    assert_false(decision->granted);
    assert_int_equal(decision->mode, MR_RATE_CLOSED);
    assert_int_equal(decision->short_of, MR_RATE_UNKNOWN);
    assert_int_equal(a.decisions, 1);
    /* Asked after the pause: the lease that came late is gone again. */
    for (int turn = 0; turn < REDIS_SERVER_TURNS; turn++) {
        if (take(&b.replicas[0], &a, &limits, 1)->mode == MR_RATE_BY_REDIS) {
            break;
        }
        redis_server_pause(5);
    }
    assert_int_equal(a.ticket.decision.mode, MR_RATE_BY_REDIS);
    assert_true(a.ticket.decision.granted);
    close_bench(&b);
}

/* Redis stands still until the connection is given up, and what was to end a lease goes with it:
 * the lease ends with the next connection, long before its time is over. */
static void test_redis_limits_lost_release_is_sent_again(void **state)
{
    (void)state;
    static bench b;
    if (!open_bench(&b, MR_RATE_CLOSED, 5000)) {
        skip();
    }
    const mr_rate_limits limits = {.max_concurrent = 1};
    asked first, second;
    assert_true(take(&b.replicas[0], &first, &limits, 1)->granted);
    redis_server_ask(&b.server, "CLIENT", "PAUSE", "1500", NULL);
    mr_rate_limiter_finish(&first.ticket, 1);
    redis_server_wait_available(b.replicas[0].link, false);
    redis_server_wait_available(b.replicas[0].link, true);
    for (int turn = 0; turn < REDIS_SERVER_TURNS; turn++) {
        if (take(&b.replicas[1], &second, &limits, 1)->granted) {
            break;
        }
        redis_server_pause(5);
    }
    assert_true(second.ticket.decision.granted);
    close_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_redis_limits_hold_across_replicas_E1),
        cmocka_unit_test(test_redis_limits_tokens_refund_and_burst),
        cmocka_unit_test(test_redis_limits_bad_cost_mints_nothing_E4),
        cmocka_unit_test(test_redis_limits_refill_never_goes_back_E2),
        cmocka_unit_test(test_redis_limits_leases_across_replicas),
        cmocka_unit_test(test_redis_limits_leases_survive_a_restart),
        cmocka_unit_test(test_redis_limits_leases_are_renewed),
        cmocka_unit_test(test_redis_limits_script_is_the_process_bucket),
        cmocka_unit_test(test_redis_limits_down_by_mode_E3),
        cmocka_unit_test(test_redis_limits_stalled_decides_and_undoes_E3),
        cmocka_unit_test(test_redis_limits_lost_release_is_sent_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
