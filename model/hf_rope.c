/* SPDX-License-Identifier: Apache-2.0 */
#include "model/hf_rope.h"

#include "base/checked.h"
#include "model/hf_json.h"
#include "model/rope.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What the configuration says, from whichever place says it. */
typedef struct rope_spec {
    const json_t *object; /* rope_parameters or rope_scaling; NULL: neither */
    const char *type;
    double theta;
    double rotary; /* share of a head that is rotated */
    double factor; /* 0: not given */
    double low_freq_factor, high_freq_factor;
    double beta_fast, beta_slow;
    double mscale, mscale_all_dim;
    double attention_factor; /* 0: not given */
    uint32_t original;       /* 0: not given */
    bool truncate;
} rope_spec;

typedef struct rope_type {
    const char *name; /* as files say it */
    const char *kind; /* as we say it */
    const char *keys; /* what it may have, besides type, theta and share */
    const char *required;
    mr_status (*fill)(const rope_spec *spec, mr_model_config *config, mr_error *err);
} rope_type;

#define LARGEST 1e30 /* of numbers that become float */

#define COMMON_KEYS " type rope_type rope_theta partial_rotary_factor "

/* Whether `words`, separated by spaces, has the word. */
static bool has_word(const char *words, const char *word)
{
    const size_t bytes = strlen(word);
    for (const char *at = words; bytes > 0 && (at = strstr(at, word)) != NULL; at += bytes) {
        const bool begins = at == words || at[-1] == ' ';
        if (begins && (at[bytes] == ' ' || at[bytes] == '\0')) {
            return true;
        }
    }
    return false;
}

static mr_status make_table(const mr_rope_params *params, mr_model_config *config, mr_error *err)
{
    float *inv_freq = NULL;
    MR_TRY(mr_rope_create(params, &inv_freq, err));
    config->rope.inv_freq = inv_freq;
    return MR_OK;
}

static mr_rope_params plain(const rope_spec *spec, const mr_model_config *config)
{
    return (mr_rope_params){.dims = config->rope.dims, .theta = spec->theta, .factor = 1.0};
}

/* The context that a scaling makes of `tokens`. */
static void extend_context(mr_model_config *config, double tokens)
{
    if (tokens > config->context_length && tokens < INT32_MAX) {
        config->context_length = (uint32_t)tokens;
    }
}

/* What queries and keys are multiplied with. */
static mr_status set_attention(mr_model_config *config, double attention, mr_error *err)
{
    if (!(attention > 0.0 && attention < LARGEST)) {
        return mr_fail(err, MR_DATA_LOSS,
                       "rope: an attention factor of %g; correct attention_factor, mscale, "
                       "mscale_all_dim or original_max_position_embeddings",
                       attention);
    }
    config->rope.attention_factor = (float)attention;
    return MR_OK;
}

static mr_status fill_default(const rope_spec *spec, mr_model_config *config, mr_error *err)
{
    const mr_rope_params params = plain(spec, config);
    return make_table(&params, config, err);
}

static mr_status fill_linear(const rope_spec *spec, mr_model_config *config, mr_error *err)
{
    mr_rope_params params = plain(spec, config);
    params.factor = spec->factor;
    extend_context(config, config->context_length * spec->factor);
    return make_table(&params, config, err);
}

static mr_status fill_dynamic(const rope_spec *spec, mr_model_config *config, mr_error *err)
{
    config->rope.rule = MR_ROPE_DYNAMIC;
    config->rope.original = spec->original > 0 ? spec->original : config->context_length;
    config->rope.theta = spec->theta;
    config->rope.factor = spec->factor;
    extend_context(config, config->rope.original * spec->factor);
    return fill_default(spec, config, err);
}

