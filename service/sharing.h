/* SPDX-License-Identifier: Apache-2.0 */
/* What a serving process shares with other replicas, through Redis where redis.url is set: rate
 * limits, and who has which KV blocks. Without Redis the same for this process alone. */
#ifndef MILLRACE_SERVICE_SHARING_H
#define MILLRACE_SERVICE_SHARING_H

#include "cache/metadata_store.h"
#include "cache/rate_limiter.h"
#include "service/runtime.h"

typedef struct mr_sharing mr_sharing;

typedef struct mr_sharing_stats {
    mr_redis_link_stats redis; /* zeros without Redis */
    mr_rate_stats limits;
    mr_store_stats store;
} mr_sharing_stats;

/* The runtime is borrowed until destroy. Of a replica that is reached at HOST:PORT; a host that
 * means every interface is told as this machine's name. RESOURCE_EXHAUSTED, INTERNAL. A Redis that
 * does not answer is no error. */
MR_MUST_USE mr_status mr_sharing_create(mr_runtime *runtime, const char *listen, int port,
                                        mr_sharing **out, mr_error *err);
/* After the last ticket of its limiter is finished. */
void mr_sharing_destroy(mr_sharing *sharing);

mr_rate_limiter *mr_sharing_limiter(mr_sharing *sharing);
mr_metadata_store *mr_sharing_store(mr_sharing *sharing);
/* Any thread. */
void mr_sharing_stats_get(mr_sharing *sharing, mr_sharing_stats *out);

#endif
