/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A completion queue of gRPC and its one thread. A call belongs to the queue that took it, and
 * everything of that call happens on that thread; others reach it by what they put into one of the
 * queue's inboxes, and wake it with a tag.
 *
 *   init ─► start ─► stop ─► join ─► deinit
 *       └──► drop ──────────────────►        where the system gave no thread
 *
 * gRPC's C API has no event of its own for waking a completion queue, but an empty batch completes
 * at once. It needs a call, and one that lives as long as the queue: the waker, a client call on a
 * channel that leads nowhere and that is never started.
 */
#ifndef MILLRACE_SERVICE_RPC_QUEUE_H
#define MILLRACE_SERVICE_RPC_QUEUE_H

#include "base/inbox.h"
#include "base/status.h"
#include "scheduler/request.h"
#include "service/rpc_methods.h"

#include <grpc/grpc.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct mr_server mr_server;

/* What a completion queue hands back. */
typedef enum mr_rpc_event {
    MR_RPC_NEW,      /* a call arrived */
    MR_RPC_CLOSED,   /* the call is over for the client: served, cancelled or gone */
    MR_RPC_SENT,     /* a message is out */
    MR_RPC_RECEIVED, /* another message is in, or none comes any more */
    MR_RPC_FINISHED, /* the status is out */
    MR_RPC_DECIDED,  /* Redis has decided on some call's rate limits */
    MR_RPC_WORKED,   /* a long text is tokens */
    MR_RPC_WAKE,     /* the engine put something into the queue's inbox */
    MR_RPC_TICK,     /* the server's state changed: every call looks again */
    MR_RPC_STOP,     /* shut down once the last call is gone */
    MR_RPC_SERVER_DOWN,
} mr_rpc_event;

typedef struct mr_rpc_tag {
    mr_rpc_event event;
    mr_call *call; /* of the first five */
} mr_rpc_tag;

typedef struct mr_rpc_queue {
    mr_sink sink; /* first: the engine knows the queue by it */
    mr_server *server;
    grpc_completion_queue *cq; /* owns */
    grpc_call *waker;          /* owns */
    pthread_t thread;
    mr_inbox inbox;   /* mr_request_note */
    mr_inbox decided; /* mr_limit_pass */
    mr_inbox worked;  /* mr_text_job */
    mr_rpc_tag decided_tag;
    mr_rpc_tag worked_tag;
    mr_rpc_tag wake_tag;
    mr_rpc_tag tick_tag;
    mr_rpc_tag stop_tag;

    /* The thread's own. */
    mr_call *calls;      /* list of those alive */
    uint64_t checked_ns; /* when they were looked through for those that take too long */
    uint32_t missing[MR_RPC_METHODS]; /* calls that gRPC may not hand over yet, a method */
    uint32_t n_missing;               /* their sum */
    uint64_t next_id;                 /* of requests that came without one */
    uint64_t next_lease;
    bool stopping;
    bool stopped; /* the completion queue is shutting down */
} mr_rpc_queue;

/* Creates completion queue and waker of a zeroed queue, and has it expect calls of every method
 * that a port of the server has. Borrows the server, whose gRPC servers exist and have not
 * started. */
void mr_rpc_queue_init(mr_rpc_queue *queue, mr_server *server);
/* RESOURCE_EXHAUSTED when the system gives no thread. */
MR_MUST_USE mr_status mr_rpc_queue_start(mr_rpc_queue *queue, mr_error *err);
/* Its thread ends once the last call is gone. Any thread. */
void mr_rpc_queue_stop(mr_rpc_queue *queue);
/* Waits for that. */
void mr_rpc_queue_join(mr_rpc_queue *queue);
/* For a queue without a thread, which never had a call; after the shutdown of the server's ports.
 */
void mr_rpc_queue_drop(mr_rpc_queue *queue);
/* When the gRPC servers are destroyed. */
void mr_rpc_queue_deinit(mr_rpc_queue *queue);

/* Hands one of the queue's own tags to its thread. Any thread, while the queue has not stopped. */
void mr_rpc_queue_post(mr_rpc_queue *queue, mr_rpc_tag *tag);

#endif
