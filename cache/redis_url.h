/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where Redis is:
 *   redis://[[user]:password@]host[:port][/db]      host is a name, an address, or [IPv6]
 *   unix://[[user]:password@]/path/to/socket[?db=N]
 * User, password and path are percent-decoded. No error of these functions quotes user or password.
 */
#ifndef MILLRACE_CACHE_REDIS_URL_H
#define MILLRACE_CACHE_REDIS_URL_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MR_REDIS_URL_MAX 512 /* bytes of text, with its end */

typedef struct mr_redis_url {
    bool is_socket;
    char host[256]; /* without brackets; of a socket its path */
    uint16_t port;
    uint32_t db;
    char user[128];     /* "": the default user */
    char password[256]; /* "": none */
} mr_redis_url;

/* INVALID_ARGUMENT says which part is wrong and what it should be; FAILED_PRECONDITION for
 * rediss://, with the way around. */
MR_MUST_USE mr_status mr_redis_url_parse(const char *text, mr_redis_url *out, mr_error *err);

/* The address without user and password, for people. Cut to fit. */
void mr_redis_url_show(const mr_redis_url *url, char *out, size_t bytes);

#endif
