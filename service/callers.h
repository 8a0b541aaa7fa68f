/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who calls: a tenant, an administrator, or somebody unknown. Administrators have credentials of
 * their own, and are no tenants; docs/decisions/0013-tls.md says why.
 */
#ifndef MILLRACE_SERVICE_CALLERS_H
#define MILLRACE_SERVICE_CALLERS_H

#include "service/tenants.h"

#define MR_MAX_ADMINS 16u

typedef struct mr_admin {
    char name[MR_TENANT_NAME_MAX + 1]; /* in the audit lines */
    mr_credentials credentials;
} mr_admin;

typedef struct mr_admins {
    mr_admin items[MR_MAX_ADMINS]; /* [count] */
    uint32_t count;
} mr_admins;

/* As mr_tenants_check: names and credentials. */
MR_MUST_USE mr_status mr_admins_check(const mr_admins *admins, mr_error *err);
/* INVALID_ARGUMENT when a tenant and an administrator have a credential in common. */
MR_MUST_USE mr_status mr_callers_check(const mr_tenants *tenants, const mr_admins *admins,
                                       mr_error *err);

typedef enum mr_caller_kind {
    MR_CALLER_UNKNOWN, /* showed no credentials, or a certificate of nobody in particular */
    MR_CALLER_TENANT,
    MR_CALLER_ADMIN,
} mr_caller_kind;

typedef struct mr_caller {
    mr_caller_kind kind;
    uint32_t index; /* among the tenants, or the administrators */
} mr_caller;

/* What a call shows; borrowed. */
typedef struct mr_proof {
    const char *authorization; /* value of that metadata; NULL: none came */
    size_t authorization_bytes;
    mr_peer peer; /* what the client's verified certificate says */
} mr_proof;

/* Who shows this. UNAUTHENTICATED, not quoting it, when `authorization` is no "Bearer KEY" or the
 * key is unknown, also beside a good certificate; when the certificate is of two callers; when key
 * and certificate are of different ones. Where there are neither tenants nor administrators,
 * everybody is unknown. Any thread. */
MR_MUST_USE mr_status mr_caller_identify(const mr_tenants *tenants, const mr_admins *admins,
                                         const mr_proof *proof, mr_caller *out, mr_error *err);

#endif
