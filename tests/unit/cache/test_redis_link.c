/* SPDX-License-Identifier: Apache-2.0 */
/* Against a redis-server of its own; skipped where there is none. */
#include "base/clock.h"
#include "cache/redis_link.h"
#include "redis_server.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <hiredis.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct bench {
    redis_server server;
    mr_redis_link *link;
} bench;

/* False: skip. */
static bool open_bench(bench *b, const char *password)
{
    if (!redis_server_start(&b->server, password)) {
        return false;
    }
    mr_redis_url url;
    assert_int_equal(mr_redis_url_parse(b->server.url, &url, NULL), MR_OK);
    assert_int_equal(mr_redis_link_create(&url, &b->link, NULL), MR_OK);
    return true;
}

static void close_bench(bench *b)
{
    mr_redis_link_destroy(b->link);
    redis_server_end(&b->server);
}

/* A command that remembers its end. */
typedef struct probe {
    mr_redis_command command; /* first */
    uint32_t replies;
    uint32_t ends;
    mr_status status;
    char text[256]; /* of the last reply */
} probe;

static pthread_mutex_t probe_mutex = PTHREAD_MUTEX_INITIALIZER;

static void on_reply(mr_redis_command *command, uint32_t index, const redisReply *reply)
{
    probe *p = (probe *)command;
    pthread_mutex_lock(&probe_mutex);
    assert_int_equal(index, p->replies);
    p->replies++;
    if (reply->type == REDIS_REPLY_INTEGER) {
        snprintf(p->text, sizeof(p->text), "%lld", reply->integer);
    } else if (reply->str != NULL) {
        snprintf(p->text, sizeof(p->text), "%s", reply->str);
    }
    pthread_mutex_unlock(&probe_mutex);
}

static void on_done(mr_redis_command *command, mr_status status)
{
    probe *p = (probe *)command;
    pthread_mutex_lock(&probe_mutex);
    p->status = status;
    p->ends++;
    pthread_mutex_unlock(&probe_mutex);
}

static void fill(probe *p, const char *name, const char *argument, uint64_t timeout_ms)
{
    *p = (probe){.command = {.timeout_ns = timeout_ms * MR_NS_PER_MS,
                             .on_reply = on_reply,
                             .on_done = on_done}};
    const mr_redis_arg args[] = {mr_redis_text(name), mr_redis_text(argument)};
    assert_int_equal(mr_redis_command_add(&p->command, args, 2), MR_OK);
}

static uint32_t ends_of(probe *p)
{
    pthread_mutex_lock(&probe_mutex);
    const uint32_t ends = p->ends;
    pthread_mutex_unlock(&probe_mutex);
    return ends;
}

/* Waits for the end, which may not come twice. */
static void assert_ends(probe *p, mr_status status)
{
    for (int turn = 0; turn < REDIS_SERVER_TURNS && ends_of(p) == 0; turn++) {
        redis_server_pause(5);
    }
    assert_int_equal(ends_of(p), 1);
    assert_int_equal(p->status, status);
    mr_redis_command_deinit(&p->command);
}

static void test_redis_link_pipelines_in_order(void **state)
{
    (void)state;
    bench b;
    if (!open_bench(&b, NULL)) {
        skip();
    }
    assert_int_equal(mr_redis_link_start(b.link, NULL), MR_OK);
    redis_server_wait_available(b.link, true);
    enum { N = 1000 };
    probe *probes = calloc(N, sizeof(*probes));
    assert_non_null(probes);
    for (int i = 0; i < N; i++) {
        fill(&probes[i], "INCR", "counter", 10000);
        assert_true(mr_redis_link_submit(b.link, &probes[i].command));
    }
    for (int i = 0; i < N; i++) {
        char wanted[16];
        assert_ends(&probes[i], MR_OK);
        snprintf(wanted, sizeof(wanted), "%d", i + 1);
        assert_string_equal(probes[i].text, wanted);
    }
    mr_redis_link_stats stats;
    mr_redis_link_stats_get(b.link, &stats);
    assert_true(stats.connected && stats.available);
    assert_int_equal(stats.sent, N);
    assert_int_equal(stats.errors, 0);
    assert_int_equal(stats.connects, 1);
    free(probes);
    close_bench(&b);
}

