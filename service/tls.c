/* SPDX-License-Identifier: Apache-2.0 */
#include "service/tls.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/event.h"
#include "base/flag.h"
#include "base/log.h"
#include "service/tls_files.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct mr_tls {
    char *certificate, *private_key, *client_ca; /* own */
    mr_tls_paths paths;
    mr_tls_client_auth client_auth;
    uint32_t interval_ms;
    pthread_t thread;
    mr_event wake;
    mr_flag stopping;

    pthread_mutex_t mutex;    /* of those below; gRPC's threads read them */
    mr_tls_material material; /* in use */
    uint64_t version;         /* of the material, from 1 on */
    uint64_t given;           /* version that gRPC has; 0: none */
    mr_tls_stats stats;

    /* The thread's own. */
    uint8_t tried[MR_SHA256_BYTES]; /* what was last put to use, or refused */
    bool refused;                   /* it was refused */
    uint8_t seen[MR_SHA256_BYTES];  /* what the look before saw */
};

static int64_t unix_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec;
}

/* gRPC asks with every connection that comes, on threads of its own. */
static grpc_ssl_certificate_config_reload_status fetch(void *ctx,
                                                       grpc_ssl_server_certificate_config **config)
{
    mr_tls *tls = ctx;
    grpc_ssl_certificate_config_reload_status status = GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    pthread_mutex_lock(&tls->mutex);
    if (tls->given != tls->version) {
        const grpc_ssl_pem_key_cert_pair pair = {
            .private_key = tls->material.pem[MR_TLS_PRIVATE_KEY],
            .cert_chain = tls->material.pem[MR_TLS_CERTIFICATE],
        };
        /* gRPC 1.51 ends the process when there are no roots, also where it never looks at them:
         * without client certificates it gets those of the server, which then mean nothing. */
        const char *roots = tls->material.pem[MR_TLS_CA];
        *config = grpc_ssl_server_certificate_config_create(roots != NULL ? roots : pair.cert_chain,
                                                            &pair, 1);
        tls->given = tls->version;
        status = GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
    }
    pthread_mutex_unlock(&tls->mutex);
    return status;
}

static void log_use(const mr_tls *tls, const char *msg)
{
    char path[600];
    mr_log(MR_LOG_INFO, "tls", msg, "certificate=%s not_after=%" PRId64 " valid_days=%" PRId64,
           mr_log_quote(tls->certificate, path, sizeof(path)), tls->stats.not_after_s,
           (tls->stats.not_after_s - unix_now()) / 86400);
}

/* Takes the material, which is good. */
static void use(mr_tls *tls, mr_tls_material *material)
{
    pthread_mutex_lock(&tls->mutex);
    mr_tls_material before = tls->material;
    tls->material = *material;
    tls->version++;
    tls->stats.not_after_s = material->not_after_s;
    pthread_mutex_unlock(&tls->mutex);
    *material = (mr_tls_material){0};
    mr_tls_material_deinit(&before);
}

static void count(mr_tls *tls, bool good)
{
    pthread_mutex_lock(&tls->mutex);
    tls->stats.reloaded += good ? 1 : 0;
    tls->stats.failed += good ? 0 : 1;
    pthread_mutex_unlock(&tls->mutex);
}

static void try_new(mr_tls *tls, mr_tls_material *material)
{
    mr_error err = {0};
    const mr_status status = mr_tls_material_check(material, &tls->paths, unix_now(), &err);
    count(tls, status == MR_OK);
    tls->refused = status != MR_OK;
    if (status == MR_OK) {
        use(tls, material);
        log_use(tls, "certificates are reloaded");
        return;
    }
    char text[2 * MR_ERROR_MESSAGE_MAX];
    mr_log(MR_LOG_ERROR, "tls", "certificates are not reloaded: those before stay", "cause=%s",
           mr_log_quote(err.message, text, sizeof(text)));
}

/* Files that are replaced one after the other do not fit together for a moment: what changed is
 * tried once two looks see the same, or at once when somebody asks. What was refused is not tried
 * again until it changes or somebody asks: it may not have been valid yet. */
static void look(mr_tls *tls, bool at_once)
{
    mr_error err = {0};
    mr_tls_material material;
    if (mr_tls_material_read(&tls->paths, &material, &err) == MR_OK) {
        const bool is_new = memcmp(material.digest, tls->tried, MR_SHA256_BYTES) != 0;
        const bool settled = at_once || memcmp(material.digest, tls->seen, MR_SHA256_BYTES) == 0;
        memcpy(tls->seen, material.digest, MR_SHA256_BYTES);
        if ((is_new || (at_once && tls->refused)) && settled) {
            memcpy(tls->tried, material.digest, MR_SHA256_BYTES);
            try_new(tls, &material);
        }
    }
    mr_tls_material_deinit(&material);
}

static void *follow(void *arg)
{
    mr_tls *tls = arg;
    const mr_clock clock = mr_clock_monotonic();
    while (!mr_flag_get(&tls->stopping)) {
        const uint64_t until =
            mr_time_add(mr_clock_now(&clock), (uint64_t)tls->interval_ms * MR_NS_PER_MS);
        const bool asked = mr_event_wait(&tls->wake, until);
        if (!mr_flag_get(&tls->stopping)) {
            look(tls, asked);
        }
    }
    return NULL;
}

