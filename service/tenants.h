/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who may generate, and with what share. A tenant is told from others by its credentials; what is
 * kept of a key is its SHA-256, so neither the configuration nor memory holds one that would open
 * the door.
 *
 * Without tenants the server is open: everybody is mr_tenant_open.
 */
#ifndef MILLRACE_SERVICE_TENANTS_H
#define MILLRACE_SERVICE_TENANTS_H

#include "base/status.h"
#include "scheduler/request.h"
#include "service/credentials.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MR_TENANT_NAME_MAX 63

typedef struct mr_tenant {
    char name[MR_TENANT_NAME_MAX + 1];
    mr_credentials credentials;
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
 * spelled, a tenant without credentials, credentials of two tenants, a burst without its rate. */
MR_MUST_USE mr_status mr_tenants_check(const mr_tenants *tenants, mr_error *err);

/* The index of the tenant with a key of this SHA-256; mr_tenants.count: there is none. Takes the
 * same time wherever the key stands. Any thread. */
uint32_t mr_tenants_find(const mr_tenants *tenants, const uint8_t digest[MR_SHA256_BYTES]);

/* The tenant of an index, as mr_caller has it; never NULL. */
const mr_tenant *mr_tenants_get(const mr_tenants *tenants, uint32_t index);

/* The tenant as one of those who hold credentials; borrows it. */
mr_holder mr_tenant_holder(const mr_tenant *tenant);

#endif
