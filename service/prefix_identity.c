/* SPDX-License-Identifier: Apache-2.0 */
#include "service/prefix_identity.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"
#include "model/digest.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* The weights are read when nobody else wants the processor. */
#define THREAD_NICE 19

struct mr_prefix_identity {
    const mr_model *model;
    mr_engine *engine;
    const char *secret; /* of the configuration; empty: `random` */
    uint8_t random[MR_SHA256_BYTES];
    bool shared; /* one circle for all tenants */
    char numerics[128];
    mr_plan_rope rope; /* the plan's table whose frequencies follow the prompt; FIXED: none */
    pthread_t thread;
    bool started;
    mr_flag stop;

    pthread_mutex_t mutex;
    mr_prefix_material material; /* all but the salt */
    uint32_t generation;
};

static mr_status fill_material(mr_prefix_identity *p, const mr_prefix_identity_options *options,
                               mr_error *err)
{
    mr_hasher *hasher = NULL;
    mr_prefix_identity_numerics(options->backend, options->config, p->numerics,
                                sizeof(p->numerics));
    p->material.numerics = p->numerics;
    p->material.block_size = options->config->block_size;
    MR_TRY(mr_random_fill(p->material.model, sizeof(p->material.model), "the prefix cache", err));
    MR_TRY(mr_random_fill(p->random, sizeof(p->random), "the salt of the prefix cache", err));
    if (mr_hasher_create(&hasher) != MR_OK) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "no memory to hash the model");
    }
    mr_plan_rope_digest(hasher, options->plan, p->material.rope);
    for (uint32_t i = 0; i < options->plan->n_ropes; i++) {
        if (options->plan->ropes[i].rule != MR_ROPE_FIXED) {
            p->rope = options->plan->ropes[i];
        }
    }
    mr_hasher_destroy(hasher);
    return MR_OK;
}

void mr_prefix_identity_numerics(const mr_backend_info *backend, const mr_config *config, char *out,
                                 size_t bytes)
{
    snprintf(out, bytes, "%s/%s", backend->numerics, config->kv_cache_dtype);
}

mr_status mr_prefix_identity_create(const mr_prefix_identity_options *options,
                                    mr_prefix_identity **out, mr_error *err)
{
    mr_prefix_identity *p = mr_calloc(1, sizeof(*p));
    if (p == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "no memory for the prefix cache");
    }
    p->model = options->model;
    p->engine = options->engine;
    p->secret = options->config->cache_salt_secret;
    p->shared = strcmp(options->config->cache_scope, "shared") == 0;
    MR_CHECK(pthread_mutex_init(&p->mutex, NULL) == 0);
    const mr_status status = fill_material(p, options, err);
    if (status != MR_OK) {
        mr_prefix_identity_destroy(p);
        return status;
    }
    *out = p;
    return MR_OK;
}

void mr_prefix_identity_destroy(mr_prefix_identity *p)
{
    if (p == NULL) {
        return;
    }
    if (p->started) {
        mr_flag_set(&p->stop);
        pthread_join(p->thread, NULL);
    }
    pthread_mutex_destroy(&p->mutex);
    free(p);
}

/* Requests that are hashed between the two steps find nothing, which is harmless. */
static void adopt(mr_prefix_identity *p, const uint8_t digest[MR_SHA256_BYTES])
{
    pthread_mutex_lock(&p->mutex);
    memcpy(p->material.model, digest, MR_SHA256_BYTES);
    p->generation = 1;
    pthread_mutex_unlock(&p->mutex);
    (void)mr_engine_reset_prefix_cache(p->engine, 1);
}

static void *read_model(void *arg)
{
    mr_prefix_identity *p = arg;
    const mr_clock clock = mr_clock_monotonic();
    const uint64_t started_ns = mr_clock_now(&clock);
    uint8_t digest[MR_SHA256_BYTES];
    char hex[2 * MR_SHA256_BYTES + 1];
    char said[2 * MR_ERROR_MESSAGE_MAX];
    mr_error err = {0};
    (void)setpriority(PRIO_PROCESS, (id_t)gettid(), THREAD_NICE);
    const mr_status status = mr_model_digest(p->model, &p->stop, digest, &err);
    if (status == MR_OK) {
        adopt(p, digest);
        mr_sha256_hex(digest, hex);
        mr_log(MR_LOG_INFO, "prefix", "the model is identified", "digest=%s ms=%" PRIu64, hex,
               (uint64_t)((mr_clock_now(&clock) - started_ns) / MR_NS_PER_MS));
    } else if (status != MR_CANCELLED) {
        mr_log(MR_LOG_WARN, "prefix",
               "the model is not identified, cached prefixes stay this process's own",
               "status=%s error=%s", mr_status_name(status),
               mr_log_quote(err.message, said, sizeof(said)));
    }
    return NULL;
}

void mr_prefix_identity_start(mr_prefix_identity *p)
{
    MR_CHECK(!p->started);
    p->started = pthread_create(&p->thread, NULL, read_model, p) == 0;
    if (!p->started) {
        mr_log(MR_LOG_WARN, "prefix", "the system gave no thread to read the model",
               "effect=\"cached prefixes stay this process's own\"");
        return;
    }
    pthread_setname_np(p->thread, "mr-digest");
}

/* Narrows the digest of the tables to those in effect for a prompt of this length. */
static void rope_in_effect(const mr_prefix_identity *p, uint32_t n_prompt,
                           uint8_t rope[MR_SHA256_BYTES])
{
    const uint32_t class = mr_rope_class(&p->rope, n_prompt);
    uint8_t parts[MR_SHA256_BYTES + sizeof(class)];
    if (class == 0) {
        return;
    }
    memcpy(parts, rope, MR_SHA256_BYTES);
    memcpy(parts + MR_SHA256_BYTES, &class, sizeof(class));
    mr_sha256(parts, sizeof(parts), rope);
}

void mr_prefix_identity_root(mr_prefix_identity *p, const mr_prefix_asker *asker,
                             mr_prefix_root *out)
{
    const bool given = mr_prefix_identity_shareable(p);
    const mr_prefix_salt_spec spec = {
        .secret = given ? (const void *)p->secret : (const void *)p->random,
        .secret_bytes = given ? strlen(p->secret) : sizeof(p->random),
        .tenant = p->shared ? "" : asker->tenant,
        .client = asker->salt->data,
        .client_bytes = asker->salt->size,
    };
    MR_CHECK(asker->tenant[0] != '\0');
    pthread_mutex_lock(&p->mutex);
    mr_prefix_material material = p->material;
    const uint32_t generation = p->generation;
    pthread_mutex_unlock(&p->mutex);
    mr_prefix_salt(&spec, material.salt);
    rope_in_effect(p, asker->n_prompt, material.rope);
    *out = (mr_prefix_root){.block_size = material.block_size, .generation = generation};
    mr_prefix_root_hash(&material, &out->hash);
}

bool mr_prefix_identity_shareable(const mr_prefix_identity *p)
{
    return p->secret[0] != '\0';
}

uint32_t mr_prefix_identity_generation(mr_prefix_identity *p)
{
    pthread_mutex_lock(&p->mutex);
    const uint32_t generation = p->generation;
    pthread_mutex_unlock(&p->mutex);
    return generation;
}
