/* SPDX-License-Identifier: Apache-2.0 */
#include "service/listen.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define HOST_MAX 255

/* Splits at the last colon; brackets around the host are dropped. */
static bool split(const char *address, char host[HOST_MAX + 1], const char **port)
{
    const char *colon = strrchr(address, ':');
    if (colon == NULL || colon[1] == '\0' || strspn(colon + 1, "0123456789") != strlen(colon + 1) ||
        strtoul(colon + 1, NULL, 10) > 65535) {
        return false;
    }
    size_t length = (size_t)(colon - address);
    const char *begin = address;
    if (length >= 2 && begin[0] == '[' && begin[length - 1] == ']') {
        begin++;
        length -= 2;
    } else if (memchr(begin, ':', length) != NULL) {
        return false; /* IPv6 without brackets: where does the port begin? */
    }
    if (length > HOST_MAX) {
        return false;
    }
    memcpy(host, begin, length);
    host[length] = '\0';
    *port = colon + 1;
    return true;
}

/* 0 and a bound socket, or the errno of the bind. */
static int bind_socket(const struct addrinfo *info, int *out)
{
    const int fd = socket(info->ai_family, info->ai_socktype | SOCK_CLOEXEC, info->ai_protocol);
    if (fd < 0) {
        return errno;
    }
    const int on = 1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)); /* as gRPC does */
    if (bind(fd, info->ai_addr, info->ai_addrlen) != 0) {
        const int failed = errno;
        close(fd);
        return failed;
    }
    *out = fd;
    return 0;
}

static int try_bind(const struct addrinfo *info)
{
    int fd = -1;
    const int failed = bind_socket(info, &fd);
    if (failed == 0) {
        close(fd);
    }
    return failed;
}

static const char *way_out(int cause)
{
    switch (cause) {
    case EADDRINUSE:
        return "; stop what listens there, or choose another port";
    case EACCES:
        return "; ports below 1024 take CAP_NET_BIND_SERVICE: choose a higher one";
    case EADDRNOTAVAIL:
        return "; no interface of this machine has it: 127.0.0.1 is itself, 0.0.0.0 all it has";
    default:
        return "";
    }
}

bool mr_listen_is_address(const char *address)
{
    char host[HOST_MAX + 1];
    const char *port = NULL;
    return split(address, host, &port) && host[0] != '\0';
}

size_t mr_listen_host_bytes(const char *address)
{
    const char *colon = strrchr(address, ':');
    return colon != NULL ? (size_t)(colon - address) : strlen(address);
}

/* Gives a list, for freeaddrinfo. */
static mr_status look_up(const char *address, struct addrinfo **out, mr_error *err)
{
    char host[HOST_MAX + 1];
    const char *port = NULL;
    if (!split(address, host, &port)) {
        return mr_fail(
            err, MR_INVALID_ARGUMENT,
            "cannot listen on \"%s\": write HOST:PORT, like 127.0.0.1:8001 or [::1]:8001, "
            "with a port up to 65535",
            address);
    }
    const struct addrinfo hints = {
        .ai_flags = AI_PASSIVE | AI_NUMERICSERV,
        .ai_family = AF_UNSPEC,
        .ai_socktype = SOCK_STREAM,
    };
    const int lookup = getaddrinfo(host[0] != '\0' ? host : NULL, port, &hints, out);
    if (lookup != 0) {
        return mr_fail(err, MR_UNAVAILABLE,
                       "cannot listen on %s: %s; give an address of this machine, such as "
                       "127.0.0.1:8001",
                       address, lookup == EAI_SYSTEM ? strerror(errno) : gai_strerror(lookup));
    }
    return MR_OK;
}

mr_status mr_listen_check(const char *address, mr_error *err)
{
    struct addrinfo *found = NULL;
    MR_TRY(look_up(address, &found, err));
    /* One address that is not this machine's, or a family it lacks, does not matter if another
     * works; a port in use or forbidden does. */
    bool bound = false;
    int cause = 0;
    for (const struct addrinfo *info = found; info != NULL; info = info->ai_next) {
        const int failed = try_bind(info);
        bound = bound || failed == 0;
        if (failed == EADDRINUSE || failed == EACCES || cause == 0) {
            cause = failed;
        }
    }
    freeaddrinfo(found);
    if (cause == EADDRINUSE || cause == EACCES || !bound) {
        return mr_fail(err, MR_UNAVAILABLE, "cannot listen on %s: %s%s", address, strerror(cause),
                       way_out(cause));
    }
    return MR_OK;
}

static int bound_port(int fd)
{
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } name;
    memset(&name, 0, sizeof(name));
    socklen_t size = sizeof(name);
    if (getsockname(fd, &name.any, &size) != 0) {
        return 0;
    }
    return ntohs(name.any.sa_family == AF_INET6 ? name.v6.sin6_port : name.v4.sin_port);
}

mr_status mr_listen_open(const char *address, int *fd, int *port, mr_error *err)
{
    struct addrinfo *found = NULL;
    MR_TRY(look_up(address, &found, err));
    int opened = -1;
    int cause = EADDRNOTAVAIL;
    for (const struct addrinfo *info = found; info != NULL && opened < 0; info = info->ai_next) {
        cause = bind_socket(info, &opened);
    }
    freeaddrinfo(found);
    if (opened >= 0 && listen(opened, SOMAXCONN) != 0) {
        cause = errno;
        close(opened);
        opened = -1;
    }
    if (opened < 0) {
        return mr_fail(err, MR_UNAVAILABLE, "cannot listen on %s: %s%s", address, strerror(cause),
                       way_out(cause));
    }
    *fd = opened;
    *port = bound_port(opened);
    return MR_OK;
}
