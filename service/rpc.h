/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the gRPC server: the server, its completion queues, and the table of methods.
 *
 * Each completion queue has one thread. A call belongs to the queue that took it, and everything of
 * that call happens on that thread; the engine reaches it through the queue's sink only.
 */
#ifndef MILLRACE_SERVICE_RPC_H
#define MILLRACE_SERVICE_RPC_H

#include "base/event.h"
#include "base/flag.h"
#include "base/inbox.h"
#include "base/status.h"
#include "cache/rate_limiter.h"
#include "scheduler/request.h"
#include "service/drain.h"
#include "service/id_registry.h"
#include "service/runtime.h"
#include "service/server.h"
#include "service/tenant_table.h"
#include "service/text_worker.h"
#include "service/tls.h"

#include <grpc/grpc.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define MR_RPC_QUEUES 2

typedef struct mr_call mr_call;

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

/* Where a method is served. */
typedef enum mr_rpc_port {
    MR_RPC_MAIN,
    MR_RPC_PROBES, /* plaintext, nothing but grpc.health.v1, and open to everybody */
    MR_RPC_PORTS,
} mr_rpc_port;

/* A method this build serves. Hooks run on the call's thread; NULL: nothing to do. */
typedef struct mr_rpc_method {
    const char *path; /* NULL: any method without an entry of its own */
    mr_rpc_port port;
    /* The call is new, its request is in `payload`. */
    void (*begin)(mr_call *call);
    /* A message is out, another may follow. Not once the status was given. */
    void (*resume)(mr_call *call);
    /* What mr_call_receive() waited for is in `payload`; NULL: the client sends no more. */
    void (*received)(mr_call *call);
    /* The client cancelled, left, or ran out of time. */
    void (*cancelled)(mr_call *call);
    void (*tick)(mr_call *call);
    /* Frees call->state. */
    void (*release)(mr_call *call);
} mr_rpc_method;

extern const mr_rpc_method mr_rpc_generate;
extern const mr_rpc_method mr_rpc_generate_unary;
extern const mr_rpc_method mr_rpc_abort;
extern const mr_rpc_method mr_rpc_tokenize;
extern const mr_rpc_method mr_rpc_detokenize;
extern const mr_rpc_method mr_rpc_get_model;
extern const mr_rpc_method mr_rpc_health_check;
extern const mr_rpc_method mr_rpc_health_watch;
extern const mr_rpc_method mr_rpc_reflection;
extern const mr_rpc_method mr_rpc_reflection_alpha;
extern const mr_rpc_method mr_rpc_get_load;
extern const mr_rpc_method mr_rpc_reset_prefix_cache;
extern const mr_rpc_method mr_rpc_drain;
extern const mr_rpc_method mr_rpc_other;
extern const mr_rpc_method mr_rpc_probe_check;
extern const mr_rpc_method mr_rpc_probe_watch;
extern const mr_rpc_method mr_rpc_probe_other;

#define MR_RPC_METHODS 17

/* Clients take messages of 4 MiB unless told otherwise. */
#define MR_RPC_MAX_ANSWER_BYTES (4 << 20)

typedef struct mr_rpc_queue {
    mr_sink sink; /* first: the engine knows the queue by it */
    mr_server *server;
    grpc_completion_queue *cq; /* owns */
    grpc_call *waker;          /* owns; see request_sink.h */
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

struct mr_server {
    grpc_server *grpc[MR_RPC_PORTS]; /* own; that of probes may be NULL */
    int port[MR_RPC_PORTS];
    mr_tls *tls;                      /* owns; NULL: plaintext */
    void *registered[MR_RPC_METHODS]; /* gRPC's handles, in the order of the method table */
    mr_rpc_queue queues[MR_RPC_QUEUES];
    uint32_t n_queues;          /* with a completion queue */
    uint32_t n_threads;         /* with a thread */
    uint64_t boot;              /* random: makes request ids unique over restarts */
    mr_id_registry ids;         /* of running requests */
    mr_runtime *runtime;        /* borrows; read it after `ready` only */
    mr_exec_memory memory;      /* of the runtime */
    uint64_t max_message_bytes; /* of a request; read it after `ready` only */
    bool max_message_auto;      /* it follows the runtime's max_seq_length */
    mr_tenant_place tenants;    /* who may call */
    mr_sharing *sharing;        /* borrows; read it after `ready` only, as the limiter */
    mr_rate_limiter *limiter;   /* borrows, of `sharing` */
    mr_server_limits limits;
    mr_metrics metrics;
    mr_text_worker texts;
    bool reflection; /* served */
    bool admin;      /* served */
    mr_flag serving; /* gRPC takes calls */
    mr_flag ready;
    mr_flag leaving;  /* the process is to end; set before `draining`, which says so */
    mr_flag draining; /* not ready any more; set before the next five, each of which stays */
    mr_flag refusing; /* new generations are refused */
    mr_flag cut_off;  /* running generations end now, after what there is to say, */
    mr_flag dropping; /* and then without that, */
    mr_flag hurrying; /* nor behind a message that is not taken */
    mr_flag drained;  /* no generation is left */
    mr_flag down;     /* gRPC has no call left */
    mr_event news;    /* wakes the thread in mr_server_run */
    mr_rpc_tag down_tag;
    uint32_t n_up; /* of `grpc`, not down yet; the first queue's thread counts */
    pthread_mutex_t drain_mutex;
    mr_drain drain; /* under the mutex */
    mr_server_drain_times drain_times;
    uint64_t stall_ns; /* an engine that does not move for so long is not ready */

    /* The thread's in mr_server_run. */
    bool quiet;          /* no news for the log: the server was never in service */
    mr_drain_phase told; /* the phase whose effects are done */
    bool told_leaves;
    bool stalled; /* as it was seen last */
    bool failed;  /* the device, and we leave for it */
    bool closing; /* gRPC was asked to end */
    bool shut_down;
};

/* The runtime for a new generation; UNAVAILABLE with a retry time while loading, and once new ones
 * are refused. Any thread. */
MR_MUST_USE mr_status mr_server_runtime(mr_server *server, mr_runtime **out, mr_error *err);
/* What a generation ends with that a drain cuts off: UNAVAILABLE, with a retry time. */
void mr_server_fail_cut_off(mr_error *err);
/* No call comes any more; the first queue gets the tag once for each port that is. Once. */
void mr_server_shut_down_ports(mr_server *server);
/* Has every call looked at, soon. Any thread. */
void mr_server_tick(mr_server *server);

#endif
