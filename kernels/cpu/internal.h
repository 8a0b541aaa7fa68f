/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of kernels/cpu share: weights, executor and the table of a code path.
 *
 *   backend ── path ──► one table: weight layout, scratch, a function for each kind of operator
 *                       reference (compute=f32) | portable | AVX2 | AVX-512 VNNI
 *   step.c walks the plan as one job of the thread pool. Every thread calls every operator, takes
 *   its share of the work, and meets the others at a barrier after it.
 *
 * Determinism: an output element is computed whole by one thread, in an order that depends on the
 * length of its own reduction only. So neither thread count nor batch composition changes a bit.
 */
#ifndef MILLRACE_KERNELS_CPU_INTERNAL_H
#define MILLRACE_KERNELS_CPU_INTERNAL_H

#include "base/thread_pool.h"
#include "kernels/backend.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/sample.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct mr_cpu_exec mr_cpu_exec;
typedef struct mr_cpu_path mr_cpu_path;

/* What a plan uses a weight for; a tied embedding is EMBED | LINEAR. */
enum {
    MR_CPU_USE_VECTOR = 1, /* norm gains and biases: always kept as float[n · k] */
    MR_CPU_USE_EMBED = 2,  /* rows are looked up */
    MR_CPU_USE_LINEAR = 4, /* multiplied with */
};

/* One weight as the path stores it. */
typedef struct mr_cpu_weight {
    mr_dtype dtype;  /* of the plan's weight; F32 for vectors */
    uint32_t n;      /* rows: outputs */
    uint32_t k;      /* columns: inputs */
    uint32_t uses;   /* MR_CPU_USE_… */
    uint32_t layout; /* private to the path */
    void *data;      /* `bytes` in the slab, aligned to 64, zeroed before weight_pack */
    uint64_t bytes;
} mr_cpu_weight;

typedef struct mr_cpu_weights {
    const mr_cpu_path *path;
    mr_cpu_weight *items; /* [count], by mr_weight_id */
    uint32_t count;
    uint64_t bytes; /* all items, each rounded up to 64 */
    uint8_t *slab;  /* [bytes] of pages, owns: one piece, so that huge pages can back it */
} mr_cpu_weights;

/* Sine and cosine of a rope table for every position, attention_factor included. */
typedef struct mr_cpu_rope {
    float *cos; /* [max_context][dims / 2], owns */
    float *sin; /* [max_context][dims / 2], owns */
} mr_cpu_rope;

struct mr_cpu_exec {
    mr_exec base;
    const mr_plan *plan;           /* borrowed until destroy */
    const mr_cpu_weights *weights; /* borrowed until destroy */
    const mr_cpu_path *path;
    mr_exec_options options;
    mr_thread_pool *pool; /* the backend's */
    uint32_t threads;

    float **buffers;    /* [plan->n_buffers] → [max_tokens or max_rows][width], aligned to 64 */
    mr_cpu_rope *ropes; /* [plan->n_ropes] */

    /* KV pool: [layer][key, value][block][kv head][offset in block][D] of kv_dtype, so that the
     * positions of one head in one block are contiguous. A path may order that last piece its own
     * way: the fast one keeps keys transposed, [D][offset in block]. */
    uint8_t *kv;
    uint64_t kv_bytes;
    uint64_t kv_plane_bytes; /* keys, or values, of one layer */
    uint64_t kv_block_bytes; /* one block of a plane */
    uint64_t kv_head_bytes;  /* one head of that */
    uint64_t kv_row_bytes;   /* D elements */

    uint32_t *block_tables; /* [group][slot][max_blocks] */
    uint32_t max_blocks;    /* ⌈max_context / block_size⌉ */
    uint32_t *history;      /* [slot][max_context] */

    /* This step. */
    const mr_batch *batch; /* NULL between steps */
    bool pending;          /* submitted, not yet waited for */
    uint32_t *tokens;      /* [T] resolved ids */
    uint32_t *token_seq;   /* [T] which sequence of the batch */

    /* Results of the last step; `drawn` is what ~r names in the next. */
    uint64_t step;
    uint32_t n_drawn;
    uint32_t *drawn;     /* [R] */
    float *logprobs;     /* [R] */
    uint8_t *n_top;      /* [R] */
    mr_alternative *top; /* [R][MR_MAX_TOP] */
    uint8_t *corrupt;    /* [R] */
    float *logits;       /* [R][V] if options.keep_logits */

    mr_sampler **samplers; /* [threads] */
    uint8_t *scratch;      /* [threads][scratch_bytes], aligned to 64 */
    size_t scratch_bytes;
    void *path_state;          /* made by path->exec_init, freed by path->exec_deinit */
    uint64_t activation_bytes; /* everything but weights and KV; exec_init adds its own */
    mr_exec_times times;
};

/* The share of `thread` of one operator. A function that needs phases calls
 * mr_thread_pool_barrier(exec->pool) between them, on every thread. */
typedef void (*mr_cpu_op_fn)(mr_cpu_exec *exec, const mr_op *op, const mr_batch *batch,
                             uint32_t thread, uint32_t threads);

struct mr_cpu_path {
    const char *name;     /* "reference", "portable", "avx2", "avx512vnni"; info: "cpu-<name>" */
    const char *numerics; /* all that changes bits, revision included: "cpu-reference/f32/1" */

    /* Sets to->layout and to->bytes for a weight whose dtype, n, k and uses are set (never for
     * pure vectors). UNIMPLEMENTED for a dtype the path lacks, naming weight and dtype. */
    mr_status (*weight_layout)(const mr_plan_weight *from, mr_cpu_weight *to, mr_error *err);
    /* The share of `thread` of filling to->data. */
    void (*weight_pack)(const mr_plan_weight *from, mr_cpu_weight *to, uint32_t thread,
                        uint32_t threads);

