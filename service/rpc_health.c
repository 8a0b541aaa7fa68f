/* SPDX-License-Identifier: Apache-2.0 */
/* grpc.health.v1: SERVING once the model is loaded, and until the server drains, its device fails
 * or its engine stalls. */
#include "base/checked.h"
#include "service/call.h"
#include "service/codec.h"

#include "grpc/health/v1/health.pb-c.h"

#include <stdlib.h>
#include <string.h>

typedef Grpc__Health__V1__HealthCheckResponse__ServingStatus serving_status;

#define SERVING         GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING
#define NOT_SERVING     GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__NOT_SERVING
#define SERVICE_UNKNOWN GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVICE_UNKNOWN

static bool is(const ProtobufCBinaryData *service, const char *name)
{
    return service->len == strlen(name) &&
           (service->len == 0 || memcmp(service->data, name, service->len) == 0);
}

static serving_status status_now(mr_server *server)
{
    return mr_server_not_serving(server) == NULL ? SERVING : NOT_SERVING;
}

/* Whether the service that the request names is known here. */
static mr_status read_request(mr_call *call, bool *known, mr_error *err)
{
    ProtobufCMessage *message = NULL;
    MR_TRY(
        mr_call_unpack(call, &grpc__health__v1__health_check_request__descriptor, &message, err));
    const ProtobufCBinaryData *service =
        &((Grpc__Health__V1__HealthCheckRequest *)message)->service;
    const mr_server *server = call->queue->server;
    *known = is(service, "") || is(service, "millrace.v1.InferenceService") ||
             is(service, "grpc.health.v1.Health") ||
             (server->admin && is(service, "millrace.v1.AdminService")) ||
             (server->reflection && (is(service, "grpc.reflection.v1.ServerReflection") ||
                                     is(service, "grpc.reflection.v1alpha.ServerReflection")));
    if (!*known) {
        const int shown = service->len < 128 ? (int)service->len : 128;
        (void)mr_fail_field(err, MR_NOT_FOUND, "service",
                            "service: there is no \"%.*s\" here; ask for \"\" or "
                            "\"millrace.v1.InferenceService\"",
                            shown, (const char *)service->data);
    }
    mr_codec_free(message);
    return MR_OK;
}

static void begin_check(mr_call *call)
{
    mr_error err;
    bool known = false;
    if (read_request(call, &known, &err) != MR_OK || !known) {
        mr_call_finish(call, NULL, &err);
        return;
    }
    Grpc__Health__V1__HealthCheckResponse response = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    response.status = status_now(call->queue->server);
    mr_call_finish(call, &response.base, NULL);
}

const mr_rpc_method mr_rpc_health_check = {
    .path = "/grpc.health.v1.Health/Check",
    .begin = begin_check,
};

const mr_rpc_method mr_rpc_probe_check = {
    .path = "/grpc.health.v1.Health/Check",
    .port = MR_RPC_PROBES,
    .begin = begin_check,
};

typedef struct watch {
    bool known;
    serving_status told; /* what the client knows */
} watch;

static void tell(mr_call *call, serving_status status)
{
    watch *state = call->state;
    state->told = status;
    Grpc__Health__V1__HealthCheckResponse response = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    response.status = status;
    mr_call_send(call, &response.base);
}

/* Tells what is new; a watch does not outlast the server's wish to go. */
static void look(mr_call *call)
{
    watch *state = call->state;
    if (state == NULL || call->finished || call->sending) {
        return;
    }
    mr_server *server = call->queue->server;
    if (call->gone) {
        mr_error err;
        (void)mr_fail(&err, MR_CANCELLED, "the client cancelled the call");
        mr_call_finish(call, NULL, &err);
        return;
    }
    const serving_status status = state->known ? status_now(server) : SERVICE_UNKNOWN;
    if (status != state->told) {
        tell(call, status);
    } else if (mr_flag_get(&server->leaving) && mr_flag_get(&server->refusing)) {
        mr_error err;
        (void)mr_fail(&err, MR_UNAVAILABLE, "the server is shutting down");
        mr_call_finish(call, NULL, &err);
    }
}

static void begin_watch(mr_call *call)
{
    mr_error err;
    bool known = false;
    if (read_request(call, &known, &err) != MR_OK) {
        mr_call_finish(call, NULL, &err);
        return;
    }
    watch *state = mr_calloc(1, sizeof(*state));
    if (state == NULL) {
        (void)mr_fail(&err, MR_RESOURCE_EXHAUSTED, "out of memory for a watch");
        mr_call_finish(call, NULL, &err);
        return;
    }
    state->known = known;
    call->state = state;
    tell(call, known ? status_now(call->queue->server) : SERVICE_UNKNOWN);
}

static void release_watch(mr_call *call)
{
    free(call->state);
}

const mr_rpc_method mr_rpc_health_watch = {
    .path = "/grpc.health.v1.Health/Watch",
    .begin = begin_watch,
    .resume = look,
    .cancelled = look,
    .tick = look,
    .release = release_watch,
};

const mr_rpc_method mr_rpc_probe_watch = {
    .path = "/grpc.health.v1.Health/Watch",
    .port = MR_RPC_PROBES,
    .begin = begin_watch,
    .resume = look,
    .cancelled = look,
    .tick = look,
    .release = release_watch,
};

static void begin_probe_other(mr_call *call)
{
    mr_error err;
    (void)mr_fail(&err, MR_UNIMPLEMENTED,
                  "this port is for probes and has nothing but grpc.health.v1.Health: use the "
                  "server's own port");
    mr_call_finish(call, NULL, &err);
}

const mr_rpc_method mr_rpc_probe_other = {
    .port = MR_RPC_PROBES,
    .begin = begin_probe_other,
};
