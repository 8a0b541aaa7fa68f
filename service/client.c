/* SPDX-License-Identifier: Apache-2.0 */
#include "service/client.h"

#include "base/checked.h"
#include "service/codec.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <grpc/support/alloc.h>
#include <grpc/support/log.h>
#include <grpc/support/time.h>
#include <stdlib.h>
#include <string.h>

/* How soon a cancel flag is seen. */
#define CANCEL_POLL_MS 50

struct mr_client {
    grpc_channel *channel;
    grpc_completion_queue *cq;
    char *target;
};

/* gRPC's own log says in its way what the call's status says in ours. */
static void drop_log(gpr_log_func_args *args)
{
    (void)args;
}

mr_status mr_client_open(const char *target, mr_client **out, mr_error *err)
{
    mr_client *client = mr_calloc(1, sizeof(*client));
    char *copy = strdup(target);
    if (client == NULL || copy == NULL) {
        free(client);
        free(copy);
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "out of memory for a client");
    }
    client->target = copy;
    gpr_set_log_function(drop_log);
    grpc_init();
    grpc_arg no_limit;
    memset(&no_limit, 0, sizeof(no_limit));
    no_limit.type = GRPC_ARG_INTEGER;
    no_limit.key = (char *)GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH;
    no_limit.value.integer = -1;
    const grpc_channel_args args = {.num_args = 1, .args = &no_limit};
    grpc_channel_credentials *plain = grpc_insecure_credentials_create();
    client->channel = grpc_channel_create(target, plain, &args);
    grpc_channel_credentials_release(plain);
    client->cq = grpc_completion_queue_create_for_next(NULL);
    *out = client;
    return MR_OK;
}

void mr_client_close(mr_client *client)
{
    if (client == NULL) {
        return;
    }
    grpc_completion_queue_shutdown(client->cq);
    while (grpc_completion_queue_next(client->cq, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL).type !=
           GRPC_QUEUE_SHUTDOWN) {
    }
    grpc_completion_queue_destroy(client->cq);
    grpc_channel_destroy(client->channel);
    grpc_shutdown_blocking();
    free(client->target);
    free(client);
}

/* One call. The addresses of the first three fields are the tags of its batches. */
typedef struct exchange {
    char sent;
    char received;
    char ended;
    mr_client *client;
    const mr_client_call *call;
    grpc_call *rpc;
    bool cancelled;   /* by the caller */
    bool done;        /* the status is in */
    mr_error failure; /* of ours; status MR_OK: none */

    grpc_metadata_array initial;
    grpc_metadata_array trailing;
    grpc_byte_buffer *message;
    grpc_status_code code;
    grpc_slice details;
} exchange;

static void start_batch(exchange *x, const grpc_op *ops, size_t n_ops, void *tag)
{
    MR_CHECK(grpc_call_start_batch(x->rpc, ops, n_ops, tag, NULL) == GRPC_CALL_OK);
}

static void start_receive(exchange *x)
{
    grpc_op op;
    memset(&op, 0, sizeof(op));
    op.op = GRPC_OP_RECV_MESSAGE;
    op.data.recv_message.recv_message = &x->message;
    start_batch(x, &op, 1, &x->received);
}

static void start_call(exchange *x, const Millrace__V1__GenerateRequest *request)
{
    grpc_byte_buffer *payload = mr_codec_pack(&request->base);
    grpc_op ops[4];
    memset(ops, 0, sizeof(ops));
    ops[0].op = GRPC_OP_SEND_INITIAL_METADATA;
    ops[1].op = GRPC_OP_SEND_MESSAGE;
    ops[1].data.send_message.send_message = payload;
    ops[2].op = GRPC_OP_SEND_CLOSE_FROM_CLIENT;
    ops[3].op = GRPC_OP_RECV_INITIAL_METADATA;
    ops[3].data.recv_initial_metadata.recv_initial_metadata = &x->initial;
    start_batch(x, ops, 4, &x->sent);
    grpc_byte_buffer_destroy(payload);

    grpc_op end;
    memset(&end, 0, sizeof(end));
    end.op = GRPC_OP_RECV_STATUS_ON_CLIENT;
    end.data.recv_status_on_client.trailing_metadata = &x->trailing;
    end.data.recv_status_on_client.status = &x->code;
    end.data.recv_status_on_client.status_details = &x->details;
    start_batch(x, &end, 1, &x->ended);
    start_receive(x);
}

static void cancel(exchange *x)
{
    if (!x->cancelled) {
        x->cancelled = true;
        grpc_call_cancel(x->rpc, NULL);
    }
}

