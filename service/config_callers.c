/* SPDX-License-Identifier: Apache-2.0 */
/* What the keys of TLS, tenants and administrators say only together. */
#include "service/config.h"

#include <string.h>

static mr_status fail_tls(const char *key, const char *what, mr_error *err)
{
    return mr_fail_field(err, MR_INVALID_ARGUMENT, key, "%s %s", key, what);
}

/* Never half of it, and nothing that would be passed over: a server that was meant to have TLS does
 * not start without. */
static mr_status check_tls(const mr_config *config, mr_error *err)
{
    static const char *const others[] = {"tls.client_ca", "tls.client_auth",
                                         "tls.reload_interval_ms"};
    const bool certificate = config->tls_certificate[0] != '\0';
    const bool asks = strcmp(config->tls_client_auth, "none") != 0;
    if (certificate != (config->tls_private_key[0] != '\0')) {
        return fail_tls(certificate ? "tls.private_key" : "tls.certificate",
                        certificate ? "is missing: tls.certificate is given, and TLS takes both"
                                    : "is missing: tls.private_key is given, and TLS takes both",
                        err);
    }
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]) && !certificate; i++) {
        if (mr_config_given(config, others[i])) {
            return fail_tls(others[i],
                            "cannot act without TLS: set tls.certificate and tls.private_key too",
                            err);
        }
    }
    if (asks && config->tls_client_ca[0] == '\0') {
        return fail_tls("tls.client_ca",
                        "is missing: tls.client_auth wants certificates of clients; name the file "
                        "with the CAs that issue them",
                        err);
    }
    if (!asks && config->tls_client_ca[0] != '\0') {
        return fail_tls("tls.client_ca",
                        "cannot act while tls.client_auth is none: set that to require or optional",
                        err);
    }
    return MR_OK;
}

static bool any_identity(const mr_config *config, const char **list)
{
    for (uint32_t i = 0; i < config->tenants.count; i++) {
        if (config->tenants.items[i].credentials.n_identities > 0) {
            *list = "tenants";
            return true;
        }
    }
    for (uint32_t i = 0; i < config->admins.count; i++) {
        if (config->admins.items[i].credentials.n_identities > 0) {
            *list = "admin.callers";
            return true;
        }
    }
    return false;
}

mr_status mr_config_check_callers(const mr_config *config, mr_error *err)
{
    MR_TRY(check_tls(config, err));
    MR_TRY(mr_callers_check(&config->tenants, &config->admins, err));
    const bool certificates = strcmp(config->tls_client_auth, "none") != 0;
    const char *list = NULL;
    if (!certificates && any_identity(config, &list)) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, list,
                             "%s: identities cannot act without certificates of clients: set "
                             "tls.client_auth to require or optional",
                             list);
    }
    if (!config->admin_enable && config->admins.count > 0) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, "admin.callers",
                             "admin.callers cannot act: set admin.enable to true too");
    }
    if (config->admin_enable && config->admins.count == 0 &&
        (config->tenants.count > 0 || certificates)) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, "admin.callers",
                             "admin.enable needs admin.callers beside tenants or client "
                             "certificates, as tenants are no administrators: give [{name: ops, "
                             "keys: [SHA256]}]");
    }
    return MR_OK;
}
