/* SPDX-License-Identifier: Apache-2.0 */
#include "service/client.h"

#include "base/checked.h"
#include "service/codec.h"

#include <grpc/grpc.h>
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
    grpc_slice authorization; /* metadata value; empty: no key */
};

/* gRPC's own log says in its way what the call's status says in ours. */
static void drop_log(gpr_log_func_args *args)
{
    (void)args;
}

static grpc_slice authorization_of(const char *key)
{
    static const char scheme[] = "Bearer ";
    if (key[0] == '\0') {
        return grpc_empty_slice();
    }
    const size_t lead = sizeof(scheme) - 1;
    const size_t bytes = strlen(key);
    grpc_slice value = grpc_slice_malloc(lead + bytes);
    memcpy(GRPC_SLICE_START_PTR(value), scheme, lead);
    memcpy(GRPC_SLICE_START_PTR(value) + lead, key, bytes);
    return value;
}

mr_status mr_client_open(const char *target, const char *key, const mr_client_tls *tls,
                         mr_client **out, mr_error *err)
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
    const mr_status status = mr_client_channel_open(target, tls, &client->channel, err);
    if (status != MR_OK) {
        grpc_shutdown_blocking();
        free(copy);
        free(client);
        return status;
    }
    client->authorization = authorization_of(key);
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
    grpc_slice_unref(client->authorization);
    grpc_shutdown_blocking();
    free(client->target);
    free(client);
}

typedef struct exchange exchange;

/* What a batch of ours comes back as. */
typedef struct exchange_tag {
    exchange *owner;
    bool received; /* a message, not the request's sending or the status */
} exchange_tag;

/* One call, of any method. */
struct exchange {
    exchange_tag sent;
    exchange_tag received;
    exchange_tag ended;
    mr_client *client;
    grpc_call *rpc;
    const ProtobufCMessageDescriptor *type; /* of the responses */
    /* Gets each response; false cancels the call. */
    bool (*on_message)(exchange *x, const ProtobufCMessage *response);
    uint32_t open;    /* batches that are not back yet */
    bool cancelled;   /* by the caller */
    mr_error failure; /* of ours; status MR_OK: none */

    grpc_metadata metadata; /* what we send, if the client has a key */
    grpc_metadata_array initial;
    grpc_metadata_array trailing;
    grpc_byte_buffer *message;
    grpc_status_code code;
    grpc_slice details;
};

/* An exchange of Generate. */
struct mr_client_stream {
    exchange x; /* first: events lead to it */
    mr_client_call call;
};

static void start_batch(exchange *x, const grpc_op *ops, size_t n_ops, exchange_tag *tag)
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

static void start_batches(exchange *x, const ProtobufCMessage *request)
{
    grpc_byte_buffer *payload = mr_codec_pack(request);
    grpc_op ops[4];
    memset(ops, 0, sizeof(ops));
    ops[0].op = GRPC_OP_SEND_INITIAL_METADATA;
    if (GRPC_SLICE_LENGTH(x->client->authorization) > 0) {
        x->metadata.key = grpc_slice_from_static_string("authorization");
        x->metadata.value = x->client->authorization;
        ops[0].data.send_initial_metadata.count = 1;
        ops[0].data.send_initial_metadata.metadata = &x->metadata;
    }
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
    x->open = 3;
}

static gpr_timespec deadline_after(uint64_t timeout_ms)
{
    if (timeout_ms == 0) {
        return gpr_inf_future(GPR_CLOCK_MONOTONIC);
    }
    const int64_t ms = timeout_ms < INT64_MAX ? (int64_t)timeout_ms : INT64_MAX;
    return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(ms, GPR_TIMESPAN));
}

/* The caller has set client, type and on_message, all else is zero. `method` is a literal. */
static void start_exchange(exchange *x, const char *method, const ProtobufCMessage *request,
                           uint64_t timeout_ms)
{
    x->sent.owner = x;
    x->received = (exchange_tag){x, true};
    x->ended.owner = x;
    x->details = grpc_empty_slice();
    grpc_metadata_array_init(&x->initial);
    grpc_metadata_array_init(&x->trailing);
    x->rpc = grpc_channel_create_call(x->client->channel, NULL, GRPC_PROPAGATE_DEFAULTS,
                                      x->client->cq, grpc_slice_from_static_string(method), NULL,
                                      deadline_after(timeout_ms), NULL);
    start_batches(x, request);
}

