/* SPDX-License-Identifier: Apache-2.0 */
#include "redis_server.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <hiredis.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

void redis_server_pause(long ms)
{
    const struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    nanosleep(&pause, NULL);
}

static redisContext *connect_to(const redis_server *server)
{
    redisContext *redis = redisConnectUnix(server->socket);
    if (redis != NULL && redis->err == 0) {
        if (server->password != NULL) {
            freeReplyObject(redisCommand(redis, "AUTH %s", server->password));
        }
        return redis;
    }
    if (redis != NULL) {
        redisFree(redis);
    }
    return NULL;
}

static bool answers(const redis_server *server)
{
    redisContext *redis = connect_to(server);
    if (redis == NULL) {
        return false;
    }
    redisReply *reply = redisCommand(redis, "PING");
    const bool good = reply != NULL && reply->type == REDIS_REPLY_STATUS;
    freeReplyObject(reply);
    redisFree(redis);
    return good;
}

static void run_server(const redis_server *server)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* also where a failed test ends nothing */
    const int nowhere = STDOUT_FILENO;
    if (freopen("/dev/null", "w", stdout) == NULL || dup2(nowhere, STDERR_FILENO) < 0) {
        _exit(126);
    }
    const char *args[] = {"redis-server",
                          "--port",
                          "0",
                          "--unixsocket",
                          server->socket,
                          "--save",
                          "",
                          "--appendonly",
                          "no",
                          "--dir",
                          server->folder,
                          server->password == NULL ? NULL : "--requirepass",
                          server->password,
                          NULL};
    execvp(args[0], (char **)args);
    _exit(127);
}

static void spawn(redis_server *server)
{
    server->pid = fork();
    assert_true(server->pid >= 0);
    if (server->pid == 0) {
        run_server(server);
    }
    for (int turn = 0; turn < REDIS_SERVER_TURNS; turn++) {
        if (answers(server)) {
            return;
        }
        int status = 0;
        if (waitpid(server->pid, &status, WNOHANG) == server->pid) {
            fail_msg("redis-server ended with status %d", status);
        }
        redis_server_pause(5);
    }
    fail_msg("redis-server does not answer");
}

static bool is_installed(void)
{
    return system("redis-server --version >/dev/null 2>&1") == 0;
}

bool redis_server_start(redis_server *server, const char *password)
{
    *server = (redis_server){.password = password};
    if (!is_installed()) {
        return false;
    }
    const char *parent = getenv("TMPDIR");
    parent = parent != NULL && strlen(parent) < 32 ? parent : P_tmpdir;
    snprintf(server->folder, sizeof(server->folder), "%s/mr-redis-XXXXXX", parent);
    assert_non_null(mkdtemp(server->folder));
    snprintf(server->socket, sizeof(server->socket), "%s/socket", server->folder);
    snprintf(server->url, sizeof(server->url), "unix://%s%s%s%s", password != NULL ? ":" : "",
             password != NULL ? password : "", password != NULL ? "@" : "", server->socket);
    spawn(server);
    return true;
}

void redis_server_kill(redis_server *server)
{
    if (server->pid > 0) {
        kill(server->pid, SIGKILL);
        waitpid(server->pid, NULL, 0);
        server->pid = 0;
    }
}

void redis_server_restart(redis_server *server)
{
    redis_server_kill(server);
    unlink(server->socket);
    spawn(server);
}

void redis_server_end(redis_server *server)
{
    redis_server_kill(server);
    unlink(server->socket);
    rmdir(server->folder);
}

static void append(const redisReply *reply, char *out, size_t bytes)
{
    const size_t used = strlen(out);
    if (reply->type == REDIS_REPLY_INTEGER) {
        snprintf(out + used, bytes - used, "%lld", reply->integer);
    } else if (reply->str != NULL) {
        snprintf(out + used, bytes - used, "%s", reply->str);
    }
}

const char *redis_server_ask(const redis_server *server, const char *name, const char *first,
                             const char *second, const char *third)
{
    static char text[4096];
    redisContext *redis = connect_to(server);
    assert_non_null(redis);
    const char *args[] = {name, first, second, third};
    int count = 1;
    while (count < 4 && args[count] != NULL) {
        count++;
    }
    redisReply *reply = redisCommandArgv(redis, count, args, NULL);
    assert_non_null(reply);
    text[0] = '\0';
    append(reply, text, sizeof(text));
    for (size_t i = 0; i < reply->elements; i++) {
        append(reply->element[i], text, sizeof(text));
        if (i + 1 < reply->elements) {
            strncat(text, " ", sizeof(text) - strlen(text) - 1);
        }
    }
    freeReplyObject(reply);
    redisFree(redis);
    return text;
}

void redis_server_wait_reply(const redis_server *server, const char *wanted, const char *name,
                             const char *first)
{
    for (int turn = 0; turn < REDIS_SERVER_TURNS; turn++) {
        if (strcmp(redis_server_ask(server, name, first, NULL, NULL), wanted) == 0) {
            return;
        }
        redis_server_pause(5);
    }
    fail_msg("%s %s is not %s", name, first, wanted);
}

void redis_server_wait_available(mr_redis_link *link, bool wanted)
{
    for (int turn = 0; turn < REDIS_SERVER_TURNS; turn++) {
        if (mr_redis_link_available(link) == wanted) {
            return;
        }
        redis_server_pause(5);
    }
    fail_msg("the link never became %s", wanted ? "available" : "unavailable");
}
