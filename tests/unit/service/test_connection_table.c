/* SPDX-License-Identifier: Apache-2.0 */
#include "service/connection_table.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define KIB INT64_C(1024)
#define S   UINT64_C(1000000000)

static const mr_connection_limits LIMITS = {.connections = 3,
                                            .connection_calls = 4,
                                            .calls = 6,
                                            .message_bytes = 1000 * 1024,
                                            .penalty_ns = S};

static mr_connection_table *create(void)
{
    mr_connection_table *table = NULL;
    assert_int_equal(mr_connection_table_create(&LIMITS, &table, NULL), MR_OK);
    return table;
}

static mr_connection fresh(uint16_t port, uint64_t accepted_ns)
{
    char name[32];
    mr_connection connection = {.fd = port, .accepted_ns = accepted_ns};
    snprintf(name, sizeof(name), "ipv4:127.0.0.1:%u", (unsigned)port);
    assert_true(mr_remote_parse(name, &connection.peer));
    return connection;
}

static mr_connection_id admit(mr_connection_table *table, uint16_t port, uint64_t accepted_ns)
{
    mr_connection evicted;
    const mr_connection connection = fresh(port, accepted_ns);
    const mr_connection_id id = mr_connection_table_admit(table, &connection, &evicted);
    assert_int_equal(evicted.serial, 0);
    return id;
}

static mr_connection_id admit_from(mr_connection_table *table, const char *peer)
{
    mr_connection evicted;
    mr_connection connection = {.fd = 1, .accepted_ns = 1};
    assert_true(mr_remote_parse(peer, &connection.peer));
    return mr_connection_table_admit(table, &connection, &evicted);
}

static mr_call_fit begin(mr_connection_table *table, mr_connection_id id, bool open)
{
    return mr_connection_table_begin_call(table, id, open).fit;
}

static bool end(mr_connection_table *table, mr_connection_id id, mr_call_fit fit, bool strike,
                uint64_t now_ns)
{
    const mr_call_ticket ticket = {.fit = fit};
    return mr_connection_table_end_call(table, id, &ticket, strike, now_ns);
}

static void test_connection_table_reads_the_names_of_peers(void **state)
{
    (void)state;
    static const uint8_t v4[16] = {[10] = 0xff, 0xff, 10, 1, 2, 3};
    static const uint8_t v6[16] = {0xfe, 0x80, [15] = 1};
    mr_remote peer;
    assert_true(mr_remote_parse("ipv4:10.1.2.3:65535", &peer));
    assert_memory_equal(peer.address, v4, 16);
    assert_int_equal(peer.port, 65535);
    assert_true(mr_remote_parse("ipv6:%5Bfe80::1%5D:80", &peer));
    assert_memory_equal(peer.address, v6, 16);
    assert_true(mr_remote_parse("ipv6:%5Bfe80::1%25eth0%5D:80", &peer));
    assert_memory_equal(peer.address, v6, 16);
    const char *bad[] = {"",
                         "ipv4:",
                         "unix:",
                         "unix:/run/a",
                         "ipv4:10.1.2.3",
                         "ipv4:10.1.2.3:",
                         "ipv4:10.1.2.3:65536",
                         "ipv4:10.1.2.3:-1",
                         "ipv4:10.1.2:80",
                         "ipv6:%5B%5D:80",
                         "ipv6:::1:80",
                         "ipv6:%5B",
                         "ipv6:%5B:1",
                         "ipv6:%5D:1",
                         "ipv4:1111111111111111111111111111111111111111111111111111111:80"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_false(mr_remote_parse(bad[i], &peer));
    }
}

