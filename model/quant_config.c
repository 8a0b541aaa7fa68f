/* SPDX-License-Identifier: Apache-2.0 */
#include "model/quant_config.h"

#include "model/hf_json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MAX_GROUP (1u << 20)
#define OWN_FILE  "quantize_config.json"

typedef mr_status (*read_fn)(const json_t *object, mr_quant_config *out, mr_error *err);

static mr_status refuse_text(const char *key, const char *found, const char *have, mr_error *err)
{
    return mr_fail(err, MR_UNIMPLEMENTED, "%s '%.64s' is not supported; %s is", key, found, have);
}

/* A group size: a number, −1 for a whole row. */
static mr_status read_group(const json_t *object, const char *key, uint32_t *out, mr_error *err)
{
    const json_t *value = json_object_get(object, key);
    if (value == NULL || json_is_null(value)) {
        return MR_OK;
    }
    const json_int_t number = json_integer_value(value);
    if (!json_is_integer(value) || number == 0 || number < -1 || number > (json_int_t)MAX_GROUP) {
        return mr_fail(err, MR_DATA_LOSS, "%s is neither -1 nor a number from 1 to %u", key,
                       MAX_GROUP);
    }
    *out = number == -1 ? 0 : (uint32_t)number;
    return MR_OK;
}

static mr_status need_bits(const char *method, uint32_t bits, const uint32_t *have, size_t count,
                           mr_error *err)
{
    for (size_t i = 0; i < count; i++) {
        if (bits == have[i]) {
            return MR_OK;
        }
    }
    return mr_fail(err, MR_UNIMPLEMENTED,
                   "%s of %" PRIu32 " bits is not supported; a checkpoint of 4 bits is", method,
                   bits);
}

static void name_scheme(mr_quant_config *out, const char *method, const mr_quant_scheme *scheme)
{
    char group[16] = "";
    if (scheme->group > 0 && !scheme->e4m3) {
        snprintf(group, sizeof(group), " g%" PRIu32, scheme->group);
    }
    snprintf(out->label, sizeof(out->label), "%s %s%" PRIu32 "%s", method,
             scheme->e4m3 ? "fp" : "int", scheme->bits, group);
}

/* A list of module names. */
static mr_status take_list(const json_t *object, const char *key, mr_quant_config *out,
                           mr_error *err)
{
    json_t *list = json_object_get(object, key);
    if (list == NULL || json_is_null(list)) {
        return MR_OK;
    }
    size_t index;
    const json_t *name;
    json_array_foreach(list, index, name)
    {
        if (!json_is_string(name)) {
            break;
        }
    }
    if (!json_is_array(list) || index < json_array_size(list)) {
        return mr_fail(err, MR_DATA_LOSS, "%s is not a list of names", key);
    }
    mr_quant_left_destroy(out->left);
    const mr_status status = mr_quant_left_create(list, &out->left);
    return status == MR_OK
               ? MR_OK
               : mr_fail(err, status, "no memory for %zu names of modules", json_array_size(list));
}

/* ---- GPTQ ---- */

static mr_status read_gptq(const json_t *object, mr_quant_config *out, mr_error *err)
{
    static const uint32_t have[] = {2, 3, 4, 8};
    mr_quant_scheme *scheme = &out->schemes[0];
    *scheme = (mr_quant_scheme){.packed = true, .group = 128, .rows = 1, .symmetric = true};
    const char *format = "gptq";
    MR_TRY(mr_hf_json_u32(object, "bits", &scheme->bits, err));
    MR_TRY(need_bits("GPTQ", scheme->bits, have, 4, err));
    MR_TRY(read_group(object, "group_size", &scheme->group, err));
    MR_TRY(mr_hf_json_bool(object, "sym", &scheme->symmetric, err));
    MR_TRY(mr_hf_json_bool(object, "desc_act", &out->act_order, err));
    MR_TRY(mr_hf_json_bool(object, "lm_head", &out->head, err));
    MR_TRY(mr_hf_json_string(object, "checkpoint_format", &format, err));
    out->v2 = strcmp(format, "gptq_v2") == 0;
    if (!out->v2 && strcmp(format, "gptq") != 0) {
        return refuse_text("checkpoint_format", format, "gptq or gptq_v2", err);
    }
    const json_t *rules = json_object_get(object, "dynamic");
    if (json_object_size(rules) > 0) {
        return mr_fail(err, MR_UNIMPLEMENTED,
                       "GPTQ with rules for single modules ('dynamic') is not supported; quantise "
                       "all of them alike");
    }
    out->n_schemes = 1;
    name_scheme(out, "gptq", scheme);
    return take_list(object, "modules_to_not_convert", out, err);
}

