/* SPDX-License-Identifier: Apache-2.0 */
#include "service/connection_account.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define KIB UINT64_C(1024)
#define MIB (1024 * KIB)
#define S   UINT64_C(1000000000)
/* Of the largest message, and on the line: an eighth more, for the heads of frames. */
#define MESSAGE (1000 * KIB)
#define WHOLE   (1125 * KIB)
/* For messages given up: eight whole ones of 16 MiB, at least 128 MiB, at most 512. For those that
 * are coming: 512 MiB. */
#define BUDGET (144 * MIB)
#define AHEAD  (512 * MIB)

static mr_connection_account create(uint64_t message_bytes)
{
    mr_connection_account account;
    mr_connection_account_init(&account, message_bytes, 1024);
    return account;
}

/* What it is seen to have sent in all, three times in a row; no time passes. */
static bool floods(mr_connection_account *account, uint64_t sent_bytes)
{
    (void)mr_connection_account_look(account, sent_bytes, S);
    (void)mr_connection_account_look(account, sent_bytes, S);
    return mr_connection_account_look(account, sent_bytes, S);
}

/* 256 KiB without a call, 8 KiB for each call, 256 bytes for each answer. */
static void test_account_lets_send_what_calls_need(void **state)
{
    (void)state;
    mr_connection_account account = create(MESSAGE);
    assert_false(floods(&account, 256 * KIB));
    assert_true(floods(&account, 256 * KIB + 1));
    /* A look or two beyond it is no flood: what came may be a call that is not seen yet. */
    account = create(MESSAGE);
    assert_false(mr_connection_account_look(&account, 300 * KIB, S));
    assert_false(mr_connection_account_look(&account, 300 * KIB, S));
    for (int i = 0; i < 4; i++) {
        mr_connection_account_call(&account);
    }
    for (int i = 0; i < 48; i++) {
        mr_connection_account_answer(&account);
    }
    assert_false(floods(&account, 300 * KIB)); /* 256 + 4 × 8 + 12 */
    assert_true(floods(&account, 300 * KIB + 1));
}

/* An eighth more than the metadata that a call may have. */
static void test_account_lets_calls_have_the_metadata_they_may(void **state)
{
    (void)state;
    mr_connection_account account;
    mr_connection_account_init(&account, MESSAGE, 32 * KIB);
    mr_connection_account_call(&account);
    assert_false(floods(&account, (256 + 36) * KIB));
    assert_true(floods(&account, (256 + 36) * KIB + 1));
}

static void test_account_lets_requests_of_full_size_come(void **state)
{
    (void)state;
    mr_connection_account account = create(MESSAGE);
    mr_connection_account_call(&account);
    mr_connection_account_await(&account);
    assert_false(floods(&account, 264 * KIB + WHOLE));
    mr_connection_account_whole(&account, MESSAGE, 264 * KIB + WHOLE);
    assert_false(floods(&account, 264 * KIB + WHOLE));
    /* More than the whole, before it is in. */
    account = create(MESSAGE);
    mr_connection_account_call(&account);
    mr_connection_account_await(&account);
    assert_true(floods(&account, 264 * KIB + WHOLE + 1));
}

/* Nothing was sent for them: what comes later is not theirs. */
static void test_account_messages_that_never_came_earn_nothing(void **state)
{
    (void)state;
    mr_connection_account account = create(16 * MIB);
    uint64_t sent = 256 * KIB;
    assert_false(floods(&account, sent));
    for (int i = 0; i < 1000; i++) {
        mr_connection_account_await(&account);
        mr_connection_account_give_up(&account);
    }
    /* All of them together: the budget, which many whole messages would exceed. */
    sent += BUDGET;
    assert_false(floods(&account, sent));
    assert_true(floods(&account, sent + 1));
}

/* A thousand that are open and do not come: so much is sent ahead, once, for all of them. */
static void test_account_messages_that_do_not_come_share_what_is_ahead(void **state)
{
    (void)state;
    mr_connection_account account = create(16 * MIB);
    for (int i = 0; i < 1000; i++) {
        mr_connection_account_await(&account);
    }
    assert_false(floods(&account, 256 * KIB + AHEAD));
    assert_true(floods(&account, 256 * KIB + AHEAD + 1));
    /* A message may be larger than that. */
    account = create(640 * MIB);
    mr_connection_account_await(&account);
    assert_false(floods(&account, 256 * KIB + 720 * MIB));
    assert_true(floods(&account, 256 * KIB + 720 * MIB + 1));
    /* Given up, all of it comes out of the budget. */
    account = create(16 * MIB);
    for (int i = 0; i < 1000; i++) {
        mr_connection_account_await(&account);
    }
    assert_false(floods(&account, 256 * KIB + BUDGET + 1));
    for (int i = 0; i < 1000; i++) {
        mr_connection_account_give_up(&account);
    }
    assert_true(floods(&account, 256 * KIB + BUDGET + 1));
}

/* As a proxy sends for many clients at a time. */
static void test_account_uploads_beside_each_other_are_no_flood(void **state)
{
    (void)state;
    mr_connection_account account = create(16 * MIB);
    uint64_t sent = 0;
    for (int i = 0; i < 30; i++) {
        mr_connection_account_await(&account);
    }
    for (int part = 0; part < 15; part++) {
        sent += 30 * MIB; /* one of each */
        assert_false(floods(&account, sent));
    }
    for (int i = 0; i < 30; i++) {
        mr_connection_account_whole(&account, 15 * MIB, sent);
        assert_false(floods(&account, sent));
    }
    assert_int_equal(mr_connection_account_unearned(&account), 0);
}

