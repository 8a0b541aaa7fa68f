/* SPDX-License-Identifier: Apache-2.0 */
/* From a URL to a connection that answers. */
#ifndef MILLRACE_CACHE_REDIS_CONNECT_H
#define MILLRACE_CACHE_REDIS_CONNECT_H

#include "base/status.h"
#include "cache/redis_url.h"

struct redisContext;

/* Connects, logs in, selects the database, and waits for a PONG; each takes at most a second, but
 * for the system's look-up of a name. Gives a context in non-blocking mode. UNAVAILABLE says what
 * Redis or the system said, without user or password. */
MR_MUST_USE mr_status mr_redis_connect(const mr_redis_url *url, struct redisContext **out,
                                       mr_error *err);

#endif