static void test_connection_table_finds_by_peer_until_it_is_gone(void **state)
{
    (void)state;
    mr_connection_table *table = create();
    const mr_connection_id a = admit(table, 1, 1);
    const mr_connection_id b = admit(table, 2, 1);
    const mr_connection probe = fresh(2, 0);
    assert_int_equal(mr_connection_table_find(table, &probe.peer).serial, b.serial);
    mr_connection_table_remove(table, b);
    assert_int_equal(mr_connection_table_find(table, &probe.peer).serial, 0);
    assert_null(mr_connection_table_get(table, b));
    /* Its place is another's; the old id does nothing to that. */
    const mr_connection_id c = admit(table, 3, 1);
    assert_int_equal(c.index, b.index);
    mr_connection_table_remove(table, b);
    assert_non_null(mr_connection_table_get(table, c));
    assert_int_equal(mr_connection_table_count(table), 2);
    uint32_t index = 0;
    assert_int_equal(mr_connection_table_next(table, &index)->serial, a.serial);
    assert_int_equal(mr_connection_table_next(table, &index)->serial, c.serial);
    assert_null(mr_connection_table_next(table, &index));
    mr_connection_table_destroy(table);
}

/* The oldest that never made a call goes; those with calls stay, and then none is let in. */
static void test_connection_table_makes_room_among_those_without_calls(void **state)
{
    (void)state;
    mr_connection_table *table = create();
    const mr_connection_id worker = admit(table, 1, 1);
    assert_int_equal(begin(table, worker, false), MR_CALL_FITS);
    mr_connection_table_await(table, worker);
    assert_false(end(table, worker, MR_CALL_FITS, false, 1));
    (void)admit(table, 2, 3);
    (void)admit(table, 3, 2);
    mr_connection evicted;
    mr_connection connection = fresh(4, 4);
    assert_int_not_equal(mr_connection_table_admit(table, &connection, &evicted).serial, 0);
    assert_int_equal(evicted.fd, 3);
    connection = fresh(5, 5);
    assert_int_not_equal(mr_connection_table_admit(table, &connection, &evicted).serial, 0);
    assert_int_equal(evicted.fd, 2);
    assert_int_equal(mr_connection_table_count(table), 3);
    uint32_t index = 0;
    for (mr_connection *item = mr_connection_table_next(table, &index); item != NULL;
         item = mr_connection_table_next(table, &index)) {
        item->proven = true;
    }
    connection = fresh(6, 6);
    assert_int_equal(mr_connection_table_admit(table, &connection, &evicted).serial, 0);
    assert_int_equal(evicted.serial, 0);
    mr_connection_table_destroy(table);
}

/* Calls that need no credential make nobody stay, once those without a call are gone. */
static void test_connection_table_strangers_with_calls_give_way_last(void **state)
{
    (void)state;
    mr_connection_table *table = create();
    const mr_connection_id watcher = admit(table, 1, 1);
    assert_int_equal(begin(table, watcher, true), MR_CALL_FITS_OPEN);
    (void)admit(table, 2, 2);
    const mr_connection_id caller = admit(table, 3, 3);
    mr_connection_table_await(table, caller);
    mr_connection evicted;
    mr_connection connection = fresh(4, 4);
    const mr_connection_id idle = mr_connection_table_admit(table, &connection, &evicted);
    assert_int_equal(evicted.fd, 2);
    mr_connection_table_await(table, idle);
    connection = fresh(5, 5);
    assert_int_not_equal(mr_connection_table_admit(table, &connection, &evicted).serial, 0);
    assert_int_equal(evicted.fd, 1);
    assert_false(end(table, watcher, MR_CALL_FITS_OPEN, false, 5));
    mr_connection_table_destroy(table);
}

/* They have an eighth of limits.calls and two more, half of that a connection, and take none of
 * those that show a credential. The address with the most makes room for others. */
