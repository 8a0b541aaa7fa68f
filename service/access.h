/* SPDX-License-Identifier: Apache-2.0 */
/* What a method needs (service/access.def), and whether a caller has it. */
#ifndef MILLRACE_SERVICE_ACCESS_H
#define MILLRACE_SERVICE_ACCESS_H

#include "service/callers.h"

typedef enum mr_access {
    MR_ACCESS_ADMIN,  /* an administrator; where nobody is told from others, everybody */
    MR_ACCESS_TENANT, /* a tenant; where there are none, everybody */
    MR_ACCESS_KNOWN,  /* a tenant or an administrator; where there are no tenants, everybody */
    MR_ACCESS_OPEN,   /* nothing */
} mr_access;

/* What /SERVICE/METHOD needs. One that no service of ours has: KNOWN, and it is not there. `listed`
 * (may be NULL) says whether the method has a row. */
mr_access mr_access_of(const char *path, size_t bytes, bool *listed);

/* UNAUTHENTICATED when `access` takes a caller that is known, PERMISSION_DENIED when it takes
 * another one. */
MR_MUST_USE mr_status mr_access_check(mr_access access, const mr_tenants *tenants,
                                      const mr_admins *admins, const mr_caller *caller,
                                      mr_error *err);

#endif