static void test_redis_link_one_command_of_many_replies(void **state)
{
    (void)state;
    bench b;
    if (!open_bench(&b, NULL)) {
        skip();
    }
    assert_int_equal(mr_redis_link_start(b.link, NULL), MR_OK);
    redis_server_wait_available(b.link, true);
    probe p;
    fill(&p, "INCR", "a", 10000);
    for (int i = 0; i < 99; i++) {
        const mr_redis_arg args[] = {mr_redis_text("INCR"), mr_redis_text("a")};
        assert_int_equal(mr_redis_command_add(&p.command, args, 2), MR_OK);
    }
    assert_true(mr_redis_link_submit(b.link, &p.command));
    assert_ends(&p, MR_OK);
    assert_int_equal(p.replies, 100);
    assert_string_equal(p.text, "100");
    close_bench(&b);
}

static void test_redis_link_error_replies_are_replies(void **state)
{
    (void)state;
    bench b;
    if (!open_bench(&b, NULL)) {
        skip();
    }
    assert_int_equal(mr_redis_link_start(b.link, NULL), MR_OK);
    redis_server_wait_available(b.link, true);
    probe p;
    fill(&p, "NOSUCH", "x", 10000);
    assert_true(mr_redis_link_submit(b.link, &p.command));
    assert_ends(&p, MR_OK);
    assert_non_null(strstr(p.text, "unknown command"));
    mr_redis_link_stats stats;
    mr_redis_link_stats_get(b.link, &stats);
    assert_int_equal(stats.errors, 1);
    close_bench(&b);
}

static void test_redis_link_logs_in(void **state)
{
    (void)state;
    bench b;
    if (!open_bench(&b, "s3cret")) {
        skip();
    }
    assert_int_equal(mr_redis_link_start(b.link, NULL), MR_OK);
    redis_server_wait_available(b.link, true);
    mr_redis_link_destroy(b.link);
    /* With a wrong password it goes on without, and tries again. */
    mr_redis_url url;
    assert_int_equal(mr_redis_url_parse(b.server.url, &url, NULL), MR_OK);
    strcpy(url.password, "wrong");
    assert_int_equal(mr_redis_link_create(&url, &b.link, NULL), MR_OK);
    assert_int_equal(mr_redis_link_start(b.link, NULL), MR_OK);
    redis_server_pause(100);
    assert_false(mr_redis_link_available(b.link));
    close_bench(&b);
}

static void test_redis_link_takes_nothing_while_down(void **state)
{
    (void)state;
    bench b;
    if (!open_bench(&b, NULL)) {
        skip();
    }
    redis_server_kill(&b.server);
    assert_int_equal(mr_redis_link_start(b.link, NULL), MR_OK);
    probe p;
    fill(&p, "GET", "a", 10000);
    assert_false(mr_redis_link_submit(b.link, &p.command));
    assert_int_equal(ends_of(&p), 0);
    mr_redis_command_deinit(&p.command);
    redis_server_restart(&b.server);
    redis_server_wait_available(b.link, true);
    close_bench(&b);
}

/* What was on its way when Redis died ends with an error, each exactly once. */
static void test_redis_link_disconnect_ends_all_once_E5(void **state)
{
    (void)state;
    bench b;
    if (!open_bench(&b, NULL)) {
        skip();
    }
    assert_int_equal(mr_redis_link_start(b.link, NULL), MR_OK);
    redis_server_wait_available(b.link, true);
    enum { N = 600 }; /* more than the window */
    probe *probes = calloc(N, sizeof(*probes));
    assert_non_null(probes);
    redis_server_ask(&b.server, "CLIENT", "PAUSE", "60000", NULL);
    for (int i = 0; i < N; i++) {
        fill(&probes[i], "INCR", "counter", 60000);
        assert_true(mr_redis_link_submit(b.link, &probes[i].command));
    }
    redis_server_kill(&b.server);
    for (int i = 0; i < N; i++) {
        assert_ends(&probes[i], MR_UNAVAILABLE);
    }
    redis_server_wait_available(b.link, false);
    redis_server_restart(&b.server);
    redis_server_wait_available(b.link, true);
    for (int i = 0; i < N; i++) {
        assert_int_equal(probes[i].ends, 1);
    }
    probe p;
    fill(&p, "INCR", "counter", 10000);
    assert_true(mr_redis_link_submit(b.link, &p.command));
    assert_ends(&p, MR_OK);
    assert_string_equal(p.text, "1"); /* nothing was sent again */
    free(probes);
    close_bench(&b);
}

/* Redis stands still: commands run out of time, the circuit opens, and closes once Redis answers.
 */
