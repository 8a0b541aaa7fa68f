/* SPDX-License-Identifier: Apache-2.0 */
/* What a model's files say of the network, its ends and its defaults, whatever format and family
 * they are of. */
#ifndef MILLRACE_MODEL_MODEL_CONFIG_H
#define MILLRACE_MODEL_MODEL_CONFIG_H

#include "base/status.h"
#include "kernels/plan.h"

#include <stdbool.h>
#include <stdint.h>

#define MR_MAX_EOS    16
#define MR_MAX_LAYERS 4096u

/* Whether linear operators add a bias. */
typedef enum mr_bias_use {
    MR_BIAS_IF_PRESENT, /* where the file has the tensor */
    MR_BIAS_NONE,
    MR_BIAS_REQUIRED,
} mr_bias_use;

/* What a request that leaves them out gets, where the model says so; NaN: it does not. */
typedef struct mr_sampling_defaults {
    float temperature;
    float top_p;
    float top_k; /* a whole number */
    float min_p;
    float repetition_penalty;
} mr_sampling_defaults;

typedef struct mr_model_config {
    char architecture[32]; /* "llama" */
    char name[128];        /* what the file calls itself, or its file name */
    char quantization[32]; /* the type most weight bytes have: "Q4_1"; of a quantised directory
                              method, codes and group: "gptq int4 g128" */
    uint32_t layers;
    uint32_t width; /* of the residual stream */
    uint32_t ffn_width;
    uint32_t heads;      /* H */
    uint32_t kv_heads;   /* G */
    uint32_t head_width; /* D */
    uint32_t vocab_size; /* V */
    uint32_t context_length;
    mr_norm_kind norm; /* a layer norm has biases */
    float norm_epsilon;
    mr_activation activation;
    bool ungated; /* FFN: down(act(up)) instead of down(act(gate) · up) */
    bool tied;    /* the vocabulary projection is the embedding */
    bool qk_norm; /* RMS norms of query and key heads */
    mr_bias_use qkv_bias;
    mr_bias_use o_bias;
    mr_bias_use ffn_bias;
    uint32_t window;                       /* keys a query sees in windowed layers; 0: none is */
    uint64_t windowed[MR_MAX_LAYERS / 64]; /* bit i % 64 of word i / 64: layer i has the window */
    uint32_t learned_positions; /* rows of a table of position embeddings; 0: rotary positions */
    uint32_t position_offset;   /* its row of position 0 */
    char rope_type[16];         /* "default", "linear", … "none" */
    float rope_theta;
    float rope_factor;        /* of the scaling; 0: it has none */
    uint32_t rope_original;   /* context before the scaling, tokens; 0: not told */
    char rope_in_effect[96];  /* all that as text: "yarn, factor 4 of 32768 tokens" */
    mr_plan_rope rope;        /* tables in effect; its arrays are owned by the model */
    uint64_t parameters;      /* tied tensors once */
    uint64_t weights_bytes;   /* as stored */
    char kv_scales[64];       /* what the checkpoint has of them and becomes of it; "" without */
    uint32_t eos[MR_MAX_EOS]; /* union over every place that names one; chat end tokens included */
    uint32_t n_eos;
    mr_sampling_defaults sampling;
} mr_model_config;

/* Adds an end of sequence unless it is there. DATA_LOSS past MR_MAX_EOS. */
MR_MUST_USE mr_status mr_model_config_add_eos(mr_model_config *config, uint32_t id, mr_error *err);

#endif
