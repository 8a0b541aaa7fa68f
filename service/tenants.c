/* SPDX-License-Identifier: Apache-2.0 */
#include "service/tenants.h"

#include "base/file_map.h"

#include <stdlib.h>
#include <string.h>

const mr_tenant mr_tenant_open = {
    .name = "default",
    .weight = 1,
    .priority_max = MR_MAX_PRIORITY,
};

bool mr_caller_name_valid(const char *name)
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
    if (!mr_caller_name_valid(tenant->name)) {
        return fail_tenant(tenant, err,
                           "its name must have 1 to 63 letters, digits, dots, dashes and "
                           "underscores");
    }
    if (strcmp(tenant->name, "other") == 0) {
        return fail_tenant(tenant, err,
                           "metrics call those without a name of their own so; "
                           "choose another name");
    }
    if (tenant->credentials.n_keys == 0 && tenant->credentials.n_identities == 0) {
        return fail_tenant(tenant, err,
                           "it has no keys and no identities, so nobody could call as it: list the "
                           "SHA-256 of its key in keys");
    }
    if (tenant->burst_requests > 0 && !(tenant->requests_per_s > 0.0)) {
        return fail_tenant(tenant, err, "burst_requests cannot act without requests_per_s");
    }
    if (tenant->burst_tokens > 0 && tenant->tokens_per_min == 0) {
        return fail_tenant(tenant, err, "burst_tokens cannot act without tokens_per_min");
    }
    return MR_OK;
}

static mr_status check_pair(const mr_tenant *a, const mr_tenant *b, mr_error *err)
{
    if (strcmp(a->name, b->name) == 0) {
        return fail_tenant(a, err, "two tenants have this name");
    }
    const char *common = mr_credentials_common(&a->credentials, &b->credentials);
    return common == NULL ? MR_OK
                          : mr_fail_field(err, MR_INVALID_ARGUMENT, "tenants",
                                          "tenants \"%s\" and \"%s\" have %s %s in common: give "
                                          "each its own",
                                          b->name, a->name, common[0] == 'i' ? "an" : "a", common);
}

mr_status mr_tenants_check(const mr_tenants *tenants, mr_error *err)
{
    for (uint32_t t = 0; t < tenants->count; t++) {
        const mr_tenant *tenant = &tenants->items[t];
        MR_TRY(check_one(tenant, err));
        const char *repeated = mr_credentials_repeated(&tenant->credentials);
        if (repeated != NULL) {
            return fail_tenant(tenant, err,
                               repeated[0] == 'i' ? "an identity is listed twice"
                                                  : "a key is listed twice");
        }
        for (uint32_t b = 0; b < t; b++) {
            MR_TRY(check_pair(tenant, &tenants->items[b], err));
        }
    }
    return MR_OK;
}

uint32_t mr_tenants_find(const mr_tenants *tenants, const uint8_t digest[MR_SHA256_BYTES])
{
    uint32_t found = tenants->count;
    for (uint32_t t = 0; t < tenants->count; t++) {
        const uint32_t hit =
            (uint32_t)mr_credentials_has_key(&tenants->items[t].credentials, digest);
        found = hit * t + (1 - hit) * found;
    }
    return found;
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
