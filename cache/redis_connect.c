/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/redis_connect.h"

#include <fcntl.h>
#include <hiredis.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define TIMEOUT_S 1

/* One command of the greeting; `what` names it, since its arguments may be secret. */
static mr_status ask(redisContext *redis, const char *what, int argc, const char **argv,
                     mr_error *err)
{
    redisReply *reply = redisCommandArgv(redis, argc, argv, NULL);
    if (reply == NULL) {
        return mr_fail(err, MR_UNAVAILABLE, "%s: %s", what, redis->errstr);
    }
    mr_status status = MR_OK;
    if (reply->type == REDIS_REPLY_ERROR) {
        status = mr_fail(err, MR_UNAVAILABLE, "%s: %.200s", what, reply->str);
    }
    freeReplyObject(reply);
    return status;
}

/* A replica takes no writes. Who may not ask for the role, or asks a proxy that has none, goes on.
 * `*hung_up`: such a proxy may end the connection instead of answering. */
static mr_status check_role(redisContext *redis, bool *hung_up, mr_error *err)
{
    redisReply *reply = redisCommand(redis, "ROLE");
    if (reply == NULL) {
        *hung_up = redis->err == REDIS_ERR_EOF;
        return mr_fail(err, MR_UNAVAILABLE, "ROLE: %s", redis->errstr);
    }
    const redisReply *role =
        reply->type == REDIS_REPLY_ARRAY && reply->elements > 0 ? reply->element[0] : NULL;
    mr_status status = MR_OK;
    if (role != NULL && role->type == REDIS_REPLY_STRING && strcmp(role->str, "slave") == 0) {
        status =
            mr_fail(err, MR_UNAVAILABLE,
                    "it is a replica, which takes no writes: redis.url must lead to the primary");
    }
    freeReplyObject(reply);
    return status;
}

static mr_status greet(redisContext *redis, const mr_redis_url *url, mr_error *err)
{
    if (url->password[0] != '\0' && url->user[0] != '\0') {
        const char *args[] = {"AUTH", url->user, url->password};
        MR_TRY(ask(redis, "AUTH", 3, args, err));
    } else if (url->password[0] != '\0') {
        const char *args[] = {"AUTH", url->password};
        MR_TRY(ask(redis, "AUTH", 2, args, err));
    }
    if (url->db != 0) {
        char db[16];
        snprintf(db, sizeof(db), "%" PRIu32, url->db);
        const char *args[] = {"SELECT", db};
        MR_TRY(ask(redis, "SELECT", 2, args, err));
    }
    const char *ping[] = {"PING"};
    return ask(redis, "PING", 1, ping, err);
}

/* `hung_up` as above; NULL: the role is not asked for. */
static mr_status prepare(redisContext *redis, const mr_redis_url *url, bool *hung_up, mr_error *err)
{
    const struct timeval limit = {.tv_sec = TIMEOUT_S};
    if (redis->err != 0) {
        return mr_fail(err, MR_UNAVAILABLE, "connect: %s", redis->errstr);
    }
    if (redisSetTimeout(redis, limit) != REDIS_OK) {
        return mr_fail(err, MR_UNAVAILABLE, "timeouts: %s", redis->errstr);
    }
    (void)fcntl(redis->fd, F_SETFD, FD_CLOEXEC);
    MR_TRY(greet(redis, url, err));
    if (hung_up != NULL) {
        MR_TRY(check_role(redis, hung_up, err));
    }
    /* hiredis connects and greets simply when it may block; from here on poll() says when. */
    const int flags = fcntl(redis->fd, F_GETFL);
    if (flags < 0 || fcntl(redis->fd, F_SETFL, flags | O_NONBLOCK) != 0) {
        return mr_fail(err, MR_UNAVAILABLE, "the system refuses a non-blocking socket");
    }
    redis->flags &= ~REDIS_BLOCK;
    return MR_OK;
}

static mr_status connect_to(const mr_redis_url *url, bool *hung_up, redisContext **out,
                            mr_error *err)
{
    const struct timeval limit = {.tv_sec = TIMEOUT_S};
    redisContext *redis = url->is_socket ? redisConnectUnixWithTimeout(url->host, limit)
                                         : redisConnectWithTimeout(url->host, url->port, limit);
    if (redis == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "out of memory for a connection to Redis");
    }
    const mr_status status = prepare(redis, url, hung_up, err);
    if (status != MR_OK) {
        redisFree(redis);
        return status;
    }
    *out = redis;
    return MR_OK;
}

mr_status mr_redis_connect(const mr_redis_url *url, redisContext **out, mr_error *err)
{
    bool hung_up = false;
    const mr_status status = connect_to(url, &hung_up, out, err);
    return hung_up ? connect_to(url, NULL, out, err) : status;
}
