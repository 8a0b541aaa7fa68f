/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client of millrace.v1.InferenceService, for the command line. One call at a time, on the
 * caller's thread.
 */
#ifndef MILLRACE_SERVICE_CLIENT_H
#define MILLRACE_SERVICE_CLIENT_H

#include "base/flag.h"
#include "base/status.h"

#include "millrace/v1/inference.pb-c.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct mr_client mr_client;

/* `target` is HOST:PORT (plaintext). Connects with the first call, so a wrong address shows there.
 * Gives the client. */
MR_MUST_USE mr_status mr_client_open(const char *target, mr_client **out, mr_error *err);
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

#endif
