/* SPDX-License-Identifier: Apache-2.0 */
/* A small random Llama-like plan, and a session that feeds sequences to an executor of it, for the
 * tests of the CPU paths. */
#ifndef MILLRACE_TESTS_TINY_PLAN_H
#define MILLRACE_TESTS_TINY_PLAN_H

#include "kernels/backend.h"

typedef struct tiny_dims {
    uint32_t layers;
    uint32_t width;
    uint32_t heads;    /* H */
    uint32_t kv_heads; /* G */
    uint32_t head_width;
    uint32_t ffn;
    uint32_t vocab;
    mr_dtype dtype; /* of all matrices; widths must be whole blocks of it */
    uint64_t seed;
    mr_rope_pairing pairing;
    mr_norm_kind norm;
    mr_activation activation;
    uint32_t window;
    bool every_other; /* the window is of layers 0, 2, 4 … only */
    float soft_cap;
    float embed_scale;
    bool biases;     /* of q, k, v, and of the norms */
    bool tied;       /* the vocabulary projection is the embedding table */
    bool head_norms; /* of queries and keys */
    bool late; /* behind the last attention there are the logit rows only, as in a model's plan */
} tiny_dims;

/* 2 layers, width 64, 4 heads over 2, D 16, ffn 96, vocabulary 96, F32, nothing special. */
tiny_dims tiny_dims_default(void);
/* That in `dtype`; 1 layer, width and ffn 256, D 64 where blocks have so many elements. */
tiny_dims tiny_dims_of(mr_dtype dtype);

static inline uint32_t tiny_window(const tiny_dims *dims, uint32_t layer)
{
    return dims->every_other && layer % 2 == 1 ? 0 : dims->window;
}

typedef struct tiny_layer {
    mr_weight_id attn_gain, attn_bias, q, k, v, q_bias, k_bias, v_bias, o;
    mr_weight_id q_gain, k_gain;
    mr_weight_id ffn_gain, ffn_bias, gate, up, down;
} tiny_layer;

typedef struct tiny_plan {
    tiny_dims dims;
    mr_plan *plan;
    void **data; /* [plan->n_weights], owns */
    tiny_layer *layers;
    mr_weight_id embed, out_gain, out_bias, head;
} tiny_plan;

/* Aborts the test on failure. */
void tiny_plan_create(const tiny_dims *dims, tiny_plan *out);
void tiny_plan_destroy(tiny_plan *tiny);

/* Reproducible numbers for tests. */
uint64_t tiny_random(uint64_t *state);
float tiny_uniform(uint64_t *state, float low, float high);

/* Backend, weights, executor and batch storage in one. Logits are kept. Slot s owns the blocks
 * 1 + s · max_blocks …, in descending order, so that no order is taken for granted; KV groups other
 * than the first have other blocks, from the end of the pool. */
typedef struct tiny_session {
    mr_backend *backend; /* borrowed */
    mr_weights *weights;
    mr_exec *exec;
    mr_batch_storage *storage;
    mr_exec_options options;
    uint32_t groups;
} tiny_session;

mr_exec_options tiny_options(void); /* T 64, B 4, R 64, context 80, blocks of 8, F32 */
void tiny_session_create(const tiny_plan *tiny, mr_backend *backend, const mr_exec_options *options,
                         tiny_session *out);
void tiny_session_destroy(tiny_session *session);

/* Row parameters of a greedy draw with log-probabilities. */
mr_row_params tiny_greedy(void);

/* Adds tokens at positions start … start + count − 1 of `slot` to the batch (mr_batch_reset comes
 * first), with a logit row for each if `all_rows`, else for the last one. */
void tiny_feed(tiny_session *session, uint32_t slot, const int32_t *tokens, uint32_t start,
               uint32_t count, bool all_rows);
/* Runs the batch; fails the test unless it is OK. */
void tiny_run(tiny_session *session, mr_step_output *out);

#endif
