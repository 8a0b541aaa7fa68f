/* SPDX-License-Identifier: Apache-2.0 */
#include "service/access.h"

#include <string.h>

#define OUR_PACKAGE "/millrace."

typedef struct access_row {
    const char *path;
    mr_access access;
} access_row;

static const access_row rows[] = {
#define MR_METHOD_ACCESS(service, method, access) {"/" service "/" method, access},
#include "service/access.def"
#undef MR_METHOD_ACCESS
};

mr_access mr_access_of(const char *path, size_t bytes, bool *listed)
{
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (strlen(rows[i].path) == bytes && memcmp(rows[i].path, path, bytes) == 0) {
            if (listed != NULL) {
                *listed = true;
            }
            return rows[i].access;
        }
    }
    if (listed != NULL) {
        *listed = false;
    }
    /* Of our own services the most, should a row be forgotten; others are only told that they are
     * not here. */
    const size_t package = sizeof(OUR_PACKAGE) - 1;
    const bool ours = bytes >= package && memcmp(path, OUR_PACKAGE, package) == 0;
    return ours ? MR_ACCESS_ADMIN : MR_ACCESS_KNOWN;
}

static mr_status fail_unknown(mr_error *err)
{
    return mr_fail(err, MR_UNAUTHENTICATED,
                   "this server wants to know who calls: send the metadata authorization: Bearer "
                   "KEY, or use a client certificate that it knows");
}

static mr_status check_admin(const mr_tenants *tenants, const mr_admins *admins,
                             const mr_caller *caller, mr_error *err)
{
    const bool open = tenants->count == 0 && admins->count == 0;
    if (open || caller->kind == MR_CALLER_ADMIN) {
        return MR_OK;
    }
    if (caller->kind == MR_CALLER_UNKNOWN) {
        return fail_unknown(err);
    }
    return mr_fail(err, MR_PERMISSION_DENIED,
                   "AdminService is for administrators, which tenants are not: use credentials of "
                   "admin.callers");
}

static mr_status check_tenant(const mr_tenants *tenants, const mr_caller *caller, mr_error *err)
{
    if (tenants->count == 0 || caller->kind == MR_CALLER_TENANT) {
        return MR_OK;
    }
    if (caller->kind == MR_CALLER_UNKNOWN) {
        return fail_unknown(err);
    }
    return mr_fail(err, MR_PERMISSION_DENIED,
                   "administrators are no tenants here: use a tenant's credentials for this "
                   "method");
}

mr_status mr_access_check(mr_access access, const mr_tenants *tenants, const mr_admins *admins,
                          const mr_caller *caller, mr_error *err)
{
    switch (access) {
    case MR_ACCESS_OPEN:
        return MR_OK;
    case MR_ACCESS_KNOWN:
        return tenants->count == 0 || caller->kind != MR_CALLER_UNKNOWN ? MR_OK : fail_unknown(err);
    case MR_ACCESS_TENANT:
        return check_tenant(tenants, caller, err);
    case MR_ACCESS_ADMIN:
        return check_admin(tenants, admins, caller, err);
    }
    return mr_fail(err, MR_INTERNAL, "a method without access");
}
