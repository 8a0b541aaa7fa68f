/* SPDX-License-Identifier: Apache-2.0 */
/* The channel of a client: where to, and with which TLS. Any thread. */
#ifndef MILLRACE_SERVICE_CLIENT_CHANNEL_H
#define MILLRACE_SERVICE_CLIENT_CHANNEL_H

#include "base/status.h"

#include <grpc/grpc.h>

/* Paths of PEM files, borrowed; all NULL: plaintext. */
typedef struct mr_client_tls {
    const char *ca;          /* of the CAs that the server's certificate may be of */
    const char *certificate; /* to show to the server, may be NULL with the key */
    const char *private_key;
    const char *server_name; /* in the server's certificate; NULL: the target's host */
} mr_client_tls;

/* NULL, or what contradicts itself in the options of MR_CLI_TLS_OPTIONS. */
const char *mr_client_tls_conflict(const mr_client_tls *tls);

/* Gives a channel to `target`, HOST:PORT, that connects with its first call. What contradicts
 * itself in `tls` was refused before. Files that cannot be used are an error as of
 * mr_tls_material_check, which names them by their options. gRPC is initialised. */
MR_MUST_USE mr_status mr_client_channel_open(const char *target, const mr_client_tls *tls,
                                             grpc_channel **out, mr_error *err);

#endif