static mr_status fill_llama3(const rope_spec *spec, mr_model_config *config, mr_error *err)
{
    mr_rope_params params = plain(spec, config);
    params.scaling = MR_ROPE_SCALE_LLAMA3;
    params.factor = spec->factor;
    params.low_freq_factor = spec->low_freq_factor;
    params.high_freq_factor = spec->high_freq_factor;
    params.original = spec->original;
    if (!(params.low_freq_factor > 0.0 && params.high_freq_factor > params.low_freq_factor)) {
        return mr_fail(err, MR_DATA_LOSS,
                       "rope llama3: high_freq_factor %g must be above low_freq_factor %g, and "
                       "both above 0",
                       params.high_freq_factor, params.low_freq_factor);
    }
    if (spec->original == 0) {
        return mr_fail(err, MR_DATA_LOSS,
                       "rope llama3: original_max_position_embeddings is 0; it is the context that "
                       "the model was first trained with");
    }
    return make_table(&params, config, err);
}

static mr_status fill_yarn(const rope_spec *spec, mr_model_config *config, mr_error *err)
{
    mr_rope_params params = plain(spec, config);
    params.scaling = MR_ROPE_SCALE_YARN;
    params.original = spec->original > 0 ? spec->original : config->context_length;
    params.factor = spec->factor > 0.0 ? spec->factor : config->context_length / params.original;
    params.beta_fast = spec->beta_fast;
    params.beta_slow = spec->beta_slow;
    params.truncate = spec->truncate;
    double attention = mr_rope_yarn_mscale(params.factor, 1.0);
    if (spec->mscale > 0.0 && spec->mscale_all_dim > 0.0) {
        attention = mr_rope_yarn_mscale(params.factor, spec->mscale) /
                    mr_rope_yarn_mscale(params.factor, spec->mscale_all_dim);
    }
    attention = spec->attention_factor > 0.0 ? spec->attention_factor : attention;
    MR_TRY(set_attention(config, attention, err));
    extend_context(config, params.original * params.factor);
    return make_table(&params, config, err);
}

/* Gives spec->object[key], numbers above 0, one a pair. */
static mr_status read_factors(const rope_spec *spec, const char *key, uint32_t pairs, double **out,
                              mr_error *err)
{
    const json_t *array = json_object_get(spec->object, key);
    if (!json_is_array(array) || json_array_size(array) != pairs) {
        return mr_fail(err, MR_DATA_LOSS,
                       "rope longrope: '%s' is not a list of %" PRIu32 " numbers", key, pairs);
    }
    double *factors = mr_calloc(pairs, sizeof(*factors));
    if (factors == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "no memory for RoPE factors");
    }
    for (uint32_t i = 0; i < pairs; i++) {
        const double factor = json_number_value(json_array_get(array, i));
        if (!(factor > 0.0 && factor < LARGEST)) {
            free(factors);
            return mr_fail(err, MR_DATA_LOSS,
                           "rope longrope: entry %" PRIu32 " of '%s' is no number above 0", i, key);
        }
        factors[i] = factor;
    }
    *out = factors;
    return MR_OK;
}

static mr_status long_table(const rope_spec *spec, const char *key, const mr_model_config *config,
                            float **inv_freq, mr_error *err)
{
    mr_rope_params params = plain(spec, config);
    double *factors = NULL;
    MR_TRY(read_factors(spec, key, config->rope.dims / 2, &factors, err));
    params.factors = factors;
    const mr_status status = mr_rope_create(&params, inv_freq, err);
    free(factors);
    return status;
}

static mr_status fill_longrope(const rope_spec *spec, mr_model_config *config, mr_error *err)
{
    const uint32_t original = spec->original > 0 ? spec->original : config->context_length;
    double factor = (double)config->context_length / original;
    factor = spec->factor > 0.0 ? spec->factor : factor;
    const double attention = spec->attention_factor > 0.0 ? spec->attention_factor
                                                          : mr_rope_long_factor(factor, original);
    config->rope.rule = MR_ROPE_TWO;
    config->rope.original = original;
    MR_TRY(set_attention(config, attention, err));
    float *table = NULL;
    MR_TRY(long_table(spec, "short_factor", config, &table, err));
    config->rope.inv_freq = table;
    MR_TRY(long_table(spec, "long_factor", config, &table, err));
    config->rope.long_inv_freq = table;
    return MR_OK;
}

#define LONGROPE_KEYS                                                                              \
    "short_factor long_factor factor attention_factor original_max_position_embeddings"

