/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buffer.h"
#include "base/checked.h"
#include "base/clock.h"
#include "base/event.h"
#include "base/log.h"
#include "service/commands.h"
#include "service/listen.h"
#include "service/metrics_http.h"
#include "service/server.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_LISTEN   "127.0.0.1:8001"
#define SHUTDOWN_WAIT_MS 30000u

/* What the thread that waits for signals shares with the one that loads and serves. */
typedef struct shutdown_watch {
    sigset_t signals;
    mr_server *server;
    const mr_cli_model *model; /* where settings come from */
    mr_config config;          /* what they were at the start */
    mr_event asked;            /* for the end, or the device failed */
    pthread_mutex_t mutex;     /* held while the process ends before the model is loaded */
    bool loaded;
} shutdown_watch;

/* Signals are blocked before there is any thread, and waited for by one: none is lost. */
static void block_signals(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGHUP);
    pthread_sigmask(SIG_BLOCK, set, NULL);
    signal(SIGPIPE, SIG_IGN);
}

static void log_configuration(const mr_runtime *runtime)
{
    mr_buffer text = {0};
    if (mr_config_format(mr_runtime_config(runtime), &text) == MR_OK) {
        mr_log(MR_LOG_INFO, "serve", "effective configuration", "%.*s", (int)text.size,
               (const char *)text.data);
    }
    mr_buffer_deinit(&text);
}

static void log_tenants(const mr_tenants *tenants)
{
    if (tenants->count == 0) {
        mr_log(MR_LOG_WARN, "serve", "open to everybody who reaches the port: no tenants are set",
               NULL);
    } else {
        mr_log(MR_LOG_INFO, "serve", "callers need a key", "tenants=%" PRIu32, tenants->count);
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

/* Loading cannot be interrupted, and nothing depends on its end: calls get their status, then the
 * process goes. */
static void leave_if_loading(shutdown_watch *watch)
{
    pthread_mutex_lock(&watch->mutex);
    if (!watch->loaded) {
        mr_server_shutdown(watch->server, SHUTDOWN_WAIT_MS);
        mr_log_flush();
        _exit(MR_EXIT_OK);
    }
    pthread_mutex_unlock(&watch->mutex);
}

/* What both print alike is the same, but for what is reloaded. */
static bool is_same(mr_config *now, const mr_config *before)
{
    mr_config *old = mr_calloc(2, sizeof(*old));
    if (old == NULL) {
        return true;
    }
    mr_buffer texts[2] = {{0}, {0}};
    old[0] = *before;
    old[1] = *now;
    bool same = true;
    for (int i = 0; i < 2; i++) {
        old[i].tenants.count = 0;
        memcpy(old[i].log_level, before->log_level, sizeof(old[i].log_level));
        memcpy(old[i].log_format, before->log_format, sizeof(old[i].log_format));
        same = same && mr_config_format(&old[i], &texts[i]) == MR_OK;
    }
    same = !same || (texts[0].size == texts[1].size &&
                     memcmp(texts[0].data, texts[1].data, texts[0].size) == 0);
    mr_buffer_deinit(&texts[0]);
    mr_buffer_deinit(&texts[1]);
    free(old);
    return same;
}

static mr_status load_tenants(const shutdown_watch *watch, mr_config *config, mr_error *err)
{
    MR_TRY(mr_cli_load_config(watch->model, config, err));
    const bool same = is_same(config, &watch->config);
    MR_TRY(mr_config_finish(config, err));
    MR_TRY(mr_server_set_tenants(watch->server, &config->tenants, err));
    if (!same) {
        mr_log(MR_LOG_WARN, "serve",
               "other settings were changed too: they take effect with the next start", NULL);
    }
    return MR_OK;
}

/* Tenants with their keys and limits, and what is logged; for the calls that come. */
static void reload(const shutdown_watch *watch)
{
    mr_error err = {0};
    mr_config *config = mr_calloc(1, sizeof(*config));
    if (config == NULL) {
        (void)mr_fail(&err, MR_RESOURCE_EXHAUSTED, "out of memory");
    } else if (load_tenants(watch, config, &err) == MR_OK) {
        mr_log(MR_LOG_INFO, "serve", "settings are reloaded", "tenants=%" PRIu32,
               config->tenants.count);
    }
    if (err.status != MR_OK) {
        char text[2 * MR_ERROR_MESSAGE_MAX];
        mr_log(MR_LOG_ERROR, "serve", "settings are not reloaded: those before stay", "cause=%s",
               mr_log_quote(err.message, text, sizeof(text)));
    }
    free(config);
}

/* Waits for a signal to end by; SIGHUP is none. */
static int wait_for_end(const shutdown_watch *watch)
{
    for (;;) {
        int number = 0;
        if (sigwait(&watch->signals, &number) != 0) {
            continue;
        }
        if (number != SIGHUP) {
            return number;
        }
        reload(watch);
    }
}

/* Takes the first signal; the next one has its default effect and ends the process at once. */
static void *watch_signals(void *arg)
{
    shutdown_watch *watch = arg;
    const int number = wait_for_end(watch);
    pthread_sigmask(SIG_UNBLOCK, &watch->signals, NULL);
    mr_log(MR_LOG_INFO, "serve", "shutting down", "signal=%s wait_ms=%u",
           number == SIGTERM ? "SIGTERM" : "SIGINT", SHUTDOWN_WAIT_MS);
    leave_if_loading(watch);
    mr_event_set(&watch->asked);
    (void)pause(); /* for the next one to end the process: the other threads block it */
    return NULL;
}

/* The watch lasts as long as the process. */
static mr_status start_watch(shutdown_watch *watch, mr_error *err)
{
    mr_event_init(&watch->asked);
    pthread_mutex_init(&watch->mutex, NULL);
    pthread_t thread;
    if (pthread_create(&thread, NULL, watch_signals, watch) != 0) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "the system gave no thread to wait for signals");
    }
    pthread_detach(thread);
    return MR_OK;
}

