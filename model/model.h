/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model on disk: configuration, tensors, tokenizer, chat template, and the plan of its forward
 * pass. One handle for every file format and architecture.
 */
#ifndef MILLRACE_MODEL_MODEL_H
#define MILLRACE_MODEL_MODEL_H

#include "base/status.h"
#include "kernels/plan.h"
#include "model/chat.h"
#include "model/tokenizer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct mr_model mr_model;

#define MR_MAX_EOS 16

typedef struct mr_model_config {
    char architecture[32]; /* "llama" */
    char name[128];        /* what the file calls itself, or its file name */
    char quantization[16]; /* the type most weight bytes have: "Q4_1" */
    uint32_t layers;
    uint32_t width; /* of the residual stream */
    uint32_t ffn_width;
    uint32_t heads;      /* H */
    uint32_t kv_heads;   /* G */
    uint32_t head_width; /* D */
    uint32_t vocab_size; /* V */
    uint32_t context_length;
    float norm_epsilon;
    char rope_type[16]; /* "default", "linear", … */
    float rope_theta;
    mr_plan_rope rope;        /* tables in effect; inv_freq owned by the model */
    uint64_t parameters;      /* tied tensors once */
    uint64_t weights_bytes;   /* as stored */
    uint32_t eos[MR_MAX_EOS]; /* union over every place that names one; chat end tokens included */
    uint32_t n_eos;
} mr_model_config;

typedef struct mr_model_tensor {
    const char *name; /* borrowed from the model */
    mr_dtype dtype;
    uint32_t n_dims;
    uint64_t shape[4]; /* outermost first: [n][k] for a matrix */
    const void *data;  /* borrowed from the mapping */
    uint64_t bytes;
    bool used; /* the plan or the configuration reads it */
} mr_model_tensor;

/* Opens a GGUF file. Nothing is copied but the tables. NOT_FOUND, PERMISSION_DENIED, DATA_LOSS
 * (corrupt: says what and at which offset), UNIMPLEMENTED (an architecture, type or version this
 * build lacks, named). Gives the model. */
MR_MUST_USE mr_status mr_model_open(const char *path, mr_model **out, mr_error *err);
/* Opens what handles text and no more, tokenizer and chat template: of a directory, where weights
 * need not be, or of a GGUF file, whose architecture may be any. Nothing else of the model may be
 * asked for. Errors as above. */
MR_MUST_USE mr_status mr_model_open_text(const char *path, mr_model **out, mr_error *err);
void mr_model_close(mr_model *model);

const mr_model_config *mr_model_config_get(const mr_model *model);
/* NULL when the model has no tokenizer: ids in, ids out. */
const mr_tokenizer *mr_model_tokenizer(const mr_model *model);
const mr_chat_template *mr_model_chat(const mr_model *model);

size_t mr_model_tensor_count(const mr_model *model);
const mr_model_tensor *mr_model_tensor_at(const mr_model *model, size_t index);

/* Builds the forward plan over the model's tensors. Gives the plan; its weight data is borrowed
 * from the model. */
MR_MUST_USE mr_status mr_model_plan(const mr_model *model, mr_plan **out, mr_error *err);

/* The pages of the weights may be dropped: a backend has its own copy. */
void mr_model_release_weights(const mr_model *model);

#endif