/* Returns false when no further message is to be expected. */
static bool on_message(exchange *x)
{
    if (x->message == NULL) {
        return false;
    }
    ProtobufCMessage *response = NULL;
    const mr_status status = mr_codec_unpack(&millrace__v1__generate_response__descriptor,
                                             x->message, &response, &x->failure);
    grpc_byte_buffer_destroy(x->message);
    x->message = NULL;
    if (status != MR_OK) {
        cancel(x);
        return false;
    }
    const bool go_on =
        x->cancelled ||
        x->call->on_response(x->call->ctx, (Millrace__V1__GenerateResponse *)response);
    mr_codec_free(response);
    if (!go_on) {
        cancel(x);
    }
    return !x->cancelled;
}

/* Runs until all three batches are back. */
static void run(exchange *x)
{
    uint32_t open = 3;
    while (open > 0) {
        gpr_timespec until = gpr_inf_future(GPR_CLOCK_MONOTONIC);
        if (x->call->cancel != NULL && !x->cancelled) {
            until = gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                                 gpr_time_from_millis(CANCEL_POLL_MS, GPR_TIMESPAN));
        }
        const grpc_event event = grpc_completion_queue_next(x->client->cq, until, NULL);
        if (x->call->cancel != NULL && mr_flag_get(x->call->cancel)) {
            cancel(x);
        }
        if (event.type != GRPC_OP_COMPLETE) {
            continue;
        }
        if (event.tag == &x->received && event.success != 0 && on_message(x)) {
            start_receive(x);
            continue;
        }
        open--;
    }
}

static uint32_t retry_after_ms(const grpc_metadata_array *trailing)
{
    for (size_t i = 0; i < trailing->count; i++) {
        if (grpc_slice_str_cmp(trailing->metadata[i].key, "retry-after-ms") == 0) {
            char *value = grpc_slice_to_c_string(trailing->metadata[i].value);
            const unsigned long ms = strtoul(value, NULL, 10);
            gpr_free(value);
            return ms < UINT32_MAX ? (uint32_t)ms : UINT32_MAX;
        }
    }
    return 0;
}

static mr_status outcome(const exchange *x, mr_error *err)
{
    if (x->failure.status != MR_OK) {
        if (err != NULL) {
            *err = x->failure;
        }
        return x->failure.status;
    }
    if (x->code == GRPC_STATUS_OK) {
        return MR_OK;
    }
    if (x->cancelled) {
        return mr_fail(err, MR_CANCELLED, "the call was cancelled");
    }
    mr_status status = (mr_status)x->code;
    if (x->code < GRPC_STATUS_OK || x->code > GRPC_STATUS_UNAUTHENTICATED) {
        status = MR_UNKNOWN;
    }
    char *details = grpc_slice_to_c_string(x->details);
    if (status == MR_UNAVAILABLE) {
        (void)mr_fail(err, status, "%s: %s", x->client->target, details);
    } else {
        (void)mr_fail(err, status, "%s", details);
    }
    gpr_free(details);
    if (err != NULL) {
        err->retry_after_ms = retry_after_ms(&x->trailing);
    }
    return status;
}

mr_status mr_client_generate(mr_client *client, const Millrace__V1__GenerateRequest *request,
                             const mr_client_call *call, mr_error *err)
{
    gpr_timespec deadline = gpr_inf_future(GPR_CLOCK_MONOTONIC);
    if (call->timeout_ms > 0) {
        const int64_t ms = call->timeout_ms < INT64_MAX ? (int64_t)call->timeout_ms : INT64_MAX;
        deadline =
            gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(ms, GPR_TIMESPAN));
    }
    exchange x = {.client = client, .call = call, .details = grpc_empty_slice()};
    grpc_metadata_array_init(&x.initial);
    grpc_metadata_array_init(&x.trailing);
    x.rpc = grpc_channel_create_call(
        client->channel, NULL, GRPC_PROPAGATE_DEFAULTS, client->cq,
        grpc_slice_from_static_string("/millrace.v1.InferenceService/Generate"), NULL, deadline,
        NULL);
    start_call(&x, request);
    run(&x);
    const mr_status status = outcome(&x, err);
    if (x.message != NULL) {
        grpc_byte_buffer_destroy(x.message);
    }
    grpc_slice_unref(x.details);
    grpc_metadata_array_destroy(&x.initial);
    grpc_metadata_array_destroy(&x.trailing);
    grpc_call_unref(x.rpc);
    return status;
}
