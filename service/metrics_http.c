/* SPDX-License-Identifier: Apache-2.0 */
#include "service/metrics_http.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/log.h"
#include "service/listen.h"

#include <microhttpd.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_CONNECTIONS 64u
#define IDLE_SECONDS    30u
/* The shortest time that a busy ratio is of. */
#define WINDOW_NS MR_NS_PER_S

#define TEXT_TYPE    "text/plain; charset=utf-8"
#define METRICS_TYPE "text/plain; version=0.0.4; charset=utf-8"

typedef struct busy_mark {
    uint64_t at_ns;
    uint64_t step_ns;
} busy_mark;

struct mr_metrics_http {
    mr_server *server;
    bool vllm_names;
    int port;
    struct MHD_Daemon *daemon; /* owns */
    /* The daemon's thread's. */
    busy_mark before; /* what a ratio is counted from */
    busy_mark latest; /* takes its place when it is old enough */
};

/* From a look at least WINDOW_NS ago. */
static double busy_ratio(mr_metrics_http *http, const mr_metrics_view *view)
{
    const busy_mark now = {.at_ns = view->now_ns, .step_ns = view->engine.step_ns};
    if (now.at_ns - http->latest.at_ns >= WINDOW_NS) {
        http->before = http->latest;
        http->latest = now;
    }
    const busy_mark *from = &http->before;
    if (now.at_ns <= from->at_ns || now.step_ns <= from->step_ns) {
        return 0.0;
    }
    const double ratio = (double)(now.step_ns - from->step_ns) / (double)(now.at_ns - from->at_ns);
    return ratio < 1.0 ? ratio : 1.0;
}

static enum MHD_Result reply(struct MHD_Connection *connection, unsigned status, const char *type,
                             mr_buffer *body)
{
    struct MHD_Response *response =
        MHD_create_response_from_buffer(body->size, body->data, MHD_RESPMEM_MUST_FREE);
    if (response == NULL) {
        mr_buffer_deinit(body);
        return MHD_NO;
    }
    enum MHD_Result result = MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    if (status == MHD_HTTP_METHOD_NOT_ALLOWED) {
        (void)MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
    }
    if (result == MHD_YES) {
        result = MHD_queue_response(connection, status, response);
    }
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result reply_text(struct MHD_Connection *connection, unsigned status,
                                  const char *text)
{
    mr_buffer body = {0};
    if (mr_buffer_printf(&body, "%s\n", text) != MR_OK) {
        mr_buffer_deinit(&body);
        return MHD_NO;
    }
    return reply(connection, status, TEXT_TYPE, &body);
}

static enum MHD_Result reply_metrics(mr_metrics_http *http, struct MHD_Connection *connection)
{
    mr_metrics_view view;
    mr_server_metrics_view(http->server, &view);
    view.vllm_names = http->vllm_names;
    view.busy_ratio = busy_ratio(http, &view);
    mr_buffer body = {0};
    if (mr_metrics_format(mr_server_metrics(http->server), &view, &body) != MR_OK) {
        mr_buffer_deinit(&body);
        return reply_text(connection, MHD_HTTP_INTERNAL_SERVER_ERROR, "out of memory");
    }
    return reply(connection, MHD_HTTP_OK, METRICS_TYPE, &body);
}

static enum MHD_Result on_request(void *ctx, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *upload_data,
                                  size_t *upload_size, void **state)
{
    (void)version;
    (void)upload_data;
    mr_metrics_http *http = ctx;
    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0) {
        return reply_text(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET and HEAD work here");
    }
    /* The first call has the headers only; a body, which nobody should send, is passed over. */
    if (*state == NULL) {
        *state = http;
        return MHD_YES;
    }
    if (*upload_size != 0) {
        *upload_size = 0;
        return MHD_YES;
    }
    if (strcmp(url, "/metrics") == 0) {
        return reply_metrics(http, connection);
    }
    if (strcmp(url, "/livez") == 0) {
        return reply_text(connection, MHD_HTTP_OK, "alive");
    }
    if (strcmp(url, "/readyz") == 0) {
        const char *reason = mr_server_not_serving(http->server);
        return reason == NULL ? reply_text(connection, MHD_HTTP_OK, "ready")
                              : reply_text(connection, MHD_HTTP_SERVICE_UNAVAILABLE, reason);
    }
    return reply_text(connection, MHD_HTTP_NOT_FOUND,
                      "there are /metrics, /livez and /readyz here");
}

static void on_log(void *ctx, const char *format, va_list args) MR_PRINTF(2, 0);

static void on_log(void *ctx, const char *format, va_list args)
{
    (void)ctx;
    char text[256];
    (void)vsnprintf(text, sizeof(text), format, args);
    char quoted[2 * sizeof(text) + 3];
    text[strcspn(text, "\n")] = '\0';
    mr_log_folded(MR_LOG_DEBUG, "metrics", "http", "detail=%s",
                  mr_log_quote(text, quoted, sizeof(quoted)));
}

mr_status mr_metrics_http_start(const char *address, mr_server *server, bool vllm_names,
                                mr_metrics_http **out, mr_error *err)
{
    mr_metrics_http *http = mr_calloc(1, sizeof(*http));
    if (http == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "out of memory for the metrics listener");
    }
    http->server = server;
    http->vllm_names = vllm_names;
    const mr_clock clock = mr_clock_monotonic();
    http->before.at_ns = http->latest.at_ns = mr_clock_now(&clock);
    int fd = -1;
    const mr_status status = mr_listen_open(address, &fd, &http->port, err);
    if (status != MR_OK) {
        free(http);
        return status;
    }
    http->daemon =
        MHD_start_daemon(MHD_USE_AUTO_INTERNAL_THREAD | MHD_USE_ERROR_LOG, 0, NULL, NULL,
                         on_request, http, MHD_OPTION_EXTERNAL_LOGGER, on_log, NULL,
                         MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT, MAX_CONNECTIONS,
                         MHD_OPTION_CONNECTION_TIMEOUT, IDLE_SECONDS, MHD_OPTION_END);
    if (http->daemon == NULL) {
        close(fd);
        free(http);
        return mr_fail(err, MR_RESOURCE_EXHAUSTED,
                       "the system gave no thread for the metrics listener");
    }
    *out = http;
    return MR_OK;
}

int mr_metrics_http_port(const mr_metrics_http *http)
{
    return http->port;
}

void mr_metrics_http_stop(mr_metrics_http *http)
{
    if (http == NULL) {
        return;
    }
    MHD_stop_daemon(http->daemon); /* closes the socket too */
    free(http);
}
