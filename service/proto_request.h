/* SPDX-License-Identifier: Apache-2.0 */
/* From a GenerateRequest to what the engine takes: every field is read, checked, or refused by
 * name. */
#ifndef MILLRACE_SERVICE_PROTO_REQUEST_H
#define MILLRACE_SERVICE_PROTO_REQUEST_H

#include "base/buffer.h"
#include "base/status.h"
#include "scheduler/request.h"
#include "service/generation_lists.h"
#include "service/runtime.h"

#include "millrace/v1/inference.pb-c.h"

#include <stdbool.h>

typedef struct mr_proto_request {
    char id[MR_REQUEST_ID_MAX + 1]; /* "": the caller gave none */
    mr_ids prompt;                  /* owns */
    mr_request_params params;
    mr_generation_lists lists; /* its stop strings are those of the message */
    bool skip_text;
    bool show_prompt; /* its ids, and logprobs if those were asked for */
} mr_proto_request;

/* Fills `out`, to be released with _deinit also on failure. INVALID_ARGUMENT, NOT_FOUND (model),
 * UNIMPLEMENTED, FAILED_PRECONDITION (the model has no tokenizer or no known chat template); the
 * error names the field by its path from GenerateRequest. Any thread. */
MR_MUST_USE mr_status mr_proto_request_read(const Millrace__V1__GenerateRequest *message,
                                            const mr_runtime *runtime, mr_proto_request *out,
                                            mr_error *err);
void mr_proto_request_deinit(mr_proto_request *request);

/* Copies a request's id. INVALID_ARGUMENT when it is none. Any thread. */
MR_MUST_USE mr_status mr_proto_id_read(const ProtobufCBinaryData *id,
                                       char out[MR_REQUEST_ID_MAX + 1], mr_error *err);
/* Appends the ids of a conversation. Errors as mr_proto_request_read. Any thread. */
MR_MUST_USE mr_status mr_proto_chat_read(const Millrace__V1__Chat *chat, const mr_model *model,
                                         mr_ids *out, mr_error *err);

#endif