/* What was on its way when a call was refused, of one who was let in before and of a stranger. */
static void test_account_messages_of_refused_calls_are_no_flood(void **state)
{
    (void)state;
    mr_connection_account account = create(16 * MIB);
    mr_connection_account_refuse(&account, UINT64_MAX);
    assert_false(floods(&account, 256 * KIB + 18 * MIB));
    assert_true(floods(&account, 256 * KIB + 18 * MIB + 1));
    account = create(16 * MIB);
    mr_connection_account_refuse(&account, 256 * KIB);
    assert_false(floods(&account, 512 * KIB));
    assert_true(floods(&account, 512 * KIB + 1));
}

/* An idle connection that pings: 64 bytes a second, up to what it has from the start. */
static void test_account_lets_idle_connections_ping_for_ever(void **state)
{
    (void)state;
    mr_connection_account account = create(MESSAGE);
    uint64_t sent = 256 * KIB;
    for (uint64_t at = 1; at < 1000000; at++) {
        sent += at % 10 == 0 ? 60 : 0; /* with TLS, every ten seconds */
        assert_false(mr_connection_account_look(&account, sent, at * S));
    }
    /* And it has not saved anything up. */
    assert_false(floods(&account, sent + 255 * KIB));
    assert_true(floods(&account, sent + 257 * KIB));
}

/* Large ones that run into their deadline: all that was sent, before and after, is forgiven. */
static void test_account_uploads_that_are_given_up_are_no_flood(void **state)
{
    (void)state;
    mr_connection_account account = create(16 * MIB);
    uint64_t sent = 256 * KIB;
    for (int i = 0; i < 4; i++) {
        mr_connection_account_await(&account);
        sent += 7 * MIB;
        assert_false(floods(&account, sent));
        mr_connection_account_give_up(&account);
        assert_false(floods(&account, sent));
        /* A line that had stalled: the rest comes long after, whatever is looked at meanwhile. */
        for (int look = 0; look < 1000; look++) {
            assert_false(mr_connection_account_look(&account, sent, S));
        }
        sent += 8 * MIB;
        assert_false(floods(&account, sent));
    }
}

/* 8 MiB a second come back, and what came whole. */
static void test_account_budget_grows_by_time_and_by_what_comes(void **state)
{
    (void)state;
    mr_connection_account account = create(16 * MIB);
    mr_connection_account_await(&account);
    for (int i = 0; i < 8; i++) {
        mr_connection_account_await(&account);
        mr_connection_account_give_up(&account);
    }
    uint64_t sent = 256 * KIB + BUDGET;
    mr_connection_account_give_up(&account);
    assert_false(floods(&account, sent));
    assert_int_equal(mr_connection_account_unearned(&account), BUDGET);
    (void)mr_connection_account_look(&account, sent, 11 * S);
    assert_int_equal(mr_connection_account_unearned(&account), BUDGET - 80 * MIB);
    (void)mr_connection_account_look(&account, sent, 100 * S);
    assert_int_equal(mr_connection_account_unearned(&account), 0);

    account = create(16 * MIB);
    mr_connection_account_await(&account);
    mr_connection_account_give_up(&account);
    sent = 256 * KIB + 9 * MIB;
    assert_false(floods(&account, sent));
    assert_int_equal(mr_connection_account_unearned(&account), 9 * MIB);
    mr_connection_account_await(&account);
    sent += 9 * MIB;
    mr_connection_account_whole(&account, 8 * MIB, sent);
    assert_int_equal(mr_connection_account_unearned(&account), 0);
}

/* A message that is larger than what was sent for it was compressed. */
static void test_account_pays_for_no_more_than_was_sent(void **state)
{
    (void)state;
    mr_connection_account account = create(16 * MIB);
    for (int i = 0; i < 100; i++) {
        mr_connection_account_await(&account);
        mr_connection_account_whole(&account, UINT64_MAX, 0);
    }
    assert_false(floods(&account, 256 * KIB));
    assert_true(floods(&account, 256 * KIB + 1));
}

/* Credit is not saved up. */
static void test_account_caps_credit(void **state)
{
    (void)state;
    mr_connection_account account = create(MESSAGE);
    for (int i = 0; i < 1000; i++) {
        mr_connection_account_call(&account);
    }
    for (int i = 0; i < 100; i++) {
        assert_false(floods(&account, 0));
    }
    assert_false(floods(&account, 1024 * KIB));
    assert_true(floods(&account, 1024 * KIB + 1));
}

/* Far over is found at once. */
static void test_account_far_over_is_over_at_once(void **state)
{
    (void)state;
    mr_connection_account account = create(MESSAGE);
    assert_false(mr_connection_account_look(&account, 256 * KIB + 16 * MIB, S));
    account = create(MESSAGE);
    assert_true(mr_connection_account_look(&account, 256 * KIB + 16 * MIB + 1, S));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_account_lets_send_what_calls_need),
        cmocka_unit_test(test_account_lets_calls_have_the_metadata_they_may),
        cmocka_unit_test(test_account_lets_requests_of_full_size_come),
        cmocka_unit_test(test_account_messages_that_never_came_earn_nothing),
        cmocka_unit_test(test_account_messages_that_do_not_come_share_what_is_ahead),
        cmocka_unit_test(test_account_uploads_beside_each_other_are_no_flood),
        cmocka_unit_test(test_account_messages_of_refused_calls_are_no_flood),
        cmocka_unit_test(test_account_lets_idle_connections_ping_for_ever),
        cmocka_unit_test(test_account_uploads_that_are_given_up_are_no_flood),
        cmocka_unit_test(test_account_budget_grows_by_time_and_by_what_comes),
        cmocka_unit_test(test_account_pays_for_no_more_than_was_sent),
        cmocka_unit_test(test_account_caps_credit),
        cmocka_unit_test(test_account_far_over_is_over_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
