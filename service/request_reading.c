/* SPDX-License-Identifier: Apache-2.0 */
#include "service/request_reading.h"

#include "base/checked.h"
#include "service/codec.h"

#include <stdlib.h>

static void read_request(mr_text_job *job)
{
    mr_request_reading *r = (mr_request_reading *)job;
    r->status = mr_proto_request_read(r->wanted, r->runtime, &r->asked, &r->err);
}

static void on_done(mr_text_job *job)
{
    mr_request_reading *r = (mr_request_reading *)job;
    mr_call *call = r->call;
    if (job->skipped) {
        mr_server_fail_cut_off(&r->err);
        r->status = r->err.status;
    }
    r->on_read(r);
    mr_proto_request_deinit(&r->asked);
    mr_codec_free(r->message);
    free(r);
    mr_call_release(call);
}

static mr_status open_request(mr_request_reading *r, bool unary, mr_error *err)
{
    MR_TRY(mr_server_runtime(r->call->queue->server, &r->runtime, err));
    MR_TRY(mr_call_unpack(r->call,
                          unary ? &millrace__v1__generate_unary_request__descriptor
                                : &millrace__v1__generate_request__descriptor,
                          &r->message, err));
    r->wanted = unary ? ((const Millrace__V1__GenerateUnaryRequest *)r->message)->request
                      : (const Millrace__V1__GenerateRequest *)r->message;
    if (r->wanted == NULL) {
        mr_codec_free(r->message);
        return mr_fail_field(err, MR_INVALID_ARGUMENT, "request",
                             "request is missing: put what is asked for into it");
    }
    return MR_OK;
}

mr_status mr_request_reading_start(mr_call *call, bool unary,
                                   void (*on_read)(mr_request_reading *reading),
                                   mr_request_reading **out, mr_error *err)
{
    mr_request_reading *r = mr_calloc(1, sizeof(*r));
    if (r == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "out of memory for a request");
    }
    r->call = call;
    const mr_status status = open_request(r, unary, err);
    if (status != MR_OK) {
        free(r);
        return status;
    }
    const uint64_t bytes = mr_call_payload_bytes(call);
    mr_call_drop_payload(call);
    r->job.run = read_request;
    r->job.done = on_done;
    r->on_read = on_read;
    *out = r;
    mr_call_hold(call); /* until it is read */
    mr_text_work(call->queue, &r->job, bytes);
    return MR_OK;
}

void mr_request_reading_abandon(mr_request_reading *reading)
{
    mr_flag_set(&reading->job.abandoned);
}
