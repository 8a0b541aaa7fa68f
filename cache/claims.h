/* SPDX-License-Identifier: Apache-2.0 */
/* From the prefix index to the metadata store: what was added is claimed, what was removed is
 * withdrawn, a reset outdates everything. */
#ifndef MILLRACE_CACHE_CLAIMS_H
#define MILLRACE_CACHE_CLAIMS_H

#include "base/ring.h"
#include "cache/metadata_store.h"

#include <stdint.h>

/* Takes all events (mr_prefix_event) that wait. Returns how many there were. The consumer's thread
 * of the ring, one at a time. */
uint32_t mr_claims_forward(mr_ring *events, mr_metadata_store *store);

#endif
