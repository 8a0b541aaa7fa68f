/* SPDX-License-Identifier: Apache-2.0 */
/* Generate and GenerateUnary: the same but for when the collected tokens are sent. */
#include "base/checked.h"
#include "base/clock.h"
#include "service/call.h"
#include "service/limit_gate.h"
#include "service/proto_response.h"
#include "service/request_reading.h"
#include "service/request_sink.h"
#include "service/usage_log.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct generation {
    mr_request_link link; /* first: what the engine's news come through */
    mr_limit_pass pass;   /* of the tenant's limits; holds until the request has ended */
    mr_call *call;
    mr_engine *engine;
    mr_request *request; /* shared with the engine; NULL until it is accepted */
    mr_id_claim id;
    mr_proto_response response;
    mr_token_meter meter;
    uint64_t arrived_ns;
    mr_request_reading *reading; /* while the request is being read */
    bool unary;
    bool submitted;
    bool cut_off; /* by a drain */
} generation;

/* After the status is out, events still come until the engine is done with the request. */
static void discard_events(generation *gen)
{
    mr_ring_pop(&gen->request->events, mr_ring_count(&gen->request->events));
}

/* A request that its client gave up is neither. */
static void count_drained(const generation *gen, mr_status status)
{
    mr_server *server = gen->call->queue->server;
    if (!gen->submitted || !mr_flag_get(&server->draining) || gen->call->gone) {
        return;
    }
    mr_metrics_drained(&server->metrics, gen->cut_off && status != MR_OK);
}

/* The id is free again before the client can know that its request is over. */
static void end_call(generation *gen, const ProtobufCMessage *last, const mr_error *err)
{
    count_drained(gen, err->status);
    mr_id_registry_drop(&gen->call->queue->server->ids, &gen->id);
    mr_call_finish(gen->call, last, err);
}

static void give_up(generation *gen, const mr_error *err)
{
    if (gen->submitted) {
        mr_engine_cancel(gen->engine, gen->request);
        discard_events(gen);
    }
    end_call(gen, NULL, err);
}

/* `bytes` are those that are known of. */
static mr_status fail_too_long(size_t bytes, mr_error *err)
{
    return mr_fail(err, MR_RESOURCE_EXHAUSTED,
                   "the answer has %zu bytes or more, and one message may have %d: use Generate, "
                   "which sends it in parts",
                   bytes, MR_RPC_MAX_ANSWER_BYTES);
}

/* Takes in all waiting events. An answer that can no longer be sent is not collected to its end. */
static mr_status collect(generation *gen, mr_error *err)
{
    mr_ring *events = &gen->request->events;
    const mr_token_event *event = mr_ring_peek(events, 0);
    uint32_t tokens = 0;
    while (event != NULL) {
        tokens += event->token != MR_NO_TOKEN ? 1 : 0;
        MR_TRY(mr_proto_response_add(&gen->response, event, err));
        mr_ring_pop(events, 1);
        event = mr_ring_peek(events, 0);
    }
    const mr_clock clock = mr_clock_monotonic();
    mr_metrics_tokens(&gen->call->queue->server->metrics, &gen->meter, gen->request, tokens,
                      mr_clock_now(&clock));
    if (gen->unary && gen->response.min_bytes > MR_RPC_MAX_ANSWER_BYTES) {
        return fail_too_long(gen->response.min_bytes, err);
    }
    return MR_OK;
}

/* What the call ends with, once the last event is in. */
static void final_error(const generation *gen, mr_error *err)
{
    *err = gen->request->error;
    const mr_finish finish = gen->response.finish;
    if (gen->cut_off && finish == MR_FINISH_CANCELLED) {
        mr_server_fail_cut_off(err);
    } else if (err->status == MR_OK && finish == MR_FINISH_CANCELLED) {
        (void)mr_fail(err, MR_CANCELLED, "the request was cancelled");
    } else if (err->status == MR_OK && finish == MR_FINISH_ERROR) {
        (void)mr_fail(err, MR_INTERNAL, "the request failed without a cause");
    }
}

static void finish_unary(generation *gen, const Millrace__V1__GenerateResponse *response,
                         mr_error *err)
{
    Millrace__V1__GenerateUnaryResponse unary = MILLRACE__V1__GENERATE_UNARY_RESPONSE__INIT;
    unary.response = (Millrace__V1__GenerateResponse *)response;
    const size_t bytes = millrace__v1__generate_unary_response__get_packed_size(&unary);
    if (err->status == MR_OK && bytes > MR_RPC_MAX_ANSWER_BYTES) {
        (void)fail_too_long(bytes, err);
    }
    end_call(gen, err->status == MR_OK ? &unary.base : NULL, err);
}

