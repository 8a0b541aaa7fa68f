/* SPDX-License-Identifier: Apache-2.0 */
/* The configuration of a Llama from GGUF metadata. */
#include "model/llama.h"

#include "base/checked.h"
#include "model/rope.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PREFIX         "llama."
#define MAX_HEAD_WIDTH 8192u
#define ROPE_FREQS     "rope_freqs.weight"
#define TOKEN_EMBD     "token_embd.weight"

/* Every key that the reader below reads, or that changes nothing in what is computed. */
static const char *const known_keys[] = {
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "attention.value_length",
    "block_count",
    "context_length",
    "embedding_length",
    "expert_count",
    "expert_used_count",
    "feed_forward_length",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.factor",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "rope.scaling.type",
    "tensor_data_layout",
    "vocab_size",
};

static mr_status check_keys(const mr_gguf *gguf, mr_error *err)
{
    const size_t prefix = strlen(PREFIX);
    for (size_t i = 0; i < mr_gguf_value_count(gguf); i++) {
        const mr_bytes key = mr_gguf_value_at(gguf, i)->key;
        if (key.size <= prefix || memcmp(key.data, PREFIX, prefix) != 0) {
            continue;
        }
        bool known = false;
        for (size_t k = 0; k < sizeof(known_keys) / sizeof(known_keys[0]) && !known; k++) {
            const size_t bytes = strlen(known_keys[k]);
            known =
                key.size - prefix == bytes && memcmp(key.data + prefix, known_keys[k], bytes) == 0;
        }
        if (!known) {
            return mr_fail(err, MR_UNIMPLEMENTED,
                           "the key '%.*s' is not known to this build and may change what the "
                           "model computes; take a model without it or a newer build",
                           (int)key.size, (const char *)key.data);
        }
    }
    return MR_OK;
}

/* Reads a size that must be at least 1. */
static mr_status read_size(const mr_gguf *gguf, const char *key, mr_gguf_need need, uint32_t *out,
                           mr_error *err)
{
    MR_TRY(mr_gguf_read_u32(gguf, key, need, out, err));
    if (*out == 0) {
        return mr_fail(err, MR_DATA_LOSS, "the key '%s' is 0; the file is corrupt", key);
    }
    return MR_OK;
}

static mr_status read_heads(const mr_gguf *gguf, mr_model_config *c, mr_error *err)
{
    MR_TRY(read_size(gguf, PREFIX "attention.head_count", MR_GGUF_REQUIRED, &c->heads, err));
    c->kv_heads = c->heads;
    MR_TRY(read_size(gguf, PREFIX "attention.head_count_kv", MR_GGUF_OPTIONAL, &c->kv_heads, err));
    if (c->heads % c->kv_heads != 0) {
        return mr_fail(err, MR_DATA_LOSS,
                       "attention.head_count %" PRIu32
                       " is not a multiple of head_count_kv %" PRIu32 "; the file is corrupt",
                       c->heads, c->kv_heads);
    }
    /* Without a key_length the heads divide the stream among them; with neither, it stays 0. */
    c->head_width = c->width % c->heads == 0 ? c->width / c->heads : 0;
    MR_TRY(mr_gguf_read_u32(gguf, PREFIX "attention.key_length", MR_GGUF_OPTIONAL, &c->head_width,
                            err));
    if (c->head_width == 0 || c->head_width % 2 != 0 || c->head_width > MAX_HEAD_WIDTH) {
        return mr_fail(err, MR_DATA_LOSS,
                       "a head width of %" PRIu32
                       " (attention.key_length, or embedding_length %" PRIu32
                       " over head_count %" PRIu32 ") is not an even number from 2 to %u; "
                       "the file is corrupt",
                       c->head_width, c->width, c->heads, MAX_HEAD_WIDTH);
    }
    uint32_t value_width = c->head_width;
    MR_TRY(mr_gguf_read_u32(gguf, PREFIX "attention.value_length", MR_GGUF_OPTIONAL, &value_width,
                            err));
    if (value_width != c->head_width) {
        return mr_fail(err, MR_UNIMPLEMENTED,
                       "attention.value_length %" PRIu32 " differs from the key width %" PRIu32
                       ", which this build does not support",
                       value_width, c->head_width);
    }
    return MR_OK;
}

