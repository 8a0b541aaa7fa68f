/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buffer.h"
#include "base/clock.h"
#include "base/log.h"
#include "service/commands.h"
#include "service/listen.h"
#include "service/metrics_http.h"
#include "service/server.h"
#include "service/signal_watch.h"

#include <inttypes.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_LISTEN "127.0.0.1:8001"

static void log_configuration(const mr_runtime *runtime)
{
    mr_buffer text = {0};
    if (mr_config_format(mr_runtime_config(runtime), &text) == MR_OK) {
        mr_log(MR_LOG_INFO, "serve", "effective configuration", "%.*s", (int)text.size,
               (const char *)text.data);
    }
    mr_buffer_deinit(&text);
}

/* Who may call, and what nobody guards. */
static void log_callers(const mr_config *config)
{
    const mr_tenants *tenants = &config->tenants;
    if (tenants->count > 0) {
        mr_log(MR_LOG_INFO, "serve", "callers need credentials", "tenants=%" PRIu32,
               tenants->count);
    } else if (strcmp(config->tls_client_auth, "require") == 0) {
        mr_log(MR_LOG_INFO, "serve",
               "open to everybody with a certificate of tls.client_ca: no tenants are set", NULL);
    } else {
        mr_log(MR_LOG_WARN, "serve", "open to everybody who reaches the port: no tenants are set",
               NULL);
    }
    if (config->admin_enable && config->admins.count == 0) {
        mr_log(MR_LOG_WARN, "serve",
               "AdminService is open to everybody who reaches the port: no admin.callers are set",
               NULL);
    }
    if (tenants->count > 0 && config->tls_certificate[0] == '\0') {
        mr_log(MR_LOG_WARN, "serve",
               "keys and texts travel in plaintext: set tls.certificate and tls.private_key, or "
               "keep the port inside",
               NULL);
    }
}

static void log_ready(const mr_runtime *runtime, const char *listen, int port, uint64_t load_ns)
{
    const mr_backend_info *backend = mr_runtime_backend(runtime);
    const mr_config *config = mr_runtime_config(runtime);
    char name[264];
    mr_log(MR_LOG_INFO, "serve", "ready",
           "address=\"%.*s:%d\" model=%s backend=%s threads=%" PRIu32 " max_seq_length=%" PRIu32
           " kv_blocks=%" PRIu32 " rope=\"%s\" load_ms=%" PRIu64,
           (int)mr_listen_host_bytes(listen), listen, port,
           mr_log_quote(mr_runtime_model_name(runtime), name, sizeof(name)), backend->name,
           backend->threads, config->max_seq_length, mr_runtime_exec_options(runtime)->n_blocks - 1,
           mr_model_config_get(mr_runtime_model(runtime))->rope_in_effect,
           (uint64_t)(load_ns / MR_NS_PER_MS));
}

/* After READY, which does not wait for it. */
static void identify_model(mr_runtime *runtime)
{
    mr_prefix_identity *identity = mr_runtime_prefix_identity(runtime);
    if (identity == NULL) {
        return;
    }
    if (!mr_prefix_identity_shareable(identity)) {
        mr_log(MR_LOG_INFO, "serve",
               "cache_salt_secret is empty: cached prefixes are this process's own", NULL);
    }
    mr_prefix_identity_start(identity);
}

typedef struct addresses {
    const char *listen;
    const char *metrics; /* NULL: no listener, as of the next */
    const char *health;
} addresses;

/* Makes the server serve. */
static int serve_runtime(mr_server *server, mr_runtime *runtime, const char *listen,
                         mr_sharing **sharing, uint64_t started_ns)
{
    const mr_clock clock = mr_clock_monotonic();
    const int port = mr_server_port(server);
    mr_error err = {0};
    if (mr_sharing_create(runtime, listen, port, sharing, &err) != MR_OK) {
        return mr_cli_fail(MR_EXIT_FAILED, &err);
    }
    log_configuration(runtime);
    log_callers(mr_runtime_config(runtime));
    mr_server_set_runtime(server, runtime, *sharing);
    log_ready(runtime, listen, port, mr_clock_now(&clock) - started_ns);
    identify_model(runtime);
    return MR_EXIT_OK;
}

/* Until the server has left. Gives the exit status, or ends the process where calls are left that
 * use what would be freed. */
