/* SPDX-License-Identifier: Apache-2.0 */
#include "scripted_transfers.h"

#include "base/checked.h"

#include <stdlib.h>
#include <string.h>

void *scripted_host_alloc(scripted_transfers *t, uint64_t bytes)
{
    void *memory = mr_calloc(bytes, 1);
    t->n_allocated += memory != NULL;
    return memory;
}

void scripted_host_free(scripted_transfers *t, void *memory)
{
    t->n_allocated -= memory != NULL;
    free(memory);
}

/* What is to be written holds rubbish, as it may while a transfer runs and after it failed. */
static void spoil(scripted_transfers *t, const scripted_transfer *one)
{
    uint8_t rubbish[SCRIPTED_BYTES];
    memset(rubbish, 0xa5, sizeof(rubbish));
    for (uint32_t i = 0; i < one->count; i++) {
        if (one->direction == MR_TRANSFER_OUT) {
            memcpy(one->host[i], rubbish, t->block_bytes);
        } else {
            t->write(t->ctx, one->blocks[i], rubbish);
        }
    }
}

static mr_transfer_state end(scripted_transfers *t, scripted_transfer *one)
{
    if (one->fails) {
        spoil(t, one);
    }
    for (uint32_t i = 0; !one->fails && i < one->count; i++) {
        if (one->direction == MR_TRANSFER_OUT) {
            t->read(t->ctx, one->blocks[i], one->host[i]);
        } else {
            t->write(t->ctx, one->blocks[i], one->host[i]);
        }
    }
    one->ticket = 0;
    t->n_unfinished--;
    return one->fails ? MR_TRANSFER_FAILED : MR_TRANSFER_DONE;
}

static scripted_transfer *find(scripted_transfers *t, uint64_t ticket)
{
    for (uint32_t i = 0; i < SCRIPTED_TRANSFERS; i++) {
        if (t->list[i].ticket == ticket) {
            return &t->list[i];
        }
    }
    return NULL;
}

mr_status scripted_transfer_start(scripted_transfers *t, const mr_transfer *transfer,
                                  uint64_t *ticket, mr_error *err)
{
    if (t->start_fails) {
        return mr_fail(err, MR_INTERNAL, "the script says that the transfer cannot be started");
    }
    scripted_transfer *one = find(t, 0);
    MR_CHECK(one != NULL && transfer->count <= SCRIPTED_BLOCKS);
    *one = (scripted_transfer){.ticket = ++t->n_started,
                               .direction = transfer->direction,
                               .count = transfer->count,
                               .polls = t->polls,
                               .fails = t->fails};
    memcpy(one->blocks, transfer->blocks, transfer->count * sizeof(*one->blocks));
    memcpy(one->host, transfer->host, transfer->count * sizeof(*one->host));
    t->n_unfinished++;
    spoil(t, one);
    *ticket = one->ticket;
    return MR_OK;
}

mr_transfer_state scripted_transfer_poll(scripted_transfers *t, uint64_t ticket)
{
    scripted_transfer *one = find(t, ticket);
    MR_CHECK(ticket != 0 && one != NULL); /* a void ticket is not to be asked for */
    if (one->polls == 0) {
        return end(t, one);
    }
    one->polls -= one->polls != SCRIPTED_NEVER;
    return MR_TRANSFER_RUNS;
}

bool scripted_transfer_cancel(scripted_transfers *t, uint64_t ticket)
{
    scripted_transfer *one = find(t, ticket);
    MR_CHECK(ticket != 0 && one != NULL);
    if (t->cannot_stop) {
        one->unstoppable = true;
        return false;
    }
    one->fails = true;
    (void)end(t, one);
    return true;
}

void scripted_transfers_hurry(scripted_transfers *t)
{
    for (uint32_t i = 0; i < SCRIPTED_TRANSFERS; i++) {
        t->list[i].polls = 0;
    }
}