static void deinit_exchange(exchange *x)
{
    if (x->message != NULL) {
        grpc_byte_buffer_destroy(x->message);
    }
    grpc_slice_unref(x->details);
    grpc_metadata_array_destroy(&x->initial);
    grpc_metadata_array_destroy(&x->trailing);
    grpc_call_unref(x->rpc);
}

static void cancel(exchange *x)
{
    if (!x->cancelled) {
        x->cancelled = true;
        grpc_call_cancel(x->rpc, NULL);
    }
}

/* Returns false when no further message is to be expected. */
static bool take_message(exchange *x)
{
    if (x->message == NULL) {
        return false;
    }
    ProtobufCMessage *response = NULL;
    const mr_status status = mr_codec_unpack(x->type, x->message, &response, &x->failure);
    grpc_byte_buffer_destroy(x->message);
    x->message = NULL;
    if (status != MR_OK) {
        cancel(x);
        return false;
    }
    const bool go_on = x->cancelled || x->on_message(x, response);
    mr_codec_free(response);
    if (!go_on) {
        cancel(x);
    }
    return !x->cancelled;
}

/* Handles one event, if one comes before `until`. Returns the exchange that it ended, or NULL. */
static exchange *next_event(mr_client *client, gpr_timespec until)
{
    const grpc_event event = grpc_completion_queue_next(client->cq, until, NULL);
    if (event.type != GRPC_OP_COMPLETE) {
        return NULL;
    }
    const exchange_tag *tag = event.tag;
    exchange *x = tag->owner;
    if (tag->received && event.success != 0 && take_message(x)) {
        start_receive(x);
        return NULL;
    }
    x->open--;
    return x->open == 0 ? x : NULL;
}

