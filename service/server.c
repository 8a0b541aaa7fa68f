/* SPDX-License-Identifier: Apache-2.0 */
#include "service/server.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/log.h"
#include "service/call.h"
#include "service/handoff.h"
#include "service/listen.h"
#include "service/request_sink.h"
#include "service/rpc.h"

#include <grpc/grpc_security.h>
#include <grpc/support/log.h>
#include <grpc/support/time.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* gRPC's own default, 4 MiB, is too small for long prompts. This holds a prompt of the longest
 * max_seq_length that there is, with 32 bytes a token: text and ids both take fewer. */
#define MAX_RECEIVE_BYTES (32 << 20)
/* Clients may ping every ten seconds for ever; their timers may be a little early. */
#define MIN_PING_INTERVAL_MS 9000
#define KEEPALIVE_MS         60000
#define KEEPALIVE_TIMEOUT_MS 20000
/* Calls that may arrive at once, a queue and method, before gRPC has to wait for the queue. */
#define EXPECTED_CALLS 4
/* How long cancelled streams get for their last message. */
#define LAST_WORDS_NS (2 * MR_NS_PER_S)
/* How often a failure of the device is looked for while somebody watches the health. */
#define WATCH_INTERVAL_MS 500
#define LOADING_RETRY_MS  1000
#define DRAINING_RETRY_MS 1000

static const mr_rpc_method *const methods[MR_RPC_METHODS] = {
    &mr_rpc_generate,     &mr_rpc_generate_unary, &mr_rpc_abort,
    &mr_rpc_tokenize,     &mr_rpc_detokenize,     &mr_rpc_get_model,
    &mr_rpc_health_check, &mr_rpc_health_watch,   &mr_rpc_other,
};

mr_status mr_server_runtime(mr_server *server, mr_runtime **out, mr_error *err)
{
    uint32_t retry_ms = DRAINING_RETRY_MS;
    if (mr_flag_get(&server->draining)) {
        (void)mr_fail(err, MR_UNAVAILABLE, "the server is shutting down: use another one");
    } else if (!mr_flag_get(&server->ready)) {
        (void)mr_fail(err, MR_UNAVAILABLE, "the model is still loading: try again");
        retry_ms = LOADING_RETRY_MS;
    } else {
        *out = server->runtime;
        return MR_OK;
    }
    if (err != NULL) {
        err->retry_after_ms = retry_ms;
    }
    return MR_UNAVAILABLE;
}

bool mr_server_serving(mr_server *server)
{
    if (!mr_flag_get(&server->ready) || mr_flag_get(&server->draining)) {
        return false;
    }
    mr_engine_stats stats;
    mr_engine_stats_get(mr_runtime_engine(server->runtime), &stats);
    return !stats.failed;
}

/* One look at every call. A call may end, but none is freed: each holds a batch that is out. */
static void tick(mr_rpc_queue *queue)
{
    for (mr_call *call = queue->calls; call != NULL; call = call->next) {
        if (call->method->tick != NULL) {
            call->method->tick(call);
        }
    }
}

static void on_event(mr_rpc_queue *queue, const mr_rpc_tag *tag, bool ok)
{
    switch (tag->event) {
    case MR_RPC_NEW:
    case MR_RPC_CLOSED:
    case MR_RPC_SENT:
    case MR_RPC_FINISHED:
        mr_call_on_event(tag->call, tag->event, ok);
        break;
    case MR_RPC_WAKE:
        MR_HANDOFF_TAKE(&queue->wake_tag);
        mr_request_sink_take(queue);
        break;
    case MR_RPC_TICK:
        tick(queue);
        break;
    case MR_RPC_STOP:
        MR_HANDOFF_TAKE(&queue->stop_tag);
        queue->stopping = true;
        break;
    case MR_RPC_SERVER_DOWN:
        mr_event_set(&queue->server->down);
        break;
    }
}