/* Such a request has nothing to say but why. */
static bool failed_before_its_first_token(const generation *gen)
{
    mr_error err;
    final_error(gen, &err);
    return err.status != MR_OK && gen->request->usage.completion_tokens == 0;
}

/* What counts against the tenant's tokens: nothing of a request that never ran. */
static uint64_t used_tokens(const mr_request *request)
{
    const mr_request_usage *usage = &request->usage;
    return usage->scheduled_ns == 0 ? 0 : (uint64_t)usage->prompt_tokens + usage->completion_tokens;
}

/* `last` is borrowed; NULL: nothing but the status. */
static void finish(generation *gen, const Millrace__V1__GenerateResponse *last)
{
    mr_error err;
    /* Before the client knows of the end: its next request finds what this one gives back. */
    mr_rate_limiter_finish(&gen->pass.ticket, used_tokens(gen->request));
    final_error(gen, &err);
    if (gen->unary) {
        finish_unary(gen, last, &err);
        return;
    }
    end_call(gen, last != NULL ? &last->base : NULL, &err);
}

/* Sends what there is, if a message may go out now. */
static void pump(generation *gen)
{
    mr_call *call = gen->call;
    if (call->finished) {
        discard_events(gen);
        return;
    }
    if (call->sending) {
        return;
    }
    mr_error err;
    if (collect(gen, &err) != MR_OK) {
        give_up(gen, &err);
        return;
    }
    const bool due = gen->unary ? gen->response.ended : mr_proto_response_waiting(&gen->response);
    if (!due) {
        return;
    }
    if (gen->response.ended && failed_before_its_first_token(gen)) {
        finish(gen, NULL);
        return;
    }
    const Millrace__V1__GenerateResponse *message = NULL;
    if (mr_proto_response_build(&gen->response, &message, &err) != MR_OK) {
        give_up(gen, &err);
    } else if (gen->response.complete) {
        finish(gen, message);
    } else {
        mr_call_send(call, &message->base);
    }
}

static void on_news(mr_request_link *link, bool ended)
{
    generation *gen = (generation *)link;
    mr_call *call = gen->call;
    pump(gen);
    if (ended) {
        mr_metrics_ended(&call->queue->server->metrics, gen->request);
        mr_usage_log(gen->request, mr_call_tenant(call),
                     mr_runtime_model_name(call->queue->server->runtime));
        mr_rate_limiter_finish(&gen->pass.ticket, used_tokens(gen->request));
        /* The engine gave up on a slow reader, so the message on its way will not be taken. */
        if (call->sending && gen->request->reader_lost) {
            mr_call_abort(call, &gen->request->error);
        }
        mr_call_release(call);
    }
}

static void cut_off(generation *gen)
{
    if (gen->submitted && !gen->cut_off && !gen->call->finished) {
        gen->cut_off = true;
        mr_engine_cancel(gen->engine, gen->request);
    }
}

/* Does not wait for the engine. A message on its way goes first: gRPC could end a call before it
 * with a bare status only, and loses that as well when the connection's last GOAWAY is out. That is
 * for those who do not take it. */
static void drop(generation *gen)
{
    mr_error err;
    mr_server_fail_cut_off(&err);
    cut_off(gen);
    gen->cut_off = true;
    if (!gen->call->sending) {
        give_up(gen, &err);
    } else if (mr_flag_get(&gen->call->queue->server->hurrying)) {
        mr_call_abort(gen->call, &err);
    }
}

