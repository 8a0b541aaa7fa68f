/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the gRPC server, for its methods: what the server holds. See rpc_queue.h for its
 * threads and rpc_methods.h for what it serves. */
#ifndef MILLRACE_SERVICE_RPC_H
#define MILLRACE_SERVICE_RPC_H

#include "base/event.h"
#include "base/flag.h"
#include "base/status.h"
#include "cache/rate_limiter.h"
#include "service/drain.h"
#include "service/id_registry.h"
#include "service/rpc_queue.h"
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

/* Clients take messages of 4 MiB unless told otherwise. */
#define MR_RPC_MAX_ANSWER_BYTES (4 << 20)

struct mr_server {
    grpc_server *grpc[MR_RPC_PORTS]; /* own; that of probes may be NULL */
    int port[MR_RPC_PORTS];
    mr_tls *tls;                      /* owns; NULL: plaintext */
    void *registered[MR_RPC_METHODS]; /* gRPC's handles, in the order of the method table */
    mr_rpc_queue queues[MR_RPC_QUEUES];
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
