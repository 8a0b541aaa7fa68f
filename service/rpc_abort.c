/* SPDX-License-Identifier: Apache-2.0 */
/* Abort: ends a running request of the caller's own tenant by its id. */
#include "service/call.h"
#include "service/codec.h"
#include "service/proto_request.h"

/* The stream learns of it through its own events, so it does not matter which thread it has. */
static bool cancel(mr_server *server, const char *tenant, const char *id)
{
    mr_request *request = mr_id_registry_find(&server->ids, tenant, id);
    if (request == NULL) {
        return false;
    }
    mr_engine_cancel(mr_runtime_engine(server->runtime), request);
    mr_request_unref(request);
    return true;
}

static mr_status abort_request(mr_call *call, bool *found, mr_error *err)
{
    mr_server *server = call->queue->server;
    ProtobufCMessage *message = NULL;
    MR_TRY(mr_call_unpack(call, &millrace__v1__abort_request__descriptor, &message, err));
    const Millrace__V1__AbortRequest *asked = (const Millrace__V1__AbortRequest *)message;
    char id[MR_REQUEST_ID_MAX + 1];
    mr_status status = mr_proto_id_read(&asked->request_id, id, err);
    if (status == MR_OK && id[0] == '\0') {
        status = mr_fail_field(err, MR_INVALID_ARGUMENT, "request_id",
                               "request_id is missing: name the request to end");
    }
    /* While it drains, what runs can still be ended; before it is ready nothing runs. */
    if (status == MR_OK) {
        *found = mr_flag_get(&server->ready) && cancel(server, mr_call_tenant(call)->name, id);
    }
    mr_codec_free(message);
    return status;
}

static void begin(mr_call *call)
{
    mr_error err;
    bool found = false;
    if (abort_request(call, &found, &err) != MR_OK) {
        mr_call_finish(call, NULL, &err);
        return;
    }
    Millrace__V1__AbortResponse response = MILLRACE__V1__ABORT_RESPONSE__INIT;
    response.found = found;
    mr_call_finish(call, &response.base, NULL);
}

const mr_rpc_method mr_rpc_abort = {
    .path = "/millrace.v1.InferenceService/Abort",
    .begin = begin,
};
