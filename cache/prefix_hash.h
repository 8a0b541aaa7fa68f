/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a computed block is known by. Every block's hash covers all tokens before it, so equal
 * hashes mean equal prefixes, under an equal root:
 *
 *   root     = SHA-256("mr-kv-1" | each part of the material as u32le length, bytes)
 *   block    = SHA-256(0x01 | hash of the block before it, or root | u32le n | u32le tokens[n])
 *
 * The material names everything else that keys and values depend on, and who may share them. Parts
 * are length-prefixed and in a fixed order, so no two lists of parts give the same bytes.
 */
#ifndef MILLRACE_CACHE_PREFIX_HASH_H
#define MILLRACE_CACHE_PREFIX_HASH_H

#include "base/sha256.h"
#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

typedef struct mr_block_hash {
    uint8_t bytes[MR_SHA256_BYTES];
} mr_block_hash;

/* All borrowed for the call. */
typedef struct mr_prefix_material {
    uint8_t model[MR_SHA256_BYTES];   /* digest: configuration, tokenizer, tensors */
    uint8_t adapter[MR_SHA256_BYTES]; /* digest; zeros: no adapter */
    float adapter_scale;
    uint8_t salt[MR_SHA256_BYTES]; /* of the tenant, mr_prefix_salt() */
    const char *numerics;          /* backend, path, compute mode, KV type, kernel revision */
    uint8_t rope[MR_SHA256_BYTES]; /* digest of the tables in effect */
    uint32_t block_size;
} mr_prefix_material;

/* Where a request's chain of hashes begins. */
typedef struct mr_prefix_root {
    mr_block_hash hash;
    uint32_t block_size;
    /* Which identity of the model it was made from: 0 is one that lasts for this process only. An
     * index serves one generation at a time (prefix_index.h). */
    uint32_t generation;
} mr_prefix_root;

/* Any thread. */
void mr_prefix_root_hash(const mr_prefix_material *material, mr_block_hash *out);

/* HMAC-SHA-256(secret, tenant), and narrowed by the client's salt, if there is one, HMAC-SHA-256 of
 * that under the first: a client can leave its tenant's circle for a smaller one and never enter
 * another. Any thread. */
typedef struct mr_prefix_salt_spec {
    const void *secret;
    size_t secret_bytes;
    const char *tenant; /* "": one circle for all tenants */
    const void *client; /* the client's salt; [0]: none */
    size_t client_bytes;
} mr_prefix_salt_spec;

void mr_prefix_salt(const mr_prefix_salt_spec *spec, uint8_t out[MR_SHA256_BYTES]);

/* The hash of a block of `n` tokens behind `parent`. The hasher's thread. */
void mr_prefix_block_hash(mr_hasher *hasher, const mr_block_hash *parent, const uint32_t *tokens,
                          uint32_t n, mr_block_hash *out);

#endif
