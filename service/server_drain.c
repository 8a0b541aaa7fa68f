/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a server: who asks for it, and the thread that does what service/drain.h says is due.
 * It also looks for an engine that stalls. */
#include "base/checked.h"
#include "base/clock.h"
#include "base/log.h"
#include "service/connections.h"
#include "service/rpc.h"

#include <inttypes.h>

/* How often a server in service is looked at, so that those who watch its health hear of a failure
 * or a stall. */
#define LOOK_NS (MR_NS_PER_S / 2)
/* What gRPC gets to end calls of which nobody takes anything. */
#define LAST_NS MR_NS_PER_S
/* When to send again what was cut off, elsewhere or to the server that starts anew. */
#define CUT_OFF_RETRY_MS 1000u

void mr_server_fail_cut_off(mr_error *err)
{
    (void)mr_fail(err, MR_UNAVAILABLE,
                  "the server drains, and the time for it is over before the request is done: send "
                  "it again");
    err->retry_after_ms = CUT_OFF_RETRY_MS;
}

typedef struct ask {
    const char *by;
    mr_counter *counter;
    uint32_t timeout_ms;
    bool leaves;
} ask;

static void begin(mr_server *server, const mr_drain_plan *plan)
{
    pthread_mutex_lock(&server->drain_mutex);
    mr_drain_start(&server->drain, plan, mr_monotonic_ns());
    pthread_mutex_unlock(&server->drain_mutex);
    if (plan->leaves) {
        mr_flag_set(&server->leaving);
    }
    mr_flag_set(&server->draining);
    mr_event_set(&server->news);
}

static void start(mr_server *server, const ask *asked)
{
    /* While the model loads nothing can run that would need time. */
    const bool ready = mr_flag_get(&server->ready);
    const uint32_t pre_stop_ms = ready ? server->drain_times.pre_stop_ms : 0;
    const mr_drain_plan plan = {
        .pre_stop_ns = pre_stop_ms * MR_NS_PER_MS,
        .timeout_ns = ready ? asked->timeout_ms * MR_NS_PER_MS : 0,
        .leaves = asked->leaves,
    };
    mr_log(MR_LOG_INFO, "server", "draining",
           "by=%s pre_stop_ms=%" PRIu32 " timeout_ms=%" PRIu32 " goes_on=%s", asked->by,
           pre_stop_ms, asked->timeout_ms, mr_flag_get(&server->draining) ? "true" : "false");
    mr_counter_add(asked->counter, 1);
    begin(server, &plan);
}

void mr_server_drain(mr_server *server, uint32_t timeout_ms)
{
    const ask asked = {
        .by = "request",
        .counter = &server->metrics.drains_by_request,
        .timeout_ms = timeout_ms > 0 ? timeout_ms : server->drain_times.timeout_ms,
    };
    start(server, &asked);
}

void mr_server_leave(mr_server *server)
{
    const ask asked = {
        .by = "signal",
        .counter = &server->metrics.drains_by_signal,
        .timeout_ms = server->drain_times.timeout_ms,
        .leaves = true,
    };
    start(server, &asked);
}

void mr_server_close(mr_server *server)
{
    const mr_drain_plan plan = {.leaves = true};
    server->quiet = true;
    begin(server, &plan);
}

void mr_server_force(mr_server *server)
{
    pthread_mutex_lock(&server->drain_mutex);
    mr_drain_force(&server->drain, mr_monotonic_ns());
    pthread_mutex_unlock(&server->drain_mutex);
    mr_event_set(&server->news);
}

mr_event *mr_server_news(mr_server *server)
{
    return &server->news;
}

/* Every request has ended by it, and no other can be served: the process ends. */
static void leave_failed(mr_server *server)
{
    const mr_drain_plan plan = {.leaves = true};
    server->failed = true;
    mr_log(MR_LOG_ERROR, "server",
           "shutting down: the device failed; start the server again, and look at the machine if "
           "this comes back",
           NULL);
    begin(server, &plan);
}

/* Tells who watches the health, and the log, of an engine that stalls or goes on; leaves with one
 * that failed. */
static void look_at_engine(mr_server *server)
{
    if (!mr_flag_get(&server->ready)) {
        return;
    }
    mr_engine_stats stats;
    mr_engine_stats_get(mr_runtime_engine(server->runtime), &stats);
    if (stats.failed && !server->failed) {
        leave_failed(server);
    }
    const bool stalled = stats.pending_ns >= server->stall_ns;
    if (stalled != server->stalled) {
        server->stalled = stalled;
        mr_log(stalled ? MR_LOG_ERROR : MR_LOG_WARN, "server",
               stalled ? "the engine makes no step: not ready" : "the engine goes on",
               "pending_ms=%" PRIu64 " running=%" PRIu32 " waiting=%" PRIu32,
               (uint64_t)(stats.pending_ns / MR_NS_PER_MS), stats.scheduler.running,
               stats.scheduler.waiting);
        mr_server_tick(server);
    }
}

