/* SPDX-License-Identifier: Apache-2.0 */
/* The Lua scripts of cache/redis, built in. Each says itself what it takes and gives. */
#ifndef MILLRACE_CACHE_REDIS_SCRIPT_H
#define MILLRACE_CACHE_REDIS_SCRIPT_H

typedef struct mr_redis_script {
    const char *name;
    const char *sha1; /* of the body, lower-case hex */
    const char *body;
} mr_redis_script;

extern const mr_redis_script mr_redis_take;
extern const mr_redis_script mr_redis_refund;
extern const mr_redis_script mr_redis_renew;

#endif
