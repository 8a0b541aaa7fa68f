/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tenants and administrators in effect, which may change while calls run. A table is never
 * changed: a new one takes its place, and each call keeps the one that it began with.
 *
 * A tenant has the same index in every table, since the engine knows it by that. One that is gone
 * keeps its place, without credentials, until the place is needed.
 */
#ifndef MILLRACE_SERVICE_TENANT_TABLE_H
#define MILLRACE_SERVICE_TENANT_TABLE_H

#include "base/flag.h"
#include "cache/rate_limits.h"
#include "service/callers.h"

#include <pthread.h>

typedef struct mr_tenant_table {
    mr_refs refs;
    mr_tenants tenants;
    mr_admins admins;
} mr_tenant_table;

/* The place of the table in effect. */
typedef struct mr_tenant_place {
    pthread_mutex_t mutex;
    mr_tenant_table *table; /* one reference */
} mr_tenant_place;

/* Copies both, which are checked. RESOURCE_EXHAUSTED when memory is short. */
MR_MUST_USE mr_status mr_tenant_place_init(mr_tenant_place *place, const mr_tenants *tenants,
                                           const mr_admins *admins, mr_error *err);
void mr_tenant_place_deinit(mr_tenant_place *place);
/* Puts others into effect for the calls that come. FAILED_PRECONDITION, and nothing changed, when
 * that would open a server that asks who calls, or places are short. Any thread. */
MR_MUST_USE mr_status mr_tenant_place_replace(mr_tenant_place *place, const mr_tenants *tenants,
                                              const mr_admins *admins, mr_error *err);
/* Gives a reference to the table in effect. Any thread. */
mr_tenant_table *mr_tenant_place_get(mr_tenant_place *place);
void mr_tenant_table_unref(mr_tenant_table *table);

/* A tenant's limits with the automatic bursts: those of a second and of a minute. */
mr_rate_limits mr_tenant_limits(const mr_tenant *tenant);

#endif