static void *queue_main(void *arg)
{
    mr_rpc_queue *queue = arg;
    for (;;) {
        gpr_timespec until = gpr_inf_future(GPR_CLOCK_MONOTONIC);
        if (queue->n_watchers > 0) {
            until = gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                                 gpr_time_from_millis(WATCH_INTERVAL_MS, GPR_TIMESPAN));
        }
        const grpc_event event = grpc_completion_queue_next(queue->cq, until, NULL);
        if (event.type == GRPC_QUEUE_SHUTDOWN) {
            return NULL;
        }
        if (event.type == GRPC_OP_COMPLETE) {
            on_event(queue, event.tag, event.success != 0);
        } else {
            tick(queue);
        }
        if (queue->stopping && queue->calls == NULL && !queue->stopped) {
            queue->stopped = true;
            grpc_completion_queue_shutdown(queue->cq);
        }
    }
}

static void tick_all(mr_server *server)
{
    for (uint32_t i = 0; i < server->n_threads; i++) {
        mr_rpc_queue_post(&server->queues[i], &server->queues[i].tick_tag);
    }
}

/* gRPC's own log goes into ours; what it calls an error is at most a warning to us. */
static void on_grpc_log(gpr_log_func_args *args)
{
    mr_log_folded(args->severity == GPR_LOG_SEVERITY_ERROR ? MR_LOG_WARN : MR_LOG_DEBUG, "grpc",
                  args->message, NULL);
}

static void create_grpc(mr_server *server)
{
    struct {
        const char *key;
        int value;
    } const settings[] = {
        {GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, MAX_RECEIVE_BYTES},
        {GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, -1},
        {GRPC_ARG_KEEPALIVE_TIME_MS, KEEPALIVE_MS},
        {GRPC_ARG_KEEPALIVE_TIMEOUT_MS, KEEPALIVE_TIMEOUT_MS},
        {GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1},
        {GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, MIN_PING_INTERVAL_MS},
        /* A second server on the same port shall fail to start, not take half of the calls. */
        {GRPC_ARG_ALLOW_REUSEPORT, 0},
    };
    enum { N_SETTINGS = sizeof(settings) / sizeof(settings[0]) };
    grpc_arg args[N_SETTINGS];
    memset(args, 0, sizeof(args));
    for (size_t i = 0; i < N_SETTINGS; i++) {
        args[i].type = GRPC_ARG_INTEGER;
        args[i].key = (char *)settings[i].key;
        args[i].value.integer = settings[i].value;
    }
    const grpc_channel_args channel_args = {.num_args = N_SETTINGS, .args = args};
    server->grpc = grpc_server_create(&channel_args, NULL);
}

static void create_queue(mr_server *server, mr_rpc_queue *queue)
{
    queue->server = server;
    queue->cq = grpc_completion_queue_create_for_next(NULL);
    queue->wake_tag.event = MR_RPC_WAKE;
    queue->tick_tag.event = MR_RPC_TICK;
    queue->stop_tag.event = MR_RPC_STOP;
    mr_request_sink_init(queue);
    grpc_server_register_completion_queue(server->grpc, queue->cq, NULL);
    server->n_queues++;
}

static mr_status bind_port(mr_server *server, const char *address, mr_error *err)
{
    MR_TRY(mr_listen_check(address, err));
    grpc_server_credentials *plain = grpc_insecure_server_credentials_create();
    server->port = grpc_server_add_http2_port(server->grpc, address, plain);
    grpc_server_credentials_release(plain);
    if (server->port == 0) {
        return mr_fail(err, MR_UNAVAILABLE,
                       "cannot listen on %s: gRPC could not bind it; see its warning above",
                       address);
    }
    return MR_OK;
}

static mr_status start_threads(mr_server *server, mr_error *err)
{
    for (uint32_t i = 0; i < server->n_queues; i++) {
        mr_rpc_queue *queue = &server->queues[i];
        for (size_t m = 0; m < MR_RPC_METHODS; m++) {
            for (int n = 0; n < EXPECTED_CALLS; n++) {
                (void)mr_call_expect(queue, methods[m], server->registered[m]);
            }
        }
        if (pthread_create(&queue->thread, NULL, queue_main, queue) != 0) {
            return mr_fail(err, MR_RESOURCE_EXHAUSTED,
                           "the system gave no thread for the gRPC server");
        }
        server->n_threads++;
    }
    return MR_OK;
}