static void test_connection_table_open_calls_have_places_of_their_own(void **state)
{
    (void)state;
    const mr_connection_limits limits = {.connections = 4, .connection_calls = 100, .calls = 16};
    mr_connection_table *table = NULL;
    assert_int_equal(mr_connection_table_create(&limits, &table, NULL), MR_OK);
    const mr_connection_id a = admit(table, 1, 1);
    const mr_connection_id b = admit(table, 2, 1);
    const mr_connection_id c = admit(table, 3, 1);
    const mr_connection_id far = admit_from(table, "ipv4:10.0.0.1:1");
    mr_call_ticket tickets[4];
    for (int i = 0; i < 4; i++) {
        tickets[i] = mr_connection_table_begin_call(table, i % 2 == 0 ? a : b, true);
        assert_int_equal(tickets[i].fit, MR_CALL_FITS_OPEN);
    }
    assert_int_equal(begin(table, a, true), MR_CALL_CONNECTION_FULL);
    const mr_call_ticket probe = mr_connection_table_begin_call(table, far, true);
    assert_int_equal(probe.fit, MR_CALL_FITS_OPEN);
    assert_false(mr_connection_table_holds(table, &tickets[0]));
    /* The same address again: its own next, not the probe's. */
    const mr_call_ticket again = mr_connection_table_begin_call(table, c, true);
    assert_int_equal(again.fit, MR_CALL_FITS_OPEN);
    assert_false(mr_connection_table_holds(table, &tickets[1]));
    assert_true(mr_connection_table_holds(table, &tickets[2]));
    assert_true(mr_connection_table_holds(table, &probe));
    for (int i = 0; i < 16; i++) {
        assert_int_equal(begin(table, c, false), MR_CALL_FITS);
    }
    const mr_call_ticket full = mr_connection_table_begin_call(table, c, false);
    assert_int_equal(full.fit, MR_CALL_SERVER_FULL);
    assert_true(mr_connection_table_holds(table, &full)); /* it never had one to lose */
    /* The end of one that lost its place takes nobody else's. */
    assert_false(mr_connection_table_end_call(table, a, &tickets[0], false, 1));
    assert_true(mr_connection_table_holds(table, &probe));
    assert_false(mr_connection_table_end_call(table, far, &probe, false, 1));
    assert_false(mr_connection_table_holds(table, &probe));
    assert_int_equal(begin(table, a, true), MR_CALL_FITS_OPEN);
    assert_true(mr_connection_table_holds(table, &again));
    mr_connection_table_destroy(table);
}

/* A source port that is used again at once is the new connection's. */
static void test_connection_table_finds_the_newest_of_an_address(void **state)
{
    (void)state;
    mr_connection_table *table = create();
    mr_connection evicted;
    mr_connection connection = fresh(1, 1);
    (void)mr_connection_table_admit(table, &connection, &evicted);
    connection.accepted_ns = 2;
    const mr_connection_id later = mr_connection_table_admit(table, &connection, &evicted);
    const mr_connection_id found = mr_connection_table_find(table, &connection.peer);
    assert_int_equal(found.serial, later.serial);
    mr_connection_table_destroy(table);
}

static void test_connection_table_counts_calls_of_one_and_of_all(void **state)
{
    (void)state;
    mr_connection_table *table = create();
    const mr_connection_id a = admit(table, 1, 1);
    const mr_connection_id b = admit(table, 2, 1);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(begin(table, a, false), MR_CALL_FITS);
    }
    assert_int_equal(begin(table, a, false), MR_CALL_CONNECTION_FULL);
    /* The one that was too many for its connection takes no place from another's. */
    assert_int_equal(begin(table, b, false), MR_CALL_FITS);
    assert_int_equal(begin(table, (mr_connection_id){0}, false), MR_CALL_FITS);
    assert_int_equal(begin(table, b, false), MR_CALL_SERVER_FULL);
    /* One of a connection that nobody knows counts too. */
    assert_int_equal(begin(table, (mr_connection_id){0}, false), MR_CALL_SERVER_FULL);
    (void)end(table, b, MR_CALL_SERVER_FULL, true, 1);
    (void)end(table, a, MR_CALL_CONNECTION_FULL, true, 1);
    assert_int_equal(begin(table, b, false), MR_CALL_SERVER_FULL);
    (void)end(table, (mr_connection_id){0}, MR_CALL_FITS, true, 1);
    assert_int_equal(begin(table, b, false), MR_CALL_FITS);
    mr_connection_table_destroy(table);
}

