/* SPDX-License-Identifier: Apache-2.0 */
#include "service/server.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"
#include "service/connections.h"
#include "service/listen.h"
#include "service/rpc.h"

#include <grpc/grpc_security.h>
#include <grpc/support/log.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A request's size limit where none is set (G2). Prompts of ids take up to five bytes a token, text
 * a few, chats and lists somewhat more. */
#define MESSAGE_BYTES_A_TOKEN UINT64_C(64)
#define MESSAGE_BYTES_LEAST   (UINT64_C(16) << 20)
#define MESSAGE_BYTES_MOST    (UINT64_C(64) << 20)
#define LOADING_RETRY_MS      1000
#define DRAINING_RETRY_MS     1000

static const char *drain_reason(const mr_server *server)
{
    return mr_flag_get(&server->leaving) ? "the server is shutting down" : "the server is draining";
}

mr_status mr_server_runtime(mr_server *server, mr_runtime **out, mr_error *err)
{
    uint32_t retry_ms = DRAINING_RETRY_MS;
    if (mr_flag_get(&server->refusing)) {
        (void)mr_fail(err, MR_UNAVAILABLE, "%s: use another one", drain_reason(server));
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

const char *mr_server_not_serving(mr_server *server)
{
    if (mr_flag_get(&server->draining)) {
        return drain_reason(server);
    }
    if (!mr_flag_get(&server->ready)) {
        return "the model is still loading";
    }
    mr_engine_stats stats;
    mr_engine_stats_get(mr_runtime_engine(server->runtime), &stats);
    if (stats.failed) {
        return "the device failed; the server ends";
    }
    return stats.pending_ns >= server->stall_ns
               ? "the engine makes no step; restart the server if it stays so"
               : NULL;
}

const mr_metrics *mr_server_metrics(const mr_server *server)
{
    return &server->metrics;
}

void mr_server_metrics_view(mr_server *server, mr_metrics_view *out)
{
    const mr_clock clock = mr_clock_monotonic();
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    *out = (mr_metrics_view){
        .serving = mr_server_not_serving(server) == NULL,
        .draining = mr_flag_get(&server->draining),
        .model_name = "",
        .backend = "",
        .kv_dtype = "",
        .now_ns = mr_clock_now(&clock),
        .unix_s = (double)wall.tv_sec + (double)wall.tv_nsec / (double)MR_NS_PER_S,
    };
    if (server->tls != NULL) {
        mr_tls_stats_get(server->tls, &out->tls);
    }
    if (!mr_flag_get(&server->ready)) {
        return;
    }
    mr_runtime *runtime = server->runtime;
    const mr_config *config = mr_runtime_config(runtime);
    out->model_name = mr_runtime_model_name(runtime);
    out->backend = mr_runtime_backend(runtime)->name;
    out->kv_dtype = config->kv_cache_dtype;
    out->prefix_caching = config->enable_prefix_caching;
    out->block_size = config->block_size;
    out->max_seq_length = config->max_seq_length;
    out->memory = server->memory;
    mr_engine_stats_get(mr_runtime_engine(runtime), &out->engine);
    out->stalled = out->engine.pending_ns >= server->stall_ns;
    mr_sharing_stats_get(server->sharing, &out->sharing);
}

void mr_server_tick(mr_server *server)
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

static void create_grpc(mr_server *server, const mr_server_options *options)
{
    const mr_keepalive *keepalive = &options->keepalive;
    server->max_message_bytes =
        options->max_message_bytes > 0 ? options->max_message_bytes : MESSAGE_BYTES_MOST;
    struct {
        const char *key;
        int value;
    } const settings[] = {
        /* More wait at the client for those before them. */
        {GRPC_ARG_MAX_CONCURRENT_STREAMS, (int)options->limits.connection_calls},
        {GRPC_ARG_MAX_METADATA_SIZE, (int)options->limits.header_bytes},
        {GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, (int)options->limits.handshake_timeout_ms},
        {GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, (int)server->max_message_bytes},
        {GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, -1},
        {GRPC_ARG_KEEPALIVE_TIME_MS, (int)keepalive->time_ms},
        {GRPC_ARG_KEEPALIVE_TIMEOUT_MS, (int)keepalive->timeout_ms},
        {GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, keepalive->permit_without_calls ? 1 : 0},
        {GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
         (int)keepalive->min_ping_interval_ms},
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
    server->grpc[MR_RPC_MAIN] = grpc_server_create(&channel_args, NULL);
    if (options->health_listen != NULL) {
        server->grpc[MR_RPC_PROBES] = grpc_server_create(&channel_args, NULL);
    }
}

static mr_status start_guard(const mr_server *server, mr_error *err)
{
    const mr_connection_limits limits = {.connections = server->limits.connections,
                                         .connection_calls = server->limits.connection_calls,
                                         .calls = server->limits.calls,
                                         .message_bytes = server->max_message_bytes,
                                         .header_bytes = server->limits.header_bytes,
                                         .penalty_ns = server->limits.penalty_ms * MR_NS_PER_MS};
    return mr_connections_start(&limits, err);
}

static void register_methods(mr_server *server)
{
    for (size_t m = 0; m < MR_RPC_METHODS; m++) {
        const mr_rpc_method *method = mr_rpc_methods[m];
        grpc_server *grpc = server->grpc[method->port];
        if (grpc != NULL && method->path != NULL) {
            server->registered[m] =
                grpc_server_register_method(grpc, method->path, NULL, GRPC_SRM_PAYLOAD_NONE, 0);
        }
    }
}

static mr_status bind_port(mr_server *server, mr_rpc_port port, const char *address, mr_error *err)
{
    MR_TRY(mr_listen_check(address, err));
    const bool encrypted = port == MR_RPC_MAIN && server->tls != NULL;
    grpc_server_credentials *credentials =
        encrypted ? mr_tls_credentials(server->tls) : grpc_insecure_server_credentials_create();
    server->port[port] = grpc_server_add_http2_port(server->grpc[port], address, credentials);
    grpc_server_credentials_release(credentials);
    if (server->port[port] == 0) {
        return mr_fail(err, MR_UNAVAILABLE,
                       "cannot listen on %s: gRPC could not bind it; see its warning above",
                       address);
    }
    return MR_OK;
}

static mr_status bind_ports(mr_server *server, const mr_server_options *options, mr_error *err)
{
    MR_TRY(bind_port(server, MR_RPC_MAIN, options->listen, err));
    if (options->health_listen != NULL &&
        bind_port(server, MR_RPC_PROBES, options->health_listen, err) != MR_OK) {
        return mr_fail_context(err, "--health-listen");
    }
    return MR_OK;
}

static mr_status start_threads(mr_server *server, mr_error *err)
{
    MR_TRY(mr_text_worker_start(&server->texts, err));
    for (uint32_t i = 0; i < MR_RPC_QUEUES; i++) {
        MR_TRY(mr_rpc_queue_start(&server->queues[i], err));
        server->n_threads++;
    }
    return MR_OK;
}

/* All that cannot fail. */
static void set_up(mr_server *server, const mr_server_options *options)
{
    gpr_set_log_function(on_grpc_log);
    grpc_init();
    mr_event_init(&server->news);
    pthread_mutex_init(&server->drain_mutex, NULL);
    mr_id_registry_init(&server->ids, &server->news);
    server->drain_times = options->drain;
    server->stall_ns = options->stall_timeout_ms * MR_NS_PER_MS;
    mr_metrics_init(&server->metrics);
    server->reflection = options->reflection;
    server->admin = options->admin;
    server->down_tag.event = MR_RPC_SERVER_DOWN;
    server->max_message_auto = options->max_message_bytes == 0;
    server->limits = options->limits;
    create_grpc(server, options);
    server->n_up = options->health_listen != NULL ? 2 : 1;
    for (uint32_t i = 0; i < MR_RPC_QUEUES; i++) {
        mr_rpc_queue_init(&server->queues[i], server);
    }
    register_methods(server);
}

mr_status mr_server_start(const mr_server_options *options, mr_server **out, mr_error *err)
{
    mr_server *server = mr_calloc(1, sizeof(*server));
    if (server == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "out of memory for the gRPC server");
    }
    mr_status begun =
        mr_random_fill(&server->boot, sizeof(server->boot), "the ids of requests", err);
    if (begun == MR_OK) {
        begun = mr_tenant_place_init(&server->tenants, options->tenants, options->admins, err);
    }
    if (begun == MR_OK && options->tls != NULL) {
        begun = mr_tls_create(options->tls, &server->tls, err);
        if (begun != MR_OK) {
            mr_tenant_place_deinit(&server->tenants);
        }
    }
    if (begun != MR_OK) {
        free(server);
        return begun;
    }
    set_up(server, options);
    mr_status status = start_guard(server, err);
    if (status == MR_OK) {
        status = bind_ports(server, options, err);
    }
    if (status == MR_OK) {
        status = start_threads(server, err);
    }
    if (status == MR_RESOURCE_EXHAUSTED) {
        /* Not destroyed: gRPC may lack threads too, and would wait for them for ever. The program
         * is about to end. */
        return status;
    }
    if (status != MR_OK) {
        mr_server_destroy(server);
        return status;
    }
    for (size_t p = 0; p < MR_RPC_PORTS; p++) {
        if (server->grpc[p] != NULL) {
            mr_connections_guard(server->port[p]);
            grpc_server_start(server->grpc[p]);
        }
    }
    mr_flag_set(&server->serving);
    mr_server_tick(server); /* the threads say which calls they expect */
    *out = server;
    return MR_OK;
}

int mr_server_port(const mr_server *server)
{
    return server->port[MR_RPC_MAIN];
}

int mr_server_health_port(const mr_server *server)
{
    return server->port[MR_RPC_PROBES];
}

mr_status mr_server_set_callers(mr_server *server, const mr_tenants *tenants,
                                const mr_admins *admins, mr_error *err)
{
    return mr_tenant_place_replace(&server->tenants, tenants, admins, err);
}

void mr_server_reload_tls(mr_server *server)
{
    if (server->tls != NULL) {
        mr_tls_look(server->tls);
    }
}

void mr_server_set_runtime(mr_server *server, mr_runtime *runtime, mr_sharing *sharing)
{
    server->runtime = runtime;
    server->sharing = sharing;
    server->limiter = mr_sharing_limiter(sharing);
    const mr_exec *exec = mr_runtime_exec(runtime);
    exec->vt->memory(exec, &server->memory);
    if (server->max_message_auto) {
        const uint64_t wanted = MESSAGE_BYTES_A_TOKEN * mr_runtime_config(runtime)->max_seq_length;
        const uint64_t least = wanted > MESSAGE_BYTES_LEAST ? wanted : MESSAGE_BYTES_LEAST;
        server->max_message_bytes = least < MESSAGE_BYTES_MOST ? least : MESSAGE_BYTES_MOST;
    }
    mr_flag_set(&server->ready);
    mr_server_tick(server);
}

/* For a server that was never run. False when it cannot be destroyed. */
static bool leave_at_once(mr_server *server)
{
    if (server->shut_down || server->n_threads == 0) {
        return true;
    }
    mr_server_close(server);
    return mr_server_run(server);
}

void mr_server_destroy(mr_server *server)
{
    if (server == NULL || !leave_at_once(server)) {
        return;
    }
    for (uint32_t i = 0; i < server->n_threads; i++) {
        mr_rpc_queue_stop(&server->queues[i]);
    }
    for (uint32_t i = 0; i < server->n_threads; i++) {
        mr_rpc_queue_join(&server->queues[i]);
    }
    mr_text_worker_stop(&server->texts);
    if (server->n_threads == 0) {
        /* Never ran; gRPC wants its shutdown all the same. */
        mr_server_shut_down_ports(server);
    }
    for (uint32_t i = server->n_threads; i < MR_RPC_QUEUES; i++) {
        mr_rpc_queue_drop(&server->queues[i]);
    }
    for (size_t p = 0; p < MR_RPC_PORTS; p++) {
        if (server->grpc[p] != NULL) {
            grpc_server_destroy(server->grpc[p]);
        }
    }
    for (uint32_t i = 0; i < MR_RPC_QUEUES; i++) {
        mr_rpc_queue_deinit(&server->queues[i]);
    }
    mr_id_registry_deinit(&server->ids);
    pthread_mutex_destroy(&server->drain_mutex);
    mr_event_deinit(&server->news);
    mr_tenant_place_deinit(&server->tenants);
    grpc_shutdown_blocking();
    mr_connections_stop();
    mr_tls_destroy(server->tls);
    free(server);
}
