/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine: one thread that plans, runs and publishes step after step, and sleeps when there is
 * nothing to do. Everything below is callable from any thread unless it says otherwise.
 */
#ifndef MILLRACE_SCHEDULER_ENGINE_H
#define MILLRACE_SCHEDULER_ENGINE_H

#include "base/clock.h"
#include "base/event.h"
#include "base/status.h"
#include "kernels/backend.h"
#include "scheduler/request.h"
#include "scheduler/scheduler.h"

typedef struct mr_engine mr_engine;

typedef struct mr_engine_options {
    mr_scheduler_options scheduler;
    uint32_t block_size;
    uint32_t n_blocks; /* block 0 included; as the executor was compiled */
    bool prefix_caching;
    uint32_t prefix_events; /* capacity of mr_engine_prefix_events(); 0: none */
    uint64_t host_memory;   /* bytes of the host tier; 0: none */
    uint64_t block_bytes;   /* mr_kv_block_bytes(); with a host tier only */
    bool asynchronous;      /* as mr_backend_info has it; with a host tier only */
    bool takes_two;         /* as mr_backend_info has it */
    mr_event *failed;       /* set, once stats say so too, when the device failed; NULL: none */
    mr_clock clock;
} mr_engine_options;

/* Borrows `exec` until destroy; it must have been compiled for these options. Starts the thread.
 * Gives the engine. Errors of the host tier are those of mr_host_tier_create(). */
MR_MUST_USE mr_status mr_engine_create(const mr_engine_options *options, mr_exec *exec,
                                       mr_engine **out, mr_error *err);

/* Takes a reference of its own. UNAVAILABLE while stopping or failed; then nothing is published.
 * Every other refusal arrives as the request's last event. */
MR_MUST_USE mr_status mr_engine_submit(mr_engine *engine, mr_request *request, mr_error *err);

/* Ends the request with CANCELLED at the next step; idempotent, harmless after its end. */
void mr_engine_cancel(mr_engine *engine, mr_request *request);

/* Forgets every cached block before the next step, and before any request that is submitted after
 * the call; roots of this generation, or of a higher one asked for before, count from then on. What
 * runs goes on. Gives the number of blocks that were known at the end of the last step. */
uint32_t mr_engine_reset_prefix_cache(mr_engine *engine, uint32_t generation);
/* What is registered and forgotten (cache/prefix_index.h), for one consumer at a time, until
 * destroy; NULL when none was asked for. */
mr_ring *mr_engine_prefix_events(mr_engine *engine);

/* Ends everything as CANCELLED, joins the thread. Not from a sink. */
void mr_engine_destroy(mr_engine *engine);

typedef struct mr_engine_stats {
    mr_scheduler_stats scheduler; /* as of the end of the last step; what was submitted since
                                     counts as started and waiting */
    uint64_t last_step_ns;        /* clock; 0: none yet */
    uint64_t step_started_ns;     /* clock; of the step that is running now, 0: none is */
    uint64_t step_ns;             /* spent in steps since start, the running one up to now */
    bool failed;                  /* the device failed: nothing is taken any more */
    bool busy;                    /* a step is running or there is work */
    uint64_t pending_ns; /* for how long the engine's thread has been in one step, or has not
                            taken in a request that waits for it; 0: neither */
} mr_engine_stats;

void mr_engine_stats_get(mr_engine *engine, mr_engine_stats *out);

#endif
