/* SPDX-License-Identifier: Apache-2.0 */
#include "service/admission.h"

#include "service/access.h"
#include "service/usage_log.h"

#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <grpc/support/alloc.h>
#include <inttypes.h>
#include <string.h>

/* When who met a full server may try again. */
#define FULL_RETRY_MS 1000u

/* The method's path, as the client spelled it; borrowed. */
static const char *path_of(const mr_call *call, size_t *bytes)
{
    if (call->method->path != NULL) {
        *bytes = strlen(call->method->path);
        return call->method->path;
    }
    *bytes = GRPC_SLICE_LENGTH(call->details.method);
    return (const char *)GRPC_SLICE_START_PTR(call->details.method);
}

void mr_admission_record(mr_call *call, mr_status status)
{
    if (!call->audited) {
        return;
    }
    call->audited = false;
    size_t bytes = 0;
    const char *path = path_of(call, &bytes);
    char *peer = grpc_call_get_peer(call->call);
    const mr_tenants *tenants = &call->tenants->tenants;
    const mr_audit audit = {
        .method = path,
        .method_bytes = bytes,
        .peer = peer == NULL ? "" : peer,
        .admin = call->caller.kind == MR_CALLER_ADMIN
                     ? call->tenants->admins.items[call->caller.index].name
                     : NULL,
        .tenant = call->caller.kind == MR_CALLER_TENANT
                      ? mr_tenants_get(tenants, call->caller.index)->name
                      : NULL,
        .status = status,
    };
    mr_audit_log(&audit);
    gpr_free(peer);
}

/* The only value of the metadata `authorization`; NULL when it is missing. One that is sent twice
 * is empty, which no key matches. */
static grpc_slice *find_authorization(mr_call *call)
{
    static grpc_slice ambiguous;
    grpc_slice *found = NULL;
    for (size_t i = 0; i < call->metadata.count; i++) {
        if (grpc_slice_str_cmp(call->metadata.metadata[i].key, "authorization") == 0) {
            found = found == NULL ? &call->metadata.metadata[i].value : &ambiguous;
        }
    }
    return found;
}

/* Who calls, by key and certificate. */
static mr_status identify_by(mr_call *call, const grpc_auth_context *context, mr_error *err)
{
    const mr_tenant_table *table = call->tenants;
    const grpc_slice *value = find_authorization(call);
    mr_proof proof = {0};
    if (value != NULL) {
        proof.authorization = (const char *)GRPC_SLICE_START_PTR(*value);
        proof.authorization_bytes = GRPC_SLICE_LENGTH(*value);
    }
    if (mr_tls_peer_expired(context)) {
        return mr_fail(err, MR_UNAUTHENTICATED,
                       "the client certificate has expired: connect with a new one");
    }
    mr_tls_peer(context, &proof.peer);
    return mr_caller_identify(&table->tenants, &table->admins, &proof, &call->caller, err);
}

static mr_status identify(mr_call *call, mr_error *err)
{
    grpc_auth_context *context = grpc_call_auth_context(call->call);
    const mr_status status = identify_by(call, context, err);
    grpc_auth_context_release(context);
    return status;
}

/* What the method needs of who calls. The port of probes has none that needs anything. */
static mr_access access_of(const mr_call *call)
{
    size_t bytes = 0;
    const char *path = path_of(call, &bytes);
    return call->method->port == MR_RPC_PROBES ? MR_ACCESS_OPEN : mr_access_of(path, bytes, NULL);
}

/* Whether the caller may call the method. Before anything of the request is looked at, whatever the
 * method. */
