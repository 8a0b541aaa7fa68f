/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a caller is known by: keys, of which only the SHA-256 is kept, and names in the certificate
 * that the TLS handshake has verified.
 *
 * An identity is written as
 *   spiffe://example.org/a/b   a URI among the subject's alternative names, the same to the byte
 *   client.example.org         a DNS name there, whatever the case; wildcards match nothing
 *   CN=client                  the common name, of a certificate without any alternative name
 */
#ifndef MILLRACE_SERVICE_CREDENTIALS_H
#define MILLRACE_SERVICE_CREDENTIALS_H

#include "base/sha256.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MR_CALLER_MAX_KEYS       8
#define MR_CALLER_MAX_IDENTITIES 8
#define MR_IDENTITY_MAX          255 /* bytes */
/* Names of one certificate; one with more says nothing about its holder. */
#define MR_PEER_MAX_NAMES 32

typedef struct mr_credentials {
    uint8_t keys[MR_CALLER_MAX_KEYS][MR_SHA256_BYTES]; /* [n_keys] SHA-256 of each key */
    uint32_t n_keys;
    char identities[MR_CALLER_MAX_IDENTITIES][MR_IDENTITY_MAX + 1]; /* [n_identities] */
    uint32_t n_identities;
} mr_credentials;

typedef enum mr_name_kind {
    MR_NAME_URI,
    MR_NAME_DNS,
    MR_NAME_OTHER, /* an alternative name that no identity can be: a mail or IP address */
    MR_NAME_COMMON,
} mr_name_kind;

/* A name in a verified certificate: bytes from outside, borrowed. */
typedef struct mr_peer_name {
    mr_name_kind kind;
    const char *text;
    size_t bytes;
} mr_peer_name;

typedef struct mr_peer {
    mr_peer_name names[MR_PEER_MAX_NAMES]; /* [n_names] */
    uint32_t n_names;                      /* 0: no certificate, or none that says anything */
} mr_peer;

/* INVALID_ARGUMENT, saying why, when `text` is no identity as described above. */
MR_MUST_USE mr_status mr_identity_check(const char *text, mr_error *err);

/* Whether one of its keys has this digest. Takes the same time whichever it is. */
bool mr_credentials_has_key(const mr_credentials *credentials,
                            const uint8_t digest[MR_SHA256_BYTES]);
/* Whether it has the identity, as the configuration spells it. */
bool mr_credentials_has_identity(const mr_credentials *credentials, const char *identity);
/* Whether the certificate holds one of its identities. */
bool mr_credentials_match(const mr_credentials *credentials, const mr_peer *peer);

/* What is in both: "key", "identity", or NULL. */
const char *mr_credentials_common(const mr_credentials *a, const mr_credentials *b);
/* What is in it twice, the same way. */
const char *mr_credentials_repeated(const mr_credentials *credentials);

#endif
