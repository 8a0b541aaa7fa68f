/* SPDX-License-Identifier: Apache-2.0 */
#include "model/hf_config.h"

#include "base/checked.h"
#include "model/hf_json.h"
#include "model/hf_rope.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define MAX_HEAD_WIDTH      8192u
#define OPT_POSITION_OFFSET 2u
#define OPT_EPSILON         1e-5f
#define MAX_SAMPLING        100.0
#define MAX_TOP_K           16777216.0 /* floats are exact up to here */

/* Reads a size that must be there and at least 1. */
static mr_status read_size(const json_t *root, const char *key, uint32_t *out, mr_error *err)
{
    *out = 0;
    MR_TRY(mr_hf_json_u32(root, key, out, err));
    if (*out == 0) {
        return mr_fail(err, MR_DATA_LOSS, "the key '%s' is missing or 0", key);
    }
    return MR_OK;
}

static mr_status require_text(const json_t *root, const char *key, const char *wanted,
                              mr_error *err)
{
    const char *found = wanted;
    MR_TRY(mr_hf_json_string(root, key, &found, err));
    if (strcmp(found, wanted) != 0) {
        return mr_fail(err, MR_UNIMPLEMENTED,
                       "%s '%.64s' is not supported in this architecture; it has '%s'", key, found,
                       wanted);
    }
    return MR_OK;
}

static mr_status check_class(const json_t *root, const mr_hf_traits *traits, mr_error *err)
{
    const json_t *classes = json_object_get(root, "architectures");
    const char *first = json_string_value(json_array_get(classes, 0));
    if (first != NULL && strcmp(first, traits->class_name) != 0) {
        return mr_fail(err, MR_UNIMPLEMENTED,
                       "a %.96s (architectures) is not supported; this build runs %s", first,
                       traits->class_name);
    }
    return MR_OK;
}

/* ---- shape ---- */

static mr_status check_shape(const mr_model_config *c, mr_error *err)
{
    if (c->layers > MR_MAX_LAYERS) {
        return mr_fail(err, MR_DATA_LOSS, "num_hidden_layers %" PRIu32 " is above %u", c->layers,
                       MR_MAX_LAYERS);
    }
    if (c->heads % c->kv_heads != 0) {
        return mr_fail(err, MR_DATA_LOSS,
                       "num_attention_heads %" PRIu32
                       " is not a multiple of num_key_value_heads %" PRIu32,
                       c->heads, c->kv_heads);
    }
    if (c->head_width == 0 || c->head_width % 2 != 0 || c->head_width > MAX_HEAD_WIDTH) {
        return mr_fail(err, MR_DATA_LOSS,
                       "a head width of %" PRIu32 " (head_dim, or hidden_size %" PRIu32
                       " over num_attention_heads %" PRIu32 ") is not an even number from 2 to %u",
                       c->head_width, c->width, c->heads, MAX_HEAD_WIDTH);
    }
    uint64_t qkv;
    if (!mr_mul_u64((uint64_t)c->heads + 2 * (uint64_t)c->kv_heads, c->head_width, &qkv) ||
        qkv > INT32_MAX || c->width > INT32_MAX || c->ffn_width > INT32_MAX / 2 ||
        c->vocab_size > INT32_MAX || c->context_length > INT32_MAX) {
        return mr_fail(err, MR_DATA_LOSS,
                       "hidden_size %" PRIu32 ", intermediate_size %" PRIu32 ", vocab_size %" PRIu32
                       ", max_position_embeddings %" PRIu32 " or the heads are too large",
                       c->width, c->ffn_width, c->vocab_size, c->context_length);
    }
    return MR_OK;
}

/* What every configuration has; the width of the network inside goes by its own key. */
static mr_status read_shape(const json_t *root, const char *ffn_key, mr_model_config *c,
                            mr_error *err)
{
    MR_TRY(read_size(root, "num_hidden_layers", &c->layers, err));
    MR_TRY(read_size(root, "hidden_size", &c->width, err));
    MR_TRY(read_size(root, ffn_key, &c->ffn_width, err));
    MR_TRY(read_size(root, "num_attention_heads", &c->heads, err));
    MR_TRY(read_size(root, "vocab_size", &c->vocab_size, err));
    MR_TRY(read_size(root, "max_position_embeddings", &c->context_length, err));
    c->kv_heads = c->heads;
    MR_TRY(mr_hf_json_u32(root, "num_key_value_heads", &c->kv_heads, err));
    if (c->kv_heads == 0) {
        return mr_fail(err, MR_DATA_LOSS, "the key 'num_key_value_heads' is 0");
    }
    c->head_width = c->width % c->heads == 0 ? c->width / c->heads : 0;
    MR_TRY(mr_hf_json_u32(root, "head_dim", &c->head_width, err));
    return check_shape(c, err);
}

/* ---- windows ---- */