static const rope_type types[] = {
    {"default", "default", "", "", fill_default},
    {"linear", "linear", "factor", "factor", fill_linear},
    {"dynamic", "dynamic", "factor original_max_position_embeddings", "factor", fill_dynamic},
    {"llama3", "llama3", "factor low_freq_factor high_freq_factor original_max_position_embeddings",
     "factor low_freq_factor high_freq_factor original_max_position_embeddings", fill_llama3},
    {"yarn", "yarn",
     "factor original_max_position_embeddings attention_factor beta_fast beta_slow mscale "
     "mscale_all_dim truncate",
     "factor", fill_yarn},
    {"longrope", "longrope", LONGROPE_KEYS, "short_factor long_factor", fill_longrope},
    {"su", "longrope", LONGROPE_KEYS, "short_factor long_factor",
     fill_longrope}, /* its first name */
};

bool mr_hf_rope_type(size_t index, const char **name, const char **keys)
{
    if (index >= sizeof(types) / sizeof(types[0])) {
        return false;
    }
    *name = types[index].name;
    *keys = types[index].keys;
    return true;
}

/* Every key of the object is one that the type has, and what it needs is there. */
static mr_status check_keys(const rope_spec *spec, const rope_type *type, mr_error *err)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)spec->object, key, value)
    {
        if (!has_word(COMMON_KEYS, key) && !has_word(type->keys, key)) {
            return mr_fail(err, MR_UNIMPLEMENTED,
                           "rope '%s' has the key '%.64s', which is not known and may change what "
                           "the model computes; known are%s%s",
                           type->name, key, COMMON_KEYS, type->keys);
        }
    }
    char needed[128];
    snprintf(needed, sizeof(needed), "%s", type->required);
    for (char *rest = needed, *word; (word = strsep(&rest, " ")) != NULL;) {
        const json_t *given = word[0] != '\0' ? json_object_get(spec->object, word) : json_true();
        if (given == NULL || json_is_null(given)) {
            return mr_fail(err, MR_DATA_LOSS, "rope '%s' lacks the key '%s'", type->name, word);
        }
    }
    return MR_OK;
}

/* rope_parameters (new) or rope_scaling (old); both only if they say the same. */
static mr_status find_object(const json_t *root, rope_spec *spec, mr_error *err)
{
    const json_t *parameters = json_object_get(root, "rope_parameters");
    const json_t *scaling = json_object_get(root, "rope_scaling");
    parameters = json_is_null(parameters) ? NULL : parameters;
    scaling = json_is_null(scaling) ? NULL : scaling;
    if (parameters != NULL && scaling != NULL && !json_equal(parameters, scaling)) {
        return mr_fail(err, MR_DATA_LOSS,
                       "rope_parameters and rope_scaling contradict each other; keep one");
    }
    spec->object = parameters != NULL ? parameters : scaling;
    if (spec->object != NULL && !json_is_object(spec->object)) {
        return mr_fail(err, MR_DATA_LOSS, "rope_parameters or rope_scaling is no object");
    }
    return MR_OK;
}

static mr_status find_type(rope_spec *spec, mr_error *err)
{
    const char *old = NULL;
    MR_TRY(mr_hf_json_string(spec->object, "type", &old, err));
    MR_TRY(mr_hf_json_string(spec->object, "rope_type", &spec->type, err));
    if (old != NULL && spec->type != NULL && strcmp(old, spec->type) != 0) {
        return mr_fail(err, MR_DATA_LOSS,
                       "rope has rope_type '%.32s' and type '%.32s'; keep the one that is meant",
                       spec->type, old);
    }
    spec->type = spec->type != NULL ? spec->type : old;
    if (spec->type == NULL && json_object_get(spec->object, "factor") != NULL) {
        return mr_fail(err, MR_DATA_LOSS, "rope has a factor and no rope_type");
    }
    spec->type = spec->type != NULL ? spec->type : "default";
    return MR_OK;
}

