/* SPDX-License-Identifier: Apache-2.0 */
/* A redis-server of a test's own, on a socket in a folder that goes with it. */
#ifndef MILLRACE_TESTS_REDIS_SERVER_H
#define MILLRACE_TESTS_REDIS_SERVER_H

#include "cache/redis_link.h"

#include <stdbool.h>
#include <sys/types.h>

typedef struct redis_server {
    char folder[64];
    char socket[96];
    char url[128];
    const char *password; /* NULL: none */
    pid_t pid;            /* 0: not running */
} redis_server;

/* False when there is no redis-server to start. Fails the test when it does not answer. */
bool redis_server_start(redis_server *server, const char *password);
/* SIGKILL, and the same again behind the same socket. */
void redis_server_kill(redis_server *server);
void redis_server_restart(redis_server *server);
/* Kills it and removes the folder. */
void redis_server_end(redis_server *server);

/* Runs one command with up to three arguments and gives its reply as text: integers and strings as
 * they are, "" for nil, an array's elements with a space between. */
const char *redis_server_ask(const redis_server *server, const char *name, const char *first,
                             const char *second, const char *third);

/* How long a test waits for what must come: so many turns, with redis_server_pause(5) between. */
#define REDIS_SERVER_TURNS 2000
void redis_server_pause(long ms);
/* Both fail the test when it does not come. */
void redis_server_wait_reply(const redis_server *server, const char *wanted, const char *name,
                             const char *first);
void redis_server_wait_available(mr_redis_link *link, bool wanted);

#endif
