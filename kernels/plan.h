/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan of a forward pass: what the model layer hands to a backend, once a (model, dtype).
 *
 * A plan is an array of typed operators over named buffers and weights, in execution order, for
 * one step's batch of any size. It holds no pointer into a device and no decision of a backend:
 * fusion, graph capture, tiling and weight layout happen in compile(). Widths are for the whole
 * model; a rank takes its share from `shard` and the group sizes.
 *
 *   stream  ──norm──► h ──linear──► qkv ──rope_kv──► qkv ──attention──► att ──linear──► proj
 *     ▲                                                                          │ all_reduce
 *     └──────────────── the next norm adds proj into stream ◄────────────────────┘
 *
 * Shape letters: T tokens of the step, R logit rows, N outputs, K inputs, H query heads,
 * G key/value heads, D head width, V vocabulary.
 */
#ifndef MILLRACE_KERNELS_PLAN_H
#define MILLRACE_KERNELS_PLAN_H

#include "base/status.h"
#include "kernels/dtype.h"
#include "kernels/weight_codes.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef uint16_t mr_buffer_id;
typedef uint16_t mr_weight_id;
#define MR_NO_BUFFER    ((mr_buffer_id)UINT16_MAX)
#define MR_NO_WEIGHT    ((mr_weight_id)UINT16_MAX)
#define MR_LINEAR_PARTS 3

/* How many rows a buffer has in a step. */
typedef enum mr_row_space {
    MR_ROWS_TOKENS, /* T */
    MR_ROWS_LOGITS, /* R */
} mr_row_space;

typedef struct mr_plan_buffer {
    char name[32];
    mr_row_space rows;
    uint32_t width; /* elements a row; their type is the backend's compute type */
} mr_plan_buffer;

/* Along which axis ranks divide a weight. */
typedef enum mr_shard {
    MR_SHARD_NONE,    /* every rank has all of it */
    MR_SHARD_OUTPUTS, /* by N: column parallel; no communication after it */
    MR_SHARD_INPUTS,  /* by K: row parallel; an all_reduce follows */
} mr_shard;

typedef struct mr_plan_weight {
    char name[96];
    mr_dtype dtype;
    uint32_t n;       /* rows: outputs (1 for a vector) */
    uint32_t k;       /* columns: inputs */
    const void *data; /* [n][k] in `dtype`, borrowed from the model until upload() returns */
    /* There is no data, but arrays that rows are made of as they are needed
     * (mr_weight_codes_fill), of type mr_weight_codes_dtype(). Owned by the plan; the arrays are
     * borrowed as data is. */
    const mr_weight_codes *codes;
    uint64_t bytes;
    mr_shard shard;
    uint32_t shard_unit; /* rows or columns that stay together (head width, quantisation group) */
    /* There is no data: the backend makes the elements itself, straight into its own layout.
     * Element i is random_mean + normal(0, MR_RANDOM_DEVIATION), as kernels/random_weight.h says
     * for this seed and stream. */
    bool random;
    uint64_t random_seed;
    uint32_t random_stream; /* another for each weight */
    float random_mean;
} mr_plan_weight;

#define MR_RANDOM_DEVIATION 0.02

/* Rotary position tables: angle of pair i at position p is p · inv_freq[i]; sine and cosine are
 * multiplied by attention_factor. In some the frequencies follow the length of the sequence: of
 * its prompt, in millrace (batch.h, rope_length), so that what a sequence computes does not depend
 * on how its steps were cut. */
typedef enum mr_rope_pairing {
    MR_ROPE_INTERLEAVED, /* pairs (2i, 2i + 1): GGUF llama */
    MR_ROPE_HALVES,      /* pairs (i, i + dims/2): Hugging Face */
} mr_rope_pairing;

typedef enum mr_rope_rule {
    MR_ROPE_FIXED,   /* inv_freq, always */
    MR_ROPE_DYNAMIC, /* above `original` tokens inv_freq of another base: mr_rope_dynamic */
    MR_ROPE_TWO,     /* above `original` tokens long_inv_freq */
} mr_rope_rule;

typedef struct mr_plan_rope {
    mr_rope_pairing pairing;
    uint32_t dims;         /* rotated elements a head, even, at most D; the rest pass through */
    const float *inv_freq; /* [dims / 2]; owned by the plan */
    float attention_factor;
    mr_rope_rule rule;
    uint32_t original;          /* tokens; of DYNAMIC and TWO */
    double theta;               /* DYNAMIC: the base of inv_freq */
    double factor;              /* DYNAMIC: of the context */
    const float *long_inv_freq; /* TWO: [dims / 2]; owned by the plan */
} mr_plan_rope;

