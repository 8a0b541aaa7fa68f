/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the host files of kernels/cuda share.
 *
 *   cuda_backend.c  opens a GPU, as an mr_backend
 *   module.c        finds libmillrace-cuda.so
 *   slab.c          the GPU's memory: one allocation, given out from the bottom
 *   place.c         where each weight lies
 *   weights.c       their conversion and upload
 *   coded.c         which matrices stay F8_E4M3, and who rounds rows for them
 *   layout.c        sizes of what an executor has; where a step's arrays lie in the staging area
 *   memory.c        that an executor has, on the GPU and pinned
 *   exec.c          makes an executor
 *   fuse.c          layers that one launch runs
 *   launch.c        the plan's operators as calls of the table
 *   stage.c         a step's arrays, as they lie in the staging area
 *   step.c          submit, wait, graphs
 *   transfer.c      KV blocks to and from host memory
 */
#ifndef MILLRACE_KERNELS_CUDA_INTERNAL_H
#define MILLRACE_KERNELS_CUDA_INTERNAL_H

#include "kernels/cuda/cuda_backend.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- memory ---- */

typedef struct mr_cuda_slab {
    mr_cuda_ptr base; /* 0: not allocated yet */
    uint64_t bytes;
    uint64_t used;
} mr_cuda_slab;

/* Takes `bytes`, aligned to MR_CUDA_ALIGNMENT; false when they are not there. */
bool mr_cuda_slab_take(mr_cuda_slab *slab, uint64_t bytes, mr_cuda_ptr *out);
/* What is left, rounded down to the alignment. */
uint64_t mr_cuda_slab_left(const mr_cuda_slab *slab);
/* Gives back everything taken since `used` was `mark`. What is not on top stays taken until what
 * lies above it has been given back. */
void mr_cuda_slab_reset(mr_cuda_slab *slab, uint64_t mark, uint64_t end);

#define MR_CUDA_ALIGNMENT 256u

/* ---- backend ---- */

typedef struct mr_cuda_backend {
    mr_backend base;
    const mr_cuda_api *api;
    void *module; /* of dlopen; NULL with an injected table */
    mr_cuda_context *context;
    mr_cuda_properties properties;
    mr_dtype compute;
    uint32_t threads;
    double memory_fraction;
    bool batch_invariant;
    mr_cuda_slab slab;
    bool failed; /* a call failed: all later ones do */
} mr_cuda_backend;

/* module.c. FAILED_PRECONDITION, saying why. *module is for dlclose. */
MR_MUST_USE mr_status mr_cuda_module_open(const char *path, void **module, const mr_cuda_api **api,
                                          mr_error *err);

/* INTERNAL, marking the backend as failed, unless `code` is 0; `what` as in "copying weights". */
MR_MUST_USE mr_status mr_cuda_check(mr_cuda_backend *backend, int code, const char *what,
                                    mr_error *err);

/* Bytes of an element of F32, F16, BF16, F8_E4M3 or I8. */
static inline uint32_t mr_cuda_size(mr_dtype type)
{
    return type == MR_DTYPE_F32 ? 4 : type == MR_DTYPE_F8_E4M3 || type == MR_DTYPE_I8 ? 1 : 2;
}

/* Whether the GPU multiplies F8_E4M3 by F8_E4M3 with a scale a row and an output. How that sums
 * depends on the number of rows. */
static inline bool mr_cuda_takes_codes(const mr_cuda_backend *backend)
{
    return backend->properties.major == 9 && backend->compute != MR_DTYPE_F32 &&
           !backend->batch_invariant;
}

/* ---- weights ---- */

typedef struct mr_cuda_weight {
    uint32_t n;
    uint32_t k;
    bool vector;     /* float32 [n · k], else [n][k] of the compute type */
    bool coded;      /* [n][k] F8_E4M3, with float32 [n] scales */
    bool used;       /* by some operator; others take no memory */
    uint64_t offset; /* of the weights' memory */
    uint64_t bytes;
    uint64_t scales; /* offset; those of parts that lie side by side do too */
} mr_cuda_weight;

typedef struct mr_cuda_weights {
    mr_dtype compute;
    mr_cuda_weight *items; /* [count], by mr_weight_id */
    uint32_t count;
    uint64_t *biases; /* [n_ops] offset of a linear operator's biases, float32 of all its parts side
                       * by side; MR_CUDA_NONE: it has none */
    uint32_t n_ops;
    mr_cuda_ptr base;
    uint64_t bytes;
    uint64_t mark; /* of the slab, before and behind */
    uint64_t end;
} mr_cuda_weights;

#define MR_CUDA_NONE UINT64_MAX

/* Decides where everything lies: the parts of one linear operator side by side where they can, and
 * with `codes` F8_E4M3 as it is. No memory is taken. */
