/* SPDX-License-Identifier: Apache-2.0 */
/* KV blocks to and from host memory, which on a CPU is memory like that of the pool: a copy on all
 * threads, done before start returns. A block lies there plane by plane. */
#include "kernels/cpu/internal.h"

#include "base/pages.h"

#include <string.h>

typedef struct job {
    const mr_cpu_exec *exec;
    const mr_transfer *transfer;
} job;

static uint64_t n_planes(const mr_cpu_exec *exec)
{
    return 2 * (uint64_t)exec->plan->kv.layers;
}

static void copy_share(void *ctx, uint32_t thread, uint32_t threads)
{
    const job *j = ctx;
    const mr_cpu_exec *exec = j->exec;
    const uint64_t bytes = exec->kv_layout.block;
    const uint64_t planes = n_planes(exec);
    uint64_t begin;
    uint64_t end;
    mr_share(j->transfer->count * planes, 1, thread, threads, &begin, &end);
    for (uint64_t i = begin; i < end; i++) {
        const uint64_t plane = i % planes;
        uint8_t *host = j->transfer->host[i / planes] + plane * bytes;
        uint8_t *block =
            exec->kv + plane * exec->kv_plane_bytes + j->transfer->blocks[i / planes] * bytes;
        if (j->transfer->direction == MR_TRANSFER_OUT) {
            memcpy(host, block, bytes);
        } else {
            memcpy(block, host, bytes);
        }
    }
}

void *mr_cpu_host_alloc(mr_exec *base, uint64_t bytes)
{
    (void)base;
    return bytes > PTRDIFF_MAX ? NULL : mr_pages_alloc(bytes);
}

void mr_cpu_host_free(mr_exec *base, void *memory, uint64_t bytes)
{
    (void)base;
    mr_pages_free(memory, bytes);
}

mr_status mr_cpu_transfer_start(mr_exec *base, const mr_transfer *transfer, uint64_t *ticket,
                                mr_error *err)
{
    const mr_cpu_exec *exec = (const mr_cpu_exec *)base;
    for (uint32_t i = 0; i < transfer->count; i++) {
        if (transfer->blocks[i] == MR_NULL_BLOCK || transfer->blocks[i] >= exec->options.n_blocks) {
            return mr_fail(err, MR_INVALID_ARGUMENT,
                           "block transfer %u: block %u; there are blocks 1 to %u", i,
                           transfer->blocks[i], exec->options.n_blocks - 1);
        }
    }
    job j = {.exec = exec, .transfer = transfer};
    mr_thread_pool_run(exec->pool, copy_share, &j);
    *ticket = 0;
    return MR_OK;
}

mr_transfer_state mr_cpu_transfer_poll(mr_exec *base, uint64_t ticket)
{
    (void)base;
    (void)ticket;
    return MR_TRANSFER_DONE;
}

bool mr_cpu_transfer_cancel(mr_exec *base, uint64_t ticket)
{
    (void)base;
    (void)ticket;
    return true;
}