static bool strike(mr_connection_table *table, mr_connection_id id, uint64_t now_ns)
{
    const mr_call_fit fit = begin(table, id, false);
    return end(table, id, fit, true, now_ns);
}

static void test_connection_table_counts_strikes_in_ten_seconds(void **state)
{
    (void)state;
    mr_connection_table *table = create();
    const mr_connection_id id = admit(table, 1, 1);
    for (uint64_t i = 0; i < 4; i++) {
        assert_false(strike(table, id, 100 * S + i));
    }
    /* Others' calls that end well are none, and after ten seconds they are forgotten. */
    (void)begin(table, id, false);
    assert_false(end(table, id, MR_CALL_FITS, false, 101 * S));
    for (uint64_t i = 0; i < 4; i++) {
        assert_false(strike(table, id, 111 * S));
    }
    assert_true(strike(table, id, 112 * S));
    mr_connection_table_get(table, id)->closing = true;
    assert_false(strike(table, id, 112 * S));
    mr_connection_table_destroy(table);
}

/* A whole second without new connections; others do not notice, and the old ones stay. */
static void test_connection_table_punishes_addresses_for_a_while(void **state)
{
    (void)state;
    mr_connection_table *table = create();
    const mr_connection_id id = admit(table, 1, 1);
    mr_remote other;
    assert_true(mr_remote_parse("ipv4:127.0.0.2:1", &other));
    const mr_remote peer = fresh(7, 0).peer; /* the port does not matter */
    assert_false(mr_connection_table_is_punished(table, &peer, 50 * S));
    mr_connection_table_punish(table, &mr_connection_table_get(table, id)->peer, 50 * S);
    assert_true(mr_connection_table_is_punished(table, &peer, 51 * S - 1));
    assert_false(mr_connection_table_is_punished(table, &peer, 51 * S));
    assert_false(mr_connection_table_is_punished(table, &other, 50 * S));
    mr_connection_table_destroy(table);
}

static mr_remote remote(const char *peer)
{
    mr_remote out;
    assert_true(mr_remote_parse(peer, &out));
    return out;
}

/* A host of IPv6 has a network of 64 bits to itself; of IPv4 it has an address. */
static void test_connection_table_punishes_networks_of_ipv6(void **state)
{
    (void)state;
    mr_connection_table *table = create();
    const mr_remote host = remote("ipv6:%5B2001:db8:0:1::a%5D:1");
    const mr_remote neighbour = remote("ipv6:%5B2001:db8:0:1:ffff:ffff:ffff:ffff%5D:2");
    const mr_remote other = remote("ipv6:%5B2001:db8:0:2::a%5D:1");
    mr_connection_table_punish(table, &host, 50 * S);
    assert_true(mr_connection_table_is_punished(table, &neighbour, 50 * S));
    assert_false(mr_connection_table_is_punished(table, &other, 50 * S));
    const mr_remote v4 = remote("ipv4:192.0.2.1:1");
    const mr_remote next = remote("ipv4:192.0.2.2:1");
    mr_connection_table_punish(table, &v4, 50 * S);
    assert_true(mr_connection_table_is_punished(table, &v4, 50 * S));
    assert_false(mr_connection_table_is_punished(table, &next, 50 * S));
    mr_connection_table_destroy(table);
}

/* Who always leaves just before it is found out: two budgets, 256 MiB here, that became no message
 * in ten seconds, by as many connections as it likes. */
static void test_connection_table_punishes_what_many_sent_for_nothing(void **state)
{
    (void)state;
    mr_connection_table *table = create();
    const mr_remote peer = fresh(1, 0).peer;
    for (uint16_t port = 1; port <= 3; port++) {
        assert_false(mr_connection_table_is_punished(table, &peer, 100 * S));
        const mr_connection_id id = admit(table, port, 1);
        mr_connection *item = mr_connection_table_get(table, id);
        for (int i = 0; i < 90; i++) {
            mr_connection_table_await(table, id);
        }
        assert_false(mr_connection_account_look(&item->account, (uint64_t)(90 * 1024 * KIB), S));
        mr_connection_table_gone(table, item, 100 * S);
        mr_connection_table_remove(table, id);
    }
    assert_true(mr_connection_table_is_punished(table, &peer, 100 * S));
    mr_connection_table_destroy(table);
}