MR_MUST_USE mr_status mr_cuda_weights_place(const mr_plan *plan, mr_dtype compute, bool codes,
                                            mr_cuda_weights **out, mr_error *err);
MR_MUST_USE mr_status mr_cuda_weights_create(mr_cuda_backend *backend, const mr_plan *plan,
                                             mr_progress_fn progress, void *progress_ctx,
                                             mr_cuda_weights **out, mr_error *err);
void mr_cuda_weights_destroy(mr_cuda_backend *backend, mr_cuda_weights *weights);
/* Whether the parts of the operator lie side by side: one product computes them all. */
bool mr_cuda_weights_adjoin(const mr_cuda_weights *weights, const mr_op_linear *op);

static inline mr_dtype mr_cuda_weight_type(const mr_cuda_weights *w, const mr_cuda_weight *item)
{
    return item->vector ? MR_DTYPE_F32 : item->coded ? MR_DTYPE_F8_E4M3 : w->compute;
}

/* Outputs of all parts of a linear operator. */
static inline uint64_t mr_cuda_outputs_of(const mr_plan *plan, const mr_op_linear *op)
{
    uint64_t n = 0;
    for (uint32_t part = 0; part < op->parts; part++) {
        n += plan->weights[op->weight[part]].n;
    }
    return n;
}

static inline mr_cuda_ptr mr_cuda_weight_at(const mr_cuda_weights *weights, mr_weight_id id)
{
    return id == MR_NO_WEIGHT ? 0 : weights->base + weights->items[id].offset;
}

/* Scales of a matrix that stays in codes; 0: it does not. */
static inline mr_cuda_ptr mr_cuda_weight_scales(const mr_cuda_weights *weights, mr_weight_id id)
{
    return weights->items[id].coded ? weights->base + weights->items[id].scales : 0;
}

/* ---- codes ---- */

/* Rows up to which products with such weights take rows as they are. */
#define MR_CUDA_CODED_ROWS 4u
/* Which weights stay in codes; coded: [n_weights]. */
void mr_cuda_coded_weights(const mr_plan *plan, bool *coded);
/* coded: [n_ops], set for products with such weights, and for operators that make the rows of the
 * next one alone and can round them. */
void mr_cuda_coded_ops(const mr_plan *plan, const mr_cuda_weights *weights, bool *coded);
/* raw: [n_ops], the index of a product whose scales the operator behind it can apply, for both;
 * else MR_CUDA_NO_OP. */
void mr_cuda_raw_ops(const mr_plan *plan, const mr_cuda_weights *weights, const bool *coded,
                     uint32_t *raw);
#define MR_CUDA_NO_OP UINT32_MAX
/* No such product has more inputs; 0 without one. */
uint32_t mr_cuda_coded_width(const mr_plan *plan);
/* The scale that the checkpoint gives all rows of a product, the largest of its parts'; 0: none. */
float mr_cuda_coded_scale(const mr_plan *plan, const mr_op_linear *op);

/* ---- layout ---- */

/* Sizes of one step; for graphs those of the bucket. */
typedef struct mr_cuda_counts {
    uint32_t tokens;
    uint32_t rows;
    uint32_t items;
    uint32_t tiles;
    uint32_t block_deltas;
    uint32_t history_deltas;
    uint32_t history_tokens;
    uint32_t bias;
} mr_cuda_counts;

/* Offsets of a step's arrays in the staging area. Items come last: a graph is captured for the
 * offsets, and their number is what differs from step to step. */
typedef struct mr_cuda_stage {
    uint64_t token_src, positions, token_slot, kv_slot, logit_rows, rows, bias_tokens, bias_values;
    uint64_t block_deltas, history_deltas, history_tokens, tiles, items;
    uint64_t bytes;
} mr_cuda_stage;

void mr_cuda_stage_lay_out(const mr_cuda_counts *counts, uint32_t kv_groups, mr_cuda_stage *out);

/* What an executor has in the slab. */
typedef enum mr_cuda_part {
    MR_CUDA_PART_KV,
    MR_CUDA_PART_BUFFERS, /* the plan's */
    MR_CUDA_PART_TABLES,  /* blocks, history, rotation */
    MR_CUDA_PART_SCRATCH, /* split attention, sampling */
    MR_CUDA_PART_STEP,    /* staging and results */
    MR_CUDA_PARTS,
} mr_cuda_part;

typedef struct mr_cuda_sizes {
    mr_cuda_counts most;   /* of a step */
    mr_cuda_stage stage;   /* of that */
    uint32_t max_blocks;   /* of a sequence */
    uint32_t max_splits;   /* of a token's attention */
    uint32_t heads;        /* H, the most of an attention operator */
    uint32_t launch_items; /* of one launch of split attention */
    uint32_t workers;      /* of sampling */
    uint32_t coded_width;  /* of rows that are rounded for products; 0: none are */
    uint64_t kv_plane_bytes;
    uint64_t kv_block_bytes;
    uint64_t table_bytes; /* block tables of all groups */
    uint64_t parts[MR_CUDA_PARTS];
} mr_cuda_sizes;