/* The frequencies of a sequence of `length` tokens under DYNAMIC: inv_freq[dims / 2] of the base
 * theta · (factor · length / original − (factor − 1))^(dims / (dims − 2)), at or below `original`
 * tokens of theta itself. */
void mr_rope_dynamic(const mr_plan_rope *rope, uint32_t length, float *inv_freq);

/* Two prompts of a common beginning have the same keys for it iff this is the same for their
 * lengths: 0 where the frequencies are those of short prompts. For indices of computed
 * prefixes. */
uint32_t mr_rope_class(const mr_plan_rope *rope, uint32_t prompt_tokens);

typedef struct mr_plan_kv {
    uint32_t layers;
    uint32_t heads;      /* G */
    uint32_t head_width; /* D */
    uint32_t groups;     /* kv groups: layers of one group share block tables; at least 1 */
    uint8_t *group_of;   /* [layers]; owned by the plan */
    /* [layers], owned by the plan: what the checkpoint has for a cache of F8_E4M3, where an element
     * is its code times the scale; NULL: 1. */
    float *key_scales;
    float *value_scales;
} mr_plan_kv;

typedef enum mr_op_kind {
    MR_OP_EMBED,  /* out[t] = scale · table[token[t]] (+ positions[position[t] + offset]) */
    MR_OP_NORM,   /* stream += in (if in); out = norm(stream) · gain (+ bias) */
    MR_OP_LINEAR, /* out[:, part offset ...] = in · Wᵀ (+ bias), up to three parts side by side */
    MR_OP_ROPE_KV,    /* norm (if gains) and rotate q and k in place, write k and v into the KV
                         cache at slot[t] */
    MR_OP_ATTENTION,  /* out = softmax(scale · q·Kᵀ, causal, window, soft cap) · V, paged */
    MR_OP_GATED,      /* in = [gate | up]: out = act(gate) · up */
    MR_OP_ACTIVATE,   /* out = act(in) */
    MR_OP_ALL_REDUCE, /* sum over ranks; identity at one rank */
    MR_OP_GATHER,     /* out[r] = in[logit_rows[r]] : T rows → R rows */
    MR_OP_SAMPLE,     /* draw or score each row of in, as row_params[r] says */
} mr_op_kind;

typedef enum mr_norm_kind {
    MR_NORM_RMS,
    MR_NORM_LAYER,
} mr_norm_kind;

typedef enum mr_activation {
    MR_ACT_SILU,
    MR_ACT_GELU_TANH,
    MR_ACT_GELU,
    MR_ACT_RELU,
} mr_activation;

typedef struct mr_op_embed {
    mr_weight_id table; /* [V][width of out] */
    mr_buffer_id out;
    float scale;
    bool learned_positions; /* the two below count */
    mr_weight_id positions; /* [offset + longest sequence][width] */
    uint32_t offset;        /* row of position 0 */
} mr_op_embed;

typedef struct mr_op_norm {
    mr_norm_kind kind;
    mr_buffer_id stream; /* the residual stream, read and (with `in`) written */
    mr_buffer_id in;     /* added into stream first; MR_NO_BUFFER: nothing to add */
    mr_buffer_id out;
    mr_weight_id gain; /* [1][width] */
    mr_weight_id bias; /* MR_NO_WEIGHT: none */
    float epsilon;
} mr_op_norm;

typedef struct mr_op_linear {
    mr_buffer_id in;  /* width K */
    mr_buffer_id out; /* width = sum of the parts' N */
    uint32_t parts;
    mr_weight_id weight[MR_LINEAR_PARTS];
    mr_weight_id bias[MR_LINEAR_PARTS]; /* [1][N] each, MR_NO_WEIGHT: none */
    bool logits;                        /* this is the vocabulary projection */
} mr_op_linear;

/* The buffer qkv of rope_kv and attention: a row is [H·D query | G·D key | G·D value]. */
typedef struct mr_op_rope_kv {
    mr_buffer_id qkv;
    uint32_t layer;      /* of the KV cache */
    uint32_t heads;      /* H */
    uint16_t rope;       /* index of the table; UINT16_MAX: no rotation */
    bool head_norms;     /* an RMS norm of each query and key head before rotation, with: */
    mr_weight_id q_gain; /* [1][D] */
    mr_weight_id k_gain; /* [1][D] */
    float epsilon;
} mr_op_rope_kv;

