/* SPDX-License-Identifier: Apache-2.0 */
#include "service/tenants.h"

#include "base/file_map.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define SCHEME "Bearer "

const mr_tenant mr_tenant_open = {
    .name = "default",
    .weight = 1,
    .priority_max = MR_MAX_PRIORITY,
};

/* Names stand in logs, metrics and keys of a store. */
static bool is_name(const char *name)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                  "0123456789._-";
    return name[0] != '\0' && name[strspn(name, allowed)] == '\0';
}

static mr_status fail_tenant(const mr_tenant *tenant, mr_error *err, const char *what)
{
    return mr_fail_field(err, MR_INVALID_ARGUMENT, "tenants", "tenant \"%s\": %s", tenant->name,
                         what);
}

static mr_status check_one(const mr_tenant *tenant, mr_error *err)
{
    if (!is_name(tenant->name)) {
        return fail_tenant(tenant, err,
                           "its name must have 1 to 63 letters, digits, dots, dashes and "
                           "underscores");
    }
    if (strcmp(tenant->name, "other") == 0) {
        return fail_tenant(tenant, err,
                           "metrics call those without a name of their own so; "
                           "choose another name");
    }
    if (tenant->n_keys == 0) {
        return fail_tenant(tenant, err,
                           "it has no keys, so nobody could call as it: list the SHA-256 of its "
                           "key in keys");
    }
    if (tenant->burst_requests > 0 && !(tenant->requests_per_s > 0.0)) {
        return fail_tenant(tenant, err, "burst_requests cannot act without requests_per_s");
    }
    if (tenant->burst_tokens > 0 && tenant->tokens_per_min == 0) {
        return fail_tenant(tenant, err, "burst_tokens cannot act without tokens_per_min");
    }
    return MR_OK;
}

/* Whether a key of `b`, before its key number `n_keys`, is `key`. */
static bool has_key(const mr_tenant *b, uint32_t n_keys, const uint8_t *key)
{
    for (uint32_t i = 0; i < n_keys; i++) {
        if (memcmp(b->keys[i], key, MR_SHA256_BYTES) == 0) {
            return true;
        }
    }
    return false;
}

static mr_status check_pair(const mr_tenant *a, const mr_tenant *b, mr_error *err)
{
    if (strcmp(a->name, b->name) == 0) {
        return fail_tenant(a, err, "two tenants have this name");
    }
    for (uint32_t i = 0; i < a->n_keys; i++) {
        if (has_key(b, b->n_keys, a->keys[i])) {
            return mr_fail_field(err, MR_INVALID_ARGUMENT, "tenants",
                                 "tenants \"%s\" and \"%s\" have a key in common: give each its "
                                 "own",
                                 b->name, a->name);
        }
    }
    return MR_OK;
}

mr_status mr_tenants_check(const mr_tenants *tenants, mr_error *err)
{
    for (uint32_t t = 0; t < tenants->count; t++) {
        const mr_tenant *tenant = &tenants->items[t];
        MR_TRY(check_one(tenant, err));
        for (uint32_t i = 1; i < tenant->n_keys; i++) {
            if (has_key(tenant, i, tenant->keys[i])) {
                return fail_tenant(tenant, err, "a key is listed twice");
            }
        }
        for (uint32_t b = 0; b < t; b++) {
            MR_TRY(check_pair(tenant, &tenants->items[b], err));
        }
    }
    return MR_OK;
}

uint32_t mr_tenants_find(const mr_tenants *tenants, const char *key, size_t bytes)
{
    uint8_t digest[MR_SHA256_BYTES];
    mr_sha256(key, bytes, digest);
    uint32_t found = tenants->count;
    for (uint32_t t = 0; t < tenants->count; t++) {
        const mr_tenant *tenant = &tenants->items[t];
        for (uint32_t i = 0; i < MR_TENANT_MAX_KEYS; i++) {
            /* Also the empty places are compared; no digest equals all zeros but by 2^-256. */
            const uint32_t hit =
                (uint32_t)mr_sha256_equal(digest, tenant->keys[i]) & (uint32_t)(i < tenant->n_keys);
            found = hit * t + (1 - hit) * found;
        }
    }
    return found;
}

mr_status mr_tenants_authenticate(const mr_tenants *tenants, const char *value, size_t bytes,
                                  uint32_t *index, mr_error *err)
{
    const size_t scheme = sizeof(SCHEME) - 1;
    *index = 0;
    if (tenants->count == 0) {
        return MR_OK;
    }
    if (value == NULL) {
        return mr_fail(err, MR_UNAUTHENTICATED,
                       "this server wants a key: send the metadata authorization: Bearer KEY");
    }
    /* RFC 7235 lets schemes be spelled in any case. */
    if (bytes <= scheme || strncasecmp(value, SCHEME, scheme) != 0 ||
        bytes - scheme > MR_API_KEY_MAX) {
        return mr_fail(err, MR_UNAUTHENTICATED,
                       "the metadata authorization must be: Bearer KEY, with a key of at most %u "
                       "bytes, and be sent once",
                       MR_API_KEY_MAX);
    }
    *index = mr_tenants_find(tenants, value + scheme, bytes - scheme);
    if (*index == tenants->count) {
        return mr_fail(err, MR_UNAUTHENTICATED,
                       "the key in authorization is not known here; ask who runs this server");
    }
    return MR_OK;
}

const mr_tenant *mr_tenants_get(const mr_tenants *tenants, uint32_t index)
{
    return index < tenants->count ? &tenants->items[index] : &mr_tenant_open;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* Checks what stands in `text` and copies it. `source` names it in messages. */
static mr_status take_key(const char *text, size_t bytes, const char *source, char *key,
                          mr_error *err)
{
    while (bytes > 0 && is_space(text[bytes - 1])) {
        bytes--;
    }
    if (bytes == 0 || bytes > MR_API_KEY_MAX) {
        return mr_fail(err, MR_INVALID_ARGUMENT, "%s must hold a key of 1 to %u bytes", source,
                       MR_API_KEY_MAX);
    }
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] <= ' ' || text[i] > '~') {
            return mr_fail(err, MR_INVALID_ARGUMENT,
                           "%s: byte %zu of the key is no printable ASCII character; a key stands "
                           "on one line, without spaces",
                           source, i);
        }
    }
    memcpy(key, text, bytes);
    key[bytes] = '\0';
    return MR_OK;
}

mr_status mr_api_key_load(const char *path, char key[MR_API_KEY_MAX + 1], mr_error *err)
{
    key[0] = '\0';
    if (path == NULL) {
        const char *value = getenv(MR_API_KEY_VARIABLE);
        return value == NULL || value[0] == '\0'
                   ? MR_OK
                   : take_key(value, strlen(value), MR_API_KEY_VARIABLE, key, err);
    }
    mr_file_map map;
    MR_TRY(mr_file_map_open(path, &map, err));
    const mr_status status = take_key((const char *)map.data, map.size, path, key, err);
    mr_file_map_close(&map);
    return status;
}