/* Types of the plan's buffers: F32 for residual streams and logits, else the compute type.
 * UNIMPLEMENTED for what cannot be had so, naming the operator. */
MR_MUST_USE mr_status mr_cuda_buffer_types(const mr_plan *plan, mr_dtype compute, mr_dtype *types,
                                           mr_error *err);
/* `types` as above. RESOURCE_EXHAUSTED where a count leaves its type. */
MR_MUST_USE mr_status mr_cuda_sizes_get(const mr_cuda_backend *backend, const mr_plan *plan,
                                        const mr_dtype *types, const mr_exec_options *options,
                                        mr_cuda_sizes *out, mr_error *err);
/* Whether prompt attention takes the plan's heads; else all attention is split. */
bool mr_cuda_takes_tiles(const mr_cuda_backend *backend, const mr_plan *plan,
                         const mr_exec_options *o);

/* Tokens of a graph that a decode step of `tokens` runs in; 0: none, it is too large. */
uint32_t mr_cuda_bucket(uint32_t tokens);
#define MR_CUDA_BUCKETS 24u /* at most */
uint32_t mr_cuda_bucket_index(uint32_t bucket);

/* ---- executor ---- */

typedef struct mr_cuda_captured {
    mr_cuda_graph *graph;
    bool warm; /* it has run once without a graph: nothing is set up while capturing */
} mr_cuda_captured;

/* Operators [begin, end), all layers of the plan, which one launch can run. */
typedef struct mr_cuda_layers {
    uint32_t begin;
    uint32_t end;
    bool gathered;            /* the last layer's second half has the logit rows only */
    mr_cuda_decode_most most; /* of a step; no rows: of none */
    mr_cuda_decode call;      /* but for what differs from step to step */
} mr_cuda_layers;

/* A step that was submitted. */
typedef struct mr_cuda_flight {
    uint64_t step;
    uint32_t n_rows;
} mr_cuda_flight;

typedef struct mr_cuda_exec {
    mr_exec base;
    mr_cuda_backend *backend;
    const mr_plan *plan;            /* borrowed until destroy */
    const mr_cuda_weights *weights; /* borrowed until destroy */
    mr_exec_options options;
    mr_cuda_sizes sizes;
    uint64_t mark; /* of the slab, before and behind */
    uint64_t end;

    mr_dtype *types;      /* [n_buffers] */
    mr_cuda_ptr *buffers; /* [n_buffers] */
    mr_cuda_ptr *ropes;   /* [n_ropes] */
    bool *fused;          /* [n_ops] a gated operator that its linear can take over */
    bool *adjoin;         /* [n_ops] of linear operators */
    mr_cuda_layers layers;
    bool *coded;   /* [n_ops] mr_cuda_coded_ops */
    uint32_t *raw; /* [n_ops] mr_cuda_raw_ops */

    mr_cuda_ptr kv;
    mr_cuda_ptr block_tables;
    mr_cuda_ptr history;
    mr_cuda_ptr codes;      /* [T][coded_width]: rows of the product under way, */
    mr_cuda_ptr row_scales; /* f32 [T], and their scales */
    mr_cuda_ptr partials;
    mr_cuda_ptr counters;
    mr_cuda_ptr layers_at; /* mr_cuda_decode_layer [kv layers] */
    mr_cuda_ptr sync;      /* u32 [MR_CUDA_DECODE_SYNC] */
    mr_cuda_ptr scaled;
    mr_cuda_ptr counts;
    mr_cuda_ptr stage;   /* on the device */
    mr_cuda_ptr ids;     /* u32 [T] */
    mr_cuda_ptr results; /* tokens, logprobs, n_top, corrupt [max_rows each], then top */
    /* Two steps may be under way: what the host writes and reads is there for each. */
    uint8_t *host_stages[2];  /* pinned */
    uint8_t *host_results[2]; /* pinned, as `results` */
    uint8_t *host_stage;      /* of the step that is submitted last */
    float *host_logits;       /* pinned, if options.keep_logits */
    uint32_t *delta_step;     /* [table entries] the step that last wrote one: later deltas win */

    mr_cuda_flight flights[2];
    uint32_t n_pending;                            /* of them */
    uint32_t last;                                 /* that was submitted last */
    mr_cuda_captured captured[2][MR_CUDA_BUCKETS]; /* [layers in one launch] */
    uint64_t transfers;                            /* started; the ticket of the last */
    uint64_t transferred;                          /* those up to this ticket are over */
    mr_exec_times times;
} mr_cuda_exec;

