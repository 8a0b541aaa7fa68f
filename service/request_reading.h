/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the payload of Generate or GenerateUnary to what is asked for. That takes long when the text
 * does, so it may happen on the text worker; the call goes on with on_read, on its queue's thread.
 */
#ifndef MILLRACE_SERVICE_REQUEST_READING_H
#define MILLRACE_SERVICE_REQUEST_READING_H

#include "service/call.h"
#include "service/proto_request.h"
#include "service/runtime.h"
#include "service/text_worker.h"

#include <stdbool.h>

typedef struct mr_request_reading {
    mr_text_job job; /* first */
    mr_call *call;
    /* Once, with the call held; it may be over meanwhile. All of this is freed after it. */
    void (*on_read)(struct mr_request_reading *reading);
    ProtobufCMessage *message;                   /* owns */
    const Millrace__V1__GenerateRequest *wanted; /* inside */

    /* For on_read. */
    mr_runtime *runtime;    /* borrows; of `asked` */
    mr_proto_request asked; /* owns; its lists may be taken from it */
    mr_status status;       /* MR_OK, or as mr_proto_request_read and mr_server_fail_cut_off */
    mr_error err;           /* the same in words */
} mr_request_reading;

/* Takes the call's payload, and has it read; `unary` says which of the two methods it is of. Sets
 * `*out`, for _abandon until on_read, which may come before this returns. UNAVAILABLE (no runtime
 * yet, or no new requests any more) and errors as of mr_call_unpack: on_read does not follow. The
 * queue's thread. */
MR_MUST_USE mr_status mr_request_reading_start(mr_call *call, bool unary,
                                               void (*on_read)(mr_request_reading *reading),
                                               mr_request_reading **out, mr_error *err);

/* Nobody waits for it any more: what is not begun is left out. on_read follows all the same. */
void mr_request_reading_abandon(mr_request_reading *reading);

#endif
