/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/prefix_hash.h"

#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "tokens are hashed as they lie in memory, which must be little-endian"
#endif

enum { MAX_NUMERICS = 256, MATERIAL_BYTES = 1024 };

typedef struct writer {
    uint8_t bytes[MATERIAL_BYTES];
    size_t used;
} writer;

static void put(writer *w, const void *data, size_t bytes)
{
    MR_CHECK(bytes <= sizeof(w->bytes) - w->used);
    memcpy(w->bytes + w->used, data, bytes);
    w->used += bytes;
}

static void put_part(writer *w, const void *data, uint32_t bytes)
{
    put(w, &bytes, sizeof(bytes));
    put(w, data, bytes);
}

void mr_prefix_root_hash(const mr_prefix_material *m, mr_block_hash *out)
{
    static const char tag[] = "mr-kv-1";
    writer w = {.used = 0};
    const size_t numerics = strlen(m->numerics);
    MR_CHECK(numerics <= MAX_NUMERICS);
    put(&w, tag, sizeof(tag) - 1);
    put_part(&w, m->model, sizeof(m->model));
    put_part(&w, m->adapter, sizeof(m->adapter));
    put_part(&w, &m->adapter_scale, sizeof(m->adapter_scale));
    put_part(&w, m->salt, sizeof(m->salt));
    put_part(&w, m->numerics, (uint32_t)numerics);
    put_part(&w, m->rope, sizeof(m->rope));
    put_part(&w, &m->block_size, sizeof(m->block_size));
    mr_sha256(w.bytes, w.used, out->bytes);
}

void mr_prefix_salt(const mr_prefix_salt_spec *spec, uint8_t out[MR_SHA256_BYTES])
{
    mr_hmac_sha256(spec->secret, spec->secret_bytes, spec->tenant, strlen(spec->tenant), out);
    if (spec->client_bytes > 0) {
        uint8_t narrowed[MR_SHA256_BYTES];
        mr_hmac_sha256(out, MR_SHA256_BYTES, spec->client, spec->client_bytes, narrowed);
        memcpy(out, narrowed, sizeof(narrowed));
    }
}

void mr_prefix_block_hash(mr_hasher *hasher, const mr_block_hash *parent, const uint32_t *tokens,
                          uint32_t n, mr_block_hash *out)
{
    const uint8_t tag = 0x01;
    mr_hasher_begin(hasher);
    mr_hasher_add(hasher, &tag, sizeof(tag));
    mr_hasher_add(hasher, parent->bytes, sizeof(parent->bytes));
    mr_hasher_add(hasher, &n, sizeof(n));
    mr_hasher_add(hasher, tokens, n * sizeof(*tokens));
    mr_hasher_end(hasher, out->bytes);
}
