/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The backend interface: what a device must offer. kernels/cpu and kernels/cuda implement it, and
 * tests implement it with a script. Everything above calls through these tables only.
 *
 *   backend ──upload(plan)──► weights ──compile(plan, weights, options)──► exec
 *   exec: submit(batch) … wait(output), steps in order, one thread at a time
 */
#ifndef MILLRACE_KERNELS_BACKEND_H
#define MILLRACE_KERNELS_BACKEND_H

#include "base/status.h"
#include "kernels/batch.h"
#include "kernels/dtype.h"
#include "kernels/kv_layout.h"
#include "kernels/plan.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct mr_backend mr_backend;
typedef struct mr_weights mr_weights;
typedef struct mr_exec mr_exec;

typedef struct mr_backend_info {
    char name[32];     /* "cpu-avx512vnni", "cpu-reference" */
    char numerics[64]; /* names everything that changes bits: ISA path, compute mode, revision */
    uint32_t threads;  /* CPU threads in use; 0 on a device */
    uint64_t memory_bytes; /* memory it may take */
    bool asynchronous;     /* submit() returns before the step is done */
    bool takes_two;        /* submit() takes a step while the one before it is not waited for,
                              unless logits are kept */
} mr_backend_info;

/* Called now and then during long work: `done` of `total` bytes. Any thread of the backend. */
typedef void (*mr_progress_fn)(void *ctx, uint64_t done, uint64_t total);

typedef struct mr_exec_options {
    uint32_t max_tokens;  /* T of a step */
    uint32_t max_seqs;    /* B, and resident slots 0 … max_seqs − 1 */
    uint32_t max_rows;    /* R of a step */
    uint32_t max_context; /* positions a sequence may have */
    uint32_t block_size;  /* tokens a KV block */
    uint32_t n_blocks;    /* blocks of the pool, block 0 included */
    mr_dtype kv_dtype;    /* F32, F16, BF16, F8_E4M3 or I8: kv_layout.h */
    bool keep_logits;     /* step outputs carry [R][V] logits */
} mr_exec_options;

typedef struct mr_exec_memory {
    uint64_t weights_bytes;
    uint64_t kv_bytes;
    uint64_t activation_bytes;
} mr_exec_memory;

/* Copies KV block `from` to `to` (copy on write). */
typedef struct mr_block_copy {
    uint32_t from;
    uint32_t to;
} mr_block_copy;

/* KV blocks between the device and host memory. */
typedef enum mr_transfer_direction {
    MR_TRANSFER_OUT, /* device → host */
    MR_TRANSFER_IN,  /* host → device */
} mr_transfer_direction;

typedef struct mr_transfer {
    mr_transfer_direction direction;
    uint32_t count;
    const uint32_t *blocks; /* [count] of the device */
    uint8_t *const *host;   /* [count] the bytes of each, mr_kv_block_bytes() in host_alloc()'s */
} mr_transfer;

typedef enum mr_transfer_state {
    MR_TRANSFER_RUNS,
    MR_TRANSFER_DONE,
    MR_TRANSFER_FAILED, /* what was to be written is void */
} mr_transfer_state;

/* Time spent since the executor was made, by kind of operator; for profiles. */
typedef struct mr_op_time {
    uint64_t ns;
    uint64_t bytes;      /* weights and KV to read, each once a step and sequence */
    uint64_t operations; /* multiply-adds × 2 */
    uint64_t calls;
} mr_op_time;

typedef struct mr_exec_times {
    uint64_t steps;
    mr_op_time by_kind[MR_OP_SAMPLE + 1];
} mr_exec_times;

/* What the device could do at best, measured on it; the yardstick of profiles. 0: not known. */
typedef struct mr_ceilings {
    double read_bytes_per_s; /* over a buffer of the size asked for */
    double int8_per_s;       /* multiply-adds of bytes × 2, from registers */
} mr_ceilings;

