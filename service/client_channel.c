/* SPDX-License-Identifier: Apache-2.0 */
#include "service/client_channel.h"

#include "service/tls_files.h"

#include <grpc/grpc_security.h>
#include <string.h>
#include <time.h>

const char *mr_client_tls_conflict(const mr_client_tls *tls)
{
    if ((tls->certificate != NULL) != (tls->private_key != NULL)) {
        return "--tls-cert and --tls-key belong together: give both";
    }
    const bool more = tls->certificate != NULL || tls->server_name != NULL;
    return more && tls->ca == NULL
               ? "--tls-cert, --tls-key and --tls-server-name are for TLS: give "
                 "--tls-ca too"
               : NULL;
}

static mr_status make_credentials(const mr_client_tls *tls, grpc_channel_credentials **out,
                                  mr_error *err)
{
    const mr_tls_paths paths = {
        .certificate = tls->certificate,
        .private_key = tls->private_key,
        .ca = tls->ca,
        .certificate_name = "--tls-cert",
        .private_key_name = "--tls-key",
        .ca_name = "--tls-ca",
    };
    if (tls->ca == NULL) {
        *out = grpc_insecure_credentials_create();
        return MR_OK;
    }
    mr_tls_material material;
    mr_status status = mr_tls_material_read(&paths, &material, err);
    if (status == MR_OK) {
        status = mr_tls_material_check(&material, &paths, (int64_t)time(NULL), err);
    }
    if (status == MR_OK) {
        grpc_ssl_pem_key_cert_pair pair = {.private_key = material.pem[MR_TLS_PRIVATE_KEY],
                                           .cert_chain = material.pem[MR_TLS_CERTIFICATE]};
        *out = grpc_ssl_credentials_create(material.pem[MR_TLS_CA],
                                           tls->certificate != NULL ? &pair : NULL, NULL, NULL);
    }
    mr_tls_material_deinit(&material);
    return status;
}

static grpc_channel *create_channel(const char *target, const char *server_name,
                                    grpc_channel_credentials *credentials)
{
    grpc_arg settings[2];
    memset(settings, 0, sizeof(settings));
    settings[0].type = GRPC_ARG_INTEGER;
    settings[0].key = (char *)GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH;
    settings[0].value.integer = -1;
    settings[1].type = GRPC_ARG_STRING;
    settings[1].key = (char *)GRPC_SSL_TARGET_NAME_OVERRIDE_ARG;
    settings[1].value.string = (char *)server_name;
    const grpc_channel_args args = {.num_args = server_name == NULL ? 1 : 2, .args = settings};
    return grpc_channel_create(target, credentials, &args);
}

mr_status mr_client_channel_open(const char *target, const mr_client_tls *tls, grpc_channel **out,
                                 mr_error *err)
{
    grpc_channel_credentials *credentials = NULL;
    MR_TRY(make_credentials(tls, &credentials, err));
    *out = create_channel(target, tls->server_name, credentials);
    grpc_channel_credentials_release(credentials);
    return MR_OK;
}