typedef struct mr_op_attention {
    mr_buffer_id qkv;
    mr_buffer_id out; /* width H·D */
    uint32_t layer;
    uint32_t heads; /* H */
    float scale;
    uint32_t window; /* keys a query sees, itself included; 0: all */
    float soft_cap;  /* 0: none */
} mr_op_attention;

typedef struct mr_op_gated {
    mr_buffer_id in;  /* width 2F */
    mr_buffer_id out; /* width F */
    mr_activation activation;
} mr_op_gated;

/* In and out have the same width. */
typedef struct mr_op_activate {
    mr_buffer_id in;
    mr_buffer_id out;
    mr_activation activation;
} mr_op_activate;

typedef struct mr_op_unary {
    mr_buffer_id in;
    mr_buffer_id out; /* gather: rows R; all_reduce: equals in; sample: MR_NO_BUFFER */
} mr_op_unary;

typedef struct mr_op {
    mr_op_kind kind;
    uint16_t segment; /* cut where a step needs a host decision; graphs live between cuts */
    uint16_t layer;   /* of the model, for profiles; UINT16_MAX outside layers */
    union {
        mr_op_embed embed;
        mr_op_norm norm;
        mr_op_linear linear;
        mr_op_rope_kv rope_kv;
        mr_op_attention attention;
        mr_op_gated gated;
        mr_op_activate activate;
        mr_op_unary unary; /* all_reduce, gather, sample */
    };
} mr_op;

/* A finished plan is read-only and may be read by any thread. */
typedef struct mr_plan {
    mr_plan_buffer *buffers;
    uint32_t n_buffers;
    mr_plan_weight *weights;
    uint32_t n_weights;
    mr_op *ops;
    uint32_t n_ops;
    mr_plan_rope *ropes;
    uint32_t n_ropes;
    mr_plan_kv kv;
    uint32_t vocab_size; /* V */
    /* upload() calls it when it has read all of a weight's data, from any of its threads; NULL:
     * nobody wants to know. Of a weight with codes through mr_plan_release(). */
    void (*release)(const void *ctx, const void *data, uint64_t bytes);
    const void *release_ctx;
    uint32_t capacity_buffers, capacity_weights, capacity_ops, capacity_ropes;
} mr_plan;

/* Building: each append returns the id through its out-parameter (may be NULL for ops);
 * RESOURCE_EXHAUSTED when memory is short, INVALID_ARGUMENT past 65,534 entries. */
MR_MUST_USE mr_status mr_plan_create(mr_plan **out);
void mr_plan_destroy(mr_plan *plan);
MR_MUST_USE mr_status mr_plan_add_buffer(mr_plan *plan, const char *name, mr_row_space rows,
                                         uint32_t width, mr_buffer_id *id);
MR_MUST_USE mr_status mr_plan_add_weight(mr_plan *plan, const mr_plan_weight *weight,
                                         mr_weight_id *id);
MR_MUST_USE mr_status mr_plan_add_rope(mr_plan *plan, const mr_plan_rope *rope, uint16_t *id);
MR_MUST_USE mr_status mr_plan_add_op(mr_plan *plan, const mr_op *op);
/* The same with a copy of the codes, whatever weight->codes is; dtype and bytes are set. */
MR_MUST_USE mr_status mr_plan_add_codes(mr_plan *plan, const mr_plan_weight *weight,
                                        const mr_weight_codes *codes, mr_weight_id *id);
/* Sets the KV geometry with all layers in group 0. */
MR_MUST_USE mr_status mr_plan_set_kv(mr_plan *plan, uint32_t layers, uint32_t heads,
                                     uint32_t head_width);

/* Calls plan->release, if there is one, for everything that the weight was read from. */
void mr_plan_release(const mr_plan *plan, const mr_plan_weight *weight);

/* Checks every index, width and row space of a plan, and that each weight's bytes match its shape;
 * backends call it first and may then rely on it. The message names the op and what is wrong. */
MR_MUST_USE mr_status mr_plan_check(const mr_plan *plan, mr_error *err);

const char *mr_op_name(mr_op_kind kind);

/* Whether the operator reads the buffer; whether it changes it. What works in place does both: the
 * stream of a norm, the rows of rope_kv, a sum over ranks. */
bool mr_op_reads(const mr_op *op, mr_buffer_id id);
bool mr_op_writes(const mr_op *op, mr_buffer_id id);

#endif
