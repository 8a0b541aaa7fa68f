/* SPDX-License-Identifier: Apache-2.0 */
#include "service/connections.h"

#include "base/clock.h"
#include "base/event.h"
#include "base/log.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Time between two looks at all of them, and what it is longer by for each. */
#define LOOK_NS      (20 * MR_NS_PER_MS)
#define LOOK_EACH_NS (MR_NS_PER_MS / 10)
#define MAX_PORTS    2
/* What a peer gets to take its last answers and to close by itself when we leave. */
#define LEAVE_NS (2 * MR_NS_PER_S)

/* State of the process, as accept4 has no other. `mutex` guards all but the event and the thread.
 */
static struct {
    pthread_mutex_t mutex;
    mr_connection_table *table; /* owns; NULL: not started */
    uint16_t ports[MAX_PORTS];
    uint32_t n_ports;
    uint64_t looked_ns;
    uint64_t leaving_ns; /* since when the server leaves; 0: it does not */
    int reserve;         /* a descriptor to give up when there are no others */
    bool stopping;
    mr_event work; /* there is a first connection, or it is over */
    pthread_t thread;
} guard = {.mutex = PTHREAD_MUTEX_INITIALIZER, .reserve = -1};

static bool peer_from(const struct sockaddr_storage *address, mr_remote *out)
{
    *out = (mr_remote){0};
    if (address->ss_family == AF_INET6) {
        struct sockaddr_in6 v6;
        memcpy(&v6, address, sizeof(v6));
        memcpy(out->address, &v6.sin6_addr, sizeof(out->address));
        out->port = ntohs(v6.sin6_port);
        return true;
    }
    if (address->ss_family == AF_INET) {
        struct sockaddr_in v4;
        memcpy(&v4, address, sizeof(v4));
        out->address[10] = out->address[11] = 0xff;
        memcpy(out->address + 12, &v4.sin_addr, 4);
        out->port = ntohs(v4.sin_port);
        return true;
    }
    return false;
}

static uint64_t cookie_of(int fd)
{
    uint64_t cookie = 0;
    socklen_t bytes = sizeof(cookie);
    return getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &bytes) == 0 ? cookie : 0;
}

/* gRPC closes descriptors by itself, and the kernel gives their numbers out again. */
static bool is_there(const mr_connection *connection)
{
    return connection->cookie == 0 || cookie_of(connection->fd) == connection->cookie;
}

