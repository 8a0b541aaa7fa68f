/* SPDX-License-Identifier: Apache-2.0 */
/* One generation on a server, for `millrace generate --server`. */
#ifndef MILLRACE_SERVICE_GENERATE_REMOTE_H
#define MILLRACE_SERVICE_GENERATE_REMOTE_H

#include "base/status.h"
#include "millrace/v1/inference.pb-c.h"
#include "model/tokenizer.h"
#include "service/client_channel.h"
#include "service/generation.h"
#include "service/result.h"

#include <stdbool.h>

typedef struct mr_remote_ask {
    const char *server; /* HOST:PORT */
    const char *key;    /* "": none */
    const mr_client_tls *tls;
    mr_bytes prompt;
    uint64_t timeout_ms;                 /* deadline; 0: none */
    bool chat;                           /* the prompt is the user's message */
    const mr_generation_ask *generation; /* checked */
} mr_remote_ask;

/* What the ask says of sampling; the rest of `sampling` is left as it is. */
void mr_generate_remote_sampling(const mr_generation_ask *ask, Millrace__V1__Sampling *sampling);

/* Gets the result whenever it has grown. */
typedef void (*mr_result_fn)(void *ctx, const mr_result *result);

/* Fills `result` (initialised by the caller) until the stream ends. Errors are the server's own,
 * or UNAVAILABLE naming the address. */
MR_MUST_USE mr_status mr_generate_remote(const mr_remote_ask *ask, mr_result_fn news, void *ctx,
                                         mr_result *result, mr_error *err);

#endif