static mr_status create_request(generation *gen, mr_proto_request *asked, mr_error *err)
{
    mr_rpc_queue *queue = gen->call->queue;
    char made[MR_REQUEST_ID_MAX + 1];
    const char *id = asked->id;
    if (id[0] == '\0') {
        const unsigned number = (unsigned)(queue - queue->server->queues);
        snprintf(made, sizeof(made), "%016" PRIx64 "-%u-%" PRIu64, queue->server->boot, number,
                 ++queue->next_id);
        id = made;
    }
    const mr_clock clock = mr_clock_monotonic();
    const uint64_t now_ns = mr_clock_now(&clock);
    mr_request_spec spec = {
        .id = id,
        .tenant = gen->call->tenant,
        .weight = mr_call_tenant(gen->call)->weight,
        .prompt = asked->prompt.data,
        .n_prompt = (uint32_t)asked->prompt.count,
        .params = asked->params,
        .arrived_ns = gen->arrived_ns,
        .deadline_ns = mr_call_deadline_ns(gen->call, now_ns),
        .sink = &queue->sink,
        .owner = &gen->link,
    };
    mr_generation_lists_fill(&asked->lists, &spec);
    mr_prefix_root root;
    const mr_prefix_asker asker = {
        .tenant = mr_call_tenant(gen->call)->name,
        .salt = &asked->lists.cache_salt,
        .n_prompt = spec.n_prompt,
    };
    if (mr_runtime_prefix_root(queue->server->runtime, &asker, &root)) {
        spec.prefix = &root;
    }
    MR_TRY(mr_request_create(&spec, &gen->request, err));
    asked->lists.stop = NULL;
    return mr_id_registry_claim(&queue->server->ids, &gen->id, mr_call_tenant(gen->call)->name,
                                gen->request, err);
}

static mr_status check_priority(const generation *gen, const mr_proto_request *asked, mr_error *err)
{
    const mr_tenant *tenant = mr_call_tenant(gen->call);
    const int32_t priority = asked->params.priority;
    if (priority <= (int32_t)tenant->priority_max) {
        return MR_OK;
    }
    return mr_fail_field(err, MR_PERMISSION_DENIED, "priority",
                         "priority is %" PRId32 ", and the tenant %s may ask for at most %" PRIu32
                         ": lower it, or have the tenant's priority_max raised",
                         priority, tenant->name, tenant->priority_max);
}

static mr_status give_to_engine(generation *gen, mr_error *err)
{
    mr_call_hold(gen->call); /* until the engine has ended the request */
    gen->submitted = true;
    const mr_status status = mr_engine_submit(gen->engine, gen->request, err);
    if (status != MR_OK) {
        gen->submitted = false;
        mr_rate_limiter_finish(&gen->pass.ticket, 0);
        mr_call_release(gen->call);
    } else if (mr_flag_get(&gen->call->queue->server->cut_off)) {
        cut_off(gen);
    }
    return status;
}

static mr_status go_on(generation *gen, mr_error *err)
{
    const mr_rate_ticket *ticket = &gen->pass.ticket;
    return ticket->decision.granted ? give_to_engine(gen, err)
                                    : mr_rate_refusal(&ticket->decision, &ticket->limits, err);
}

static void refuse(generation *gen, const mr_error *err)
{
    mr_metrics_refused(&gen->call->queue->server->metrics, err->status);
    mr_usage_log_refused(mr_call_tenant(gen->call), err);
    end_call(gen, NULL, err);
}

/* Redis has decided, and the call may be over meanwhile. */
static void on_decided(mr_limit_pass *pass)
{
    generation *gen = (generation *)(void *)((char *)pass - offsetof(generation, pass));
    mr_call *call = gen->call;
    mr_error err;
    if (call->finished) {
        mr_rate_limiter_finish(&pass->ticket, 0);
    } else if (go_on(gen, &err) != MR_OK) {
        refuse(gen, &err);
    }
    mr_call_release(call);
}

/* Asks for what the tenant's limits demand, if there are any; the engine gets the request at once,
 * or when Redis has granted it. */
static mr_status pass_limits(generation *gen, mr_error *err)
{
    const mr_request *request = gen->request;
    const mr_tenant *tenant = mr_call_tenant(gen->call);
    const mr_rate_limits limits = mr_tenant_limits(tenant);
    const uint64_t output = (uint64_t)request->params.n * request->params.max_tokens;
    if (!mr_rate_limits_any(&limits)) {
        return give_to_engine(gen, err);
    }
    MR_TRY(mr_rate_limits_check(&limits, request->n_prompt, output, err));
    mr_rate_ticket *ticket = &gen->pass.ticket;
    ticket->limits = limits;
    ticket->tokens = request->n_prompt + output;
    snprintf(ticket->tenant, sizeof(ticket->tenant), "%s", tenant->name);
    /* Numbered, since the same id may come again while the engine still ends the first. */
    mr_rpc_queue *queue = gen->call->queue;
    const unsigned number = (unsigned)(queue - queue->server->queues);
    snprintf(ticket->lease, sizeof(ticket->lease), "%s@%016" PRIx64 "-%u-%" PRIu64, request->id,
             queue->server->boot, number, ++queue->next_lease);
    gen->pass.on_decided = on_decided;
    mr_call_hold(gen->call); /* until it is decided */
    if (!mr_limit_gate_ask(&gen->pass, gen->call->queue)) {
        return MR_OK;
    }
    const mr_status status = go_on(gen, err);
    mr_call_release(gen->call);
    return status;
}