typedef struct mr_backend_vtable {
    void (*info)(const mr_backend *backend, mr_backend_info *out);

    /* Copies (and repacks) every weight of the plan into the backend's own layout; the plan's data
     * pointers are not used after it returns. Gives the weights. INVALID_ARGUMENT (plan),
     * UNIMPLEMENTED (a dtype it lacks, named), RESOURCE_EXHAUSTED (with what would fit). */
    mr_status (*upload)(mr_backend *backend, const mr_plan *plan, mr_progress_fn progress,
                        void *progress_ctx, mr_weights **out, mr_error *err);
    void (*weights_destroy)(mr_backend *backend, mr_weights *weights);

    /* Makes an executor: activations, the KV pool, block tables, and whatever it prepares for the
     * batch sizes in `options`. Borrows plan and weights until destroy. Gives the executor. */
    mr_status (*compile)(mr_backend *backend, const mr_plan *plan, const mr_weights *weights,
                         const mr_exec_options *options, mr_exec **out, mr_error *err);

    /* Measures, in some tenths of a second and with no step in flight, what reading a buffer of
     * `bytes` (at least 1) and multiplying bytes can reach. RESOURCE_EXHAUSTED: no such buffer. */
    mr_status (*ceilings)(mr_backend *backend, uint64_t bytes, mr_ceilings *out, mr_error *err);

    /* Bytes that the KV cache of an executor of `options` (its n_blocks is not read) could have
     * once the weights are there. NULL where compile() takes memory as it comes: a CPU. Errors as
     * compile(). */
    mr_status (*kv_room)(const mr_backend *backend, const mr_plan *plan,
                         const mr_exec_options *options, uint64_t *bytes, mr_error *err);

    /* Everything made from the backend must be gone before. */
    void (*destroy)(mr_backend *backend);
} mr_backend_vtable;

struct mr_backend {
    const mr_backend_vtable *vt;
};

typedef struct mr_exec_vtable {
    /* Starts the step. The batch is borrowed until the matching wait() returns. INVALID_ARGUMENT
     * when the batch breaks a limit of compile(); INTERNAL when the device failed, which is final
     * for this executor. */
    mr_status (*submit)(mr_exec *exec, const mr_batch *batch, mr_error *err);
    /* Blocks until the submitted step, the first of two, is done. `out` is valid until the next
     * submit(). */
    mr_status (*wait)(mr_exec *exec, mr_step_output *out, mr_error *err);
    /* Between steps only. */
    mr_status (*copy_blocks)(mr_exec *exec, const mr_block_copy *copies, size_t count,
                             mr_error *err);

    /* Transfers: all five, or all NULL where there is no host memory beside the device's. A
     * transfer comes after the steps and copies before it. Until it ends, what it reads must not be
     * written, and what it writes not be touched, by later steps either; `transfer` itself is read
     * before start returns. */
    void *(*host_alloc)(mr_exec *exec, uint64_t bytes); /* zeroed; NULL when memory is short */
    void (*host_free)(mr_exec *exec, void *memory, uint64_t bytes);
    /* Between steps. Gives the ticket; it may be over when this returns. */
    mr_status (*transfer_start)(mr_exec *exec, const mr_transfer *transfer, uint64_t *ticket,
                                mr_error *err);
    /* Without blocking, at any time. A ticket is void once it was told DONE or FAILED. */
    mr_transfer_state (*transfer_poll)(mr_exec *exec, uint64_t ticket);
    /* True: the transfer is over, nothing will be read or written for it any more, the ticket is
     * void. False: it cannot be stopped and is still to be polled. */
    bool (*transfer_cancel)(mr_exec *exec, uint64_t ticket);

    void (*memory)(const mr_exec *exec, mr_exec_memory *out);
    void (*times)(const mr_exec *exec, mr_exec_times *out);
    void (*destroy)(mr_exec *exec);
} mr_exec_vtable;

struct mr_exec {
    const mr_exec_vtable *vt;
};

static inline mr_status mr_exec_run(mr_exec *exec, const mr_batch *batch, mr_step_output *out,
                                    mr_error *err)
{
    MR_TRY(exec->vt->submit(exec, batch, err));
    return exec->vt->wait(exec, out, err);
}

/* For backends: what holds for the options of every executor of a plan, the number of blocks apart,
 * which kv_room() does not know yet. INVALID_ARGUMENT names the limit. */
MR_MUST_USE mr_status mr_exec_options_check(const mr_plan *plan, const mr_exec_options *options,
                                            mr_error *err);
MR_MUST_USE mr_status mr_exec_options_check_blocks(const mr_exec_options *options, mr_error *err);

/* Bytes of one KV block over all layers, keys and values; UINT64_MAX when that does not fit. */
uint64_t mr_kv_block_bytes(const mr_plan_kv *kv, mr_dtype kv_dtype, uint32_t block_size);

#endif
