/* SPDX-License-Identifier: Apache-2.0 */
#include "service/callers.h"

#include "service/api_key.h"

#include <string.h>
#include <strings.h>

#define SCHEME "Bearer "

static mr_holder holder_of(const mr_admin *admin)
{
    return (mr_holder){"administrator", "admin.callers", admin->name, &admin->credentials};
}

mr_status mr_admins_check(const mr_admins *admins, mr_error *err)
{
    for (uint32_t i = 0; i < admins->count; i++) {
        const mr_holder holder = holder_of(&admins->items[i]);
        MR_TRY(mr_holder_check(&holder, err));
        for (uint32_t k = 0; k < i; k++) {
            const mr_holder before = holder_of(&admins->items[k]);
            MR_TRY(mr_holder_check_pair(&holder, &before, err));
        }
    }
    return MR_OK;
}

mr_status mr_callers_check(const mr_tenants *tenants, const mr_admins *admins, mr_error *err)
{
    for (uint32_t a = 0; a < admins->count; a++) {
        const mr_holder admin = holder_of(&admins->items[a]);
        for (uint32_t t = 0; t < tenants->count; t++) {
            const mr_holder tenant = mr_tenant_holder(&tenants->items[t]);
            MR_TRY(mr_holder_check_pair(&admin, &tenant, err));
        }
    }
    return MR_OK;
}

/* Always looks everywhere, so that the time does not tell whose the key is. */
static mr_caller find_key(const mr_tenants *tenants, const mr_admins *admins, const char *key,
                          size_t bytes)
{
    uint8_t digest[MR_SHA256_BYTES];
    mr_sha256(key, bytes, digest);
    uint32_t admin = admins->count;
    for (uint32_t i = 0; i < admins->count; i++) {
        const uint32_t hit =
            (uint32_t)mr_credentials_has_key(&admins->items[i].credentials, digest);
        admin = hit * i + (1 - hit) * admin;
    }
    const uint32_t tenant = mr_tenants_find(tenants, digest);
    if (admin < admins->count) {
        return (mr_caller){MR_CALLER_ADMIN, admin};
    }
    return tenant < tenants->count ? (mr_caller){MR_CALLER_TENANT, tenant} : (mr_caller){0};
}

/* RFC 7235 lets schemes be spelled in any case. */
static bool is_bearer(const mr_proof *proof)
{
    const size_t scheme = sizeof(SCHEME) - 1;
    return proof->authorization_bytes > scheme &&
           strncasecmp(proof->authorization, SCHEME, scheme) == 0 &&
           proof->authorization_bytes - scheme <= MR_API_KEY_MAX;
}

static mr_status identify_key(const mr_tenants *tenants, const mr_admins *admins,
                              const mr_proof *proof, mr_caller *out, mr_error *err)
{
    const size_t scheme = sizeof(SCHEME) - 1;
    if (!is_bearer(proof)) {
        return mr_fail(err, MR_UNAUTHENTICATED,
                       "the metadata authorization must be: Bearer KEY, with a key of at most %u "
                       "bytes, and be sent once",
                       MR_API_KEY_MAX);
    }
    *out = find_key(tenants, admins, proof->authorization + scheme,
                    proof->authorization_bytes - scheme);
    if (out->kind == MR_CALLER_UNKNOWN) {
        return mr_fail(err, MR_UNAUTHENTICATED,
                       "the key in authorization is not known here; ask who runs this server");
    }
    return MR_OK;
}

static mr_status identify_peer(const mr_tenants *tenants, const mr_admins *admins,
                               const mr_peer *peer, mr_caller *out, mr_error *err)
{
    uint32_t found = 0;
    *out = (mr_caller){0};
    for (uint32_t i = 0; i < tenants->count && peer->n_names > 0; i++) {
        if (mr_credentials_match(&tenants->items[i].credentials, peer)) {
            *out = (mr_caller){MR_CALLER_TENANT, i};
            found++;
        }
    }
    for (uint32_t i = 0; i < admins->count && peer->n_names > 0; i++) {
        if (mr_credentials_match(&admins->items[i].credentials, peer)) {
            *out = (mr_caller){MR_CALLER_ADMIN, i};
            found++;
        }
    }
    return found <= 1 ? MR_OK
                      : mr_fail(err, MR_UNAUTHENTICATED,
                                "the client certificate holds identities of more than one caller; "
                                "use one certificate for each");
}

mr_status mr_caller_identify(const mr_tenants *tenants, const mr_admins *admins,
                             const mr_proof *proof, mr_caller *out, mr_error *err)
{
    *out = (mr_caller){0};
    if (tenants->count == 0 && admins->count == 0) {
        return MR_OK;
    }
    mr_caller by_key = {0};
    if (proof->authorization != NULL) {
        MR_TRY(identify_key(tenants, admins, proof, &by_key, err));
    }
    mr_caller by_peer;
    MR_TRY(identify_peer(tenants, admins, &proof->peer, &by_peer, err));
    const bool both = by_key.kind != MR_CALLER_UNKNOWN && by_peer.kind != MR_CALLER_UNKNOWN;
    if (both && (by_key.kind != by_peer.kind || by_key.index != by_peer.index)) {
        return mr_fail(err, MR_UNAUTHENTICATED,
                       "the key in authorization and the client certificate are of different "
                       "callers: send one of them, or both of one caller");
    }
    *out = by_key.kind != MR_CALLER_UNKNOWN ? by_key : by_peer;
    return MR_OK;
}
