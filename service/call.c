/* SPDX-License-Identifier: Apache-2.0 */
#include "service/call.h"

#include "base/checked.h"
#include "base/clock.h"
#include "service/admission.h"
#include "service/codec.h"
#include "service/error_trailers.h"

#include <grpc/support/time.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* How often calls are looked through, and when who waited while the server left may try again. */
#define CHECK_NS         (250 * MR_NS_PER_MS)
#define LEAVING_RETRY_MS 1000u
/* A client that takes no less than this is not too slow. */
#define LEAST_BYTES_A_SECOND 1024u

static void link_in(mr_call *call)
{
    mr_rpc_queue *queue = call->queue;
    call->next = queue->calls;
    if (queue->calls != NULL) {
        queue->calls->prev = call;
    }
    queue->calls = call;
}

static void link_out(mr_call *call)
{
    if (call->prev != NULL) {
        call->prev->next = call->next;
    } else {
        call->queue->calls = call->next;
    }
    if (call->next != NULL) {
        call->next->prev = call->prev;
    }
}

void mr_call_drop_payload(mr_call *call)
{
    if (call->payload != NULL) {
        grpc_byte_buffer_destroy(call->payload);
        call->payload = NULL;
    }
}

static void free_call(mr_call *call)
{
    mr_admission_end(call);
    mr_call_drop_payload(call);
    grpc_metadata_array_destroy(&call->metadata);
    grpc_call_details_destroy(&call->details);
    mr_tenant_table_unref(call->tenants);
    if (call->call != NULL) {
        grpc_call_unref(call->call);
    }
    free(call);
}

void mr_call_hold(mr_call *call)
{
    call->refs++;
}

void mr_call_release(mr_call *call)
{
    MR_CHECK(call->refs > 0);
    call->refs--;
    if (call->refs > 0) {
        return;
    }
    if (call->method->release != NULL) {
        call->method->release(call);
    }
    if (!call->finished) {
        mr_admission_record(call, MR_CANCELLED);
    }
    link_out(call);
    free_call(call);
}

bool mr_call_expect(mr_rpc_queue *queue, const mr_rpc_method *method, size_t slot)
{
    mr_call *call = mr_calloc(1, sizeof(*call));
    if (call == NULL) {
        return false;
    }
    call->queue = queue;
    call->method = method;
    call->slot = slot;
    grpc_metadata_array_init(&call->metadata);
    grpc_call_details_init(&call->details);
    call->new_tag = (mr_rpc_tag){MR_RPC_NEW, call};
    call->closed_tag = (mr_rpc_tag){MR_RPC_CLOSED, call};
    call->sent_tag = (mr_rpc_tag){MR_RPC_SENT, call};
    call->received_tag = (mr_rpc_tag){MR_RPC_RECEIVED, call};
    call->finished_tag = (mr_rpc_tag){MR_RPC_FINISHED, call};

    grpc_server *grpc = queue->server->grpc[method->port];
    void *registered = queue->server->registered[slot];
    const grpc_call_error status =
        method->path == NULL
            ? grpc_server_request_call(grpc, &call->call, &call->details, &call->metadata,
                                       queue->cq, queue->cq, &call->new_tag)
            : grpc_server_request_registered_call(grpc, registered, &call->call, &call->deadline,
                                                  &call->metadata, NULL, queue->cq, queue->cq,
                                                  &call->new_tag);
    if (status != GRPC_CALL_OK) {
        free_call(call);
        return false;
    }
    return true;
}

/* A batch that gRPC refuses is a bug of ours: none of its contents come from outside. */
static void start(mr_call *call, const grpc_op *ops, size_t n_ops, mr_rpc_tag *tag)
{
    mr_call_hold(call);
    MR_CHECK(grpc_call_start_batch(call->call, ops, n_ops, tag, NULL) == GRPC_CALL_OK);
}

static size_t add_initial(mr_call *call, grpc_op *ops)
{
    if (call->sent_initial) {
        return 0;
    }
    call->sent_initial = true;
    ops[0].op = GRPC_OP_SEND_INITIAL_METADATA;
    return 1;
}

void mr_call_send(mr_call *call, const ProtobufCMessage *message)
{
    MR_CHECK(!call->sending && !call->finished);
    grpc_op ops[2];
    memset(ops, 0, sizeof(ops));
    size_t n_ops = add_initial(call, ops);
    grpc_byte_buffer *buffer = mr_codec_pack(message);
    ops[n_ops].op = GRPC_OP_SEND_MESSAGE;
    ops[n_ops++].data.send_message.send_message = buffer;
    call->sending = true;
    call->sending_since = mr_monotonic_ns();
    call->sending_bytes = grpc_byte_buffer_length(buffer);
    start(call, ops, n_ops, &call->sent_tag);
    grpc_byte_buffer_destroy(buffer);
}

