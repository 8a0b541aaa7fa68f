/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is connected, and whether each connection still behaves: bookkeeping only, without sockets,
 * threads or a clock of its own (connections.h has those). One lock around all of it.
 *
 * A connection that sends more than its account has is flooding: PING, SETTINGS, WINDOW_UPDATE or
 * CONTINUATION frames, which gRPC takes without end. Calls that are cancelled, refused or too many
 * are strikes; as many strikes in ten seconds as it may have calls end it too (rapid reset). Who
 * floods comes again at once, so the address gets no new connection for a while; of IPv6, whose
 * hosts have 2^64 addresses each, the network of 64 bits.
 */
#ifndef MILLRACE_SERVICE_CONNECTION_TABLE_H
#define MILLRACE_SERVICE_CONNECTION_TABLE_H

#include "base/status.h"
#include "service/connection_account.h"

#include <stdbool.h>
#include <stdint.h>

#define MR_CONNECTION_STRIKES_NS (10 * UINT64_C(1000000000))

typedef struct mr_remote {
    uint8_t address[16]; /* IPv6, or IPv4 mapped into it */
    uint16_t port;       /* in the host's order */
} mr_remote;

typedef struct mr_connection_limits {
    uint32_t connections;
    uint32_t connection_calls; /* at a time, of one connection */
    uint32_t calls;            /* at a time, of all */
    uint64_t message_bytes;    /* of a request */
    uint64_t header_bytes;     /* of a call's metadata */
    uint64_t penalty_ns;       /* after which an address may connect anew */
} mr_connection_limits;

typedef struct mr_connection_id {
    uint32_t index;
    uint32_t serial; /* 0: none; every function takes that, and does nothing */
} mr_connection_id;

typedef struct mr_connection {
    mr_remote peer;
    uint32_t serial; /* 0: a free place */
    int fd;          /* borrows */
    uint64_t cookie; /* the kernel's name of the socket, which no other has */
    uint64_t accepted_ns;
    uint64_t idle_ns;    /* since when it has no call, if it has none; 0: it never had one */
    uint32_t calls;      /* under way */
    uint32_t open_calls; /* of them, those that need no credential */
    bool proven;         /* it has made a call that was let in */
    bool served;         /* and this, or one that needs no credential, ended well */
    bool closing;        /* we have ended it */
    mr_connection_account account;
    uint32_t strikes;       /* since: */
    uint64_t strikes_since; /* ns */
} mr_connection;

typedef enum mr_call_fit {
    MR_CALL_FITS,
    MR_CALL_FITS_OPEN, /* as one that needs no credential */
    MR_CALL_CONNECTION_FULL,
    MR_CALL_SERVER_FULL,
} mr_call_fit;

/* What a call got when it came. */
typedef struct mr_call_ticket {
    mr_call_fit fit;
    uint64_t place; /* of one that fits as open; others may take it away */
} mr_call_ticket;

typedef struct mr_connection_table mr_connection_table;

/* "ipv4:127.0.0.1:80" or "ipv6:%5B::1%5D:80", as gRPC names a peer; false for all else. */
bool mr_remote_parse(const char *name, mr_remote *out);

MR_MUST_USE mr_status mr_connection_table_create(const mr_connection_limits *limits,
                                                 mr_connection_table **out, mr_error *err);
void mr_connection_table_destroy(mr_connection_table *table);

/* A place for a new connection. With all taken, the oldest one that never made a call loses its
 * own, or else the oldest whose calls needed no credential: `*evicted` is a copy of it (serial 0:
 * none), to be ended by the caller. No id: all places are taken by connections with calls to their
 * name. */
mr_connection_id mr_connection_table_admit(mr_connection_table *table, const mr_connection *fresh,
                                           mr_connection *evicted);
/* One has gone, or has to. Many that made no call, or sent much that became no message, are
 * punished too. */
void mr_connection_table_gone(mr_connection_table *table, const mr_connection *connection,
                              uint64_t now_ns);
/* One was ended for what it did: its address is not welcome for a while. */
void mr_connection_table_punish(mr_connection_table *table, const mr_remote *peer, uint64_t now_ns);
bool mr_connection_table_is_punished(mr_connection_table *table, const mr_remote *peer,
                                     uint64_t now_ns);
/* No id when nobody has that address. */
mr_connection_id mr_connection_table_find(const mr_connection_table *table, const mr_remote *peer);
/* NULL: it is gone. Borrows until the table is changed. */
mr_connection *mr_connection_table_get(mr_connection_table *table, mr_connection_id id);
void mr_connection_table_remove(mr_connection_table *table, mr_connection_id id);
uint32_t mr_connection_table_count(const mr_connection_table *table);
/* The next one from `index` on, NULL after the last; for a walk over all. */
mr_connection *mr_connection_table_next(mr_connection_table *table, uint32_t *index);

/* A call came, and may go on only if it fits. Of those that do not only the connection keeps count:
 * they take no place from others. Nor do `open` ones, which need no credential: they have few
 * places of their own, which addresses share (open_places.h). `end_call` follows in any case. */
mr_call_ticket mr_connection_table_begin_call(mr_connection_table *table, mr_connection_id id,
                                              bool open);
/* Whether an open call still has its place; true for every other. */
bool mr_connection_table_holds(const mr_connection_table *table, const mr_call_ticket *ticket);
/* It was let in, and its message is awaited. */
void mr_connection_table_await(mr_connection_table *table, mr_connection_id id);
/* It was refused, and its message may be on its way: nobody's flood. */
void mr_connection_table_refuse(mr_connection_table *table, mr_connection_id id);
/* `ticket` is what begin_call gave. True: that was a strike too many, end the connection. */
bool mr_connection_table_end_call(mr_connection_table *table, mr_connection_id id,
                                  const mr_call_ticket *ticket, bool strike, uint64_t now_ns);
/* Whether it has had no call for so long. */
bool mr_connection_is_idle(const mr_connection *connection, uint64_t idle_ns, uint64_t now_ns);

#endif