/* Does not return if the process is ending already. */
static void set_loaded(shutdown_watch *watch)
{
    pthread_mutex_lock(&watch->mutex);
    watch->loaded = true;
    pthread_mutex_unlock(&watch->mutex);
}

typedef struct addresses {
    const char *listen;
    const char *metrics; /* NULL: no listener */
} addresses;

/* Ends the process too: a failed device serves nobody, and whoever watches over the process starts
 * it again. */
static int end_status(mr_runtime *runtime)
{
    mr_engine_stats stats;
    mr_engine_stats_get(mr_runtime_engine(runtime), &stats);
    if (!stats.failed) {
        return MR_EXIT_OK;
    }
    mr_log(MR_LOG_ERROR, "serve",
           "shutting down: the device failed; start the server again, and look at the machine if "
           "this comes back",
           "exit_status=%d", MR_EXIT_DEVICE);
    return MR_EXIT_DEVICE;
}

/* Serves until a signal asks for the end, or the device fails. */
static int serve_runtime(shutdown_watch *watch, mr_runtime *runtime, const char *listen,
                         mr_sharing **sharing, uint64_t started_ns)
{
    const mr_clock clock = mr_clock_monotonic();
    const int port = mr_server_port(watch->server);
    mr_error err = {0};
    if (mr_sharing_create(runtime, listen, port, sharing, &err) != MR_OK) {
        return mr_cli_fail(MR_EXIT_FAILED, &err);
    }
    log_configuration(runtime);
    log_tenants(&mr_runtime_config(runtime)->tenants);
    mr_server_set_runtime(watch->server, runtime, *sharing);
    log_ready(runtime, listen, port, mr_clock_now(&clock) - started_ns);
    identify_model(runtime);
    (void)mr_event_wait(&watch->asked, MR_NEVER);
    mr_metadata_store_set_state(mr_sharing_store(*sharing), "draining");
    return end_status(runtime);
}

