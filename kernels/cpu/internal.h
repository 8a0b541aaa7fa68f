/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of kernels/cpu share: weights, executor and the table of a code path.
 *
 *   backend ── path ──► one table: weight layout, scratch, a function for each kind of operator
 *                       reference (compute=f32) | portable | AVX2 | AVX-512 VNNI | AVX-512 BF16 |
 *                       AMX
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
#include "kernels/random_weight.h"
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

/* Where the rows of a weight come from: a model's memory, or made as they are asked for, of codes
 * or of nothing.
 * One thread at a time. */
typedef struct mr_cpu_source {
    const mr_plan_weight *weight;
    const mr_random_table *random; /* NULL: weight->data has them */
    uint64_t row_bytes;
    uint8_t *made; /* room for rows that are made, owns; NULL until the first are */
    uint64_t made_rows;
    bool failed; /* memory was short: what was packed since is void */
} mr_cpu_source;

/* Rows [first, first + count), borrowed until the next call; NULL when memory is short. The first
 * call has the largest count. In weights.c. */
const uint8_t *mr_cpu_source_rows(mr_cpu_source *source, uint64_t first, uint64_t count);

typedef struct mr_cpu_weights {
    const mr_cpu_path *path;
    mr_cpu_weight *items; /* [count], by mr_weight_id */
    uint32_t count;
    uint64_t bytes; /* all items, each rounded up to 64 */
    uint8_t *slab;  /* [bytes] of pages, owns: one piece, so that huge pages can back it */
} mr_cpu_weights;

/* Sine and cosine of a rope table, attention_factor included: of every position where the
 * frequencies are fixed, else of every token of the step. */
typedef struct mr_cpu_rope {
    float *cos;  /* [max_context or max_tokens][dims / 2], owns */
    float *sin;  /* likewise */
    float *freq; /* [dims / 2] scratch where they are not fixed, owns */
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

    /* KV pool: [layer][key, value][block][kv head] pieces as kv_layout.h has them, of [offset in
     * block][D] elements. A path may order those its own way: the fast one keeps keys transposed,
     * [D][offset in block]. */
    uint8_t *kv;
    uint64_t kv_bytes;
    uint64_t kv_plane_bytes; /* keys, or values, of one layer */
    mr_kv_layout kv_layout;

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
    const struct mr_fast_kernels *kernels; /* of the instruction set; NULL: the reference */
    const char *name;     /* "reference", or of mr_cpu_isa_name(); info: "cpu-<name>" */
    const char *numerics; /* all that changes bits, revision included: "cpu-reference/f32/1" */

    /* Sets to->layout and to->bytes for a weight whose dtype, n, k and uses are set (never for
     * pure vectors). UNIMPLEMENTED for a dtype the path lacks, naming weight and dtype. */
    mr_status (*weight_layout)(const mr_plan_weight *from, mr_cpu_weight *to, mr_error *err);
    /* The share of `thread` of filling to->data with rows of the source. */
    void (*weight_pack)(mr_cpu_source *from, mr_cpu_weight *to, uint32_t thread, uint32_t threads);

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

/* The operator that every path has alike: samples the rows of op->unary.in (overwritten) into the
 * results of the executor. */
void mr_cpu_op_sample(mr_cpu_exec *exec, const mr_op *op, const mr_batch *batch, uint32_t thread,
                      uint32_t threads);

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
/* rope_angles.c. Makes exec->ropes of the plan's tables; false when memory is short. `take` gives
 * `count` zeroed elements of `size` bytes. */
typedef void *(*mr_cpu_take_fn)(mr_cpu_exec *exec, uint64_t count, uint64_t size);
MR_MUST_USE bool mr_cpu_ropes_create(mr_cpu_exec *exec, mr_cpu_take_fn take);
void mr_cpu_ropes_destroy(mr_cpu_exec *exec);
/* Fills the tables that follow the lengths of the batch's sequences. */
void mr_cpu_ropes_step(const mr_cpu_exec *exec, const mr_batch *batch);

/* transfer.c: the executor's transfers, which are copies in memory and done when started. */
void *mr_cpu_host_alloc(mr_exec *base, uint64_t bytes);
void mr_cpu_host_free(mr_exec *base, void *memory, uint64_t bytes);
MR_MUST_USE mr_status mr_cpu_transfer_start(mr_exec *base, const mr_transfer *transfer,
                                            uint64_t *ticket, mr_error *err);
mr_transfer_state mr_cpu_transfer_poll(mr_exec *base, uint64_t ticket);
bool mr_cpu_transfer_cancel(mr_exec *base, uint64_t ticket);
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

/* The angles of token `t` of the step: dims / 2 cosines and sines. */
static inline void mr_cpu_angles(const mr_cpu_exec *exec, uint16_t rope, const mr_batch *batch,
                                 uint32_t t, const float **cosines, const float **sines)
{
    const mr_plan_rope *table = &exec->plan->ropes[rope];
    const size_t row = table->rule == MR_ROPE_FIXED ? batch->positions[t] : t;
    *cosines = exec->ropes[rope].cos + row * (table->dims / 2);
    *sines = exec->ropes[rope].sin + row * (table->dims / 2);
}

/* A vector weight (gain, bias); NULL for MR_NO_WEIGHT. */
static inline const float *mr_cpu_vector(const mr_cpu_exec *exec, mr_weight_id id)
{
    return id == MR_NO_WEIGHT ? NULL : (const float *)exec->weights->items[id].data;
}

/* Keys (value = 0) or values (value = 1) of one head in one block. */
typedef struct mr_cpu_kv_piece {
    uint8_t *elements; /* block_size · D of kv_dtype; their order is the path's */
    float *scales;     /* [block_size]; void if the type has none */
} mr_cpu_kv_piece;

static inline mr_cpu_kv_piece mr_cpu_kv(const mr_cpu_exec *exec, uint32_t layer, uint32_t value,
                                        uint32_t block, uint32_t head)
{
    const mr_kv_layout *layout = &exec->kv_layout;
    uint8_t *piece = exec->kv + (2 * (uint64_t)layer + value) * exec->kv_plane_bytes +
                     block * layout->block + head * layout->piece;
    return (mr_cpu_kv_piece){.elements = piece + layout->scales, .scales = (float *)(void *)piece};
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
