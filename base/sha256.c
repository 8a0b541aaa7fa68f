/* SPDX-License-Identifier: Apache-2.0 */
#include "base/sha256.h"

#include "base/checked.h"
#include "base/digits.h"

#include <limits.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>
#include <stdlib.h>

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
    mr_digits_hex_write(digest, MR_SHA256_BYTES, out);
}

void mr_hmac_sha256(const void *key, size_t key_bytes, const void *data, size_t bytes,
                    uint8_t out[MR_SHA256_BYTES])
{
    MR_CHECK(key_bytes <= INT_MAX);
    MR_CHECK(HMAC(EVP_sha256(), key_bytes > 0 ? key : (const void *)"", (int)key_bytes,
                  bytes > 0 ? data : (const void *)"", bytes, out, NULL) != NULL);
}

struct mr_hasher {
    EVP_MD *algorithm;
    EVP_MD_CTX *context;
};

mr_status mr_hasher_create(mr_hasher **out)
{
    mr_hasher *hasher = mr_calloc(1, sizeof(*hasher));
    if (hasher == NULL) {
        return MR_RESOURCE_EXHAUSTED;
    }
    hasher->algorithm = EVP_MD_fetch(NULL, "SHA256", NULL);
    hasher->context = EVP_MD_CTX_new();
    /* The context gets its memory with the first digest, and keeps it. */
    if (hasher->algorithm == NULL || hasher->context == NULL ||
        EVP_DigestInit_ex(hasher->context, hasher->algorithm, NULL) != 1) {
        mr_hasher_destroy(hasher);
        return MR_RESOURCE_EXHAUSTED;
    }
    *out = hasher;
    return MR_OK;
}

void mr_hasher_destroy(mr_hasher *hasher)
{
    if (hasher == NULL) {
        return;
    }
    EVP_MD_CTX_free(hasher->context);
    EVP_MD_free(hasher->algorithm);
    free(hasher);
}

void mr_hasher_begin(mr_hasher *hasher)
{
    MR_CHECK(EVP_DigestInit_ex(hasher->context, hasher->algorithm, NULL) == 1);
}

void mr_hasher_add(mr_hasher *hasher, const void *data, size_t bytes)
{
    MR_CHECK(EVP_DigestUpdate(hasher->context, data, bytes) == 1);
}

void mr_hasher_end(mr_hasher *hasher, uint8_t out[MR_SHA256_BYTES])
{
    MR_CHECK(EVP_DigestFinal_ex(hasher->context, out, NULL) == 1);
}
