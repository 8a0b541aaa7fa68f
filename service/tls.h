/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The server's TLS: credentials for gRPC that follow their files. A thread looks at what the files
 * hold; what is new and passes every check is used for the connections that come, what does not is
 * told and the one before stays. Connections and streams that are there go on.
 */
#ifndef MILLRACE_SERVICE_TLS_H
#define MILLRACE_SERVICE_TLS_H

#include "base/status.h"
#include "service/credentials.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct mr_tls mr_tls;

typedef enum mr_tls_client_auth {
    MR_TLS_CLIENT_NONE,     /* certificates of clients are not asked for */
    MR_TLS_CLIENT_OPTIONAL, /* who shows one must have a good one */
    MR_TLS_CLIENT_REQUIRE,
} mr_tls_client_auth;

typedef struct mr_tls_options {
    const char *certificate; /* paths of PEM files; copied */
    const char *private_key;
    const char *client_ca; /* "" with MR_TLS_CLIENT_NONE */
    mr_tls_client_auth client_auth;
    uint32_t reload_interval_ms;
} mr_tls_options;

typedef struct mr_tls_stats {
    uint64_t reloaded;   /* times that new files were taken */
    uint64_t failed;     /* times that they were not */
    int64_t not_after_s; /* when the certificate in use expires, Unix time */
} mr_tls_stats;

/* Reads and checks the files, and starts the thread that follows them. Errors as of
 * mr_tls_material_check. Gives the TLS. */
MR_MUST_USE mr_status mr_tls_create(const mr_tls_options *options, mr_tls **out, mr_error *err);
/* Once no server uses its credentials any more. */
void mr_tls_destroy(mr_tls *tls);
/* Credentials of a port; the caller releases them. */
grpc_server_credentials *mr_tls_credentials(mr_tls *tls);
/* Looks at the files now, as after a SIGHUP. Any thread. */
void mr_tls_look(mr_tls *tls);
void mr_tls_stats_get(mr_tls *tls, mr_tls_stats *out);

/* What the call's client certificate, which the handshake has verified, says of its holder. It
 * borrows from `context`, the call's own. */
void mr_tls_peer(const grpc_auth_context *context, mr_peer *out);
/* Whether the connection resumed a session whose client certificate has expired since: OpenSSL does
 * not look at it again. */
bool mr_tls_peer_expired(const grpc_auth_context *context);

#endif
