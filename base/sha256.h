/* SPDX-License-Identifier: Apache-2.0 */
/* SHA-256 (libcrypto underneath). */
#ifndef MILLRACE_BASE_SHA256_H
#define MILLRACE_BASE_SHA256_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define MR_SHA256_BYTES 32

void mr_sha256(const void *data, size_t bytes, uint8_t out[MR_SHA256_BYTES]);

/* Last 8 bytes of the digest as a big-endian number: "low64". */
uint64_t mr_sha256_low64(const uint8_t digest[MR_SHA256_BYTES]);

/* In a time that does not depend on where they differ. */
bool mr_sha256_equal(const uint8_t a[MR_SHA256_BYTES], const uint8_t b[MR_SHA256_BYTES]);

/* Lower-case hex with a terminating NUL. */
void mr_sha256_hex(const uint8_t digest[MR_SHA256_BYTES], char out[2 * MR_SHA256_BYTES + 1]);

/* HMAC-SHA-256 (RFC 2104). */
void mr_hmac_sha256(const void *key, size_t key_bytes, const void *data, size_t bytes,
                    uint8_t out[MR_SHA256_BYTES]);

/* For many digests one after another, each of one or more parts: after create nothing is
 * allocated. One thread at a time. */
typedef struct mr_hasher mr_hasher;

MR_MUST_USE mr_status mr_hasher_create(mr_hasher **out);
void mr_hasher_destroy(mr_hasher *hasher);
void mr_hasher_begin(mr_hasher *hasher);
void mr_hasher_add(mr_hasher *hasher, const void *data, size_t bytes);
void mr_hasher_end(mr_hasher *hasher, uint8_t out[MR_SHA256_BYTES]);

#endif