static int run_server(mr_server *server, mr_signal_watch *watch, int status)
{
    if (status != MR_EXIT_OK) {
        mr_server_close(server);
    }
    const bool ended = mr_server_run(server);
    status = mr_signal_watch_left(watch, status);
    if (!ended) {
        mr_log(MR_LOG_ERROR, "serve",
               "calls are left that cannot be ended: the engine is still in its step", NULL);
        mr_log_flush();
        _exit(status != MR_EXIT_OK ? status : MR_EXIT_FAILED);
    }
    return status;
}

static bool has_failed(mr_runtime *runtime)
{
    mr_engine_stats stats;
    mr_engine_stats_get(mr_runtime_engine(runtime), &stats);
    return stats.failed;
}

static int serve(mr_server *server, mr_signal_watch *watch, mr_metrics_http *http,
                 const char *listen, const char *path, mr_config *config)
{
    const mr_clock clock = mr_clock_monotonic();
    const uint64_t started = mr_clock_now(&clock);
    mr_runtime_options options = {
        .model_path = path, .with_engine = true, .failed = mr_server_news(server)};
    mr_runtime *runtime = NULL;
    mr_sharing *sharing = NULL;
    int status = mr_command_open_runtime(config, &options, &runtime);
    mr_signal_watch_loaded(watch);
    if (status == MR_EXIT_OK) {
        status = serve_runtime(server, runtime, listen, &sharing, started);
    }
    status = run_server(server, watch, status);
    if (status == MR_EXIT_OK && has_failed(runtime)) {
        status = MR_EXIT_DEVICE; /* whoever watches over the process starts it again */
    }
    mr_metrics_http_stop(http);
    mr_server_destroy(server);
    mr_sharing_destroy(sharing);
    mr_runtime_close(runtime);
    mr_log_flush();
    return status;
}

static mr_tls_client_auth client_auth_of(const mr_config *config)
{
    if (strcmp(config->tls_client_auth, "none") == 0) {
        return MR_TLS_CLIENT_NONE;
    }
    return strcmp(config->tls_client_auth, "require") == 0 ? MR_TLS_CLIENT_REQUIRE
                                                           : MR_TLS_CLIENT_OPTIONAL;
}

static void print_address(const char *what, const char *address, int port)
{
    printf("%s on %.*s:%d\n", what, (int)mr_listen_host_bytes(address), address, port);
}

/* The listeners are there before the model loads, which can take long. */
static mr_status start_listening(const addresses *where, const mr_config *config,
                                 mr_server **server, mr_metrics_http **http, mr_error *err)
{
    MR_TRY(mr_config_check_callers(config, err));
    const mr_tls_options tls = {
        .certificate = config->tls_certificate,
        .private_key = config->tls_private_key,
        .client_ca = config->tls_client_ca,
        .client_auth = client_auth_of(config),
        .reload_interval_ms = config->tls_reload_interval_ms,
    };
    const mr_server_options options = {
        .listen = where->listen,
        .health_listen = where->health,
        .tls = config->tls_certificate[0] != '\0' ? &tls : NULL,
        .keepalive = {.time_ms = config->keepalive_time_ms,
                      .timeout_ms = config->keepalive_timeout_ms,
                      .min_ping_interval_ms = config->keepalive_min_ping_interval_ms,
                      .permit_without_calls = config->keepalive_permit_without_calls},
        .limits = {.connections = config->limits_connections,
                   .connection_calls = config->limits_connection_calls,
                   .calls = config->limits_calls,
                   .header_bytes = config->limits_header_bytes,
                   .handshake_timeout_ms = config->limits_handshake_timeout_ms,
                   .request_timeout_ms = config->limits_request_timeout_ms,
                   .penalty_ms = config->limits_penalty_ms,
                   .answer_timeout_ms = config->slow_reader_timeout_ms},
        .max_message_bytes = config->max_message_bytes,
        .reflection = config->reflection_enable,
        .admin = config->admin_enable,
        .tenants = &config->tenants,
        .drain = {.pre_stop_ms = config->drain_pre_stop_ms, .timeout_ms = config->drain_timeout_ms},
        .stall_timeout_ms = config->stall_timeout_ms,
        .admins = &config->admins,
    };
    MR_TRY(mr_server_start(&options, server, err));
    if (where->metrics != NULL) {
        const mr_status status =
            mr_metrics_http_start(where->metrics, *server, config->metrics_vllm_names, http, err);
        if (status != MR_OK) {
            mr_server_destroy(*server);
            (void)mr_fail_context(err, "--metrics-listen");
            return status;
        }
    }
    print_address("listening", where->listen, mr_server_port(*server));
    if (where->metrics != NULL) {
        print_address("metrics", where->metrics, mr_metrics_http_port(*http));
    }
    if (where->health != NULL) {
        print_address("health", where->health, mr_server_health_port(*server));
    }
    fflush(stdout);
    return MR_OK;
}

