/* SPDX-License-Identifier: Apache-2.0 */
/* What the log says of requests: who asked, how much, how long; never what. */
#ifndef MILLRACE_SERVICE_USAGE_LOG_H
#define MILLRACE_SERVICE_USAGE_LOG_H

#include "scheduler/request.h"
#include "service/tenants.h"

/* One line of a request that the engine is done with. */
void mr_usage_log(const mr_request *request, const mr_tenant *tenant, const char *model);
/* A request that was never queued; its status and field, not its message, which may quote it. No
 * tenant: nobody knows whose it is. */
void mr_usage_log_refused(const mr_tenant *tenant, const mr_error *err);

#endif
