/* SPDX-License-Identifier: Apache-2.0 */
#include "service/tenant_table.h"

#include "base/checked.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static mr_tenant_table *new_table(void)
{
    mr_tenant_table *table = mr_calloc(1, sizeof(*table));
    if (table != NULL) {
        mr_refs_init(&table->refs, 1);
    }
    return table;
}

void mr_tenant_table_unref(mr_tenant_table *table)
{
    if (table != NULL && mr_refs_put(&table->refs)) {
        free(table);
    }
}

mr_status mr_tenant_place_init(mr_tenant_place *place, const mr_tenants *tenants,
                               const mr_admins *admins, mr_error *err)
{
    pthread_mutex_init(&place->mutex, NULL);
    place->table = new_table();
    if (place->table == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "out of memory for the tenants");
    }
    place->table->tenants = *tenants;
    place->table->admins = *admins;
    return MR_OK;
}

void mr_tenant_place_deinit(mr_tenant_place *place)
{
    mr_tenant_table_unref(place->table);
    pthread_mutex_destroy(&place->mutex);
}

mr_tenant_table *mr_tenant_place_get(mr_tenant_place *place)
{
    pthread_mutex_lock(&place->mutex);
    mr_tenant_table *table = place->table;
    mr_refs_get(&table->refs);
    pthread_mutex_unlock(&place->mutex);
    return table;
}

static mr_tenant *find_name(mr_tenants *tenants, const char *name)
{
    for (uint32_t i = 0; i < tenants->count; i++) {
        if (strcmp(tenants->items[i].name, name) == 0) {
            return &tenants->items[i];
        }
    }
    return NULL;
}

static bool is_gone(const mr_tenant *tenant)
{
    return tenant->credentials.n_keys == 0 && tenant->credentials.n_identities == 0;
}

/* A place of its own, or that of a tenant that is gone; NULL: there is none. */
static mr_tenant *find_place(mr_tenants *tenants)
{
    if (tenants->count < MR_MAX_TENANTS) {
        return &tenants->items[tenants->count++];
    }
    for (uint32_t i = 0; i < tenants->count; i++) {
        if (is_gone(&tenants->items[i])) {
            return &tenants->items[i];
        }
    }
    return NULL;
}

/* `into` holds the tenants before; those that stay keep their places. */
static mr_status merge(const mr_tenants *tenants, mr_tenants *into, mr_error *err)
{
    for (uint32_t i = 0; i < into->count; i++) {
        into->items[i].credentials = (mr_credentials){0};
    }
    for (uint32_t i = 0; i < tenants->count; i++) {
        mr_tenant *place = find_name(into, tenants->items[i].name);
        if (place != NULL) {
            *place = tenants->items[i];
        }
    }
    for (uint32_t i = 0; i < tenants->count; i++) {
        const mr_tenant *known = find_name(into, tenants->items[i].name);
        if (known != NULL) {
            continue;
        }
        mr_tenant *place = find_place(into);
        if (place == NULL) {
            return mr_fail(err, MR_FAILED_PRECONDITION, "there are more than %d tenants",
                           MR_MAX_TENANTS);
        }
        *place = tenants->items[i];
    }
    return MR_OK;
}

/* What must not be lost by a reload: asking who calls. */
static mr_status check_closed(const mr_tenant_table *old, const mr_tenants *tenants,
                              const mr_admins *admins, mr_error *err)
{
    if (old->tenants.count > 0 && tenants->count == 0) {
        return mr_fail(err, MR_FAILED_PRECONDITION,
                       "no tenants are left, which would open the server to everybody: start it "
                       "anew if that is meant");
    }
    if (old->admins.count > 0 && admins->count == 0) {
        return mr_fail(err, MR_FAILED_PRECONDITION,
                       "no administrators are left in admin.callers: start the server anew if that "
                       "is meant");
    }
    return MR_OK;
}

mr_status mr_tenant_place_replace(mr_tenant_place *place, const mr_tenants *tenants,
                                  const mr_admins *admins, mr_error *err)
{
    mr_tenant_table *old = mr_tenant_place_get(place);
    mr_tenant_table *table = new_table();
    mr_status status = check_closed(old, tenants, admins, err);
    if (table == NULL) {
        status = mr_fail(err, MR_RESOURCE_EXHAUSTED, "out of memory for the tenants");
    } else if (status == MR_OK) {
        table->tenants = old->tenants;
        table->admins = *admins;
        status = merge(tenants, &table->tenants, err);
    }
    if (status != MR_OK) {
        mr_tenant_table_unref(table);
        mr_tenant_table_unref(old);
        return status;
    }
    pthread_mutex_lock(&place->mutex);
    mr_tenant_table *before = place->table;
    place->table = table;
    pthread_mutex_unlock(&place->mutex);
    mr_tenant_table_unref(before);
    mr_tenant_table_unref(old);
    return MR_OK;
}

mr_rate_limits mr_tenant_limits(const mr_tenant *tenant)
{
    mr_rate_limits limits = {
        .requests_per_s = tenant->requests_per_s,
        .burst_requests = tenant->burst_requests,
        .tokens_per_min = tenant->tokens_per_min,
        .burst_tokens = tenant->burst_tokens,
        .max_concurrent = tenant->max_concurrent,
    };
    if (limits.burst_requests == 0) {
        limits.burst_requests = (uint32_t)fmax(1.0, ceil(limits.requests_per_s));
    }
    if (limits.burst_tokens == 0) {
        limits.burst_tokens = limits.tokens_per_min;
    }
    return limits;
}
