/* SPDX-License-Identifier: Apache-2.0 */
/* Whether an address can be listened on, and if not, why: gRPC says only that it cannot. And
 * sockets that listen, for what is not gRPC. */
#ifndef MILLRACE_SERVICE_LISTEN_H
#define MILLRACE_SERVICE_LISTEN_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

/* `address` is HOST:PORT, [IPV6]:PORT or :PORT. INVALID_ARGUMENT when it is none of them,
 * UNAVAILABLE naming the cause when it cannot be bound. Any thread. */
MR_MUST_USE mr_status mr_listen_check(const char *address, mr_error *err);

/* A socket that listens on the address, close-on-exec, and the port it has. Errors as above. */
MR_MUST_USE mr_status mr_listen_open(const char *address, int *fd, int *port, mr_error *err);

/* True of "HOST:PORT" and "[IPv6]:PORT". */
bool mr_listen_is_address(const char *address);

/* How many bytes of the address are its HOST, brackets and all. */
size_t mr_listen_host_bytes(const char *address);

#endif