/* ---- AWQ ---- */

static mr_status read_awq(const json_t *object, mr_quant_config *out, mr_error *err)
{
    static const uint32_t have[] = {4};
    mr_quant_scheme *scheme = &out->schemes[0];
    *scheme = (mr_quant_scheme){.packed = true, .bits = 4, .group = 128, .rows = 1};
    const char *version = "gemm";
    bool zeros = true;
    MR_TRY(mr_hf_json_u32(object, "w_bit", &scheme->bits, err));
    MR_TRY(mr_hf_json_u32(object, "bits", &scheme->bits, err));
    MR_TRY(need_bits("AWQ", scheme->bits, have, 1, err));
    MR_TRY(read_group(object, "q_group_size", &scheme->group, err));
    MR_TRY(read_group(object, "group_size", &scheme->group, err));
    MR_TRY(mr_hf_json_bool(object, "zero_point", &zeros, err));
    MR_TRY(mr_hf_json_string(object, "version", &version, err));
    if (strcmp(version, "gemm") != 0 && strcmp(version, "GEMM") != 0) {
        return refuse_text("AWQ version", version, "gemm", err);
    }
    scheme->symmetric = !zeros;
    out->n_schemes = 1;
    name_scheme(out, "awq", scheme);
    return take_list(object, "modules_to_not_convert", out, err);
}

/* ---- compressed-tensors ---- */

/* The two sizes of blocks that share a scale: outputs and inputs. */
static mr_status read_block(const json_t *object, const char *key, mr_quant_scheme *scheme,
                            mr_error *err)
{
    const json_t *block = json_object_get(object, key);
    const json_int_t rows = json_integer_value(json_array_get(block, 0));
    const json_int_t group = json_integer_value(json_array_get(block, 1));
    if (rows < 1 || group < 1 || rows > (json_int_t)MAX_GROUP || group > (json_int_t)MAX_GROUP) {
        return mr_fail(err, MR_DATA_LOSS, "%s is not two sizes", key);
    }
    scheme->rows = (uint32_t)rows;
    scheme->group = (uint32_t)group;
    return MR_OK;
}

/* How many weights share a scale. */
static mr_status read_strategy(const json_t *weights, mr_quant_scheme *scheme, mr_error *err)
{
    const char *strategy = scheme->group > 0 ? "group" : "tensor";
    MR_TRY(mr_hf_json_string(weights, "strategy", &strategy, err));
    if (strcmp(strategy, "group") == 0 && scheme->group > 0) {
        return MR_OK;
    }
    if (strcmp(strategy, "channel") == 0 || strcmp(strategy, "tensor") == 0) {
        scheme->group = 0;
        scheme->rows = strategy[0] == 't' ? 0 : 1;
        return MR_OK;
    }
    if (strcmp(strategy, "block") != 0) {
        return refuse_text("strategy", strategy, "tensor, channel, group or block", err);
    }
    return read_block(weights, "block_structure", scheme, err);
}

static mr_status read_group_format(const char *format, mr_quant_scheme *scheme, mr_error *err)
{
    static const char *const have[] = {"pack-quantized", "int-quantized", "float-quantized",
                                       "naive-quantized"};
    for (size_t i = 0; i < sizeof(have) / sizeof(have[0]); i++) {
        if (strcmp(format, have[i]) == 0) {
            scheme->packed = i == 0;
            return MR_OK;
        }
    }
    return refuse_text("compressed-tensors format", format,
                       "pack-quantized, int-quantized, float-quantized or naive-quantized", err);
}