static mr_status check_widths(const mr_model_config *c, mr_error *err)
{
    const uint64_t rows = (uint64_t)c->heads + 2 * (uint64_t)c->kv_heads;
    uint64_t qkv;
    if (!mr_mul_u64(rows, c->head_width, &qkv) || qkv > INT32_MAX || c->width > INT32_MAX ||
        c->ffn_width > INT32_MAX / 2) {
        return mr_fail(err, MR_DATA_LOSS,
                       "widths are out of range: embedding_length %" PRIu32
                       ", feed_forward_length %" PRIu32 ", %" PRIu64 " heads of %" PRIu32
                       "; the file is corrupt",
                       c->width, c->ffn_width, rows, c->head_width);
    }
    return MR_OK;
}

static mr_status read_shape(const mr_gguf *gguf, mr_model_config *c, mr_error *err)
{
    MR_TRY(read_size(gguf, PREFIX "block_count", MR_GGUF_REQUIRED, &c->layers, err));
    if (c->layers > MR_MAX_LAYERS) {
        return mr_fail(err, MR_DATA_LOSS,
                       "block_count is %" PRIu32
                       " where at most %u are allowed; the file is corrupt",
                       c->layers, MR_MAX_LAYERS);
    }
    MR_TRY(read_size(gguf, PREFIX "embedding_length", MR_GGUF_REQUIRED, &c->width, err));
    MR_TRY(read_size(gguf, PREFIX "feed_forward_length", MR_GGUF_REQUIRED, &c->ffn_width, err));
    MR_TRY(read_size(gguf, PREFIX "context_length", MR_GGUF_REQUIRED, &c->context_length, err));
    MR_TRY(read_heads(gguf, c, err));
    MR_TRY(check_widths(c, err));
    MR_TRY(mr_gguf_read_f32(gguf, PREFIX "attention.layer_norm_rms_epsilon", MR_GGUF_REQUIRED,
                            &c->norm_epsilon, err));
    if (!(c->norm_epsilon > 0.0f)) {
        return mr_fail(err, MR_DATA_LOSS,
                       "attention.layer_norm_rms_epsilon is %g, not positive; the file is corrupt",
                       (double)c->norm_epsilon);
    }
    uint32_t experts = 0;
    MR_TRY(mr_gguf_read_u32(gguf, PREFIX "expert_count", MR_GGUF_OPTIONAL, &experts, err));
    if (experts > 0) {
        return mr_fail(err, MR_UNIMPLEMENTED,
                       "a mixture of %" PRIu32 " experts (expert_count) is not supported; "
                       "take a dense model",
                       experts);
    }
    return MR_OK;
}

/* V is what the embedding has rows for. */
static mr_status read_vocab_size(const mr_gguf *gguf, mr_model_config *c, mr_error *err)
{
    const mr_tensor_table *tensors = mr_gguf_tensors(gguf);
    const mr_model_tensor *embedding = mr_tensor_table_find(tensors, TOKEN_EMBD);
    if (embedding != NULL && embedding->shape[0] > INT32_MAX) {
        return mr_fail(err, MR_DATA_LOSS,
                       "tensor '" TOKEN_EMBD "' has %" PRIu64
                       " rows, too many for 32-bit token ids; "
                       "the file is corrupt",
                       embedding->shape[0]);
    }
    const uint64_t rows = embedding != NULL ? embedding->shape[0] : 1;
    MR_TRY(mr_tensor_table_require(tensors, TOKEN_EMBD, rows, c->width, &embedding, err));
    c->vocab_size = (uint32_t)rows;
    return MR_OK;
}

/* The divisor of all frequencies; *type is set to the scaling's name. */
static mr_status read_rope_scaling(const mr_gguf *gguf, mr_model_config *c, float *factor,
                                   mr_error *err)
{
    const char *const factor_key = PREFIX "rope.scaling.factor";
    *factor = 1.0f;
    MR_TRY(mr_gguf_read_f32(gguf, PREFIX "rope.scale_linear", MR_GGUF_OPTIONAL, factor, err));
    MR_TRY(mr_gguf_read_f32(gguf, factor_key, MR_GGUF_OPTIONAL, factor, err));
    if (!(*factor > 0.0f)) {
        return mr_fail(err, MR_DATA_LOSS, "the key '%s' is %g, not positive; the file is corrupt",
                       factor_key, (double)*factor);
    }
    /* A factor without a type is what files had before there was more than one. */
    char type[MR_GGUF_NAME_MAX];
    snprintf(type, sizeof(type), "%s", *factor == 1.0f ? "none" : "linear");
    MR_TRY(mr_gguf_read_name(gguf, PREFIX "rope.scaling.type", MR_GGUF_OPTIONAL, type, err));
    if (strcmp(type, "none") == 0) {
        *factor = 1.0f;
        snprintf(c->rope_type, sizeof(c->rope_type), "default");
        return MR_OK;
    }
    if (strcmp(type, "linear") == 0) {
        snprintf(c->rope_type, sizeof(c->rope_type), "linear");
        return MR_OK;
    }
    return mr_fail(err, MR_UNIMPLEMENTED,
                   "rope.scaling.type '%s' is not supported; this build has none, linear and "
                   "frequency factors (" ROPE_FREQS ")",
                   type);
}

