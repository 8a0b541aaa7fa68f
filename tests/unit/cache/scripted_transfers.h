/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers of KV blocks as a script says: at once, late, never, or failing. A device as unpleasant
 * as the contract allows: it reads and writes at the very end, and until then what it will write
 * holds rubbish. So a block that is used too early, or given away too soon, shows.
 */
#ifndef MILLRACE_TESTS_CACHE_SCRIPTED_TRANSFERS_H
#define MILLRACE_TESTS_CACHE_SCRIPTED_TRANSFERS_H

#include "kernels/backend.h"

#define SCRIPTED_NEVER     UINT32_MAX
#define SCRIPTED_TRANSFERS 64
#define SCRIPTED_BLOCKS    64
#define SCRIPTED_BYTES     256 /* of a block, at most */

typedef struct scripted_transfer {
    uint64_t ticket; /* 0: free */
    mr_transfer_direction direction;
    uint32_t count;
    uint32_t blocks[SCRIPTED_BLOCKS];
    uint8_t *host[SCRIPTED_BLOCKS];
    uint32_t polls; /* that still say that it runs */
    bool fails;
    bool unstoppable; /* cancel was refused */
} scripted_transfer;

typedef struct scripted_transfers {
    size_t block_bytes;
    void (*read)(void *ctx, uint32_t block, uint8_t *out);
    void (*write)(void *ctx, uint32_t block, const uint8_t *in);
    void *ctx;

    /* Of the transfers to come. */
    uint32_t polls; /* that say that it runs; 0: over when it starts; SCRIPTED_NEVER */
    bool start_fails;
    bool fails;
    bool cannot_stop; /* cancel says so */

    scripted_transfer list[SCRIPTED_TRANSFERS];
    uint64_t n_started;
    uint32_t n_unfinished;
    uint32_t n_allocated; /* host_alloc not freed */
} scripted_transfers;

void *scripted_host_alloc(scripted_transfers *t, uint64_t bytes);
void scripted_host_free(scripted_transfers *t, void *memory);
mr_status scripted_transfer_start(scripted_transfers *t, const mr_transfer *transfer,
                                  uint64_t *ticket, mr_error *err);
mr_transfer_state scripted_transfer_poll(scripted_transfers *t, uint64_t ticket);
bool scripted_transfer_cancel(scripted_transfers *t, uint64_t ticket);

/* Those that run end at the next poll, as they were meant to. */
void scripted_transfers_hurry(scripted_transfers *t);

#endif
