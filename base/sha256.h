/* SPDX-License-Identifier: Apache-2.0 */
/* SHA-256 (libcrypto underneath). */
#ifndef MILLRACE_BASE_SHA256_H
#define MILLRACE_BASE_SHA256_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MR_SHA256_BYTES 32

void mr_sha256(const void *data, size_t bytes, uint8_t out[MR_SHA256_BYTES]);

/* Last 8 bytes of the digest as a big-endian number: "low64". */
uint64_t mr_sha256_low64(const uint8_t digest[MR_SHA256_BYTES]);

/* In a time that does not depend on where they differ. */
bool mr_sha256_equal(const uint8_t a[MR_SHA256_BYTES], const uint8_t b[MR_SHA256_BYTES]);

/* Lower-case hex with a terminating NUL. */
void mr_sha256_hex(const uint8_t digest[MR_SHA256_BYTES], char out[2 * MR_SHA256_BYTES + 1]);

#endif