static mr_status authorise(mr_call *call, mr_access access, mr_error *err)
{
    mr_server *server = call->queue->server;
    call->tenants = mr_tenant_place_get(&server->tenants);
    call->tenant = call->tenants->tenants.count;
    call->audited = access == MR_ACCESS_ADMIN;
    if (access == MR_ACCESS_OPEN) {
        return MR_OK;
    }
    if (access == MR_ACCESS_ADMIN && !server->admin) {
        access = MR_ACCESS_KNOWN; /* to be told that it is off */
    }
    call->credited = true;
    MR_TRY(identify(call, err));
    const mr_tenant_table *table = call->tenants;
    MR_TRY(mr_access_check(access, &table->tenants, &table->admins, &call->caller, err));
    if (call->caller.kind == MR_CALLER_TENANT) {
        call->tenant = call->caller.index;
    }
    return MR_OK;
}

/* One that is too many is refused before its request is waited for. */
static mr_status check_room(mr_call *call, mr_access access, mr_error *err)
{
    char *peer = grpc_call_get_peer(call->call);
    call->ticket = mr_connections_begin_call(peer, access == MR_ACCESS_OPEN, &call->connection);
    gpr_free(peer);
    call->counted = true;
    const mr_call_fit fit = call->ticket.fit;
    if (fit == MR_CALL_FITS || fit == MR_CALL_FITS_OPEN) {
        return MR_OK;
    }
    const mr_server_limits *limits = &call->queue->server->limits;
    if (fit == MR_CALL_CONNECTION_FULL) {
        (void)mr_fail(err, MR_RESOURCE_EXHAUSTED,
                      "the connection has %" PRIu32 " calls already: wait for one to end, or have "
                      "limits.connection_calls raised",
                      limits->connection_calls);
    } else {
        (void)mr_fail(err, MR_RESOURCE_EXHAUSTED,
                      "the server has %" PRIu32 " calls already: use another one, or have "
                      "limits.calls raised",
                      limits->calls);
    }
    err->retry_after_ms = FULL_RETRY_MS;
    return err->status;
}

/* As HTTP/2 counts a list of headers. gRPC minds the limit too, by ending the connection, but only
 * once the client says that it knows it. */
static mr_status check_metadata(const mr_call *call, mr_error *err)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < call->metadata.count; i++) {
        const grpc_metadata *entry = &call->metadata.metadata[i];
        bytes += GRPC_SLICE_LENGTH(entry->key) + GRPC_SLICE_LENGTH(entry->value) + 32;
    }
    const uint32_t most = call->queue->server->limits.header_bytes;
    if (bytes <= most) {
        return MR_OK;
    }
    return mr_fail(err, MR_RESOURCE_EXHAUSTED,
                   "the call has %" PRIu64 " bytes of metadata and this server takes %" PRIu32
                   ": send less, or have limits.header_bytes raised",
                   bytes, most);
}

static mr_status check(mr_call *call, mr_error *err)
{
    const mr_access access = access_of(call);
    MR_TRY(check_room(call, access, err));
    MR_TRY(check_metadata(call, err));
    return authorise(call, access, err);
}

mr_status mr_admission_check(mr_call *call, mr_error *err)
{
    const mr_status status = check(call, err);
    if (status != MR_OK) {
        const bool known = call->caller.kind == MR_CALLER_TENANT && call->tenants != NULL;
        call->refused = true;
        mr_connections_refuse(call->connection);
        mr_metrics_refused(&call->queue->server->metrics, status);
        mr_usage_log_refused(
            known ? mr_tenants_get(&call->tenants->tenants, call->caller.index) : NULL, err);
    }
    return status;
}

mr_status mr_admission_keep(const mr_call *call, mr_error *err)
{
    if (mr_connections_holds(&call->ticket)) {
        return MR_OK;
    }
    (void)mr_fail(err, MR_RESOURCE_EXHAUSTED,
                  "others ask for the health, and this address has the most calls for that: ask "
                  "again, or have limits.calls raised");
    err->retry_after_ms = FULL_RETRY_MS;
    return err->status;
}

void mr_admission_end(mr_call *call)
{
    if (call->counted) {
        /* That others fill the server is nobody's fault. */
        const bool refused = call->refused && call->ticket.fit != MR_CALL_SERVER_FULL;
        mr_connections_end_call(call->connection, &call->ticket, call->gone || refused);
    }
}
