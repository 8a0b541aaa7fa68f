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

/* The end of a call of an administrator's method. Texts are borrowed. */
typedef struct mr_audit {
    const char *method; /* path; from outside */
    size_t method_bytes;
    const char *peer;   /* address, as gRPC writes it */
    const char *admin;  /* name of the administrator; NULL: it was none */
    const char *tenant; /* name of the tenant; NULL: it was none */
    mr_status status;
} mr_audit;

/* One line a call, whatever the level of the log; calls that fail and are no administrator's are
 * folded, or strangers could fill a disk. */
void mr_audit_log(const mr_audit *audit);

#endif
