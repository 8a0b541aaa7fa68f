/* SPDX-License-Identifier: Apache-2.0 */
#include "base/sha256.h"

#include "base/status.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

void mr_sha256(const void *data, size_t bytes, uint8_t out[MR_SHA256_BYTES])
{
    MR_CHECK(SHA256(bytes > 0 ? data : (const void *)"", bytes, out) != NULL);
}

uint64_t mr_sha256_low64(const uint8_t digest[MR_SHA256_BYTES])
{
    uint64_t low = 0;
    for (int i = MR_SHA256_BYTES - 8; i < MR_SHA256_BYTES; i++) {
        low = low << 8 | digest[i];
    }
    return low;
}

bool mr_sha256_equal(const uint8_t a[MR_SHA256_BYTES], const uint8_t b[MR_SHA256_BYTES])
{
    return CRYPTO_memcmp(a, b, MR_SHA256_BYTES) == 0;
}

void mr_sha256_hex(const uint8_t digest[MR_SHA256_BYTES], char out[2 * MR_SHA256_BYTES + 1])
{
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < MR_SHA256_BYTES; i++) {
        out[2 * i] = digits[digest[i] >> 4];
        out[2 * i + 1] = digits[digest[i] & 15];
    }
    out[2 * MR_SHA256_BYTES] = '\0';
}
