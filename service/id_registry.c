/* SPDX-License-Identifier: Apache-2.0 */
#include "service/id_registry.h"

#include <string.h>

void mr_id_registry_init(mr_id_registry *registry, mr_event *emptied)
{
    pthread_mutex_init(&registry->mutex, NULL);
    registry->emptied = emptied;
    registry->first = NULL;
}

void mr_id_registry_deinit(mr_id_registry *registry)
{
    pthread_mutex_destroy(&registry->mutex);
}

/* Under the mutex. */
static mr_request *find(const mr_id_registry *registry, const char *tenant, const char *id)
{
    for (const mr_id_claim *claim = registry->first; claim != NULL; claim = claim->next) {
        if (strcmp(claim->tenant, tenant) == 0 && strcmp(claim->request->id, id) == 0) {
            return claim->request;
        }
    }
    return NULL;
}

mr_status mr_id_registry_claim(mr_id_registry *registry, mr_id_claim *claim, const char *tenant,
                               mr_request *request, mr_error *err)
{
    pthread_mutex_lock(&registry->mutex);
    const bool taken = find(registry, tenant, request->id) != NULL;
    if (!taken) {
        *claim = (mr_id_claim){.request = request, .tenant = tenant, .next = registry->first};
        if (registry->first != NULL) {
            registry->first->prev = claim;
        }
        registry->first = claim;
    }
    pthread_mutex_unlock(&registry->mutex);
    if (taken) {
        return mr_fail_field(err, MR_ALREADY_EXISTS, "request_id",
                             "request_id: a request with the id \"%s\" is running; choose another, "
                             "or leave it out to be given one",
                             request->id);
    }
    return MR_OK;
}

mr_request *mr_id_registry_find(mr_id_registry *registry, const char *tenant, const char *id)
{
    pthread_mutex_lock(&registry->mutex);
    mr_request *request = find(registry, tenant, id);
    if (request != NULL) {
        mr_request_ref(request);
    }
    pthread_mutex_unlock(&registry->mutex);
    return request;
}

bool mr_id_registry_is_empty(mr_id_registry *registry)
{
    pthread_mutex_lock(&registry->mutex);
    const bool empty = registry->first == NULL;
    pthread_mutex_unlock(&registry->mutex);
    return empty;
}

void mr_id_registry_drop(mr_id_registry *registry, mr_id_claim *claim)
{
    if (claim->request == NULL) {
        return;
    }
    pthread_mutex_lock(&registry->mutex);
    if (claim->prev != NULL) {
        claim->prev->next = claim->next;
    } else {
        registry->first = claim->next;
    }
    if (claim->next != NULL) {
        claim->next->prev = claim->prev;
    }
    if (registry->first == NULL) {
        mr_event_set(registry->emptied);
    }
    pthread_mutex_unlock(&registry->mutex);
    *claim = (mr_id_claim){0};
}
