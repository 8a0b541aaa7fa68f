/* SPDX-License-Identifier: Apache-2.0 */
#include "service/connection_account.h"

#include "base/checked.h"
#include "base/clock.h"

/* What it may send with no call at all: preface, handshake, settings, pings, TLS records. */
#define BASE_CREDIT (INT64_C(256) << 10)
/* Unused, what is beyond this is lost soon. */
#define MOST_CREDIT (INT64_C(1) << 20)
/* Headers and trailers of a call, at least. */
#define CALL_CREDIT (UINT64_C(8) << 10)
/* Window updates, and the answers to pings that measure the line, for one message of ours. */
#define SENT_CREDIT INT64_C(256)
/* Bytes of pings that keep it open while it has no calls, TLS included: ten times what is allowed.
 */
#define PINGS_A_SECOND UINT64_C(64)
/* Looks in a row, since what was sent may be a call that is not seen yet. */
#define OVER_MOST 3
/* So far over that no call explains it: more than a window of HTTP/2 as gRPC opens it. */
#define FAR_OVER (UINT64_C(16) << 20)
/* For messages that are given up: so many of the largest, within bounds. As SETTINGS frames the
 * least costs a second of one thread, and what comes back in a second a thirteenth of one. */
#define BUDGET_MESSAGES UINT64_C(8)
#define LEAST_BUDGET    (UINT64_C(128) << 20)
#define MOST_BUDGET     (UINT64_C(512) << 20)
#define BUDGET_A_SECOND (UINT64_C(8) << 20)
/* For messages that are coming: those of a proxy's many clients. It is there once: what was sent of
 * it for messages that never become whole comes out of the budget. */
#define AHEAD (UINT64_C(512) << 20)
/* Beyond this nothing is counted. */
#define MOST_BYTES ((uint64_t)INT64_MAX / 16)

/* Frames of one byte each would be ten times the message: who sends so is slow by choice. */
static uint64_t on_the_line(uint64_t bytes)
{
    const uint64_t counted = mr_min_u64(bytes, MOST_BYTES);
    return counted + counted / 8;
}

static uint64_t debt_of(const mr_connection_account *account)
{
    return account->credit < 0 ? (uint64_t)-account->credit : 0;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

void mr_connection_account_init(mr_connection_account *account, uint64_t message_bytes,
                                uint64_t header_bytes)
{
    const uint64_t whole = on_the_line(message_bytes);
    const uint64_t some = larger(BUDGET_MESSAGES * whole, LEAST_BUDGET);
    const uint64_t most = larger(whole, mr_min_u64(some, MOST_BUDGET));
    *account = (mr_connection_account){.whole = whole,
                                       .call = larger(on_the_line(header_bytes), CALL_CREDIT),
                                       .most_ahead = larger(whole, AHEAD),
                                       .budget_most = most,
                                       .budget = most,
                                       .credit = BASE_CREDIT};
}

void mr_connection_account_call(mr_connection_account *account)
{
    account->credit += (int64_t)account->call;
}

void mr_connection_account_await(mr_connection_account *account)
{
    account->receiving++;
}

void mr_connection_account_refuse(mr_connection_account *account, uint64_t most_bytes)
{
    const uint64_t more = mr_min_u64(most_bytes, account->whole);
    account->given_up = mr_min_u64(account->given_up + more, account->budget_most);
}

void mr_connection_account_give_up(mr_connection_account *account)
{
    if (account->receiving > 0) {
        account->receiving--;
        mr_connection_account_refuse(account, account->whole);
    }
}

/* Not beyond what it has from the start, so that nothing is saved up. */
static void earn(mr_connection_account *account, uint64_t bytes)
{
    const int64_t room = BASE_CREDIT - account->credit;
    account->credit += room > 0 ? (int64_t)mr_min_u64(bytes, (uint64_t)room) : 0;
}

static void see(mr_connection_account *account, uint64_t sent_bytes)
{
    if (sent_bytes > account->seen_bytes) {
        account->credit -= (int64_t)mr_min_u64(sent_bytes - account->seen_bytes, MOST_BYTES);
        account->seen_bytes = sent_bytes;
    }
}

void mr_connection_account_whole(mr_connection_account *account, uint64_t bytes,
                                 uint64_t sent_bytes)
{
    if (account->receiving == 0) {
        return;
    }
    account->receiving--;
    see(account, sent_bytes);
    const uint64_t debt = debt_of(account);
    const uint64_t earned = on_the_line(bytes);
    earn(account, earned);
    account->budget = mr_min_u64(account->budget + mr_min_u64(earned, debt), account->budget_most);
}

void mr_connection_account_answer(mr_connection_account *account)
{
    account->credit += SENT_CREDIT;
}

static void refill(mr_connection_account *account, uint64_t now_ns)
{
    if (account->looked_ns != 0 && now_ns > account->looked_ns) {
        const uint64_t ms = mr_min_u64((now_ns - account->looked_ns) / MR_NS_PER_MS, 1000);
        earn(account, ms * PINGS_A_SECOND / (MR_NS_PER_S / MR_NS_PER_MS));
        const uint64_t most_ns = (account->budget_most / BUDGET_A_SECOND + 1) * MR_NS_PER_S;
        const uint64_t ns = mr_min_u64(now_ns - account->looked_ns, most_ns);
        const uint64_t more = ns / MR_NS_PER_MS * BUDGET_A_SECOND / (MR_NS_PER_S / MR_NS_PER_MS);
        account->budget = mr_min_u64(account->budget + more, account->budget_most);
    }
    account->looked_ns = now_ns;
}

/* What was sent for messages that were given up, as far as it is not for one that comes yet. */
static void pay_given_up(mr_connection_account *account, uint64_t coming)
{
    const uint64_t debt = debt_of(account);
    const uint64_t owed = debt > coming ? debt - coming : 0;
    const uint64_t paid = mr_min_u64(owed, mr_min_u64(account->given_up, account->budget));
    account->credit += (int64_t)paid;
    account->given_up -= paid;
    account->budget -= paid;
}

bool mr_connection_account_look(mr_connection_account *account, uint64_t sent_bytes,
                                uint64_t now_ns)
{
    see(account, sent_bytes);
    refill(account, now_ns);
    const int64_t surplus = account->credit - MOST_CREDIT;
    account->credit -= surplus > 0 ? surplus / 8 + 1 : 0;
    uint64_t coming = 0;
    if (!mr_mul_u64(account->receiving, account->whole, &coming)) {
        coming = UINT64_MAX;
    }
    coming = mr_min_u64(coming, account->most_ahead);
    pay_given_up(account, coming);
    const uint64_t debt = debt_of(account);
    account->over = debt > coming ? account->over + 1 : 0;
    if (debt > coming && debt - coming > FAR_OVER) {
        account->over = OVER_MOST;
    }
    return account->over >= OVER_MOST;
}

uint64_t mr_connection_account_unearned(const mr_connection_account *account)
{
    return account->budget_most - account->budget + debt_of(account);
}