static mr_status read_weights(const json_t *weights, mr_quant_scheme *scheme, mr_error *err)
{
    static const uint32_t have[] = {2, 3, 4, 8};
    const char *type = "int";
    scheme->symmetric = true;
    scheme->rows = 1;
    MR_TRY(mr_hf_json_string(weights, "type", &type, err));
    MR_TRY(mr_hf_json_u32(weights, "num_bits", &scheme->bits, err));
    MR_TRY(need_bits("compressed-tensors", scheme->bits, have, 4, err));
    MR_TRY(mr_hf_json_bool(weights, "symmetric", &scheme->symmetric, err));
    MR_TRY(read_group(weights, "group_size", &scheme->group, err));
    scheme->e4m3 = strcmp(type, "float") == 0;
    if ((!scheme->e4m3 && strcmp(type, "int") != 0) || (scheme->e4m3 && scheme->bits != 8)) {
        return refuse_text("compressed-tensors type", type, "int, or float of 8 bits", err);
    }
    if (!scheme->packed && scheme->bits != 8) {
        return mr_fail(err, MR_UNIMPLEMENTED,
                       "codes of %" PRIu32 " bits are supported in pack-quantized files only",
                       scheme->bits);
    }
    return read_strategy(weights, scheme, err);
}

/* What changes results beside the codes. */
static mr_status check_compressed(const json_t *object, mr_error *err)
{
    const char *sparsity = "dense";
    const char *status = "compressed";
    MR_TRY(mr_hf_json_string(json_object_get(object, "sparsity_config"), "format", &sparsity, err));
    if (strcmp(sparsity, "dense") != 0) {
        return refuse_text("sparsity format", sparsity, "dense", err);
    }
    MR_TRY(mr_hf_json_string(object, "quantization_status", &status, err));
    if (strcmp(status, "compressed") != 0) {
        return refuse_text("quantization_status", status, "compressed", err);
    }
    if (json_object_size(
            json_object_get(json_object_get(object, "transform_config"), "config_groups")) > 0) {
        return mr_fail(err, MR_UNIMPLEMENTED,
                       "compressed-tensors with transforms (transform_config) is not supported; "
                       "quantise without them");
    }
    return MR_OK;
}

static mr_status read_compressed(const json_t *object, mr_quant_config *out, mr_error *err)
{
    const char *format = "dense";
    const char *name;
    json_t *group;
    MR_TRY(check_compressed(object, err));
    MR_TRY(mr_hf_json_string(object, "format", &format, err));
    json_object_foreach(json_object_get(object, "config_groups"), name, group)
    {
        const char *own = format;
        const json_t *weights = json_object_get(group, "weights");
        if (!json_is_object(weights)) {
            continue; /* a scheme of activations alone */
        }
        if (out->n_schemes == MR_QUANT_SCHEMES) {
            return mr_fail(err, MR_UNIMPLEMENTED, "more than %u config_groups", MR_QUANT_SCHEMES);
        }
        mr_quant_scheme *scheme = &out->schemes[out->n_schemes++];
        MR_TRY(mr_hf_json_string(group, "format", &own, err));
        mr_status read = read_group_format(own, scheme, err);
        if (read == MR_OK) {
            read = read_weights(weights, scheme, err);
        }
        if (read != MR_OK) {
            (void)mr_fail_context(err, "%.64s", name);
            return read;
        }
    }
    if (out->n_schemes == 0) {
        return mr_fail(err, MR_DATA_LOSS, "no config_groups with weights");
    }
    name_scheme(out, "compressed", &out->schemes[0]);
    return take_list(object, "ignore", out, err);
}

/* ---- FP8 ---- */

static mr_status read_fp8(const json_t *object, mr_quant_config *out, mr_error *err)
{
    mr_quant_scheme *scheme = &out->schemes[0];
    const char *format = "e4m3";
    *scheme = (mr_quant_scheme){.e4m3 = true, .bits = 8, .symmetric = true};
    MR_TRY(mr_hf_json_string(object, "fmt", &format, err));
    if (strcmp(format, "e4m3") != 0) {
        return refuse_text("FP8 format", format, "e4m3", err);
    }
    const json_t *block = json_object_get(object, "weight_block_size");
    if (block != NULL && !json_is_null(block)) {
        MR_TRY(read_block(object, "weight_block_size", scheme, err));
    }
    out->n_schemes = 1;
    name_scheme(out, "fp8", scheme);
    snprintf(out->label, sizeof(out->label), "fp8");
    MR_TRY(take_list(object, "modules_to_not_convert", out, err));
    return take_list(object, "ignored_layers", out, err);
}