    /* Bytes of scratch each thread wants in a step; see mr_cpu_scratch. */
    size_t (*scratch_bytes)(const mr_cpu_exec *exec);
    /* Makes and frees exec->path_state; both NULL if there is none. Options, plan, weights and
     * threads of `exec` are set. deinit must accept what a failed init leaves. */
    mr_status (*exec_init)(mr_cpu_exec *exec, mr_error *err);
    void (*exec_deinit)(mr_cpu_exec *exec);

    mr_cpu_op_fn ops[MR_OP_SAMPLE + 1]; /* NULL: nothing to do (all_reduce) */
};

extern const mr_cpu_path mr_cpu_path_reference;

/* The path of an ISA (not AUTO) if this build has it, else NULL; whether the CPU can run it is
 * the caller's question. In fast_path.c. */
const mr_cpu_path *mr_cpu_fast_path(mr_cpu_isa isa);

/* Operators of the reference that other paths may put into their tables as they are. */
void mr_cpu_ref_embed(mr_cpu_exec *exec, const mr_op *op, const mr_batch *batch, uint32_t thread,
                      uint32_t threads); /* needs the reference's layout of the table */
void mr_cpu_ref_norm(mr_cpu_exec *exec, const mr_op *op, const mr_batch *batch, uint32_t thread,
                     uint32_t threads);
void mr_cpu_ref_rope_kv(mr_cpu_exec *exec, const mr_op *op, const mr_batch *batch, uint32_t thread,
                        uint32_t threads);
void mr_cpu_ref_attention(mr_cpu_exec *exec, const mr_op *op, const mr_batch *batch,
                          uint32_t thread, uint32_t threads); /* scratch: mr_cpu_ref_scratch */
void mr_cpu_ref_gated(mr_cpu_exec *exec, const mr_op *op, const mr_batch *batch, uint32_t thread,
                      uint32_t threads);
void mr_cpu_ref_gather(mr_cpu_exec *exec, const mr_op *op, const mr_batch *batch, uint32_t thread,
                       uint32_t threads);
/* Samples the rows of op->unary.in (overwritten) into the results of the executor. */
void mr_cpu_op_sample(mr_cpu_exec *exec, const mr_op *op, const mr_batch *batch, uint32_t thread,
                      uint32_t threads);
/* Scratch bytes a thread that the reference's operators want. */
size_t mr_cpu_ref_scratch(const mr_cpu_exec *exec);

/* weights.c. Lays out and packs every weight of a checked plan on the pool's threads. */
MR_MUST_USE mr_status mr_cpu_weights_create(const mr_cpu_path *path, mr_thread_pool *pool,
                                            const mr_plan *plan, mr_progress_fn progress,
                                            void *progress_ctx, mr_cpu_weights **out,
                                            mr_error *err);
void mr_cpu_weights_destroy(mr_cpu_weights *weights);

/* exec.c. Gives the executor; borrows pool, plan and weights. */
MR_MUST_USE mr_status mr_cpu_exec_create(mr_thread_pool *pool, const mr_plan *plan,
                                         const mr_cpu_weights *weights,
                                         const mr_exec_options *options, mr_exec **out,
                                         mr_error *err);
/* step.c: submit and wait of the executor's table. */
MR_MUST_USE mr_status mr_cpu_step_submit(mr_exec *base, const mr_batch *batch, mr_error *err);
MR_MUST_USE mr_status mr_cpu_step_wait(mr_exec *base, mr_step_output *out, mr_error *err);
/* Rows a buffer of this row space has in the step. */
static inline uint32_t mr_cpu_rows(const mr_plan *plan, mr_buffer_id id, const mr_batch *batch)
{
    return plan->buffers[id].rows == MR_ROWS_TOKENS ? batch->n_tokens : batch->n_rows;
}

static inline float *mr_cpu_row(const mr_cpu_exec *exec, mr_buffer_id id, uint32_t row)
{
    return exec->buffers[id] + (size_t)row * exec->plan->buffers[id].width;
}

static inline void *mr_cpu_scratch(const mr_cpu_exec *exec, uint32_t thread)
{
    return exec->scratch + thread * exec->scratch_bytes;
}

/* A vector weight (gain, bias); NULL for MR_NO_WEIGHT. */
static inline const float *mr_cpu_vector(const mr_cpu_exec *exec, mr_weight_id id)
{
    return id == MR_NO_WEIGHT ? NULL : (const float *)exec->weights->items[id].data;
}

/* Start of the block_size · D keys (value = 0) or values (value = 1) of one head in one block;
 * their order is the path's. */
static inline uint8_t *mr_cpu_kv(const mr_cpu_exec *exec, uint32_t layer, uint32_t value,
                                 uint32_t block, uint32_t head)
{
    return exec->kv + (2 * (uint64_t)layer + value) * exec->kv_plane_bytes +
           block * exec->kv_block_bytes + head * exec->kv_head_bytes;
}

/* The resident block table [max_blocks] of a KV layer for one sequence of the batch. */
static inline const uint32_t *mr_cpu_block_table(const mr_cpu_exec *exec, uint32_t layer,
                                                 uint32_t seq)
{
    uint32_t group = exec->plan->kv.group_of[layer];
    uint64_t slot = (uint64_t)group * exec->options.max_seqs + exec->batch->seq_slot[seq];
    return exec->block_tables + slot * exec->max_blocks;
}

#endif
