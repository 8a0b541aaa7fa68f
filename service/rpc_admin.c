/* SPDX-License-Identifier: Apache-2.0 */
/* AdminService, which is off unless admin.enable is set. */
#include "base/clock.h"
#include "base/log.h"
#include "service/call.h"
#include "service/codec.h"

#include "millrace/v1/inference.pb-c.h"

/* False, and the call is finished, when nothing can be asked here or yet. */
static bool may_begin(mr_call *call)
{
    const mr_server *server = call->queue->server;
    mr_error err;
    if (!server->admin) {
        (void)mr_fail(&err, MR_UNIMPLEMENTED,
                      "AdminService is off here: start the server with --set admin.enable=true");
    } else if (!mr_flag_get(&server->ready)) {
        (void)mr_fail(&err, MR_UNAVAILABLE, "the model is still loading: try again");
    } else {
        return true;
    }
    mr_call_finish(call, NULL, &err);
    return false;
}

static void begin_get_load(mr_call *call)
{
    mr_server *server = call->queue->server;
    if (!may_begin(call)) {
        return;
    }
    mr_metrics_view view;
    mr_server_metrics_view(server, &view);
    const mr_engine_stats *engine = &view.engine;
    Millrace__V1__Load load = MILLRACE__V1__LOAD__INIT;
    load.running = engine->scheduler.running;
    load.waiting = engine->scheduler.waiting;
    load.kv_blocks_total = engine->scheduler.blocks.total;
    load.kv_blocks_live = engine->scheduler.blocks.live;
    load.kv_blocks_cached = engine->scheduler.blocks.cached;
    if (engine->last_step_ns != 0 && view.now_ns > engine->last_step_ns) {
        load.last_step_age_ms = (double)(view.now_ns - engine->last_step_ns) / (double)MR_NS_PER_MS;
    }
    load.draining = mr_flag_get(&server->draining);
    Millrace__V1__GetLoadResponse response = MILLRACE__V1__GET_LOAD_RESPONSE__INIT;
    response.load = &load;
    mr_call_finish(call, &response.base, NULL);
}

const mr_rpc_method mr_rpc_get_load = {
    .path = "/millrace.v1.AdminService/GetLoad",
    .begin = begin_get_load,
};

static void begin_reset_prefix_cache(mr_call *call)
{
    if (!may_begin(call)) {
        return;
    }
    mr_runtime *runtime = call->queue->server->runtime;
    mr_prefix_identity *identity = mr_runtime_prefix_identity(runtime);
    if (identity == NULL) {
        mr_error err;
        (void)mr_fail(&err, MR_FAILED_PRECONDITION,
                      "this server caches no prefixes: start it with --set "
                      "enable_prefix_caching=true");
        mr_call_finish(call, NULL, &err);
        return;
    }
    Millrace__V1__ResetPrefixCacheResponse response =
        MILLRACE__V1__RESET_PREFIX_CACHE_RESPONSE__INIT;
    response.blocks_dropped = mr_engine_reset_prefix_cache(mr_runtime_engine(runtime),
                                                           mr_prefix_identity_generation(identity));
    mr_log(MR_LOG_INFO, "admin", "the prefix cache was reset", "blocks=%u",
           response.blocks_dropped);
    mr_call_finish(call, &response.base, NULL);
}

/* Answers once nothing runs any more; the drain does not depend on who waits for it. */
static void look_drained(mr_call *call)
{
    if (call->finished) {
        return;
    }
    if (call->gone) {
        mr_error err;
        (void)mr_fail(&err, MR_CANCELLED, "the client cancelled the call; the drain goes on");
        mr_call_finish(call, NULL, &err);
    } else if (mr_flag_get(&call->queue->server->drained)) {
        const Millrace__V1__DrainResponse response = MILLRACE__V1__DRAIN_RESPONSE__INIT;
        mr_call_finish(call, &response.base, NULL);
    }
}

static void begin_drain(mr_call *call)
{
    if (!may_begin(call)) {
        return;
    }
    mr_error err;
    ProtobufCMessage *message = NULL;
    if (mr_call_unpack(call, &millrace__v1__drain_request__descriptor, &message, &err) != MR_OK) {
        mr_call_finish(call, NULL, &err);
        return;
    }
    const uint32_t timeout_ms = ((const Millrace__V1__DrainRequest *)message)->timeout_ms;
    mr_codec_free(message);
    mr_server_drain(call->queue->server, timeout_ms);
    look_drained(call);
}

const mr_rpc_method mr_rpc_drain = {
    .path = "/millrace.v1.AdminService/Drain",
    .begin = begin_drain,
    .cancelled = look_drained,
    .tick = look_drained,
};

const mr_rpc_method mr_rpc_reset_prefix_cache = {
    .path = "/millrace.v1.AdminService/ResetPrefixCache",
    .begin = begin_reset_prefix_cache,
};
