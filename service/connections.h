/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Caps on connections, which gRPC core 1.51 does not have: it accepts without end, stops listening
 * for good when file descriptors run out (CVE-2023-4785), and cannot close a connection of our
 * choice. All connections of the process come through accept4(2), which this module stands in for
 * (decision 0014): at guarded ports it counts, refuses and remembers; a thread of its own looks
 * after them up to fifty times a second and shuts down the sockets of those that flood.
 *
 * One for the process, as accept4 is. Without mr_connections_start nothing is guarded and every
 * function does nothing. Any thread.
 */
#ifndef MILLRACE_SERVICE_CONNECTIONS_H
#define MILLRACE_SERVICE_CONNECTIONS_H

#include "service/connection_table.h"

/* Once, before there are connections; stop when no call is left. */
MR_MUST_USE mr_status mr_connections_start(const mr_connection_limits *limits, mr_error *err);
void mr_connections_stop(void);
/* What is accepted at this port from now on is guarded. At most two ports. */
void mr_connections_guard(int port);

/* The server leaves: what has no call any more is closed soon, whether or not the peer answers
 * gRPC's wish to go. */
void mr_connections_leave(void);

/* The life of a call of `peer`, as gRPC names it; see connection_table.h. */
mr_call_ticket mr_connections_begin_call(const char *peer, bool open, mr_connection_id *out);
bool mr_connections_holds(const mr_call_ticket *ticket);
void mr_connections_await(mr_connection_id id);
/* It was refused, or has no method: a message that comes in vain is nobody's flood. */
void mr_connections_refuse(mr_connection_id id);
/* The message is in, or the call has ended before it is. */
void mr_connections_received(mr_connection_id id, uint64_t bytes, bool given_up);
void mr_connections_sent(mr_connection_id id);
void mr_connections_end_call(mr_connection_id id, const mr_call_ticket *ticket, bool strike);

#endif
