/* SPDX-License-Identifier: Apache-2.0 */
#include "service/rpc_queue.h"

#include "base/log.h"
#include "service/call.h"
#include "service/handoff.h"
#include "service/limit_gate.h"
#include "service/request_sink.h"
#include "service/rpc.h"

#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <grpc/support/time.h>

/* Calls that may arrive at once, a queue and method, before gRPC has to wait for the queue. */
#define EXPECTED_CALLS 4
/* How often calls are looked through while there are some, and room is sought for calls that had
 * none. */
#define CHECK_INTERVAL_MS 500

void mr_rpc_queue_post(mr_rpc_queue *queue, mr_rpc_tag *tag)
{
    grpc_call *waker = queue->waker;
    MR_HANDOFF_GIVE(tag);
    MR_CHECK(grpc_call_start_batch(waker, NULL, 0, tag, NULL) == GRPC_CALL_OK);
}

/* One look at every call. A call may end, but none is freed: each holds a batch that is out. */
static void tick(mr_rpc_queue *queue)
{
    for (mr_call *call = queue->calls; call != NULL; call = call->next) {
        if (call->method->tick != NULL && !call->awaiting) {
            call->method->tick(call);
        }
    }
}

static void on_event(mr_rpc_queue *queue, const mr_rpc_tag *tag, bool ok)
{
    switch (tag->event) {
    case MR_RPC_NEW:
    case MR_RPC_CLOSED:
    case MR_RPC_SENT:
    case MR_RPC_RECEIVED:
    case MR_RPC_FINISHED:
        mr_call_on_event(tag->call, tag->event, ok);
        break;
    case MR_RPC_DECIDED:
        MR_HANDOFF_TAKE(&queue->decided_tag);
        mr_limit_gate_take(queue);
        break;
    case MR_RPC_WORKED:
        MR_HANDOFF_TAKE(&queue->worked_tag);
        mr_text_worked_take(queue);
        break;
    case MR_RPC_WAKE:
        MR_HANDOFF_TAKE(&queue->wake_tag);
        mr_request_sink_take(queue);
        break;
    case MR_RPC_TICK:
        tick(queue);
        break;
    case MR_RPC_STOP:
        MR_HANDOFF_TAKE(&queue->stop_tag);
        queue->stopping = true;
        break;
    case MR_RPC_SERVER_DOWN:
        queue->server->n_up--;
        if (queue->server->n_up == 0) {
            mr_flag_set(&queue->server->down);
            mr_event_set(&queue->server->news);
        }
        break;
    }
}

/* A call that came took its place; one that could not be given back stays missing until later. */
static void expect_missing(mr_rpc_queue *queue)
{
    if (queue->n_missing == 0 || queue->stopping || !mr_flag_get(&queue->server->serving)) {
        return;
    }
    for (size_t m = 0; m < MR_RPC_METHODS; m++) {
        while (queue->missing[m] > 0 && mr_call_expect(queue, mr_rpc_methods[m], m)) {
            queue->missing[m]--;
            queue->n_missing--;
        }
    }
    if (queue->n_missing > 0) {
        mr_log_folded(MR_LOG_WARN, "server", "no room for new calls: trying again", "missing=%u",
                      queue->n_missing);
    }
}

static void *queue_main(void *arg)
{
    mr_rpc_queue *queue = arg;
    for (;;) {
        gpr_timespec until = gpr_inf_future(GPR_CLOCK_MONOTONIC);
        if (queue->calls != NULL || queue->n_missing > 0) {
            until = gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                                 gpr_time_from_millis(CHECK_INTERVAL_MS, GPR_TIMESPAN));
        }
        const grpc_event event = grpc_completion_queue_next(queue->cq, until, NULL);
        if (event.type == GRPC_QUEUE_SHUTDOWN) {
            return NULL;
        }
        if (event.type == GRPC_OP_COMPLETE) {
            on_event(queue, event.tag, event.success != 0);
        } else {
            tick(queue);
        }
        expect_missing(queue);
        mr_call_check_all(queue);
        if (queue->stopping && queue->calls == NULL && !queue->stopped) {
            queue->stopped = true;
            grpc_completion_queue_shutdown(queue->cq);
        }
    }
}

static void create_waker(mr_rpc_queue *queue)
{
    grpc_channel *nowhere =
        grpc_lame_client_channel_create("waker", GRPC_STATUS_UNAVAILABLE, "never used");
    queue->waker = grpc_channel_create_call(nowhere, NULL, GRPC_PROPAGATE_DEFAULTS, queue->cq,
                                            grpc_slice_from_static_string("/waker"), NULL,
                                            gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    grpc_channel_destroy(nowhere);
}

void mr_rpc_queue_init(mr_rpc_queue *queue, mr_server *server)
{
    queue->server = server;
    queue->cq = grpc_completion_queue_create_for_next(NULL);
    queue->tick_tag.event = MR_RPC_TICK;
    queue->stop_tag.event = MR_RPC_STOP;
    for (size_t m = 0; m < MR_RPC_METHODS; m++) {
        if (server->grpc[mr_rpc_methods[m]->port] != NULL) {
            queue->missing[m] = EXPECTED_CALLS;
            queue->n_missing += EXPECTED_CALLS;
        }
    }
    create_waker(queue);
    mr_request_sink_init(queue);
    mr_limit_gate_init(queue);
    mr_text_worked_init(queue);
    for (size_t p = 0; p < MR_RPC_PORTS; p++) {
        if (server->grpc[p] != NULL) {
            grpc_server_register_completion_queue(server->grpc[p], queue->cq, NULL);
        }
    }
}

mr_status mr_rpc_queue_start(mr_rpc_queue *queue, mr_error *err)
{
    if (pthread_create(&queue->thread, NULL, queue_main, queue) != 0) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "the system gave no thread for the gRPC server");
    }
    return MR_OK;
}

void mr_rpc_queue_stop(mr_rpc_queue *queue)
{
    mr_rpc_queue_post(queue, &queue->stop_tag);
}

void mr_rpc_queue_join(mr_rpc_queue *queue)
{
    pthread_join(queue->thread, NULL);
}

void mr_rpc_queue_drop(mr_rpc_queue *queue)
{
    grpc_completion_queue_shutdown(queue->cq);
    grpc_event event;
    do {
        event = grpc_completion_queue_next(queue->cq, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    } while (event.type != GRPC_QUEUE_SHUTDOWN);
}

void mr_rpc_queue_deinit(mr_rpc_queue *queue)
{
    grpc_call_unref(queue->waker);
    queue->waker = NULL;
    grpc_completion_queue_destroy(queue->cq);
}
