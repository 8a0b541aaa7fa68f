/* SPDX-License-Identifier: Apache-2.0 */
/* The ids of running requests: no two alike. Any thread. */
#ifndef MILLRACE_SERVICE_ID_REGISTRY_H
#define MILLRACE_SERVICE_ID_REGISTRY_H

#include "base/status.h"

#include <pthread.h>
#include <stdbool.h>

/* Part of what is registered. Zero-initialised is valid: not registered. */
typedef struct mr_id_claim {
    const char *id; /* borrows until dropped; NULL: not registered */
    struct mr_id_claim *prev;
    struct mr_id_claim *next;
} mr_id_claim;

typedef struct mr_id_registry {
    pthread_mutex_t mutex;
    mr_id_claim *first;
} mr_id_registry;

void mr_id_registry_init(mr_id_registry *registry);
void mr_id_registry_deinit(mr_id_registry *registry);
/* ALREADY_EXISTS, naming request_id, while another claim holds the id. */
MR_MUST_USE mr_status mr_id_registry_claim(mr_id_registry *registry, mr_id_claim *claim,
                                           const char *id, mr_error *err);
/* Idempotent. */
void mr_id_registry_drop(mr_id_registry *registry, mr_id_claim *claim);

#endif