static void set_windowed(mr_model_config *c, uint32_t first)
{
    for (uint32_t i = first; i < c->layers; i++) {
        c->windowed[i / 64] |= (uint64_t)1 << i % 64;
    }
}

/* layer_types says of each layer whether it has the window. */
static mr_status read_layer_types(const json_t *types, mr_model_config *c, mr_error *err)
{
    if (!json_is_array(types) || json_array_size(types) != c->layers) {
        return mr_fail(err, MR_DATA_LOSS, "layer_types is not a list of %" PRIu32 " names",
                       c->layers);
    }
    for (uint32_t i = 0; i < c->layers; i++) {
        const char *type = json_string_value(json_array_get(types, i));
        const bool sliding = type != NULL && strcmp(type, "sliding_attention") == 0;
        if (!sliding && (type == NULL || strcmp(type, "full_attention") != 0)) {
            return mr_fail(err, MR_UNIMPLEMENTED,
                           "layer_types has '%.64s' for layer %" PRIu32 "; this build has "
                           "full_attention and sliding_attention",
                           type != NULL ? type : "something that is no text", i);
        }
        c->windowed[i / 64] |= (uint64_t)sliding << i % 64;
    }
    return MR_OK;
}

static mr_status read_window(const json_t *root, const mr_hf_traits *traits, mr_model_config *c,
                             mr_error *err)
{
    if (traits->window == MR_HF_WINDOW_NONE) {
        return MR_OK;
    }
    uint32_t window = json_object_get(root, "sliding_window") == NULL ? traits->default_window : 0;
    bool use = traits->window == MR_HF_WINDOW_ALL;
    MR_TRY(mr_hf_json_u32(root, "sliding_window", &window, err));
    MR_TRY(mr_hf_json_bool(root, "use_sliding_window", &use, err));
    if (!use || window == 0) {
        return MR_OK;
    }
    c->window = window;
    const json_t *types = json_object_get(root, "layer_types");
    if (types != NULL && !json_is_null(types)) {
        return read_layer_types(types, c, err);
    }
    uint32_t first = 0;
    if (traits->window == MR_HF_WINDOW_UPPER) {
        first = 28; /* the classes' own default */
        MR_TRY(mr_hf_json_u32(root, "max_window_layers", &first, err));
    }
    set_windowed(c, first);
    return MR_OK;
}

/* ---- readers ---- */

static mr_status read_bias(const json_t *root, mr_hf_bias rule, const char *key, mr_bias_use *out,
                           mr_error *err)
{
    bool has = rule == MR_HF_BIAS_ALWAYS;
    if (rule == MR_HF_BIAS_BY_KEY) {
        MR_TRY(mr_hf_json_bool(root, key, &has, err));
    }
    *out = has ? MR_BIAS_REQUIRED : MR_BIAS_NONE;
    return MR_OK;
}

mr_status mr_hf_read_rotary(const json_t *root, const mr_hf_traits *traits, mr_model_config *config,
                            mr_error *err)
{
    double epsilon = traits->epsilon;
    MR_TRY(check_class(root, traits, err));
    MR_TRY(read_shape(root, "intermediate_size", config, err));
    MR_TRY(require_text(root, "hidden_act", "silu", err));
    MR_TRY(mr_hf_json_double(root, "rms_norm_eps", &epsilon, err));
    if (!(epsilon > 0.0 && epsilon < 1.0)) {
        return mr_fail(err, MR_DATA_LOSS, "rms_norm_eps %g is not between 0 and 1", epsilon);
    }
    config->norm = MR_NORM_RMS;
    config->norm_epsilon = (float)epsilon;
    config->activation = MR_ACT_SILU;
    config->qk_norm = traits->qk_norm;
    config->tied = traits->tied;
    MR_TRY(mr_hf_json_bool(root, "tie_word_embeddings", &config->tied, err));
    MR_TRY(read_bias(root, traits->qkv_bias, "attention_bias", &config->qkv_bias, err));
    MR_TRY(read_bias(root, traits->o_bias, "attention_bias", &config->o_bias, err));
    MR_TRY(read_bias(root, traits->ffn_bias, "mlp_bias", &config->ffn_bias, err));
    MR_TRY(read_window(root, traits, config, err));
    return mr_hf_read_rope(root, config, err);
}

/* What OPT-350M and the like have and this build lacks. */
static mr_status check_opt(const json_t *root, const mr_model_config *c, mr_error *err)
{
    static const struct {
        const char *key;
        bool needed;
    } switches[] = {{"do_layer_norm_before", true},
                    {"layer_norm_elementwise_affine", true},
                    {"_remove_final_layer_norm", false}};
    for (size_t i = 0; i < sizeof(switches) / sizeof(switches[0]); i++) {
        bool found = switches[i].needed;
        MR_TRY(mr_hf_json_bool(root, switches[i].key, &found, err));
        if (found != switches[i].needed) {
            return mr_fail(err, MR_UNIMPLEMENTED, "OPT with '%s' %s is not supported",
                           switches[i].key, found ? "true" : "false");
        }
    }
    uint32_t projection = c->width;
    MR_TRY(mr_hf_json_u32(root, "word_embed_proj_dim", &projection, err));
    if (projection != c->width) {
        return mr_fail(err, MR_UNIMPLEMENTED,
                       "OPT with word_embed_proj_dim %" PRIu32 " beside hidden_size %" PRIu32
                       " is not supported",
                       projection, c->width);
    }
    return MR_OK;
}