/* Offsets in `results`, each [max_rows]; the last is the end of what every step copies. */
static inline uint64_t mr_cuda_result_logprobs(const mr_cuda_exec *exec)
{
    return (uint64_t)exec->options.max_rows * 4;
}
static inline uint64_t mr_cuda_result_n_top(const mr_cuda_exec *exec)
{
    return (uint64_t)exec->options.max_rows * 8;
}
static inline uint64_t mr_cuda_result_corrupt(const mr_cuda_exec *exec)
{
    return (uint64_t)exec->options.max_rows * 9;
}
static inline uint64_t mr_cuda_result_end(const mr_cuda_exec *exec)
{
    return (uint64_t)exec->options.max_rows * 10;
}
static inline uint64_t mr_cuda_result_top(const mr_cuda_exec *exec)
{
    return (mr_cuda_result_end(exec) + 15) / 16 * 16;
}

MR_MUST_USE mr_status mr_cuda_exec_create(mr_cuda_backend *backend, const mr_plan *plan,
                                          const mr_cuda_weights *weights,
                                          const mr_exec_options *options, mr_exec **out,
                                          mr_error *err);
/* Bytes that the KV cache of such an executor could have. */
MR_MUST_USE mr_status mr_cuda_kv_room(const mr_cuda_backend *backend, const mr_plan *plan,
                                      const mr_exec_options *options, uint64_t *bytes,
                                      mr_error *err);

/* memory.c. RESOURCE_EXHAUSTED, with what would help, unless the slab has room for all parts. */
MR_MUST_USE mr_status mr_cuda_memory_check(const mr_cuda_backend *backend,
                                           const mr_cuda_sizes *sizes, mr_error *err);
/* Of all parts; UINT64_MAX where that is no number. */
uint64_t mr_cuda_memory_sum(const mr_cuda_sizes *sizes);
/* Takes what was checked off the slab, fills it and makes the pinned areas. After an error destroy
 * gives back what is there. */
MR_MUST_USE mr_status mr_cuda_memory_make(mr_cuda_exec *exec, mr_error *err);
void mr_cuda_memory_log(const mr_cuda_exec *exec);

/* How a step is run: its counts as launched (those of the bucket, for a graph), and the layout of
 * its arrays. */
typedef struct mr_cuda_step {
    const mr_batch *batch;
    mr_cuda_counts counts; /* as launched */
    mr_cuda_stage stage;
    uint32_t n_items; /* real */
    bool graph;       /* counts on the device decide, not these */
    bool layers;      /* all in one launch */
} mr_cuda_step;

/* stage.c. Counts what there is of a batch, which was checked, and decides whether the step runs in
 * a bucket. INVALID_ARGUMENT for more than the staging area has room for. */
MR_MUST_USE mr_status mr_cuda_stage_count(const mr_cuda_exec *exec, const mr_batch *batch,
                                          mr_cuda_step *out, mr_error *err);
/* A row as sampling on the GPU has it. */
mr_cuda_row mr_cuda_stage_row(const mr_row_params *p, uint32_t slot);
/* Writes a step's arrays into exec->host_stage. */
void mr_cuda_stage_put(const mr_cuda_exec *exec, const mr_cuda_step *step);

/* fuse.c. Looks for layers that one launch can run, when all else of the executor is there. */
MR_MUST_USE mr_status mr_cuda_layers_find(mr_cuda_exec *exec, mr_error *err);
/* Whether they are to run `step` so, whose counts are known. */
bool mr_cuda_layers_take(const mr_cuda_exec *exec, const mr_cuda_step *step);
int mr_cuda_layers_launch(mr_cuda_exec *exec, const mr_cuda_step *step);

/* launch.c. Queues the plan; gives the first failing code and what it was of. */
int mr_cuda_launch(mr_cuda_exec *exec, const mr_cuda_step *step, const char **what);

/* step.c */
MR_MUST_USE mr_status mr_cuda_step_submit(mr_exec *base, const mr_batch *batch, mr_error *err);
MR_MUST_USE mr_status mr_cuda_step_wait(mr_exec *base, mr_step_output *out, mr_error *err);
/* transfer.c: those of the table of mr_exec. */
void *mr_cuda_host_alloc(mr_exec *base, uint64_t bytes);
void mr_cuda_host_free(mr_exec *base, void *memory, uint64_t bytes);
MR_MUST_USE mr_status mr_cuda_transfer_start(mr_exec *base, const mr_transfer *transfer,
                                             uint64_t *ticket, mr_error *err);
mr_transfer_state mr_cuda_transfer_poll(mr_exec *base, uint64_t ticket);
bool mr_cuda_transfer_cancel(mr_exec *base, uint64_t ticket);

/* Sequences of up to this many tokens in a step are split attention's, longer ones tiles. */
#define MR_CUDA_SPLIT_TOKENS 4u

#endif
