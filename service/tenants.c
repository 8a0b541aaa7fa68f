/* SPDX-License-Identifier: Apache-2.0 */
#include "service/tenants.h"

#include <string.h>

const mr_tenant mr_tenant_open = {
    .name = "default",
    .weight = 1,
    .priority_max = MR_MAX_PRIORITY,
};

mr_holder mr_tenant_holder(const mr_tenant *tenant)
{
    return (mr_holder){"tenant", "tenants", tenant->name, &tenant->credentials};
}

static mr_status check_one(const mr_tenant *tenant, mr_error *err)
{
    const mr_holder holder = mr_tenant_holder(tenant);
    MR_TRY(mr_holder_check(&holder, err));
    if (strcmp(tenant->name, "other") == 0) {
        return mr_holder_fail(&holder, err,
                              "metrics call those without a name of their own so; "
                              "choose another name");
    }
    if (tenant->burst_requests > 0 && !(tenant->requests_per_s > 0.0)) {
        return mr_holder_fail(&holder, err, "burst_requests cannot act without requests_per_s");
    }
    if (tenant->burst_tokens > 0 && tenant->tokens_per_min == 0) {
        return mr_holder_fail(&holder, err, "burst_tokens cannot act without tokens_per_min");
    }
    return MR_OK;
}

mr_status mr_tenants_check(const mr_tenants *tenants, mr_error *err)
{
    for (uint32_t t = 0; t < tenants->count; t++) {
        const mr_holder holder = mr_tenant_holder(&tenants->items[t]);
        MR_TRY(check_one(&tenants->items[t], err));
        for (uint32_t b = 0; b < t; b++) {
            const mr_holder before = mr_tenant_holder(&tenants->items[b]);
            MR_TRY(mr_holder_check_pair(&holder, &before, err));
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
