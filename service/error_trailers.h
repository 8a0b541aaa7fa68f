/* SPDX-License-Identifier: Apache-2.0 */
/* How an error leaves the server: status, message, and when to try again. */
#ifndef MILLRACE_SERVICE_ERROR_TRAILERS_H
#define MILLRACE_SERVICE_ERROR_TRAILERS_H

#include "base/status.h"

#include <grpc/grpc.h>
#include <stddef.h>

typedef struct mr_error_trailers {
    grpc_status_code code;
    grpc_slice message;        /* owns; begins with the field, if the error names one */
    grpc_metadata metadata[2]; /* owns: retry-after-ms, grpc-status-details-bin */
    size_t count;
} mr_error_trailers;

/* `err` NULL: OK. */
void mr_error_trailers_init(mr_error_trailers *trailers, const mr_error *err);
void mr_error_trailers_deinit(mr_error_trailers *trailers);

#endif
