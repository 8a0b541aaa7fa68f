/* SPDX-License-Identifier: Apache-2.0 */
/*
 * KV blocks to and from pinned host memory, on a stream of their own beside the steps. A block lies
 * there plane by plane, as on the CPU backend; one call copies all its planes.
 *
 * Transfers are over in the order in which they were started. A ticket is its place in that order,
 * and the event of a ticket is used again once it is over.
 */
#include "kernels/cuda/internal.h"

#include "base/log.h"

#include <string.h>

void *mr_cuda_host_alloc(mr_exec *base, uint64_t bytes)
{
    const mr_cuda_backend *backend = ((mr_cuda_exec *)base)->backend;
    void *memory = NULL;
    if (bytes > PTRDIFF_MAX || backend->api->alloc_host(backend->context, bytes, &memory) != 0) {
        return NULL;
    }
    memset(memory, 0, bytes);
    return memory;
}

void mr_cuda_host_free(mr_exec *base, void *memory, uint64_t bytes)
{
    const mr_cuda_backend *backend = ((mr_cuda_exec *)base)->backend;
    (void)bytes;
    if (memory != NULL) {
        backend->api->release_host(backend->context, memory);
    }
}

static uint32_t event_of(uint64_t ticket)
{
    return (uint32_t)(ticket % MR_CUDA_TRANSFERS);
}

static mr_status check_transfer(mr_cuda_exec *exec, const mr_transfer *transfer, mr_error *err)
{
    for (uint32_t i = 0; i < transfer->count; i++) {
        if (transfer->blocks[i] == MR_NULL_BLOCK || transfer->blocks[i] >= exec->options.n_blocks) {
            return mr_fail(err, MR_INVALID_ARGUMENT,
                           "block transfer %u: block %u; there are blocks 1 to %u", i,
                           transfer->blocks[i], exec->options.n_blocks - 1);
        }
    }
    if (exec->backend->failed) {
        return mr_fail(err, MR_INTERNAL, "the GPU failed before; restart the server");
    }
    if (exec->transfers - exec->transferred == MR_CUDA_TRANSFERS &&
        mr_cuda_transfer_poll(&exec->base, exec->transferred + 1) == MR_TRANSFER_RUNS) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED,
                       "block transfer: %u are unfinished, and no more may be", MR_CUDA_TRANSFERS);
    }
    return MR_OK;
}

mr_status mr_cuda_transfer_start(mr_exec *base, const mr_transfer *transfer, uint64_t *ticket,
                                 mr_error *err)
{
    mr_cuda_exec *exec = (mr_cuda_exec *)base;
    const mr_cuda_api *api = exec->backend->api;
    mr_cuda_context *context = exec->backend->context;
    MR_TRY(check_transfer(exec, transfer, err));
    int code = api->transfer_begin(context);
    for (uint32_t i = 0; code == 0 && i < transfer->count; i++) {
        const mr_cuda_block_transfer move = {
            .kv = exec->kv,
            .host = transfer->host[i],
            .plane_bytes = exec->sizes.kv_plane_bytes,
            .bytes = exec->sizes.kv_block_bytes,
            .planes = 2 * exec->plan->kv.layers,
            .block = transfer->blocks[i],
            .to_host = transfer->direction == MR_TRANSFER_OUT,
        };
        code = api->transfer_block(context, &move);
    }
    code = code == 0 ? api->transfer_end(context, event_of(exec->transfers + 1)) : code;
    MR_TRY(mr_cuda_check(exec->backend, code, "copying KV blocks to or from host memory", err));
    *ticket = ++exec->transfers;
    return MR_OK;
}

mr_transfer_state mr_cuda_transfer_poll(mr_exec *base, uint64_t ticket)
{
    mr_cuda_exec *exec = (mr_cuda_exec *)base;
    mr_cuda_backend *backend = exec->backend;
    if (ticket <= exec->transferred) {
        return MR_TRANSFER_DONE;
    }
    bool over = false;
    mr_error err = {0};
    const int code = backend->api->transfer_is_over(backend->context, event_of(ticket), &over);
    if (mr_cuda_check(backend, code, "copying KV blocks", &err) != MR_OK) {
        char text[2 * MR_ERROR_MESSAGE_MAX];
        mr_log(MR_LOG_ERROR, "cuda", "a transfer failed: the next step will say so too", "error=%s",
               mr_log_quote(err.message, text, sizeof(text)));
        return MR_TRANSFER_FAILED;
    }
    exec->transferred = over ? ticket : exec->transferred;
    return over ? MR_TRANSFER_DONE : MR_TRANSFER_RUNS;
}

/* A copy that was queued cannot be stopped. */
bool mr_cuda_transfer_cancel(mr_exec *base, uint64_t ticket)
{
    return mr_cuda_transfer_poll(base, ticket) != MR_TRANSFER_RUNS;
}
