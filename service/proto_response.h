/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collects a request's token events and makes GenerateResponse messages of them: as many tokens a
 * message as there are, one chunk a choice that has news. One thread.
 *
 *   add, add, add ─► build ─► message ─► (sent) ─► add … ─► build ─► last message: complete
 *
 * A long prompt with logprobs is spread over several messages, so that each stays far below the
 * 4 MiB that clients take unless told otherwise.
 */
#ifndef MILLRACE_SERVICE_PROTO_RESPONSE_H
#define MILLRACE_SERVICE_PROTO_RESPONSE_H

#include "base/buffer.h"
#include "base/status.h"
#include "scheduler/request.h"
#include "service/text.h"

#include "millrace/v1/inference.pb-c.h"

#include <stdbool.h>
#include <stdint.h>

/* Zero-initialised is valid and empty. */
typedef struct mr_token_list {
    Millrace__V1__Token *tokens; /* owns, [n_tokens]; `top` is set when a message is built */
    Millrace__V1__Token **token_refs;
    size_t n_tokens, tokens_capacity;
    Millrace__V1__TopLogprob *tops; /* owns, [n_tops], of all tokens in order */
    Millrace__V1__TopLogprob **top_refs;
    size_t n_tops, tops_capacity;
} mr_token_list;

typedef struct mr_proto_choice {
    mr_text_stream stream;
    mr_token_list tokens; /* collected since the last message */
    uint64_t text_bytes;  /* so many may be shown */
    mr_finish finish;     /* not NONE once its last event is in */
    uint32_t matched_token;
    uint16_t matched_stop;
    double cumulative_logprob;
    bool news;  /* since the last message */
    bool begun; /* a message had a chunk of it */
    /* Of the message built last. */
    mr_buffer text;
    Millrace__V1__Chunk chunk;
} mr_proto_choice;

typedef struct mr_proto_response {
    const mr_tokenizer *tokenizer; /* borrows; NULL: tokens have no bytes */
    const mr_request *request;     /* borrows; NULL: not initialised */
    bool skip_text;
    bool show_prompt;
    bool whole; /* everything in one message */

    mr_proto_choice *choices; /* owns, [request->params.n] */
    size_t min_bytes;         /* that all tokens so far take in messages, at the very least */
    mr_finish finish;         /* the largest of the choices' */
    bool ended;               /* the request's last event is in */
    bool begun;               /* a message has been built */
    bool complete;            /* the last message has been built */

    /* The message built last. */
    uint32_t n_prompt_shown; /* in messages so far */
    mr_token_list prompt;
    Millrace__V1__Chunk **chunk_refs; /* owns, [request->params.n] */
    Millrace__V1__Usage usage;
    Millrace__V1__Timings timings;
    Millrace__V1__GenerateResponse message;
} mr_proto_response;

typedef struct mr_proto_response_options {
    bool skip_text;
    bool show_prompt;
    bool whole;
} mr_proto_response_options;

/* RESOURCE_EXHAUSTED when memory is short; to be deinitialised also then, and when it is only
 * zeroed. */
MR_MUST_USE mr_status mr_proto_response_init(mr_proto_response *response, const mr_request *request,
                                             const mr_tokenizer *tokenizer,
                                             const mr_proto_response_options *options,
                                             mr_error *err);
void mr_proto_response_deinit(mr_proto_response *response);

/* Takes one event in. RESOURCE_EXHAUSTED when memory is short. */
MR_MUST_USE mr_status mr_proto_response_add(mr_proto_response *response,
                                            const mr_token_event *event, mr_error *err);
/* True when there is something for a message. */
bool mr_proto_response_waiting(const mr_proto_response *response);
/* Builds the message of all that was collected, or of the prompt's next part; with usage and
 * timings, and `complete`, once the last event is in and all is told. The message is borrowed until
 * the next call. RESOURCE_EXHAUSTED when memory is short. */
MR_MUST_USE mr_status mr_proto_response_build(mr_proto_response *response,
                                              const Millrace__V1__GenerateResponse **out,
                                              mr_error *err);

#endif
