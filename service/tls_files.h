/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Certificates and keys in PEM files: read, checked with OpenSSL as the handshake would, and kept
 * as text for gRPC, whose TLS library is the same one. Knows nothing of gRPC.
 */
#ifndef MILLRACE_SERVICE_TLS_FILES_H
#define MILLRACE_SERVICE_TLS_FILES_H

#include "base/sha256.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Paths; borrowed. NULL or "": there is none; certificate and key are given both or neither. */
typedef struct mr_tls_paths {
    const char *certificate; /* the holder's first, then those between it and its CA */
    const char *private_key;
    const char *ca; /* of those on the other side */
    /* How messages call them, such as "tls.certificate" or "--tls-cert". */
    const char *certificate_name;
    const char *private_key_name;
    const char *ca_name;
} mr_tls_paths;

typedef enum mr_tls_file {
    MR_TLS_CERTIFICATE,
    MR_TLS_PRIVATE_KEY,
    MR_TLS_CA,
    MR_TLS_FILES,
} mr_tls_file;

/* What the files held at one moment. */
typedef struct mr_tls_material {
    char *pem[MR_TLS_FILES];         /* owns; NULL: no file */
    mr_status read[MR_TLS_FILES];    /* whether it could be read */
    uint8_t digest[MR_SHA256_BYTES]; /* of all of it; another one when anything changed */
    int64_t not_after_s;             /* when the certificate expires, Unix time; 0: none */
} mr_tls_material;

/* Reads the files; one that cannot be read is noted, not an error. What is in them is not looked
 * at. RESOURCE_EXHAUSTED when memory is short. */
MR_MUST_USE mr_status mr_tls_material_read(const mr_tls_paths *paths, mr_tls_material *out,
                                           mr_error *err);
/* Whether a handshake could use it at `now_s`: every file is there and PEM, the key is that of the
 * first certificate, none of the two is too weak for the library, the certificate is valid now, and
 * one of the CAs is. Fills in not_after_s. Errors name the file and its setting, and never quote a
 * key: NOT_FOUND, PERMISSION_DENIED, FAILED_PRECONDITION. */
MR_MUST_USE mr_status mr_tls_material_check(mr_tls_material *material, const mr_tls_paths *paths,
                                            int64_t now_s, mr_error *err);
/* Whether the first certificate of `pem` is over at `now_s`, or is none. */
bool mr_tls_pem_expired(const char *pem, size_t bytes, int64_t now_s);
/* Wipes the key. Zero is valid. */
void mr_tls_material_deinit(mr_tls_material *material);

#endif
