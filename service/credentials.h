/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a caller is known by: keys, of which only the SHA-256 is kept, and names in the certificate
 * that the TLS handshake has verified. No two callers are known by the same.
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
/* Whether the certificate holds one of its identities. */
bool mr_credentials_match(const mr_credentials *credentials, const mr_peer *peer);

/* Somebody who is known by credentials. All is borrowed. */
typedef struct mr_holder {
    const char *kind;    /* "tenant" or "administrator" */
    const char *setting; /* the list that it stands in; what errors are about */
    const char *name;
    const mr_credentials *credentials;
} mr_holder;

/* INVALID_ARGUMENT, naming the holder: its name is missing or badly spelled (it stands in logs,
 * metrics and keys of a store), or it has no credentials, or one of them twice. */
MR_MUST_USE mr_status mr_holder_check(const mr_holder *holder, mr_error *err);
/* INVALID_ARGUMENT, about `a`: two of one kind have the same name, or any two have a credential in
 * common. */
MR_MUST_USE mr_status mr_holder_check_pair(const mr_holder *a, const mr_holder *b, mr_error *err);
/* INVALID_ARGUMENT: what is wrong with the holder. Always fails. */
mr_status mr_holder_fail(const mr_holder *holder, mr_error *err, const char *what);

#endif
