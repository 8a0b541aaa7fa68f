/* SPDX-License-Identifier: Apache-2.0 */
/* The running requests by tenant and id: no two of a tenant are alike. Tenants are told apart by
 * their names, since one may have the index of another that is gone, whose requests still run. Any
 * thread. */
#ifndef MILLRACE_SERVICE_ID_REGISTRY_H
#define MILLRACE_SERVICE_ID_REGISTRY_H

#include "base/event.h"
#include "base/status.h"
#include "scheduler/request.h"

#include <pthread.h>
#include <stdbool.h>

/* Part of what is registered. Zero-initialised is valid: not registered. */
typedef struct mr_id_claim {
    mr_request *request; /* borrows until dropped; NULL: not registered */
    const char *tenant;  /* borrows until dropped */
    struct mr_id_claim *prev;
    struct mr_id_claim *next;
} mr_id_claim;

typedef struct mr_id_registry {
    pthread_mutex_t mutex;
    mr_id_claim *first;
    mr_event *emptied; /* borrows; set when the last claim is dropped */
} mr_id_registry;

void mr_id_registry_init(mr_id_registry *registry, mr_event *emptied);
void mr_id_registry_deinit(mr_id_registry *registry);
/* ALREADY_EXISTS, naming request_id, while another claim holds the id for the tenant. */
MR_MUST_USE mr_status mr_id_registry_claim(mr_id_registry *registry, mr_id_claim *claim,
                                           const char *tenant, mr_request *request, mr_error *err);
/* The tenant's request with this id, NULL if there is none. Gives a reference. */
mr_request *mr_id_registry_find(mr_id_registry *registry, const char *tenant, const char *id);
bool mr_id_registry_is_empty(mr_id_registry *registry);
/* Idempotent. */
void mr_id_registry_drop(mr_id_registry *registry, mr_id_claim *claim);

#endif