/* Runs the client's only exchange to its end. `cancel_flag` may be NULL. */
static void run(exchange *x, const mr_flag *cancel_flag)
{
    while (x->open > 0) {
        const bool watch = cancel_flag != NULL && !x->cancelled;
        (void)next_event(x->client, deadline_after(watch ? CANCEL_POLL_MS : 0));
        if (cancel_flag != NULL && mr_flag_get(cancel_flag)) {
            cancel(x);
        }
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

/* What gRPC says of a failure that is not the served model's own, in words that help. */
static void explain(const char *target, mr_status status, const char *details, mr_error *err)
{
    const bool elsewhere = details[0] == '\0' || strcasestr(details, "method not found") != NULL ||
                           strstr(details, "unknown service") != NULL;
    if (status == MR_UNAVAILABLE && strstr(details, "Connection refused") != NULL) {
        (void)mr_fail(err, status,
                      "%s: nothing listens there (connection refused); start millrace serve, or "
                      "give the address that it printed",
                      target);
    } else if (status == MR_UNAVAILABLE && strstr(details, "HTTP/2") != NULL) {
        (void)mr_fail(err, status,
                      "%s: what answers there does not speak plaintext gRPC; give the address "
                      "that millrace serve printed",
                      target);
    } else if (status == MR_UNAVAILABLE && strstr(details, "DNS resolution") != NULL) {
        (void)mr_fail(err, status, "%s: no such host name; check its spelling", target);
    } else if (status == MR_UNAVAILABLE && strstr(details, "Peer name") != NULL) {
        (void)mr_fail(err, status,
                      "%s: the server's certificate is of another name: call it by that name, or "
                      "give it as --tls-server-name (%s)",
                      target, details);
    } else if (status == MR_UNAVAILABLE && strcasestr(details, "ssl handshake") != NULL) {
        (void)mr_fail(err, status,
                      "%s: no TLS with what answers there: it has none, its certificate is not of "
                      "a CA in --tls-ca, or not valid now (%s)",
                      target, details);
    } else if (status == MR_UNAVAILABLE && strstr(details, "Socket closed") != NULL) {
        (void)mr_fail(err, status,
                      "%s: the server closed the connection: it may want TLS (--tls-ca), or a "
                      "client certificate of a CA that it trusts (--tls-cert, --tls-key)",
                      target);
    } else if (status == MR_UNAVAILABLE) {
        (void)mr_fail(err, status, "%s: %s", target, details);
    } else if (status == MR_UNIMPLEMENTED && elsewhere) {
        (void)mr_fail(err, status,
                      "%s: a gRPC server, but none of millrace.v1; give the address that millrace "
                      "serve printed",
                      target);
    } else if (status == MR_DEADLINE_EXCEEDED) {
        (void)mr_fail(err, status, "%s: the request was not done by its deadline; allow more time",
                      target);
    } else {
        (void)mr_fail(err, status, "%s", details);
    }
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
    explain(x->client->target, status, details, err);
    gpr_free(details);
    if (err != NULL) {
        err->retry_after_ms = retry_after_ms(&x->trailing);
    }
    return status;
}

static bool on_generated(exchange *x, const ProtobufCMessage *response)
{
    const mr_client_call *call = &((mr_client_stream *)x)->call;
    return call->on_response(call->ctx, (const Millrace__V1__GenerateResponse *)response);
}

static void start_stream(mr_client_stream *stream, mr_client *client,
                         const Millrace__V1__GenerateRequest *request, const mr_client_call *call)
{
    *stream = (mr_client_stream){
        .x = {.client = client,
              .type = &millrace__v1__generate_response__descriptor,
              .on_message = on_generated},
        .call = *call,
    };
    start_exchange(&stream->x, "/millrace.v1.InferenceService/Generate", &request->base,
                   call->timeout_ms);
}

mr_status mr_client_generate(mr_client *client, const Millrace__V1__GenerateRequest *request,
                             const mr_client_call *call, mr_error *err)
{
    mr_client_stream stream;
    start_stream(&stream, client, request, call);
    run(&stream.x, call->cancel);
    const mr_status status = outcome(&stream.x, err);
    deinit_exchange(&stream.x);
    return status;
}

mr_status mr_client_stream_start(mr_client *client, const Millrace__V1__GenerateRequest *request,
                                 const mr_client_call *call, mr_client_stream **out, mr_error *err)
{
    mr_client_stream *stream = mr_calloc(1, sizeof(*stream));
    if (stream == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "out of memory for a stream");
    }
    start_stream(stream, client, request, call);
    *out = stream;
    return MR_OK;
}

mr_client_stream *mr_client_stream_wait(mr_client *client, uint64_t until_ns)
{
    gpr_timespec until = gpr_inf_future(GPR_CLOCK_MONOTONIC);
    if (until_ns < INT64_MAX) {
        until = gpr_time_from_nanos((int64_t)until_ns, GPR_CLOCK_MONOTONIC);
    }
    return (mr_client_stream *)next_event(client, until);
}

void *mr_client_stream_ctx(const mr_client_stream *stream)
{
    return stream->call.ctx;
}

mr_status mr_client_stream_end(mr_client_stream *stream, mr_error *err)
{
    const mr_status status = outcome(&stream->x, err);
    deinit_exchange(&stream->x);
    free(stream);
    return status;
}

/* An exchange of GetModel. */
typedef struct model_exchange {
    exchange x; /* first: events lead to it */
    mr_client_model *out;
    bool found;
} model_exchange;

static void copy_text(const ProtobufCBinaryData *text, char *out, size_t capacity)
{
    const size_t length = text->len < capacity - 1 ? text->len : capacity - 1;
    if (length > 0) {
        memcpy(out, text->data, length);
    }
    out[length] = '\0';
}

static bool on_model(exchange *x, const ProtobufCMessage *response)
{
    model_exchange *get = (model_exchange *)x;
    const Millrace__V1__Model *model = ((const Millrace__V1__GetModelResponse *)response)->model;
    if (model != NULL) {
        get->found = true;
        copy_text(&model->name, get->out->name, sizeof(get->out->name));
        copy_text(&model->backend, get->out->backend, sizeof(get->out->backend));
        copy_text(&model->version, get->out->version, sizeof(get->out->version));
        get->out->vocab_size = model->vocab_size;
        get->out->max_seq_length = model->max_seq_length;
    }
    return true;
}

mr_status mr_client_get_model(mr_client *client, uint64_t timeout_ms, mr_client_model *out,
                              mr_error *err)
{
    Millrace__V1__GetModelRequest request;
    millrace__v1__get_model_request__init(&request);
    model_exchange get = {
        .x = {.client = client,
              .type = &millrace__v1__get_model_response__descriptor,
              .on_message = on_model},
        .out = out,
    };
    start_exchange(&get.x, "/millrace.v1.InferenceService/GetModel", &request.base, timeout_ms);
    run(&get.x, NULL);
    mr_status status = outcome(&get.x, err);
    if (status == MR_OK && !get.found) {
        status = mr_fail(err, MR_INTERNAL, "%s: GetModel answered without a model", client->target);
    }
    deinit_exchange(&get.x);
    return status;
}