static void test_redis_link_stalled_E3_E5(void **state)
{
    (void)state;
    bench b;
    if (!open_bench(&b, NULL)) {
        skip();
    }
    assert_int_equal(mr_redis_link_start(b.link, NULL), MR_OK);
    redis_server_wait_available(b.link, true);
    redis_server_ask(&b.server, "CLIENT", "PAUSE", "400", NULL);
    probe probes[3];
    for (int i = 0; i < 3; i++) {
        fill(&probes[i], "INCR", "counter", 20);
        assert_true(mr_redis_link_submit(b.link, &probes[i].command));
    }
    for (int i = 0; i < 3; i++) {
        assert_ends(&probes[i], MR_DEADLINE_EXCEEDED);
        assert_int_equal(probes[i].replies, 0);
    }
    redis_server_wait_available(b.link, false);
    mr_redis_link_stats stats;
    mr_redis_link_stats_get(b.link, &stats);
    assert_true(stats.connected);
    redis_server_wait_available(b.link, true);
    mr_redis_link_stats_get(b.link, &stats);
    assert_int_equal(stats.connects, 1); /* the same connection, its late replies dropped */
    probe p;
    fill(&p, "INCR", "counter", 10000);
    assert_true(mr_redis_link_submit(b.link, &p.command));
    assert_ends(&p, MR_OK);
    assert_string_equal(p.text, "4");
    for (int i = 0; i < 3; i++) { /* nor have they ended a second time (E5) */
        assert_int_equal(ends_of(&probes[i]), 1);
        assert_int_equal(probes[i].replies, 0);
    }
    close_bench(&b);
}

/* A second without an answer: the connection is given up, a new one made. */
static void test_redis_link_silent_connection_is_given_up(void **state)
{
    (void)state;
    bench b;
    if (!open_bench(&b, NULL)) {
        skip();
    }
    assert_int_equal(mr_redis_link_start(b.link, NULL), MR_OK);
    redis_server_wait_available(b.link, true);
    redis_server_ask(&b.server, "CLIENT", "PAUSE", "1500", NULL);
    probe p;
    fill(&p, "GET", "a", 60000);
    assert_true(mr_redis_link_submit(b.link, &p.command));
    assert_ends(&p, MR_UNAVAILABLE);
    redis_server_wait_available(b.link, true);
    mr_redis_link_stats stats;
    mr_redis_link_stats_get(b.link, &stats);
    assert_int_equal(stats.connects, 2);
    close_bench(&b);
}

static const mr_redis_script add_script = {
    .name = "add",
    /* printf 'return redis.call("INCRBY", KEYS[1], ARGV[1])' | sha1sum */
    .sha1 = "7d6a962aa4923dd6a700f73ce6ad148d2fc16ec9",
    .body = "return redis.call(\"INCRBY\", KEYS[1], ARGV[1])",
};

static void evaluate(mr_redis_link *link, probe *p, const mr_redis_script *script)
{
    *p = (probe){
        .command = {.timeout_ns = 10 * MR_NS_PER_S, .on_reply = on_reply, .on_done = on_done}};
    const mr_redis_arg args[] = {mr_redis_text("sum"), mr_redis_text("5")};
    assert_int_equal(mr_redis_command_eval(&p->command, script, 1, args, 2), MR_OK);
    assert_true(mr_redis_link_submit(link, &p->command));
}

/* The name that `link` has leads to `server` from now on. */
static void lead_to(const redis_server *server, const char *name)
{
    (void)unlink(name);
    assert_int_equal(symlink(server->socket, name), 0);
}

static void set(mr_redis_link *link, const char *wanted)
{
    probe p;
    fill(&p, "INCR", "written", 10000);
    assert_true(mr_redis_link_submit(link, &p.command));
    assert_ends(&p, MR_OK);
    if (strncmp(p.text, wanted, strlen(wanted)) != 0) {
        fail_msg("\"%s\" for \"%s\"", p.text, wanted);
    }
}

/* A failover: the old primary goes on as a replica, which keeps its connections and takes no
 * writes. The name is looked up anew until it leads to one that does. */
static void test_redis_link_leaves_a_primary_that_became_a_replica(void **state)
{
    (void)state;
    redis_server old;
    redis_server next;
    if (!redis_server_start(&old, NULL)) {
        skip();
    }
    assert_true(redis_server_start(&next, NULL));
    char name[80];
    mr_redis_url url;
    mr_redis_link *link = NULL;
    snprintf(name, sizeof(name), "%s/name", old.folder);
    lead_to(&old, name);
    char text[100];
    snprintf(text, sizeof(text), "unix://%s", name);
    assert_int_equal(mr_redis_url_parse(text, &url, NULL), MR_OK);
    assert_int_equal(mr_redis_link_create(&url, &link, NULL), MR_OK);
    assert_int_equal(mr_redis_link_start(link, NULL), MR_OK);
    redis_server_wait_available(link, true);
    set(link, "1");
    (void)redis_server_ask(&old, "REPLICAOF", "127.0.0.1", "1", NULL);
    set(link, "READONLY");
    redis_server_wait_available(link, false);
    redis_server_pause(100); /* it is asked again meanwhile, and is a replica still */
    assert_false(mr_redis_link_available(link));
    lead_to(&next, name);
    redis_server_wait_available(link, true);
    set(link, "1");
    assert_string_equal(redis_server_ask(&next, "GET", "written", NULL, NULL), "1");
    mr_redis_link_destroy(link);
    (void)unlink(name);
    redis_server_end(&next);
    redis_server_end(&old);
}