mr_status mr_hf_read_opt(const json_t *root, const mr_hf_traits *traits, mr_model_config *config,
                         mr_error *err)
{
    bool bias = true;
    MR_TRY(check_class(root, traits, err));
    MR_TRY(read_shape(root, "ffn_dim", config, err));
    MR_TRY(check_opt(root, config, err));
    MR_TRY(require_text(root, "activation_function", "relu", err));
    MR_TRY(mr_hf_json_bool(root, "enable_bias", &bias, err));
    config->norm = MR_NORM_LAYER;
    config->norm_epsilon = OPT_EPSILON;
    config->activation = MR_ACT_RELU;
    config->ungated = true;
    config->tied = traits->tied;
    MR_TRY(mr_hf_json_bool(root, "tie_word_embeddings", &config->tied, err));
    config->qkv_bias = bias ? MR_BIAS_REQUIRED : MR_BIAS_NONE;
    config->o_bias = config->qkv_bias;
    config->ffn_bias = config->qkv_bias;
    config->position_offset = OPT_POSITION_OFFSET;
    config->learned_positions = config->context_length + OPT_POSITION_OFFSET;
    snprintf(config->rope_type, sizeof(config->rope_type), "none");
    return MR_OK;
}

/* ---- the rest of the file ---- */

mr_status mr_hf_read_dtype(const json_t *root, mr_dtype *out, mr_error *err)
{
    const char *name = "bfloat16";
    MR_TRY(mr_hf_json_string(root, "torch_dtype", &name, err));
    MR_TRY(mr_hf_json_string(root, "dtype", &name, err));
    if (strcmp(name, "bfloat16") == 0) {
        *out = MR_DTYPE_BF16;
    } else if (strcmp(name, "float16") == 0) {
        *out = MR_DTYPE_F16;
    } else if (strcmp(name, "float32") == 0) {
        *out = MR_DTYPE_F32;
    } else {
        return mr_fail(err, MR_UNIMPLEMENTED,
                       "random weights of dtype '%.64s' are not supported; float32, float16 and "
                       "bfloat16 are",
                       name);
    }
    return MR_OK;
}

static mr_status add_end(const json_t *value, mr_model_config *config, mr_error *err)
{
    const json_int_t id = json_integer_value(value);
    if (!json_is_integer(value) || id < 0 || id >= (json_int_t)config->vocab_size) {
        return mr_fail(err, MR_DATA_LOSS,
                       "eos_token_id is not of token ids below the vocab_size %" PRIu32,
                       config->vocab_size);
    }
    return mr_model_config_add_eos(config, (uint32_t)id, err);
}

mr_status mr_hf_add_eos(const json_t *root, mr_model_config *config, mr_error *err)
{
    const json_t *value = json_object_get(root, "eos_token_id");
    if (value == NULL || json_is_null(value)) {
        return MR_OK;
    }
    if (!json_is_array(value)) {
        return add_end(value, config, err);
    }
    for (size_t i = 0; i < json_array_size(value); i++) {
        MR_TRY(add_end(json_array_get(value, i), config, err));
    }
    return MR_OK;
}

mr_status mr_hf_read_sampling(const json_t *root, mr_model_config *config, mr_error *err)
{
    /* Ranges are those of requests. */
    const struct {
        const char *key;
        float *to;
        double low, high;
        bool above; /* the low end is outside */
    } values[] = {
        {"temperature", &config->sampling.temperature, 0.0, MAX_SAMPLING, false},
        {"top_p", &config->sampling.top_p, 0.0, 1.0, true},
        {"top_k", &config->sampling.top_k, 0.0, MAX_TOP_K, false},
        {"min_p", &config->sampling.min_p, 0.0, 1.0, false},
        {"repetition_penalty", &config->sampling.repetition_penalty, 0.0, MAX_SAMPLING, true},
    };
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        double value = (double)NAN;
        MR_TRY(mr_hf_json_double(root, values[i].key, &value, err));
        if (isnan(value)) {
            continue;
        }
        const bool inside = value >= values[i].low && value <= values[i].high;
        if (!inside || (values[i].above && value == values[i].low)) {
            return mr_fail(err, MR_DATA_LOSS,
                           "%s %g is out of range; correct the file, or remove "
                           "the key",
                           values[i].key, value);
        }
        *values[i].to = (float)value;
    }
    return MR_OK;
}