/* What the peer has sent; 0 where the kernel does not tell. */
static uint64_t sent_by(const mr_connection *connection)
{
    struct tcp_info info;
    memset(&info, 0, sizeof(info));
    socklen_t bytes = sizeof(info);
    if (getsockopt(connection->fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0 ||
        bytes < offsetof(struct tcp_info, tcpi_bytes_received) + sizeof(uint64_t)) {
        return 0;
    }
    return info.tcpi_bytes_received;
}

static void tell(const mr_connection *connection, const char *what)
{
    char address[INET6_ADDRSTRLEN] = "";
    (void)inet_ntop(AF_INET6, connection->peer.address, address, sizeof(address));
    mr_log_folded(MR_LOG_WARN, "connections", what, "peer=\"[%s]:%u\"", address,
                  (unsigned)connection->peer.port);
}

/* gRPC sees the end of the stream, and closes the connection and its calls. */
static void end_connection(mr_connection *connection, const char *why)
{
    connection->closing = true;
    if (is_there(connection)) {
        (void)shutdown(connection->fd, SHUT_RDWR);
        tell(connection, why);
    }
}

/* As above, for what it did. */
static void throw_out(mr_connection *connection, const char *why)
{
    mr_connection_table_punish(guard.table, &connection->peer, mr_monotonic_ns());
    end_connection(connection, why);
}

static bool is_left_behind(const mr_connection *connection)
{
    return guard.leaving_ns != 0 && guard.looked_ns - guard.leaving_ns >= LEAVE_NS &&
           mr_connection_is_idle(connection, LEAVE_NS, guard.looked_ns) && !connection->closing;
}

static bool floods(mr_connection *connection)
{
    return mr_connection_account_look(&connection->account, sent_by(connection), guard.looked_ns) &&
           !connection->closing;
}

/* Forgets those that are gone, ends those that flood. */
static void look_at_all(void)
{
    guard.looked_ns = mr_monotonic_ns();
    uint32_t index = 0;
    for (mr_connection *item = mr_connection_table_next(guard.table, &index); item != NULL;
         item = mr_connection_table_next(guard.table, &index)) {
        if (!is_there(item)) {
            mr_connection_table_gone(guard.table, item, guard.looked_ns);
            mr_connection_table_remove(guard.table, (mr_connection_id){index - 1, item->serial});
        } else if (floods(item)) {
            throw_out(item, "a connection is closed: it sends far more than its calls need");
        } else if (is_left_behind(item)) {
            end_connection(item, "a connection without calls is closed: the server leaves");
        }
    }
}

static void *look_after(void *arg)
{
    (void)arg;
    for (;;) {
        pthread_mutex_lock(&guard.mutex);
        const bool stopping = guard.stopping;
        if (!stopping) {
            look_at_all();
        }
        const uint32_t count = mr_connection_table_count(guard.table);
        const uint64_t pause_ns = LOOK_NS + LOOK_EACH_NS * count;
        pthread_mutex_unlock(&guard.mutex);
        if (stopping) {
            return NULL;
        }
        (void)mr_event_wait(&guard.work,
                            count == 0 ? MR_NEVER : mr_time_add(mr_monotonic_ns(), pause_ns));
    }
}

static int open_reserve(void)
{
    return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

mr_status mr_connections_start(const mr_connection_limits *limits, mr_error *err)
{
    MR_TRY(mr_connection_table_create(limits, &guard.table, err));
    guard.stopping = false;
    guard.leaving_ns = 0;
    guard.n_ports = 0;
    guard.reserve = open_reserve();
    mr_event_init(&guard.work);
    if (pthread_create(&guard.thread, NULL, look_after, NULL) != 0) {
        mr_connection_table_destroy(guard.table);
        guard.table = NULL;
        return mr_fail(err, MR_RESOURCE_EXHAUSTED,
                       "the system gave no thread to look after connections");
    }
    return MR_OK;
}

void mr_connections_stop(void)
{
    if (guard.table == NULL) {
        return;
    }
    pthread_mutex_lock(&guard.mutex);
    guard.stopping = true;
    pthread_mutex_unlock(&guard.mutex);
    mr_event_set(&guard.work);
    pthread_join(guard.thread, NULL);
    pthread_mutex_lock(&guard.mutex);
    mr_connection_table_destroy(guard.table);
    guard.table = NULL;
    (void)close(guard.reserve);
    guard.reserve = -1;
    pthread_mutex_unlock(&guard.mutex);
    mr_event_deinit(&guard.work);
}

void mr_connections_guard(int port)
{
    pthread_mutex_lock(&guard.mutex);
    if (guard.table != NULL && guard.n_ports < MAX_PORTS) {
        guard.ports[guard.n_ports++] = (uint16_t)port;
    }
    pthread_mutex_unlock(&guard.mutex);
}

void mr_connections_leave(void)
{
    pthread_mutex_lock(&guard.mutex);
    guard.leaving_ns = mr_monotonic_ns();
    pthread_mutex_unlock(&guard.mutex);
}

static bool is_guarded(int listener)
{
    struct sockaddr_storage address = {0};
    socklen_t bytes = sizeof(address);
    mr_remote at;
    if (guard.table == NULL || guard.stopping ||
        getsockname(listener, (struct sockaddr *)&address, &bytes) != 0 ||
        !peer_from(&address, &at)) {
        return false;
    }
    for (uint32_t i = 0; i < guard.n_ports; i++) {
        if (guard.ports[i] == at.port) {
            return true;
        }
    }
    return false;
}

/* False: it is one too many. */
static bool admit(int fd, const struct sockaddr_storage *address)
{
    mr_connection fresh = {.fd = fd, .cookie = cookie_of(fd), .accepted_ns = mr_monotonic_ns()};
    if (!peer_from(address, &fresh.peer)) {
        return true; /* not TCP */
    }
    if (mr_connection_table_is_punished(guard.table, &fresh.peer, fresh.accepted_ns)) {
        tell(&fresh, "a connection is refused: its address has flooded us just now");
        return false;
    }
    mr_connection evicted;
    mr_connection_id id = mr_connection_table_admit(guard.table, &fresh, &evicted);
    if (id.serial == 0 && fresh.accepted_ns - guard.looked_ns > LOOK_NS / 10) {
        look_at_all(); /* some may have gone by themselves */
        id = mr_connection_table_admit(guard.table, &fresh, &evicted);
    }
    if (evicted.serial != 0) {
        mr_connection_table_gone(guard.table, &evicted, fresh.accepted_ns);
        end_connection(&evicted, "a connection without calls makes room for another");
    }
    if (id.serial == 0) {
        mr_log_folded(MR_LOG_WARN, "connections",
                      "a connection is refused: there are limits.connections already", NULL);
        return false;
    }
    if (mr_connection_table_count(guard.table) == 1) {
        mr_event_set(&guard.work);
    }
    return true;
}

/* Takes one connection off the queue with the descriptor in reserve, and closes it. False: there is
 * none, or no reserve. */
static bool shed(int listener)
{
    if (guard.reserve < 0) {
        return false;
    }
    (void)close(guard.reserve);
    const int fd = (int)syscall(SYS_accept4, listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
        (void)close(fd);
    }
    guard.reserve = open_reserve();
    mr_log_folded(MR_LOG_WARN, "connections",
                  "a connection is refused: the process has no file descriptor left", NULL);
    return fd >= 0;
}

/* One that is let in, or −1 with errno, which is EAGAIN as soon as none is waiting. */
static int accept_guarded(int listener, struct sockaddr_storage *address, socklen_t *bytes,
                          int flags)
{
    for (;;) {
        *bytes = sizeof(*address);
        const int fd = (int)syscall(SYS_accept4, listener, address, bytes, flags);
        if (fd >= 0) {
            if (admit(fd, address)) {
                return fd;
            }
            (void)close(fd);
            continue;
        }
        if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) {
            return -1;
        }
        /* gRPC would never listen again: nobody waits any more, or they wait for the next. */
        if (!shed(listener)) {
            errno = EAGAIN;
            return -1;
        }
    }
}

/* In the place of the C library's, for gRPC's library too. */
int mr_accept4(int fd, struct sockaddr *address, socklen_t *bytes, int flags) __asm__("accept4")
    __attribute__((visibility("default")));

int mr_accept4(int fd, struct sockaddr *address, socklen_t *bytes, int flags)
{
    pthread_mutex_lock(&guard.mutex);
    if (!is_guarded(fd)) {
        pthread_mutex_unlock(&guard.mutex);
        return (int)syscall(SYS_accept4, fd, address, bytes, flags);
    }
    struct sockaddr_storage from = {0};
    socklen_t from_bytes = 0;
    const int accepted = accept_guarded(fd, &from, &from_bytes, flags);
    const int cause = errno;
    pthread_mutex_unlock(&guard.mutex);
    if (accepted >= 0 && address != NULL && bytes != NULL) {
        memcpy(address, &from, from_bytes < *bytes ? from_bytes : *bytes);
        *bytes = from_bytes;
    }
    errno = cause;
    return accepted;
}

mr_call_ticket mr_connections_begin_call(const char *peer, bool open, mr_connection_id *out)
{
    *out = (mr_connection_id){0};
    mr_call_ticket ticket = {.fit = MR_CALL_FITS};
    pthread_mutex_lock(&guard.mutex);
    if (guard.table != NULL) {
        mr_remote from;
        if (mr_remote_parse(peer, &from)) {
            *out = mr_connection_table_find(guard.table, &from);
        }
        ticket = mr_connection_table_begin_call(guard.table, *out, open);
    }
    pthread_mutex_unlock(&guard.mutex);
    return ticket;
}

bool mr_connections_holds(const mr_call_ticket *ticket)
{
    if (ticket->fit != MR_CALL_FITS_OPEN) {
        return true;
    }
    pthread_mutex_lock(&guard.mutex);
    const bool holds = guard.table == NULL || mr_connection_table_holds(guard.table, ticket);
    pthread_mutex_unlock(&guard.mutex);
    return holds;
}

void mr_connections_await(mr_connection_id id)
{
    pthread_mutex_lock(&guard.mutex);
    if (guard.table != NULL) {
        mr_connection_table_await(guard.table, id);
    }
    pthread_mutex_unlock(&guard.mutex);
}

void mr_connections_refuse(mr_connection_id id)
{
    pthread_mutex_lock(&guard.mutex);
    if (guard.table != NULL) {
        mr_connection_table_refuse(guard.table, id);
    }
    pthread_mutex_unlock(&guard.mutex);
}

/* NULL: nothing is guarded, or it is gone. */
static mr_connection *get(mr_connection_id id)
{
    return guard.table == NULL ? NULL : mr_connection_table_get(guard.table, id);
}

void mr_connections_received(mr_connection_id id, uint64_t bytes, bool given_up)
{
    pthread_mutex_lock(&guard.mutex);
    mr_connection *item = get(id);
    if (item != NULL && given_up) {
        mr_connection_account_give_up(&item->account);
    } else if (item != NULL && is_there(item)) {
        mr_connection_account_whole(&item->account, bytes, sent_by(item));
    }
    pthread_mutex_unlock(&guard.mutex);
}

void mr_connections_sent(mr_connection_id id)
{
    pthread_mutex_lock(&guard.mutex);
    mr_connection *item = get(id);
    if (item != NULL) {
        mr_connection_account_answer(&item->account);
    }
    pthread_mutex_unlock(&guard.mutex);
}

void mr_connections_end_call(mr_connection_id id, const mr_call_ticket *ticket, bool strike)
{
    pthread_mutex_lock(&guard.mutex);
    if (guard.table != NULL &&
        mr_connection_table_end_call(guard.table, id, ticket, strike, mr_monotonic_ns())) {
        mr_connection *item = mr_connection_table_get(guard.table, id);
        throw_out(item, "a connection is closed: it gives up or is refused too many calls");
    }
    pthread_mutex_unlock(&guard.mutex);
}
