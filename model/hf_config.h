/* SPDX-License-Identifier: Apache-2.0 */
/* A network's shape from config.json, and what generation_config.json adds. */
#ifndef MILLRACE_MODEL_HF_CONFIG_H
#define MILLRACE_MODEL_HF_CONFIG_H

#include "base/status.h"
#include "model/model_config.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

typedef enum mr_hf_bias {
    MR_HF_BIAS_NEVER,
    MR_HF_BIAS_ALWAYS,
    MR_HF_BIAS_BY_KEY, /* attention_bias, mlp_bias */
} mr_hf_bias;

typedef enum mr_hf_window {
    MR_HF_WINDOW_NONE,
    MR_HF_WINDOW_ALL,   /* every layer has sliding_window, unless it is null */
    MR_HF_WINDOW_UPPER, /* with use_sliding_window, layers from max_window_layers on */
} mr_hf_window;

typedef struct mr_hf_traits mr_hf_traits;

/* How an architecture differs from the others of its reader. */
struct mr_hf_traits {
    const char *class_name; /* in "architectures" */
    /* Fills the shape of the network (layers … rope) and checks it. config->rope is the caller's
     * to free, also after a failure. DATA_LOSS, UNIMPLEMENTED (a variant this build lacks, named),
     * RESOURCE_EXHAUSTED. */
    mr_status (*read)(const json_t *root, const mr_hf_traits *traits, mr_model_config *config,
                      mr_error *err);
    mr_hf_bias qkv_bias;
    mr_hf_bias o_bias;
    mr_hf_bias ffn_bias;
    mr_hf_window window;
    uint32_t default_window; /* where the key is absent; 0: none */
    bool qk_norm;
    bool tied;      /* without tie_word_embeddings */
    double epsilon; /* without rms_norm_eps */
};

/* Readers. */
mr_status mr_hf_read_rotary(const json_t *root, const mr_hf_traits *traits, mr_model_config *config,
                            mr_error *err);
mr_status mr_hf_read_opt(const json_t *root, const mr_hf_traits *traits, mr_model_config *config,
                         mr_error *err);

/* The type that weights made of nothing have: "dtype" or "torch_dtype", BF16 without.
 * UNIMPLEMENTED for another than float32, float16 and bfloat16. */
MR_MUST_USE mr_status mr_hf_read_dtype(const json_t *root, mr_dtype *out, mr_error *err);

/* Adds the ends of sequence that an object (config.json, generation_config.json) names: a number
 * or a list. DATA_LOSS. */
MR_MUST_USE mr_status mr_hf_add_eos(const json_t *root, mr_model_config *config, mr_error *err);

/* Fills config->sampling from generation_config.json. DATA_LOSS for a value out of range. */
MR_MUST_USE mr_status mr_hf_read_sampling(const json_t *root, mr_model_config *config,
                                          mr_error *err);

#endif