static mr_status copy_options(mr_tls *tls, const mr_tls_options *options, mr_error *err)
{
    tls->certificate = strdup(options->certificate);
    tls->private_key = strdup(options->private_key);
    tls->client_ca = strdup(options->client_ca);
    if (tls->certificate == NULL || tls->private_key == NULL || tls->client_ca == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "out of memory for TLS");
    }
    if (options->client_auth != MR_TLS_CLIENT_NONE && options->client_ca[0] == '\0') {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, "tls.client_ca",
                             "tls.client_ca is missing: tls.client_auth wants certificates of "
                             "clients");
    }
    tls->client_auth = options->client_auth;
    tls->interval_ms = options->reload_interval_ms;
    tls->paths = (mr_tls_paths){
        .certificate = tls->certificate,
        .private_key = tls->private_key,
        .ca = tls->client_ca,
        .certificate_name = "tls.certificate",
        .private_key_name = "tls.private_key",
        .ca_name = "tls.client_ca",
    };
    return MR_OK;
}

static mr_status load_first(mr_tls *tls, mr_error *err)
{
    mr_tls_material material;
    mr_status status = mr_tls_material_read(&tls->paths, &material, err);
    memcpy(tls->tried, material.digest, MR_SHA256_BYTES);
    if (status == MR_OK) {
        status = mr_tls_material_check(&material, &tls->paths, unix_now(), err);
    }
    if (status == MR_OK) {
        use(tls, &material);
        log_use(tls, "connections are encrypted");
    }
    mr_tls_material_deinit(&material);
    return status;
}

static void free_tls(mr_tls *tls)
{
    mr_tls_material_deinit(&tls->material);
    pthread_mutex_destroy(&tls->mutex);
    mr_event_deinit(&tls->wake);
    free(tls->certificate);
    free(tls->private_key);
    free(tls->client_ca);
    free(tls);
}

mr_status mr_tls_create(const mr_tls_options *options, mr_tls **out, mr_error *err)
{
    mr_tls *tls = mr_calloc(1, sizeof(*tls));
    if (tls == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "out of memory for TLS");
    }
    pthread_mutex_init(&tls->mutex, NULL);
    mr_event_init(&tls->wake);
    mr_status status = copy_options(tls, options, err);
    if (status == MR_OK) {
        status = load_first(tls, err);
    }
    if (status == MR_OK && pthread_create(&tls->thread, NULL, follow, tls) != 0) {
        status =
            mr_fail(err, MR_RESOURCE_EXHAUSTED, "the system gave no thread to follow certificates");
    }
    if (status != MR_OK) {
        free_tls(tls);
        return status;
    }
    *out = tls;
    return MR_OK;
}

void mr_tls_destroy(mr_tls *tls)
{
    if (tls == NULL) {
        return;
    }
    mr_flag_set(&tls->stopping);
    mr_event_set(&tls->wake);
    pthread_join(tls->thread, NULL);
    free_tls(tls);
}

grpc_server_credentials *mr_tls_credentials(mr_tls *tls)
{
    static const grpc_ssl_client_certificate_request_type requests[] = {
        [MR_TLS_CLIENT_NONE] = GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE,
        [MR_TLS_CLIENT_OPTIONAL] = GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY,
        [MR_TLS_CLIENT_REQUIRE] = GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY,
    };
    return grpc_ssl_server_credentials_create_with_options(
        grpc_ssl_server_credentials_create_options_using_config_fetcher(requests[tls->client_auth],
                                                                        fetch, tls));
}

void mr_tls_look(mr_tls *tls)
{
    mr_event_set(&tls->wake);
}

void mr_tls_stats_get(mr_tls *tls, mr_tls_stats *out)
{
    pthread_mutex_lock(&tls->mutex);
    *out = tls->stats;
    pthread_mutex_unlock(&tls->mutex);
}

/* False when there is no room for the name. */
static bool add_name(mr_peer *peer, mr_name_kind kind, const grpc_auth_property *property)
{
    if (peer->n_names == MR_PEER_MAX_NAMES) {
        return false;
    }
    peer->names[peer->n_names++] =
        (mr_peer_name){.kind = kind, .text = property->value, .bytes = property->value_length};
    return true;
}

void mr_tls_peer(const grpc_auth_context *context, mr_peer *out)
{
    static const struct {
        const char *property;
        mr_name_kind kind;
    } kinds[] = {
        {GRPC_PEER_URI_PROPERTY_NAME, MR_NAME_URI},     {GRPC_PEER_DNS_PROPERTY_NAME, MR_NAME_DNS},
        {GRPC_PEER_EMAIL_PROPERTY_NAME, MR_NAME_OTHER}, {GRPC_PEER_IP_PROPERTY_NAME, MR_NAME_OTHER},
        {GRPC_X509_CN_PROPERTY_NAME, MR_NAME_COMMON},
    };
    out->n_names = 0;
    if (context == NULL || grpc_auth_context_peer_is_authenticated(context) == 0) {
        return;
    }
    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        grpc_auth_property_iterator names =
            grpc_auth_context_find_properties_by_name(context, kinds[k].property);
        const grpc_auth_property *one;
        while ((one = grpc_auth_property_iterator_next(&names)) != NULL) {
            if (!add_name(out, kinds[k].kind, one)) {
                out->n_names = 0; /* part of them would say something else than all */
                return;
            }
        }
    }
}

static const grpc_auth_property *first_property(const grpc_auth_context *context, const char *name)
{
    grpc_auth_property_iterator found = grpc_auth_context_find_properties_by_name(context, name);
    return grpc_auth_property_iterator_next(&found);
}

bool mr_tls_peer_expired(const grpc_auth_context *context)
{
    if (context == NULL) {
        return false;
    }
    const grpc_auth_property *reused = first_property(context, GRPC_SSL_SESSION_REUSED_PROPERTY);
    if (reused == NULL || strcmp(reused->value, "true") != 0) {
        return false;
    }
    const grpc_auth_property *pem = first_property(context, GRPC_X509_PEM_CERT_PROPERTY_NAME);
    return pem != NULL && mr_tls_pem_expired(pem->value, pem->value_length, unix_now());
}
