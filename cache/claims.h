/* SPDX-License-Identifier: Apache-2.0 */
/* From the prefix index to the metadata store: what was added is claimed, what was removed is
 * withdrawn, a reset outdates everything. */
#ifndef MILLRACE_CACHE_CLAIMS_H
#define MILLRACE_CACHE_CLAIMS_H

#include "base/ring.h"
#include "cache/metadata_store.h"

#include <stdbool.h>
#include <stdint.h>

/* The ring's consumer. `epoch` is the index's, as of the last event: that another one began shows
 * in every event, so that a reset is seen also where its own event was lost. */
typedef struct mr_claims {
    mr_ring *events;          /* borrows; of mr_prefix_event */
    mr_metadata_store *store; /* borrows */
    uint64_t epoch;
    bool begun; /* there was an event */
} mr_claims;

/* Takes all events that wait. Returns how many there were. One thread at a time. */
uint32_t mr_claims_forward(mr_claims *claims);

#endif