mr_status mr_server_start(const mr_server_options *options, mr_server **out, mr_error *err)
{
    mr_server *server = mr_calloc(1, sizeof(*server));
    if (server == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "out of memory for the gRPC server");
    }
    if (getrandom(&server->boot, sizeof(server->boot), 0) != (ssize_t)sizeof(server->boot)) {
        free(server);
        return mr_fail(err, MR_INTERNAL, "the system gave no random bytes");
    }
    gpr_set_log_function(on_grpc_log);
    grpc_init();
    mr_event_init(&server->down);
    mr_id_registry_init(&server->ids);
    server->down_tag.event = MR_RPC_SERVER_DOWN;
    create_grpc(server);
    for (uint32_t i = 0; i < MR_RPC_QUEUES; i++) {
        create_queue(server, &server->queues[i]);
    }
    for (size_t m = 0; m < MR_RPC_METHODS; m++) {
        if (methods[m]->path != NULL) {
            server->registered[m] = grpc_server_register_method(
                server->grpc, methods[m]->path, NULL, GRPC_SRM_PAYLOAD_READ_INITIAL_BYTE_BUFFER, 0);
        }
    }
    mr_status status = bind_port(server, options->listen, err);
    if (status == MR_OK) {
        grpc_server_start(server->grpc);
        status = start_threads(server, err);
    }
    if (status != MR_OK) {
        mr_server_destroy(server);
        return status;
    }
    *out = server;
    return MR_OK;
}

int mr_server_port(const mr_server *server)
{
    return server->port;
}

void mr_server_set_runtime(mr_server *server, mr_runtime *runtime)
{
    server->runtime = runtime;
    mr_flag_set(&server->ready);
    tick_all(server);
}

static bool wait_down(mr_server *server, uint64_t wait_ns)
{
    const mr_clock clock = mr_clock_monotonic();
    return mr_event_wait(&server->down, mr_time_add(mr_clock_now(&clock), wait_ns));
}

void mr_server_shutdown(mr_server *server, uint32_t timeout_ms)
{
    if (server->shut_down || server->n_threads == 0) {
        return;
    }
    server->shut_down = true;
    mr_flag_set(&server->draining);
    grpc_server_shutdown_and_notify(server->grpc, server->queues[0].cq, &server->down_tag);
    tick_all(server);
    if (wait_down(server, (uint64_t)timeout_ms * MR_NS_PER_MS)) {
        return;
    }
    mr_log(MR_LOG_WARN, "server", "streams are cut off", "timeout_ms=%u", timeout_ms);
    mr_flag_set(&server->cut_off);
    tick_all(server);
    if (wait_down(server, LAST_WORDS_NS)) {
        return;
    }
    /* Clients that do not even take a status. */
    grpc_server_cancel_all_calls(server->grpc);
    (void)mr_event_wait(&server->down, MR_NEVER);
}

/* A queue that never got a thread: only what gRPC still owes it is left. */
static void drain_queue(mr_rpc_queue *queue)
{
    grpc_completion_queue_shutdown(queue->cq);
    grpc_event event;
    do {
        event = grpc_completion_queue_next(queue->cq, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
        const mr_rpc_tag *tag = event.type == GRPC_OP_COMPLETE ? event.tag : NULL;
        if (tag != NULL && tag->event == MR_RPC_NEW) {
            mr_call_on_event(tag->call, tag->event, event.success != 0);
        }
    } while (event.type != GRPC_QUEUE_SHUTDOWN);
}

void mr_server_destroy(mr_server *server)
{
    if (server == NULL) {
        return;
    }
    mr_server_shutdown(server, 0);
    for (uint32_t i = 0; i < server->n_threads; i++) {
        mr_rpc_queue_post(&server->queues[i], &server->queues[i].stop_tag);
    }
    for (uint32_t i = 0; i < server->n_threads; i++) {
        pthread_join(server->queues[i].thread, NULL);
    }
    if (server->n_threads == 0) {
        /* Never ran; gRPC wants its shutdown all the same. */
        grpc_server_shutdown_and_notify(server->grpc, server->queues[0].cq, &server->down_tag);
    }
    for (uint32_t i = server->n_threads; i < server->n_queues; i++) {
        drain_queue(&server->queues[i]);
    }
    grpc_server_destroy(server->grpc);
    for (uint32_t i = 0; i < server->n_queues; i++) {
        mr_request_sink_deinit(&server->queues[i]);
        grpc_completion_queue_destroy(server->queues[i].cq);
    }
    mr_id_registry_deinit(&server->ids);
    mr_event_deinit(&server->down);
    grpc_shutdown_blocking();
    free(server);
}