static mr_status read_numbers(const json_t *root, rope_spec *spec, mr_error *err)
{
    const struct {
        const char *key;
        double *to;
    } numbers[] = {
        {"rope_theta", &spec->theta},
        {"partial_rotary_factor", &spec->rotary},
        {"factor", &spec->factor},
        {"low_freq_factor", &spec->low_freq_factor},
        {"high_freq_factor", &spec->high_freq_factor},
        {"beta_fast", &spec->beta_fast},
        {"beta_slow", &spec->beta_slow},
        {"mscale", &spec->mscale},
        {"mscale_all_dim", &spec->mscale_all_dim},
        {"attention_factor", &spec->attention_factor},
    };
    *spec = (rope_spec){.object = spec->object,
                        .type = spec->type,
                        .theta = 10000.0,
                        .rotary = 1.0,
                        .beta_fast = 32.0,
                        .beta_slow = 1.0,
                        .truncate = true};
    MR_TRY(mr_hf_json_double(root, "rope_theta", &spec->theta, err));
    MR_TRY(mr_hf_json_double(root, "partial_rotary_factor", &spec->rotary, err));
    MR_TRY(mr_hf_json_u32(root, "original_max_position_embeddings", &spec->original, err));
    for (size_t i = 0; spec->object != NULL && i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        MR_TRY(mr_hf_json_double(spec->object, numbers[i].key, numbers[i].to, err));
        if (*numbers[i].to < 0.0) {
            return mr_fail(err, MR_DATA_LOSS, "rope: '%s' is %g, below 0", numbers[i].key,
                           *numbers[i].to);
        }
    }
    MR_TRY(mr_hf_json_bool(spec->object, "truncate", &spec->truncate, err));
    MR_TRY(mr_hf_json_u32(spec->object, "original_max_position_embeddings", &spec->original, err));
    const json_t *given = json_object_get(spec->object, "factor");
    const bool factor = given != NULL && !json_is_null(given);
    if (!(spec->theta > 1.0) || (factor && !(spec->factor >= 1.0)) || !(spec->beta_fast > 0.0) ||
        !(spec->beta_slow > 0.0)) {
        return mr_fail(err, MR_DATA_LOSS,
                       "rope: rope_theta %g must be above 1, factor %g at least 1, beta_fast and "
                       "beta_slow above 0",
                       spec->theta, spec->factor);
    }
    if (spec->theta > LARGEST || spec->factor > LARGEST) {
        return mr_fail(err, MR_DATA_LOSS, "rope: rope_theta %g and factor %g must be at most %g",
                       spec->theta, spec->factor, LARGEST);
    }
    return MR_OK;
}

static mr_status set_dims(const rope_spec *spec, mr_model_config *config, mr_error *err)
{
    const double dims = floor(config->head_width * spec->rotary);
    if (!(dims >= 2.0 && dims <= config->head_width) || fmod(dims, 2.0) != 0.0) {
        return mr_fail(err, MR_DATA_LOSS,
                       "partial_rotary_factor %g of a head of %" PRIu32
                       " is not an even number of elements from 2 on",
                       spec->rotary, config->head_width);
    }
    config->rope.dims = (uint32_t)dims;
    return MR_OK;
}

mr_status mr_hf_read_rope(const json_t *root, mr_model_config *config, mr_error *err)
{
    rope_spec spec = {0};
    MR_TRY(find_object(root, &spec, err));
    MR_TRY(find_type(&spec, err));
    const rope_type *type = NULL;
    char known[128] = "";
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        type = strcmp(types[i].name, spec.type) == 0 ? &types[i] : type;
        const size_t used = strlen(known);
        snprintf(known + used, sizeof(known) - used, "%s%s", i == 0 ? "" : ", ", types[i].name);
    }
    if (type == NULL) {
        return mr_fail(err, MR_UNIMPLEMENTED,
                       "rope type '%.64s' is not supported; this build has: %s", spec.type, known);
    }
    MR_TRY(check_keys(&spec, type, err));
    MR_TRY(read_numbers(root, &spec, err));
    config->rope.pairing = MR_ROPE_HALVES;
    config->rope.attention_factor = 1.0f;
    config->rope_theta = (float)spec.theta;
    snprintf(config->rope_type, sizeof(config->rope_type), "%s", type->kind);
    config->rope_factor = (float)spec.factor;
    config->rope_original = spec.object != NULL ? spec.original : 0;
    MR_TRY(set_dims(&spec, config, err));
    return type->fill(&spec, config, err);
}
