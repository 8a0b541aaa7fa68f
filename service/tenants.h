/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who may call, and with what share. A caller is told from others by its key; what is kept of a key
 * is its SHA-256, so neither the configuration nor memory holds one that would open the door.
 *
 * Without tenants the server is open: everybody is mr_tenant_open.
 */
#ifndef MILLRACE_SERVICE_TENANTS_H
#define MILLRACE_SERVICE_TENANTS_H

#include "base/sha256.h"
#include "base/status.h"
#include "scheduler/request.h"

#include <stddef.h>
#include <stdint.h>

#define MR_TENANT_MAX_KEYS  8
#define MR_TENANT_NAME_MAX  63
#define MR_API_KEY_MAX      1024 /* bytes */
#define MR_API_KEY_VARIABLE "MILLRACE_API_KEY"

typedef struct mr_tenant {
    char name[MR_TENANT_NAME_MAX + 1];
    uint8_t keys[MR_TENANT_MAX_KEYS][MR_SHA256_BYTES]; /* [n_keys] SHA-256 of each key */
    uint32_t n_keys;
    uint32_t weight;       /* of its share, at least 1 */
    uint32_t priority_max; /* highest priority that its requests may have */
    double requests_per_s; /* 0: no limit, as in those below */
    uint32_t burst_requests;
    uint32_t tokens_per_min;
    uint32_t burst_tokens;
    uint32_t max_concurrent;
} mr_tenant;

typedef struct mr_tenants {
    mr_tenant items[MR_MAX_TENANTS]; /* [count] */
    uint32_t count;                  /* 0: open to everybody */
} mr_tenants;

/* Who calls an open server: named "default", weight 1, every priority, no limits. */
extern const mr_tenant mr_tenant_open;

/* What no single field shows: INVALID_ARGUMENT for a name that is missing, twice there or badly
 * spelled, a tenant without keys, a key of two tenants, a burst without its rate. */
MR_MUST_USE mr_status mr_tenants_check(const mr_tenants *tenants, mr_error *err);

/* The index of the tenant with this key; mr_tenants.count: there is none. Takes the same time
 * wherever the key stands and however much of it is right. Any thread. */
uint32_t mr_tenants_find(const mr_tenants *tenants, const char *key, size_t bytes);

/* Who sends `authorization: <value>`, by index: 0 for everybody where the server is open.
 * `value` is NULL when there is none. UNAUTHENTICATED, not quoting it, when it is missing, no
 * "Bearer KEY", or the key is unknown. Any thread. */
MR_MUST_USE mr_status mr_tenants_authenticate(const mr_tenants *tenants, const char *value,
                                              size_t bytes, uint32_t *index, mr_error *err);

/* The tenant of an index that mr_tenants_authenticate gave; never NULL. */
const mr_tenant *mr_tenants_get(const mr_tenants *tenants, uint32_t index);

/* A key for a client: what the file holds, without white space at its end, or where there is no
 * file MILLRACE_API_KEY, or "". INVALID_ARGUMENT naming where it came from, not quoting it. */
MR_MUST_USE mr_status mr_api_key_load(const char *path, char key[MR_API_KEY_MAX + 1],
                                      mr_error *err);

#endif
