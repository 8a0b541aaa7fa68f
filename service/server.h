/* SPDX-License-Identifier: Apache-2.0 */
/* The gRPC server, on gRPC core's C API. */
#ifndef MILLRACE_SERVICE_SERVER_H
#define MILLRACE_SERVICE_SERVER_H

#include "base/event.h"
#include "base/status.h"
#include "service/callers.h"
#include "service/metrics.h"
#include "service/runtime.h"
#include "service/sharing.h"
#include "service/tls.h"

#include <stdbool.h>

typedef struct mr_server mr_server;

/* Times in ms, at most INT_MAX. */
typedef struct mr_keepalive {
    uint32_t time_ms;              /* of silence, after which we ping */
    uint32_t timeout_ms;           /* for the answer; then the connection is closed */
    uint32_t min_ping_interval_ms; /* between a client's pings; 0: any */
    bool permit_without_calls;     /* pings while there is no call, both ways */
} mr_keepalive;

/* Of what callers may open and send; see the configuration's limits. Times in ms, at most
 * INT_MAX. */
typedef struct mr_server_limits {
    uint32_t connections;
    uint32_t connection_calls;
    uint32_t calls;
    uint32_t header_bytes;
    uint32_t handshake_timeout_ms;
    uint32_t request_timeout_ms;
    uint32_t penalty_ms;
    uint32_t answer_timeout_ms; /* for an answer that the client does not take */
} mr_server_limits;

/* Of a drain, in ms. */
typedef struct mr_server_drain_times {
    uint32_t pre_stop_ms; /* new requests are still served */
    uint32_t timeout_ms;  /* what runs then may go on */
} mr_server_drain_times;

typedef struct mr_server_options {
    const char *listen; /* HOST:PORT; port 0: any free one */
    /* The same for a plaintext port with grpc.health.v1 alone; or NULL. */
    const char *health_listen;
    const mr_tls_options *tls; /* NULL: plaintext */
    mr_keepalive keepalive;
    mr_server_limits limits;
    uint64_t max_message_bytes; /* of a request; 0: 64 a token of max_seq_length, at least 16 MiB */
    bool reflection;            /* serves grpc.reflection */
    bool admin;                 /* serves AdminService */
    const mr_tenants *tenants;  /* copied; checked, as the next */
    const mr_admins *admins;    /* who may call AdminService; copied */
    mr_server_drain_times drain;
    uint32_t stall_timeout_ms; /* an engine that does not move for so long is not ready */
} mr_server_options;

/* Binds and serves: health is NOT_SERVING and every generation UNAVAILABLE (with a retry time)
 * until mr_server_set_runtime. UNAVAILABLE, naming address and cause, when it cannot bind. Gives
 * the server. */
MR_MUST_USE mr_status mr_server_start(const mr_server_options *options, mr_server **out,
                                      mr_error *err);
int mr_server_port(const mr_server *server);
/* Of the health listener; 0: there is none. */
int mr_server_health_port(const mr_server *server);
/* Health becomes SERVING. Borrows both until mr_server_destroy. */
void mr_server_set_runtime(mr_server *server, mr_runtime *runtime, mr_sharing *sharing);
/* Others may call from now on; see mr_tenant_place_replace. Any thread. */
MR_MUST_USE mr_status mr_server_set_callers(mr_server *server, const mr_tenants *tenants,
                                            const mr_admins *admins, mr_error *err);
/* Looks at the files of certificates now. Any thread. */
void mr_server_reload_tls(mr_server *server);

/* Ways to ask for a drain; any thread. Health becomes NOT_SERVING at once, new requests are
 * refused (UNAVAILABLE, with a retry time) from the end of the pre-stop window on, and what runs
 * then goes on for the timeout: what is left is ended UNAVAILABLE. A server that is not ready yet
 * has no window. service/drain.h has the times. */
/* By a caller: the server stays, and can still be asked how it does. 0: the timeout that is set. */
void mr_server_drain(mr_server *server, uint32_t timeout_ms);
/* By a signal: connections close too, and mr_server_run returns. */
void mr_server_leave(mr_server *server);
/* Because the start failed: the server was never in service. Before mr_server_run, on its thread.
 */
void mr_server_close(mr_server *server);
/* What mr_server_leave waits for ends now. */
void mr_server_force(mr_server *server);
/* Wakes mr_server_run, which looks at the engine then: set when the device fails. Lives as long as
 * the server. */
mr_event *mr_server_news(mr_server *server);
/* Does what is asked for, leaves when the device has failed, and tells who watches the health when
 * the engine stalls, until the server has left. False when calls are left that nothing could end:
 * their memory is in use, so the process can only be ended. One thread. */
MR_MUST_USE bool mr_server_run(mr_server *server);
/* Leaves at once if it has not. */
void mr_server_destroy(mr_server *server);

/* Why the server as a whole does not serve (loading, draining, device failed, engine stalled), in
 * words; NULL when it does. Any thread. */
const char *mr_server_not_serving(mr_server *server);
/* What it measures; lives as long as it. */
const mr_metrics *mr_server_metrics(const mr_server *server);
/* Fills in all but `vllm_names` and `busy_ratio`. Any thread. */
void mr_server_metrics_view(mr_server *server, mr_metrics_view *out);

#endif
