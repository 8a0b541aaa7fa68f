/* SPDX-License-Identifier: Apache-2.0 */
/* The HTTP listener for Prometheus and probes: /metrics, /livez and /readyz. */
#ifndef MILLRACE_SERVICE_METRICS_HTTP_H
#define MILLRACE_SERVICE_METRICS_HTTP_H

#include "base/status.h"
#include "service/server.h"

#include <stdbool.h>

typedef struct mr_metrics_http mr_metrics_http;

/* Listens on HOST:PORT (port 0: a free one) with a thread of its own, in plaintext and without
 * authentication. Borrows the server until stop. Errors as mr_listen_open. Gives the listener. */
MR_MUST_USE mr_status mr_metrics_http_start(const char *address, mr_server *server, bool vllm_names,
                                            mr_metrics_http **out, mr_error *err);
int mr_metrics_http_port(const mr_metrics_http *http);
void mr_metrics_http_stop(mr_metrics_http *http);

#endif
