/* SPDX-License-Identifier: Apache-2.0 */
#include "service/usage_log.h"

#include "base/log.h"

#include <stdio.h>

/* 0 where one of the two never came. */
static double elapsed_ms(uint64_t from_ns, uint64_t to_ns)
{
    return from_ns != 0 && to_ns > from_ns ? (double)(to_ns - from_ns) / 1e6 : 0.0;
}

void mr_usage_log(const mr_request *request, const mr_tenant *tenant, const char *model)
{
    const mr_request_usage *usage = &request->usage;
    const mr_status status = request->error.status;
    const bool deadline = status == MR_DEADLINE_EXCEEDED;
    const uint64_t left_queue = usage->scheduled_ns != 0 ? usage->scheduled_ns : usage->finished_ns;
    char id[2 * MR_REQUEST_ID_MAX + 3];
    char name[264];
    mr_log(MR_LOG_INFO, "request", "finished",
           "tenant=%s model=%s request_id=%s prompt_tokens=%u output_tokens=%u "
           "cached_tokens=%u preemptions=%u finish=%s status=%s queue_ms=%.1f prefill_ms=%.1f "
           "decode_ms=%.1f",
           tenant->name, mr_log_quote(model, name, sizeof(name)),
           mr_log_quote(request->id, id, sizeof(id)), usage->prompt_tokens,
           usage->completion_tokens, usage->cached_tokens, usage->preemptions,
           deadline ? "deadline" : mr_finish_name(usage->finish), mr_status_name(status),
           elapsed_ms(usage->arrived_ns, left_queue),
           elapsed_ms(usage->scheduled_ns, usage->first_token_ns),
           elapsed_ms(usage->first_token_ns, usage->finished_ns));
}

void mr_usage_log_refused(const mr_tenant *tenant, const mr_error *err)
{
    char field[2 * MR_ERROR_FIELD_MAX];
    mr_log_folded(MR_LOG_INFO, "request", "refused", "tenant=%s status=%s field=%s",
                  tenant == NULL ? "\"\"" : tenant->name, mr_status_name(err->status),
                  mr_log_quote(err->field, field, sizeof(field)));
}

void mr_audit_log(const mr_audit *audit)
{
    char path[256];
    char method[2 * sizeof(path) + 3];
    char peer[2 * 128 + 3];
    (void)snprintf(path, sizeof(path), "%.*s", (int)audit->method_bytes, audit->method);
    (void)mr_log_quote(path, method, sizeof(method));
    (void)mr_log_quote(audit->peer, peer, sizeof(peer));
    const char *kind = audit->admin != NULL ? "admin" : "tenant";
    const char *name = audit->admin != NULL ? audit->admin : audit->tenant;
    if (name == NULL) {
        kind = "unknown";
        name = "\"\"";
    }
    if (audit->admin == NULL && audit->status != MR_OK) {
        mr_log_folded(MR_LOG_WARN, "audit", "admin call refused",
                      "caller=%s name=%s method=%s status=%s peer=%s", kind, name, method,
                      mr_status_name(audit->status), peer);
        return;
    }
    mr_log_record("audit", "admin call", "caller=%s name=%s method=%s status=%s peer=%s", kind,
                  name, method, mr_status_name(audit->status), peer);
}
