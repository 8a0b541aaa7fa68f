/* SPDX-License-Identifier: Apache-2.0 */
/* AdminService, which is off unless admin.enable is set. */
#include "base/clock.h"
#include "service/call.h"
#include "service/codec.h"

#include "millrace/v1/inference.pb-c.h"

static void begin_get_load(mr_call *call)
{
    mr_server *server = call->queue->server;
    mr_error err;
    if (!server->admin) {
        (void)mr_fail(&err, MR_UNIMPLEMENTED,
                      "AdminService is off here: start the server with --set admin.enable=true");
        mr_call_finish(call, NULL, &err);
        return;
    }
    if (!mr_flag_get(&server->ready)) {
        (void)mr_fail(&err, MR_UNAVAILABLE, "the model is still loading: try again");
        mr_call_finish(call, NULL, &err);
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
