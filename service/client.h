/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client of millrace.v1.InferenceService, for the command line: one call at a time, or many side
 * by side on one connection. A client belongs to one thread.
 */
#ifndef MILLRACE_SERVICE_CLIENT_H
#define MILLRACE_SERVICE_CLIENT_H

#include "base/flag.h"
#include "base/status.h"
#include "service/client_channel.h"

#include "millrace/v1/inference.pb-c.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct mr_client mr_client;

/* `target` is HOST:PORT, `key` what every call carries as its bearer key, "" for none; all is
 * copied. Connects with the first call, so a wrong address shows there. Files of TLS that cannot be
 * used are an error as of mr_tls_material_check. Gives the client. */
MR_MUST_USE mr_status mr_client_open(const char *target, const char *key, const mr_client_tls *tls,
                                     mr_client **out, mr_error *err);
void mr_client_close(mr_client *client);

/* Gets each message of the stream, in order; borrowed until it returns. False ends the call with
 * CANCELLED. */
typedef bool (*mr_client_fn)(void *ctx, const Millrace__V1__GenerateResponse *response);

typedef struct mr_client_call {
    uint64_t timeout_ms;   /* deadline of the whole call; 0: none */
    const mr_flag *cancel; /* may be NULL; set from any thread or a signal handler: CANCELLED */
    mr_client_fn on_response;
    void *ctx; /* of on_response */
} mr_client_call;

/* Generate: returns when the stream has ended. Errors are the server's own status, message and
 * retry time, or UNAVAILABLE naming the address. */
MR_MUST_USE mr_status mr_client_generate(mr_client *client,
                                         const Millrace__V1__GenerateRequest *request,
                                         const mr_client_call *call, mr_error *err);

/* What GetModel says. */
typedef struct mr_client_model {
    char name[128];
    char backend[64];
    char version[64];
    uint32_t vocab_size;
    uint32_t max_seq_length;
} mr_client_model;

/* Errors as of mr_client_generate. */
MR_MUST_USE mr_status mr_client_get_model(mr_client *client, uint64_t timeout_ms,
                                          mr_client_model *out, mr_error *err);

/* One of many calls of Generate that run side by side. */
typedef struct mr_client_stream mr_client_stream;

/* Starts a call and returns at once; `call` is copied, its `cancel` is not looked at. Gives the
 * stream, to be ended with mr_client_stream_end. RESOURCE_EXHAUSTED when memory is short. */
MR_MUST_USE mr_status mr_client_stream_start(mr_client *client,
                                             const Millrace__V1__GenerateRequest *request,
                                             const mr_client_call *call, mr_client_stream **out,
                                             mr_error *err);
/* Handles one event of any of the client's streams; messages go to their callbacks. Waits for it
 * until `until_ns` (CLOCK_MONOTONIC). Returns a stream that has come to its end, else NULL. */
mr_client_stream *mr_client_stream_wait(mr_client *client, uint64_t until_ns);
/* The `ctx` of the stream's call. */
void *mr_client_stream_ctx(const mr_client_stream *stream);
/* How a stream that mr_client_stream_wait returned ended, as mr_client_generate. Frees it. */
mr_status mr_client_stream_end(mr_client_stream *stream, mr_error *err);

#endif