void mr_call_finish(mr_call *call, const ProtobufCMessage *last, const mr_error *err)
{
    MR_CHECK(!call->finished);
    call->finished = true;
    call->sending_since = mr_monotonic_ns();
    mr_admission_record(call, err == NULL ? MR_OK : err->status);
    grpc_op ops[3];
    memset(ops, 0, sizeof(ops));
    size_t n_ops = add_initial(call, ops);
    grpc_byte_buffer *buffer = NULL;
    if (last != NULL) {
        buffer = mr_codec_pack(last);
        call->sending_bytes =
            (call->sending ? call->sending_bytes : 0) + grpc_byte_buffer_length(buffer);
        ops[n_ops].op = GRPC_OP_SEND_MESSAGE;
        ops[n_ops++].data.send_message.send_message = buffer;
    }
    mr_error_trailers trailers;
    mr_error_trailers_init(&trailers, err);
    grpc_op *op = &ops[n_ops++];
    op->op = GRPC_OP_SEND_STATUS_FROM_SERVER;
    op->data.send_status_from_server.status = trailers.code;
    op->data.send_status_from_server.status_details = &trailers.message;
    op->data.send_status_from_server.trailing_metadata_count = trailers.count;
    op->data.send_status_from_server.trailing_metadata = trailers.metadata;
    start(call, ops, n_ops, &call->finished_tag);
    mr_error_trailers_deinit(&trailers);
    if (buffer != NULL) {
        grpc_byte_buffer_destroy(buffer);
    }
}

uint64_t mr_call_payload_bytes(const mr_call *call)
{
    return call->payload == NULL ? 0 : grpc_byte_buffer_length(call->payload);
}

mr_status mr_call_unpack(const mr_call *call, const ProtobufCMessageDescriptor *type,
                         ProtobufCMessage **out, mr_error *err)
{
    const mr_server *server = call->queue->server;
    const uint64_t bytes = mr_call_payload_bytes(call);
    if (mr_flag_get(&server->ready) && bytes > server->max_message_bytes) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED,
                       "the request has %" PRIu64 " bytes and this server takes %" PRIu64
                       ": send less, or have max_message_bytes raised",
                       bytes, server->max_message_bytes);
    }
    return mr_codec_unpack(type, call->payload, out, err);
}

void mr_call_receive(mr_call *call)
{
    MR_CHECK(!call->finished);
    mr_call_drop_payload(call);
    grpc_op op;
    memset(&op, 0, sizeof(op));
    op.op = GRPC_OP_RECV_MESSAGE;
    op.data.recv_message.recv_message = &call->payload;
    call->receiving_since = mr_monotonic_ns();
    if (call->credited) {
        mr_connections_await(call->connection);
    }
    start(call, &op, 1, &call->received_tag);
}

void mr_call_abort(mr_call *call, const mr_error *err)
{
    (void)grpc_call_cancel_with_status(call->call, (grpc_status_code)err->status, err->message,
                                       NULL);
}

const mr_tenant *mr_call_tenant(const mr_call *call)
{
    return mr_tenants_get(&call->tenants->tenants, call->tenant);
}

static void on_new(mr_call *call, bool ok)
{
    if (!ok) {
        free_call(call); /* the server shuts down: no call came */
        return;
    }
    call->queue->missing[call->slot]++;
    call->queue->n_missing++;
    call->refs = 1;
    link_in(call);
    /* First of all, so that a client that leaves is noticed whatever the method does. */
    grpc_op op;
    memset(&op, 0, sizeof(op));
    op.op = GRPC_OP_RECV_CLOSE_ON_SERVER;
    op.data.recv_close_on_server.cancelled = &call->client_cancelled;
    start(call, &op, 1, &call->closed_tag);
    mr_error err = {0};
    if (mr_admission_check(call, &err) != MR_OK) {
        mr_call_finish(call, NULL, &err);
    } else if (call->method->path == NULL) {
        mr_connections_refuse(call->connection);
        call->method->begin(call);
    } else {
        call->awaiting = true;
        mr_call_receive(call);
    }
    mr_call_release(call);
}

