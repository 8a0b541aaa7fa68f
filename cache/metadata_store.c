/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/metadata_store.h"

#include "base/random.h"

void mr_metadata_store_destroy(mr_metadata_store *store)
{
    if (store != NULL) {
        store->vt->destroy(store);
    }
}

void mr_metadata_store_publish(mr_metadata_store *store, const uint8_t *hashes, uint32_t n)
{
    store->vt->publish(store, hashes, n);
}

void mr_metadata_store_withdraw(mr_metadata_store *store, const uint8_t *hashes, uint32_t n)
{
    store->vt->withdraw(store, hashes, n);
}

void mr_metadata_store_reset(mr_metadata_store *store)
{
    store->vt->reset(store);
}

void mr_metadata_store_set_state(mr_metadata_store *store, const char *state)
{
    store->vt->set_state(store, state);
}

void mr_metadata_store_lookup(mr_metadata_store *store, mr_store_lookup *lookup)
{
    store->vt->lookup(store, lookup);
}

void mr_metadata_store_stats(mr_metadata_store *store, mr_store_stats *out)
{
    store->vt->stats(store, out);
}

mr_status mr_store_draw_epoch(uint64_t *out, mr_error *err)
{
    return mr_random_fill(out, sizeof(*out), "a replica's epoch", err);
}