static int serve(shutdown_watch *watch, mr_metrics_http *http, const char *listen, const char *path,
                 mr_config *config)
{
    const mr_clock clock = mr_clock_monotonic();
    const uint64_t started = mr_clock_now(&clock);
    mr_server *server = watch->server;
    mr_runtime_options options = {.model_path = path, .with_engine = true, .failed = &watch->asked};
    mr_runtime *runtime = NULL;
    mr_sharing *sharing = NULL;
    int status = mr_command_open_runtime(config, &options, &runtime);
    set_loaded(watch);
    if (status == MR_EXIT_OK) {
        status = serve_runtime(watch, runtime, listen, &sharing, started);
    }
    mr_server_shutdown(server, SHUTDOWN_WAIT_MS);
    mr_metrics_http_stop(http);
    mr_server_destroy(server);
    mr_sharing_destroy(sharing);
    mr_runtime_close(runtime);
    mr_log_flush();
    return status;
}

/* Both listeners are there before the model loads, which can take long. */
static mr_status start_listening(const addresses *where, const mr_config *config,
                                 mr_server **server, mr_metrics_http **http, mr_error *err)
{
    const mr_server_options options = {
        .listen = where->listen,
        .keepalive = {.time_ms = config->keepalive_time_ms,
                      .timeout_ms = config->keepalive_timeout_ms,
                      .min_ping_interval_ms = config->keepalive_min_ping_interval_ms,
                      .permit_without_calls = config->keepalive_permit_without_calls},
        .max_message_bytes = config->max_message_bytes,
        .reflection = config->reflection_enable,
        .admin = config->admin_enable,
        .tenants = &config->tenants,
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
    printf("listening on %.*s:%d\n", (int)mr_listen_host_bytes(where->listen), where->listen,
           mr_server_port(*server));
    if (where->metrics != NULL) {
        printf("metrics on %.*s:%d\n", (int)mr_listen_host_bytes(where->metrics), where->metrics,
               mr_metrics_http_port(*http));
    }
    fflush(stdout);
    return MR_OK;
}

int mr_cmd_serve(int argc, char **argv)
{
    static shutdown_watch watch; /* its thread outlasts this function */
    block_signals(&watch.signals);

    static mr_cli_model model; /* as the watch */
    addresses where = {.listen = DEFAULT_LISTEN};
    const mr_cli_option options[] = {
        MR_CLI_MODEL_OPTIONS(&model),
        {"listen", MR_CLI_TEXT, &where.listen, NULL, "HOST:PORT",
         "where to serve (default " DEFAULT_LISTEN "); port 0 takes a free one"},
        {"metrics-listen", MR_CLI_TEXT, &where.metrics, NULL, "HOST:PORT",
         "where HTTP answers /metrics, /livez and /readyz (default: nowhere)"},
    };
    const mr_cli_command command = {
        .name = "serve",
        .usage = "--model PATH [OPTION]...",
        .about = "Serves a model over gRPC (millrace.v1) until SIGTERM or SIGINT. Running streams "
                 "then have 30 s to\nend; a second signal ends the process at once.",
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
    mr_error err = {0};
    mr_config config;
    if (mr_cli_load_config(&model, &config, &err) != MR_OK) {
        return mr_cli_fail(MR_EXIT_USAGE, &err);
    }
    mr_metrics_http *http = NULL;
    if (start_listening(&where, &config, &watch.server, &http, &err) != MR_OK) {
        return mr_cli_fail(err.status == MR_INVALID_ARGUMENT ? MR_EXIT_USAGE : MR_EXIT_FAILED,
                           &err);
    }
    watch.model = &model;
    watch.config = config;
    if (start_watch(&watch, &err) != MR_OK) {
        mr_metrics_http_stop(http);
        mr_server_destroy(watch.server);
        return mr_cli_fail(MR_EXIT_FAILED, &err);
    }
    return serve(&watch, http, where.listen, model.path, &config);
}