/* Nor is a request still being read. */
static bool nothing_runs(mr_server *server)
{
    return mr_text_worker_is_idle(&server->texts) && mr_id_registry_is_empty(&server->ids);
}

static void log_refusing(mr_server *server)
{
    mr_engine_stats stats = {0};
    if (mr_flag_get(&server->ready)) {
        mr_engine_stats_get(mr_runtime_engine(server->runtime), &stats);
    }
    mr_log(server->quiet ? MR_LOG_DEBUG : MR_LOG_INFO, "server", "new requests are refused",
           "running=%" PRIu32 " waiting=%" PRIu32, stats.scheduler.running,
           stats.scheduler.waiting);
}

/* The effects of a phase, once. */
static void enter(mr_server *server, mr_drain_phase phase)
{
    switch (phase) {
    case MR_DRAIN_PRE_STOP:
        if (mr_flag_get(&server->ready)) {
            mr_metadata_store_set_state(mr_sharing_store(server->sharing), "draining");
        }
        break;
    case MR_DRAIN_REFUSING:
        mr_flag_set(&server->refusing);
        log_refusing(server);
        break;
    case MR_DRAIN_ENDING:
        if (!nothing_runs(server)) {
            mr_log(MR_LOG_WARN, "server", "streams are cut off", NULL);
        }
        mr_flag_set(&server->cut_off);
        break;
    case MR_DRAIN_DROPPING:
        mr_flag_set(&server->dropping);
        break;
    case MR_DRAIN_SERVING:
    case MR_DRAIN_DONE:
        break;
    }
}

void mr_server_shut_down_ports(mr_server *server)
{
    for (size_t p = 0; p < MR_RPC_PORTS; p++) {
        if (server->grpc[p] != NULL) {
            grpc_server_shutdown_and_notify(server->grpc[p], server->queues[0].cq,
                                            &server->down_tag);
        }
    }
}

static void cancel_all_calls(mr_server *server)
{
    for (size_t p = 0; p < MR_RPC_PORTS; p++) {
        if (server->grpc[p] != NULL) {
            grpc_server_cancel_all_calls(server->grpc[p]);
        }
    }
}

/* Brings the server to where the drain is. A drain by request that is done, and then has to leave,
 * was in the phases that follow before. */
static void follow(mr_server *server, const mr_drain *drain, uint64_t now_ns)
{
    const bool moves = drain->phase > server->told || drain->leaves != server->told_leaves;
    server->told_leaves = drain->leaves;
    while (server->told < drain->phase) {
        server->told++;
        enter(server, server->told);
    }
    const bool settled = drain->phase >= MR_DRAIN_REFUSING && mr_drain_lingered(drain, now_ns);
    if (settled && !mr_flag_get(&server->drained) && nothing_runs(server)) {
        mr_log(server->quiet ? MR_LOG_DEBUG : MR_LOG_INFO, "server", "drained",
               "finished=%" PRIu64 " cut_off=%" PRIu64,
               mr_counter_get(&server->metrics.drained_finished),
               mr_counter_get(&server->metrics.drained_cut_off));
        mr_flag_set(&server->drained);
        mr_server_tick(server);
    }
    if (settled && drain->leaves && !server->closing) {
        server->closing = true;
        mr_connections_leave();
        mr_server_shut_down_ports(server);
    }
    if (mr_drain_hurries(drain, now_ns) && !mr_flag_get(&server->hurrying)) {
        mr_flag_set(&server->hurrying);
        mr_server_tick(server);
    }
    if (moves) {
        mr_server_tick(server);
    }
}

/* Whether gRPC is done with every call. */
static bool close_down(mr_server *server)
{
    if (!mr_flag_get(&server->down)) {
        cancel_all_calls(server);
    }
    const uint64_t until_ns = mr_time_add(mr_monotonic_ns(), LAST_NS);
    while (!mr_flag_get(&server->down) && mr_event_wait(&server->news, until_ns)) {
    }
    return mr_flag_get(&server->down);
}

bool mr_server_run(mr_server *server)
{
    for (;;) {
        look_at_engine(server);
        const uint64_t now_ns = mr_monotonic_ns();
        uint64_t wake_ns;
        pthread_mutex_lock(&server->drain_mutex);
        const bool idle = server->drain.leaves ? mr_flag_get(&server->down) : nothing_runs(server);
        (void)mr_drain_step(&server->drain, now_ns, idle, &wake_ns);
        const mr_drain drain = server->drain;
        pthread_mutex_unlock(&server->drain_mutex);
        follow(server, &drain, now_ns);
        if (drain.leaves && drain.phase == MR_DRAIN_DONE) {
            server->shut_down = true;
            return close_down(server);
        }
        (void)mr_event_wait(&server->news, mr_min_u64(wake_ns, mr_time_add(now_ns, LOOK_NS)));
    }
}