/* ---- all ---- */

static const struct {
    const char *name;
    mr_quant_method method;
    read_fn read;
    const char *what;
} methods[] = {
    {"gptq", MR_QUANT_GPTQ, read_gptq,
     "2, 3, 4 and 8 bits, groups of any size or whole rows, symmetric or not, act-order "
     "(desc_act), "
     "checkpoint_format gptq and gptq_v2"},
    {"awq", MR_QUANT_AWQ, read_awq, "4 bits, version gemm, groups of any size or whole rows"},
    {"compressed-tensors", MR_QUANT_COMPRESSED, read_compressed,
     "pack-quantized of 2, 3, 4 and 8 bits, int-quantized of 8, float-quantized (F8_E4M3), "
     "naive-quantized; strategies tensor, channel, group and block"},
    {"fp8", MR_QUANT_FP8, read_fp8,
     "F8_E4M3 with a scale a tensor, a channel, or a block (weight_block_size)"},
};

bool mr_quant_method_at(size_t index, const char **method, const char **what)
{
    if (index >= sizeof(methods) / sizeof(methods[0])) {
        return false;
    }
    *method = methods[index].name;
    *what = methods[index].what;
    return true;
}

mr_status mr_quant_config_read(const json_t *found, mr_quant_config *out, mr_error *err)
{
    const char *name = NULL;
    *out = (mr_quant_config){0};
    if (found == NULL || json_is_null(found)) {
        return MR_OK;
    }
    if (!json_is_object(found)) {
        return mr_fail(err, MR_DATA_LOSS, "quantization_config is no object");
    }
    MR_TRY(mr_hf_json_string(found, "quant_method", &name, err));
    for (size_t i = 0; name != NULL && i < sizeof(methods) / sizeof(methods[0]); i++) {
        if (strcmp(name, methods[i].name) == 0) {
            out->method = methods[i].method;
            const mr_status status = methods[i].read(found, out, err);
            if (status != MR_OK) {
                (void)mr_fail_context(err, "quantization_config");
            }
            return status;
        }
    }
    return mr_fail(err, MR_UNIMPLEMENTED,
                   "quantization_config: quant_method '%.64s' is not supported; gptq, awq, "
                   "compressed-tensors and fp8 are; take such a checkpoint, or a GGUF file",
                   name != NULL ? name : "unnamed");
}

mr_status mr_quant_config_open(const char *dir, mr_quant_config *out, mr_error *err)
{
    json_t *root;
    *out = (mr_quant_config){0};
    MR_TRY(mr_hf_json_read(dir, OWN_FILE, &root, err));
    if (root == NULL) {
        return MR_OK;
    }
    mr_status status = MR_OK;
    if (json_object_get(root, "quant_method") == NULL &&
        json_object_set_new(root, "quant_method", json_string("gptq")) != 0) {
        status = mr_fail(err, MR_RESOURCE_EXHAUSTED, "no memory for the configuration");
    }
    if (status == MR_OK) {
        status = mr_quant_config_read(root, out, err);
    }
    json_decref(root);
    if (status != MR_OK) {
        (void)mr_fail_context(err, OWN_FILE);
    }
    return status;
}

void mr_quant_config_deinit(mr_quant_config *config)
{
    mr_quant_left_destroy(config->left);
    *config = (mr_quant_config){0};
}

mr_status mr_quant_config_leaves(const mr_quant_config *config, const char *module, bool *leaves,
                                 mr_error *err)
{
    *leaves = false;
    if (config->left == NULL) {
        return MR_OK;
    }
    const mr_status status = mr_quant_left_has(config->left, module, leaves, err);
    if (status != MR_OK) {
        (void)mr_fail_context(err, "quantization_config");
    }
    return status;
}