/* Who may not ask for the role is let be: a replica is found out by its first refusal. */
static void test_redis_link_does_without_the_role(void **state)
{
    (void)state;
    bench b;
    if (!open_bench(&b, NULL)) {
        skip();
    }
    (void)redis_server_ask(&b.server, "ACL", "SETUSER", "default", "-role");
    assert_string_equal(redis_server_ask(&b.server, "ACL", "DRYRUN", "default", "role"),
                        "This user has no permissions to run the 'role' command");
    assert_int_equal(mr_redis_link_start(b.link, NULL), MR_OK);
    redis_server_wait_available(b.link, true);
    set(b.link, "1");
    close_bench(&b);
}

static void test_redis_link_loads_scripts_once_E5(void **state)
{
    (void)state;
    bench b;
    if (!open_bench(&b, NULL)) {
        skip();
    }
    assert_int_equal(mr_redis_link_start(b.link, NULL), MR_OK);
    redis_server_wait_available(b.link, true);
    probe p;
    evaluate(b.link, &p, &add_script);
    assert_ends(&p, MR_OK);
    assert_int_equal(p.replies, 1);
    assert_string_equal(p.text, "5");
    evaluate(b.link, &p, &add_script);
    assert_ends(&p, MR_OK);
    assert_string_equal(p.text, "10");
    redis_server_ask(&b.server, "SCRIPT", "FLUSH", NULL, NULL);
    evaluate(b.link, &p, &add_script);
    assert_ends(&p, MR_OK);
    assert_string_equal(p.text, "15");
    /* A script whose digest is not its body's is unknown the second time too: an error, no loop. */
    const mr_redis_script wrong = {.name = "wrong",
                                   .sha1 = "0123456789012345678901234567890123456789",
                                   .body = add_script.body};
    evaluate(b.link, &p, &wrong);
    assert_ends(&p, MR_OK);
    assert_int_equal(p.replies, 1);
    assert_non_null(strstr(p.text, "NOSCRIPT"));
    close_bench(&b);
}

static void test_redis_link_bounds_what_waits(void **state)
{
    (void)state;
    bench b;
    if (!open_bench(&b, NULL)) {
        skip();
    }
    assert_int_equal(mr_redis_link_start(b.link, NULL), MR_OK);
    redis_server_wait_available(b.link, true);
    redis_server_ask(&b.server, "CLIENT", "PAUSE", "60000", NULL);
    enum { N = 8192 };
    probe *probes = calloc(N, sizeof(*probes));
    assert_non_null(probes);
    uint32_t taken = 0;
    while (taken < N) {
        fill(&probes[taken], "GET", "a", 60000);
        if (!mr_redis_link_submit(b.link, &probes[taken].command)) {
            mr_redis_command_deinit(&probes[taken].command);
            break;
        }
        taken++;
    }
    assert_true(taken >= 4096 && taken < N);
    mr_redis_link_destroy(b.link);
    for (uint32_t i = 0; i < taken; i++) {
        assert_ends(&probes[i], MR_UNAVAILABLE);
    }
    free(probes);
    redis_server_end(&b.server);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_redis_link_pipelines_in_order),
        cmocka_unit_test(test_redis_link_one_command_of_many_replies),
        cmocka_unit_test(test_redis_link_error_replies_are_replies),
        cmocka_unit_test(test_redis_link_logs_in),
        cmocka_unit_test(test_redis_link_takes_nothing_while_down),
        cmocka_unit_test(test_redis_link_disconnect_ends_all_once_E5),
        cmocka_unit_test(test_redis_link_stalled_E3_E5),
        cmocka_unit_test(test_redis_link_silent_connection_is_given_up),
        cmocka_unit_test(test_redis_link_leaves_a_primary_that_became_a_replica),
        cmocka_unit_test(test_redis_link_does_without_the_role),
        cmocka_unit_test(test_redis_link_loads_scripts_once_E5),
        cmocka_unit_test(test_redis_link_bounds_what_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