/* Everything behind the command line. */
static int listen_and_serve(mr_signal_watch *watch, const mr_cli_model *model,
                            const addresses *where)
{
    mr_error err = {0};
    mr_config config;
    if (mr_cli_load_config(model, &config, &err) != MR_OK) {
        return mr_cli_fail(MR_EXIT_USAGE, &err);
    }
    mr_server *server = NULL;
    mr_metrics_http *http = NULL;
    if (start_listening(where, &config, &server, &http, &err) != MR_OK) {
        return mr_cli_fail(err.status == MR_INVALID_ARGUMENT ? MR_EXIT_USAGE : MR_EXIT_FAILED,
                           &err);
    }
    if (mr_signal_watch_start(watch, server, model, &config, &err) != MR_OK) {
        mr_metrics_http_stop(http);
        mr_server_destroy(server);
        return mr_cli_fail(MR_EXIT_FAILED, &err);
    }
    return serve(server, watch, http, where->listen, model->path, &config);
}

int mr_cmd_serve(int argc, char **argv)
{
    static mr_signal_watch watch; /* its thread outlasts this function */
    mr_signal_watch_init(&watch);

    static mr_cli_model model; /* as the watch */
    addresses where = {.listen = DEFAULT_LISTEN};
    const mr_cli_option options[] = {
        MR_CLI_MODEL_OPTIONS(&model),
        {"listen", MR_CLI_TEXT, &where.listen, NULL, "HOST:PORT",
         "where to serve (default " DEFAULT_LISTEN "); port 0 takes a free one"},
        {"metrics-listen", MR_CLI_TEXT, &where.metrics, NULL, "HOST:PORT",
         "where HTTP answers /metrics, /livez and /readyz (default: nowhere)"},
        {"health-listen", MR_CLI_TEXT, &where.health, NULL, "HOST:PORT",
         "where grpc.health.v1 alone answers, without TLS or keys (default: nowhere)"},
    };
    const mr_cli_command command = {
        .name = "serve",
        .usage = "--model PATH [OPTION]...",
        .about = "Serves a model over gRPC (millrace.v1) until SIGTERM or SIGINT. It is not "
                 "ready then but serves\non for drain.pre_stop_ms, and what runs after that has "
                 "drain.timeout_ms to end. A second\nsignal ends it at once.",
        .options = options,
        .n_options = sizeof(options) / sizeof(options[0]),
        .examples =
            "millrace serve --model model.gguf\n"
            "millrace serve --model model.gguf --listen 0.0.0.0:8001 --set max_batch_size=8\n"
            "millrace serve --model model.gguf --listen 0.0.0.0:8001 --metrics-listen "
            "0.0.0.0:9090\n"
            "millrace serve --model model.gguf --config millrace.yaml --set log.format=json\n",
        .mistakes = "Others cannot reach it: 127.0.0.1 is this machine only; --listen 0.0.0.0:8001 "
                    "is every interface.\n"
                    "Calls fail right after the start: until the log says \"ready\" the model is "
                    "loading; watch grpc.health.v1.\n"
                    "The KV cache takes too much memory: lower max_seq_length or max_batch_size, "
                    "or set kv_cache_memory.\n",
        .shows_config = true,
    };
    mr_cli_texts operands;
    const mr_cli_outcome outcome = mr_cli_parse(&command, argc, argv, &operands);
    if (outcome != MR_CLI_RUN) {
        return outcome == MR_CLI_HELPED ? MR_EXIT_OK : MR_EXIT_USAGE;
    }
    if (model.path == NULL) {
        return mr_cli_fail_usage("serve: --model PATH is missing");
    }
    return listen_and_serve(&watch, &model, &where);
}