static mr_status submit(generation *gen, mr_request_reading *reading, mr_error *err)
{
    MR_TRY(check_priority(gen, &reading->asked, err));
    MR_TRY(create_request(gen, &reading->asked, err));
    const mr_proto_response_options options = {
        .skip_text = reading->asked.skip_text,
        .show_prompt = reading->asked.show_prompt,
        .whole = gen->unary,
    };
    MR_TRY(mr_proto_response_init(&gen->response, gen->request,
                                  mr_model_tokenizer(mr_runtime_model(reading->runtime)), &options,
                                  err));
    gen->engine = mr_runtime_engine(reading->runtime);
    return pass_limits(gen, err);
}

static void on_read(mr_request_reading *reading)
{
    mr_call *call = reading->call;
    generation *gen = call->state;
    gen->reading = NULL;
    if (!call->finished &&
        (reading->status != MR_OK || submit(gen, reading, &reading->err) != MR_OK)) {
        refuse(gen, &reading->err);
    }
}

static void begin(mr_call *call, bool unary)
{
    mr_error err;
    generation *gen = mr_calloc(1, sizeof(*gen));
    if (gen == NULL) {
        (void)mr_fail(&err, MR_RESOURCE_EXHAUSTED, "out of memory for a request");
        mr_call_finish(call, NULL, &err);
        return;
    }
    gen->call = call;
    gen->unary = unary;
    const mr_clock clock = mr_clock_monotonic();
    gen->arrived_ns = mr_clock_now(&clock); /* before tokenisation, which can take long */
    mr_request_link_init(&gen->link, on_news);
    call->state = gen;
    if (mr_request_reading_start(call, unary, on_read, &gen->reading, &err) != MR_OK) {
        refuse(gen, &err);
    }
}

static void begin_stream(mr_call *call)
{
    begin(call, false);
}

static void begin_unary(mr_call *call)
{
    begin(call, true);
}

static void leave(generation *gen)
{
    mr_error err;
    if (gen->reading != NULL) {
        mr_request_reading_abandon(gen->reading);
    }
    (void)mr_fail(&err, MR_CANCELLED, "the client cancelled the call, or its deadline passed");
    give_up(gen, &err);
}

static void on_sent(mr_call *call)
{
    generation *gen = call->state;
    if (call->gone) {
        leave(gen);
    } else if (mr_flag_get(&call->queue->server->dropping)) {
        drop(gen);
    } else {
        pump(gen);
    }
}

static void on_cancelled(mr_call *call)
{
    generation *gen = call->state;
    if (gen == NULL || call->finished) {
        return;
    }
    if (gen->submitted) {
        mr_engine_cancel(gen->engine, gen->request);
    }
    /* With a message on its way, the status waits for it. */
    if (!call->sending) {
        leave(gen);
    }
}

static void on_tick(mr_call *call)
{
    generation *gen = call->state;
    const mr_server *server = call->queue->server;
    if (gen == NULL || call->finished) {
        return;
    }
    if (mr_flag_get(&server->dropping)) {
        drop(gen);
    } else if (mr_flag_get(&server->cut_off)) {
        cut_off(gen);
    }
}

static void release(mr_call *call)
{
    generation *gen = call->state;
    if (gen == NULL) {
        return;
    }
    mr_proto_response_deinit(&gen->response);
    if (gen->request != NULL) {
        mr_request_unref(gen->request);
    }
    free(gen);
}

const mr_rpc_method mr_rpc_generate = {
    .path = "/millrace.v1.InferenceService/Generate",
    .begin = begin_stream,
    .resume = on_sent,
    .cancelled = on_cancelled,
    .tick = on_tick,
    .release = release,
};

const mr_rpc_method mr_rpc_generate_unary = {
    .path = "/millrace.v1.InferenceService/GenerateUnary",
    .begin = begin_unary,
    .cancelled = on_cancelled,
    .tick = on_tick,
    .release = release,
};