/* Gives the factors of the rope_freqs tensor, NULL if the model has none. */
static mr_status read_rope_factors(const mr_gguf *gguf, uint32_t pairs, double **out, mr_error *err)
{
    *out = NULL;
    const mr_tensor_table *tensors = mr_gguf_tensors(gguf);
    const mr_model_tensor *tensor = mr_tensor_table_find(tensors, ROPE_FREQS);
    if (tensor == NULL) {
        return MR_OK;
    }
    MR_TRY(mr_tensor_table_require(tensors, ROPE_FREQS, 1, pairs, &tensor, err));
    double *factors = mr_calloc(pairs, sizeof(*factors));
    float *stored = mr_calloc(pairs, sizeof(*stored));
    if (factors == NULL || stored == NULL) {
        free(factors);
        free(stored);
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "no memory for " ROPE_FREQS);
    }
    mr_dequantize(tensor->dtype, tensor->data, stored, pairs);
    for (uint32_t i = 0; i < pairs; i++) {
        factors[i] = (double)stored[i];
    }
    free(stored);
    *out = factors;
    return MR_OK;
}

static mr_status read_rope(mr_gguf *gguf, mr_model_config *c, mr_error *err)
{
    c->rope.pairing = MR_ROPE_INTERLEAVED;
    c->rope.attention_factor = 1.0f;
    c->rope.dims = c->head_width;
    MR_TRY(mr_gguf_read_u32(gguf, PREFIX "rope.dimension_count", MR_GGUF_OPTIONAL, &c->rope.dims,
                            err));
    if (c->rope.dims == 0 || c->rope.dims % 2 != 0 || c->rope.dims > c->head_width) {
        return mr_fail(err, MR_DATA_LOSS,
                       "rope.dimension_count is %" PRIu32
                       ", not an even number from 2 to the head width %" PRIu32
                       "; the file is corrupt",
                       c->rope.dims, c->head_width);
    }
    c->rope_theta = 10000.0f;
    MR_TRY(mr_gguf_read_f32(gguf, PREFIX "rope.freq_base", MR_GGUF_OPTIONAL, &c->rope_theta, err));

    float factor;
    mr_rope_params params = {.dims = c->rope.dims, .theta = (double)c->rope_theta};
    MR_TRY(read_rope_scaling(gguf, c, &factor, err));
    params.factor = (double)factor;
    c->rope_factor = factor != 1.0f ? factor : 0.0f;
    double *factors = NULL;
    MR_TRY(read_rope_factors(gguf, c->rope.dims / 2, &factors, err));
    if (factors != NULL) {
        /* Of this architecture only Llama 3.1 and its heirs have the tensor. */
        snprintf(c->rope_type, sizeof(c->rope_type), "llama3");
        params.factors = factors;
        mr_gguf_mark_used(gguf, ROPE_FREQS);
    }
    float *inv_freq = NULL;
    const mr_status status = mr_rope_create(&params, &inv_freq, err);
    c->rope.inv_freq = inv_freq;
    free(factors);
    return status;
}

mr_status mr_llama_read_gguf(mr_gguf *gguf, mr_model_config *config, mr_error *err)
{
    MR_TRY(check_keys(gguf, err));
    MR_TRY(read_shape(gguf, config, err));
    MR_TRY(read_vocab_size(gguf, config, err));
    config->activation = MR_ACT_SILU;
    config->tied = mr_tensor_table_find(mr_gguf_tensors(gguf), "output.weight") == NULL;
    return read_rope(gguf, config, err);
}
