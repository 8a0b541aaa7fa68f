/* SPDX-License-Identifier: Apache-2.0 */
/* What rate_limiter.c (decisions) and rate_leases.c (what Redis is told afterwards) share. */
#ifndef MILLRACE_CACHE_RATE_LIMITER_INTERNAL_H
#define MILLRACE_CACHE_RATE_LIMITER_INTERNAL_H

#include "base/flag.h"
#include "cache/rate_limiter.h"
#include "cache/token_bucket.h"

#include <pthread.h>

/* Names come from configurations, never from clients; those of earlier ones are forgotten. */
#define MR_RATE_MAX_TENANTS    1024u
#define MR_RATE_MAX_OLD_LEASES 1024u

typedef struct mr_tenant_state {
    char name[MR_RATE_TENANT_MAX];
    mr_rate_limits limits; /* of the latest that was asked for: they change */
    mr_token_bucket requests;
    mr_token_bucket tokens;
    uint32_t running;
} mr_tenant_state;

/* A lease that is over and could not be ended in Redis. */
typedef struct mr_old_lease {
    char tenant[MR_RATE_TENANT_MAX];
    char lease[MR_RATE_LEASE_MAX];
} mr_old_lease;

struct mr_rate_limiter {
    mr_rate_options options;
    pthread_mutex_t mutex;    /* of these */
    mr_tenant_state *tenants; /* owns, [MR_RATE_MAX_TENANTS], n_tenants in use */
    uint32_t n_tenants;
    mr_rate_ticket *leases;   /* list of tickets that hold one in Redis */
    mr_old_lease *old_leases; /* owns, [MR_RATE_MAX_OLD_LEASES], n_old in use */
    uint32_t n_old;

    uint64_t renew_due_ns; /* the link's thread's */
    mr_counter decisions[MR_RATE_MODES];
    mr_counter refusals[MR_RATE_LIMITS];
};

/* A lease is kept in Redis also for what was granted without it: it counts once Redis is back. */
bool mr_rate_leases_in_redis(const mr_rate_ticket *ticket);

/* These do not wait, and need the mutex to be free. Where Redis does not take it now, or does not
 * say that it has, the lease is ended once Redis is back; a refund is lost. */
void mr_rate_release_lease(const mr_rate_ticket *ticket);
void mr_rate_refund_tokens(const mr_rate_ticket *ticket, const mr_rate_limits *limits,
                           uint64_t tokens);

/* The limiter's work on the link's thread; see mr_redis_hook. */
uint64_t mr_rate_tick(void *ctx, uint64_t now_ns, bool fresh);

#endif
