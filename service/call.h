/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One RPC on the server, from the moment it may arrive to its last event. Everything here runs on
 * the thread of the call's queue.
 *
 * Each batch given to gRPC holds a reference until its tag comes back; a method may hold one more
 * while something of its own is under way. The last one frees the call.
 */
#ifndef MILLRACE_SERVICE_CALL_H
#define MILLRACE_SERVICE_CALL_H

#include "service/connections.h"
#include "service/rpc.h"

#include <protobuf-c/protobuf-c.h>

struct mr_call {
    mr_rpc_queue *queue;
    const mr_rpc_method *method;
    size_t slot;     /* the method's place in the queue's `missing` */
    grpc_call *call; /* owns; NULL until it arrives */
    gpr_timespec deadline;
    grpc_metadata_array metadata;
    grpc_call_details details; /* mr_rpc_other and mr_rpc_probe_other only */
    grpc_byte_buffer *payload; /* owns, the last message; NULL if the client sent none or went away,
                                  and for methods without a path, whose requests are not
                                  waited for */
    int client_cancelled;      /* gRPC writes it, at any time before MR_RPC_CLOSED: see `gone` */
    mr_connection_id connection;
    bool counted;             /* with the connections */
    mr_call_ticket ticket;    /* there */
    bool awaiting;            /* the first message, before `begin` */
    uint64_t receiving_since; /* ns, 0: no message is waited for */
    uint64_t sending_since;   /* ns, 0: nothing is on its way */
    uint64_t sending_bytes;   /* of the message that is */
    mr_tenant_table *tenants; /* one reference; NULL until it is let in or refused by it */
    mr_caller caller;         /* who calls; valid from `begin` on, as the next */
    uint32_t tenant;          /* the same by index among the tenants; their count: no tenant */
    uint32_t refs;
    bool audited;      /* an administrator's method: its end goes on record */
    bool gone;         /* the client cancelled, left, or ran out of time */
    bool sent_initial; /* metadata */
    bool sending;      /* a message is on its way: one at a time */
    bool finished;     /* the status is given */
    bool refused;      /* before its request was looked at */
    bool credited;     /* its requests may be large: it is no method that is open to all */
    mr_rpc_tag new_tag, closed_tag, sent_tag, received_tag, finished_tag;
    struct mr_call *prev, *next; /* the queue's list */
    void *state;                 /* the method's */
};

/* Lets gRPC hand a call of this method, whose place in the method table is `slot`, to the queue.
 * False when gRPC refuses (shutting down) or memory is short. */
bool mr_call_expect(mr_rpc_queue *queue, const mr_rpc_method *method, size_t slot);

/* What the queue's thread got back. */
void mr_call_on_event(mr_call *call, mr_rpc_event event, bool ok);

/* Sends a message; `resume` follows. Not while one is on its way, nor once finished. */
void mr_call_send(mr_call *call, const ProtobufCMessage *message);
/* Ends the call, once: with `last` (may be NULL) before the status, which is OK when `err` is NULL.
 * Errors carry their retry time as trailer and as google.rpc.RetryInfo. */
void mr_call_finish(mr_call *call, const ProtobufCMessage *last, const mr_error *err);

/* 0 without one. */
uint64_t mr_call_payload_bytes(const mr_call *call);
/* The payload as a message, as mr_codec_unpack gives it; RESOURCE_EXHAUSTED, naming size and limit,
 * when it is larger than the server takes (G2). */
MR_MUST_USE mr_status mr_call_unpack(const mr_call *call, const ProtobufCMessageDescriptor *type,
                                     ProtobufCMessage **out, mr_error *err);
/* Once it is read: a call can live for long. */
void mr_call_drop_payload(mr_call *call);
/* Drops the payload and waits for the client's next message; `received` follows. Not while waiting
 * for one already, nor once finished. */
void mr_call_receive(mr_call *call);

/* Ends those of the queue's calls whose client takes too long to send its request or to take an
 * answer. Cheap; for every turn of the queue's thread. */
void mr_call_check_all(mr_rpc_queue *queue);

/* For a client that takes nothing more: drops the message on its way and closes the call with the
 * error's status at once. The events of `cancelled` and `resume` follow. */
void mr_call_abort(mr_call *call, const mr_error *err);

/* The tenant that calls, from `begin` on, mr_tenant_open where it is none; never NULL. */
const mr_tenant *mr_call_tenant(const mr_call *call);

/* One more reference, and its end: the call may be freed then. */
void mr_call_hold(mr_call *call);
void mr_call_release(mr_call *call);

/* The call's deadline on CLOCK_MONOTONIC, MR_NEVER if it has none. */
uint64_t mr_call_deadline_ns(const mr_call *call, uint64_t now_ns);

#endif
