/* SPDX-License-Identifier: Apache-2.0 */
#include "service/sharing.h"

#include "base/checked.h"
#include "base/log.h"
#include "cache/claims.h"
#include "cache/redis_store.h"
#include "service/listen.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* How often the link's thread looks for blocks to claim. */
#define FORWARD_MS 50u

struct mr_sharing {
    mr_redis_link *link; /* NULL: no Redis */
    mr_rate_limiter *limiter;
    mr_metadata_store *store;
    mr_claims claims; /* of the link's thread; no ring: nothing to tell */
};

static bool is_every_interface(const char *host)
{
    return host[0] == '\0' || strcmp(host, "0.0.0.0") == 0 || strcmp(host, "[::]") == 0;
}

static void describe(const mr_runtime *runtime, const char *listen, int port, mr_replica *self)
{
    const mr_config *config = mr_runtime_config(runtime);
    char machine[65] = "";
    char host[65] = "";
    (void)gethostname(machine, sizeof(machine) - 1);
    snprintf(host, sizeof(host), "%.*s", (int)mr_listen_host_bytes(listen), listen);
    snprintf(self->addr, sizeof(self->addr), "%s:%d", is_every_interface(host) ? machine : host,
             port);
    if (config->redis_replica_id[0] != '\0') {
        snprintf(self->id, sizeof(self->id), "%s", config->redis_replica_id);
    } else {
        snprintf(self->id, sizeof(self->id), "%s:%d", machine, port);
    }
    mr_prefix_identity_numerics(mr_runtime_backend(runtime), config, self->numerics,
                                sizeof(self->numerics));
    snprintf(self->state, sizeof(self->state), "ready");
}

static mr_rate_mode mode_of(const char *name)
{
    if (strcmp(name, "open") == 0) {
        return MR_RATE_OPEN;
    }
    return strcmp(name, "closed") == 0 ? MR_RATE_CLOSED : MR_RATE_LOCAL;
}

static mr_status create_link(mr_sharing *sharing, const mr_config *config, mr_error *err)
{
    if (config->redis_url[0] == '\0') {
        return MR_OK;
    }
    mr_redis_url url;
    MR_TRY(mr_redis_url_parse(config->redis_url, &url, err));
    return mr_redis_link_create(&url, &sharing->link, err);
}

/* The link's thread, while Redis answers; what does not fit meanwhile the index counts as lost. */
static uint64_t forward_claims(void *ctx, uint64_t now_ns, bool fresh)
{
    (void)fresh;
    (void)mr_claims_forward(ctx);
    return now_ns + FORWARD_MS * MR_NS_PER_MS;
}

static void follow_index(mr_sharing *sharing, mr_runtime *runtime)
{
    mr_ring *events = mr_engine_prefix_events(mr_runtime_engine(runtime));
    if (events != NULL) {
        sharing->claims = (mr_claims){.events = events, .store = sharing->store};
        mr_redis_link_hook(sharing->link,
                           (mr_redis_hook){.tick = forward_claims, .ctx = &sharing->claims});
    }
}

static mr_status create_all(mr_sharing *sharing, mr_runtime *runtime, const mr_replica *self,
                            mr_error *err)
{
    const mr_config *config = mr_runtime_config(runtime);
    MR_TRY(create_link(sharing, config, err));
    const mr_rate_options options = {
        .clock = mr_clock_monotonic(),
        .link = sharing->link,
        .on_failure = mode_of(config->redis_on_failure),
        .timeout_ns = config->redis_timeout_ms * MR_NS_PER_MS,
    };
    MR_TRY(mr_rate_limiter_create(&options, &sharing->limiter, err));
    if (sharing->link == NULL) {
        return mr_local_store_create(self, mr_runtime_exec_options(runtime)->n_blocks,
                                     &options.clock, &sharing->store, err);
    }
    MR_TRY(mr_redis_store_create(self, sharing->link, &sharing->store, err));
    follow_index(sharing, runtime);
    return mr_redis_link_start(sharing->link, err);
}

mr_status mr_sharing_create(mr_runtime *runtime, const char *listen, int port, mr_sharing **out,
                            mr_error *err)
{
    mr_sharing *sharing = mr_calloc(1, sizeof(*sharing));
    if (sharing == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "out of memory for the rate limits");
    }
    mr_replica self = {0};
    describe(runtime, listen, port, &self);
    const mr_status status = create_all(sharing, runtime, &self, err);
    if (status != MR_OK) {
        mr_sharing_destroy(sharing);
        return status;
    }
    if (sharing->link != NULL) {
        char id[2 * MR_STORE_TEXT_MAX];
        mr_log(MR_LOG_INFO, "redis", "sharing rate limits and claims on KV blocks", "replica=%s",
               mr_log_quote(self.id, id, sizeof(id)));
    }
    *out = sharing;
    return MR_OK;
}

void mr_sharing_destroy(mr_sharing *sharing)
{
    if (sharing == NULL) {
        return;
    }
    mr_redis_link_destroy(sharing->link);
    mr_rate_limiter_destroy(sharing->limiter);
    mr_metadata_store_destroy(sharing->store);
    free(sharing);
}

mr_rate_limiter *mr_sharing_limiter(mr_sharing *sharing)
{
    return sharing->limiter;
}

mr_metadata_store *mr_sharing_store(mr_sharing *sharing)
{
    return sharing->store;
}

void mr_sharing_stats_get(mr_sharing *sharing, mr_sharing_stats *out)
{
    *out = (mr_sharing_stats){0};
    if (sharing->link != NULL) {
        mr_redis_link_stats_get(sharing->link, &out->redis);
    }
    mr_rate_limiter_stats_get(sharing->limiter, &out->limits);
    mr_metadata_store_stats(sharing->store, &out->store);
}
