/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where prefix caching begins: the roots of requests, from what this replica serves and who asks.
 *
 *   generation 0   a random number stands for the model: good for this process, from READY on
 *   generation 1   the model's digest, once a thread of its own has read all weights: replicas that
 *                  serve the same model with the same secret have the same roots
 *
 * The change drops what was cached until then (docs/decisions/0005). Roots are made on any thread.
 */
#ifndef MILLRACE_SERVICE_PREFIX_IDENTITY_H
#define MILLRACE_SERVICE_PREFIX_IDENTITY_H

#include "base/buffer.h"
#include "base/status.h"
#include "cache/prefix_hash.h"
#include "kernels/backend.h"
#include "model/model.h"
#include "scheduler/engine.h"
#include "service/config.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of a client's salt. */
#define MR_MAX_CACHE_SALT 256u

typedef struct mr_prefix_identity mr_prefix_identity;

/* All borrowed until destroy but for the plan. */
typedef struct mr_prefix_identity_options {
    const mr_config *config; /* finished */
    const mr_model *model;
    const mr_plan *plan;
    const mr_backend_info *backend;
    mr_engine *engine;
} mr_prefix_identity_options;

/* RESOURCE_EXHAUSTED, INTERNAL (no random bytes). Gives the identity, in generation 0. */
MR_MUST_USE mr_status mr_prefix_identity_create(const mr_prefix_identity_options *options,
                                                mr_prefix_identity **out, mr_error *err);
/* Ends the thread, if it runs. */
void mr_prefix_identity_destroy(mr_prefix_identity *p);

/* Starts the thread that reads the weights, once; logs what it found. */
void mr_prefix_identity_start(mr_prefix_identity *p);

/* Whose request it is, and what about it its keys depend on. All borrowed. */
typedef struct mr_prefix_asker {
    const char *tenant;    /* not empty */
    const mr_buffer *salt; /* of the client; empty: none */
    uint32_t n_prompt;     /* tokens: the frequencies of some RoPE tables follow it */
} mr_prefix_asker;

/* The root for a request. Any thread. */
void mr_prefix_identity_root(mr_prefix_identity *p, const mr_prefix_asker *asker,
                             mr_prefix_root *out);

/* What decides the bits of K/V besides model and prompt: two replicas with the same text can use
 * each other's blocks. Pure. */
void mr_prefix_identity_numerics(const mr_backend_info *backend, const mr_config *config, char *out,
                                 size_t bytes);

/* True when other replicas can come to have the same roots: the secret was given. */
bool mr_prefix_identity_shareable(const mr_prefix_identity *p);
/* 0 or 1. */
uint32_t mr_prefix_identity_generation(mr_prefix_identity *p);

#endif