static void test_connection_table_knows_who_is_idle(void **state)
{
    (void)state;
    mr_connection_table *table = create();
    const mr_connection_id id = admit(table, 1, 10 * S);
    const mr_connection *item = mr_connection_table_get(table, id);
    assert_false(mr_connection_is_idle(item, 2 * S, 12 * S - 1));
    assert_true(mr_connection_is_idle(item, 2 * S, 12 * S));
    assert_int_equal(begin(table, id, false), MR_CALL_FITS);
    assert_int_equal(begin(table, id, false), MR_CALL_FITS);
    assert_false(end(table, id, MR_CALL_FITS, false, 20 * S));
    assert_false(mr_connection_is_idle(item, 2 * S, 30 * S));
    assert_false(end(table, id, MR_CALL_FITS, false, 40 * S));
    assert_false(mr_connection_is_idle(item, 2 * S, 42 * S - 1));
    assert_true(mr_connection_is_idle(item, 2 * S, 42 * S));
    mr_connection_table_destroy(table);
}

static void go_without_calls(mr_connection_table *table, int count, uint64_t now_ns)
{
    for (int i = 0; i < count; i++) {
        const mr_connection connection = fresh((uint16_t)(1000 + i), now_ns);
        mr_connection_table_gone(table, &connection, now_ns);
    }
}

static void test_connection_table_punishes_many_connections_without_calls(void **state)
{
    (void)state;
    mr_connection_table *table = create();
    const mr_remote peer = fresh(1, 0).peer;
    go_without_calls(table, 64, 100 * S);
    /* Those that made calls count for nothing, nor what was more than ten seconds ago. */
    mr_connection good = fresh(1, 0);
    good.proven = true;
    mr_connection_table_gone(table, &good, 100 * S);
    assert_false(mr_connection_table_is_punished(table, &peer, 100 * S));
    go_without_calls(table, 64, 111 * S);
    assert_false(mr_connection_table_is_punished(table, &peer, 111 * S));
    go_without_calls(table, 1, 112 * S);
    assert_true(mr_connection_table_is_punished(table, &peer, 112 * S));
    /* More addresses than are remembered: the one that was heard of last is. */
    for (unsigned i = 0; i < 1000; i++) {
        char name[40];
        mr_remote stranger;
        snprintf(name, sizeof(name), "ipv4:10.0.%u.%u:1", i / 256, i % 256);
        assert_true(mr_remote_parse(name, &stranger));
        mr_connection_table_punish(table, &stranger, 200 * S + i);
        assert_true(mr_connection_table_is_punished(table, &stranger, 200 * S + i));
    }
    assert_false(mr_connection_table_is_punished(table, &peer, 112 * S));
    mr_connection_table_destroy(table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_connection_table_reads_the_names_of_peers),
        cmocka_unit_test(test_connection_table_finds_by_peer_until_it_is_gone),
        cmocka_unit_test(test_connection_table_makes_room_among_those_without_calls),
        cmocka_unit_test(test_connection_table_strangers_with_calls_give_way_last),
        cmocka_unit_test(test_connection_table_open_calls_have_places_of_their_own),
        cmocka_unit_test(test_connection_table_finds_the_newest_of_an_address),
        cmocka_unit_test(test_connection_table_counts_calls_of_one_and_of_all),
        cmocka_unit_test(test_connection_table_counts_strikes_in_ten_seconds),
        cmocka_unit_test(test_connection_table_punishes_addresses_for_a_while),
        cmocka_unit_test(test_connection_table_punishes_many_connections_without_calls),
        cmocka_unit_test(test_connection_table_punishes_networks_of_ipv6),
        cmocka_unit_test(test_connection_table_punishes_what_many_sent_for_nothing),
        cmocka_unit_test(test_connection_table_knows_who_is_idle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