/* The first message makes the call begin, unless the client has left before. */
static void on_received(mr_call *call)
{
    const bool first = call->awaiting;
    const uint64_t bytes = mr_call_payload_bytes(call);
    call->awaiting = false;
    call->receiving_since = 0;
    if (call->credited) {
        mr_connections_received(call->connection, bytes, call->payload == NULL);
    }
    if (call->finished) {
        return;
    }
    if (first && call->payload == NULL && call->gone) {
        mr_error err = {0};
        (void)mr_fail(&err, MR_CANCELLED, "the client left before its request came");
        mr_call_finish(call, NULL, &err);
    } else if (first) {
        call->method->begin(call);
    } else if (call->method->received != NULL) {
        call->method->received(call);
    }
}

void mr_call_on_event(mr_call *call, mr_rpc_event event, bool ok)
{
    if (event == MR_RPC_NEW) {
        on_new(call, ok);
        return;
    }
    if (event == MR_RPC_CLOSED) {
        call->gone = call->client_cancelled != 0;
        if (call->gone && !call->awaiting && call->method->cancelled != NULL) {
            call->method->cancelled(call);
        }
    } else if (event == MR_RPC_SENT) {
        call->sending = false;
        call->sending_since = call->finished ? call->sending_since : 0;
        mr_connections_sent(call->connection);
        if (!call->finished && call->method->resume != NULL) {
            call->method->resume(call);
        }
    } else if (event == MR_RPC_RECEIVED) {
        on_received(call);
    } else if (event == MR_RPC_FINISHED) {
        call->sending_since = 0;
        mr_connections_sent(call->connection);
    }
    mr_call_release(call);
}

static bool is_late(uint64_t since_ns, uint64_t timeout_ms, uint64_t now_ns)
{
    return since_ns != 0 && now_ns - since_ns >= timeout_ms * MR_NS_PER_MS;
}

/* What a client gets for what is on its way: more for much of it, within limits. */
static uint64_t answer_ms(const mr_call *call)
{
    const uint64_t timeout_ms = call->queue->server->limits.answer_timeout_ms;
    const uint64_t wanted = call->sending_bytes * 1000 / LEAST_BYTES_A_SECOND;
    return 2 * timeout_ms + mr_min_u64(wanted, 8 * timeout_ms);
}

/* The request may come too late, or what ends the call may not be taken; methods that send more
 * than once have a limit of their own, which comes first. */
static void check(mr_call *call, uint64_t now_ns)
{
    const mr_server_limits *limits = &call->queue->server->limits;
    mr_error err = {0};
    const mr_server *server = call->queue->server;
    /* A server that was drained by request goes on answering what is no generation. */
    if (call->awaiting && mr_flag_get(&server->leaving) && mr_flag_get(&server->refusing)) {
        (void)mr_fail(&err, MR_UNAVAILABLE, "the server is shutting down: use another one");
        err.retry_after_ms = LEAVING_RETRY_MS;
        mr_call_finish(call, NULL, &err);
    } else if (!call->finished &&
               is_late(call->receiving_since, limits->request_timeout_ms, now_ns)) {
        (void)mr_fail(&err, MR_DEADLINE_EXCEEDED,
                      "no request came within %" PRIu32
                      " ms: send it sooner, or have limits.request_timeout_ms raised",
                      limits->request_timeout_ms);
        mr_call_finish(call, NULL, &err);
    } else if (!call->finished && mr_admission_keep(call, &err) != MR_OK) {
        mr_call_finish(call, NULL, &err);
    } else if (is_late(call->sending_since, answer_ms(call), now_ns)) {
        (void)mr_fail(&err, MR_RESOURCE_EXHAUSTED, "the client takes its answer too slowly");
        call->sending_since = 0;
        mr_call_abort(call, &err);
    }
}

void mr_call_check_all(mr_rpc_queue *queue)
{
    const uint64_t now_ns = mr_monotonic_ns();
    if (queue->calls == NULL || now_ns - queue->checked_ns < CHECK_NS) {
        return;
    }
    queue->checked_ns = now_ns;
    /* None is freed: each holds a batch that is out. */
    for (mr_call *call = queue->calls; call != NULL; call = call->next) {
        check(call, now_ns);
    }
}

uint64_t mr_call_deadline_ns(const mr_call *call, uint64_t now_ns)
{
    const gpr_timespec never = gpr_inf_future(call->deadline.clock_type);
    if (gpr_time_cmp(call->deadline, never) >= 0) {
        return MR_NEVER;
    }
    const gpr_timespec left = gpr_time_sub(call->deadline, gpr_now(call->deadline.clock_type));
    if (left.tv_sec < 0) {
        return now_ns;
    }
    uint64_t ns = 0;
    if (!mr_mul_u64((uint64_t)left.tv_sec, MR_NS_PER_S, &ns)) {
        return MR_NEVER;
    }
    return mr_time_add(now_ns, ns + (uint64_t)left.tv_nsec);
}
