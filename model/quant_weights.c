/* SPDX-License-Identifier: Apache-2.0 */
#include "model/quant_weights.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define NAME_BYTES 160u

typedef struct finder {
    const mr_quant_config *config;
    const mr_tensor_table *tensors;
    const mr_quant_module *module;
    mr_quant_scheme scheme; /* of this module */
    uint32_t groups;
    mr_weight_codes *out;
    mr_error *err;
} finder;

/* NULL if there is none. */
static const mr_model_tensor *look_up(const mr_tensor_table *tensors, const char *module,
                                      const char *suffix)
{
    char name[NAME_BYTES];
    snprintf(name, sizeof(name), "%s.%s", module, suffix);
    return mr_tensor_table_find(tensors, name);
}

/* The tensor, noted as used; NULL if there is none. */
static const mr_model_tensor *take(const finder *f, const char *suffix)
{
    const mr_model_tensor *tensor = look_up(f->tensors, f->module->name, suffix);
    if (tensor != NULL) {
        mr_tensor_table_mark_used(f->tensors, tensor);
    }
    return tensor;
}

static mr_status missing(const finder *f, const char *suffix)
{
    return mr_fail(f->err, MR_DATA_LOSS,
                   "tensor '%s.%s' is missing; the checkpoint is incomplete, download it again",
                   f->module->name, suffix);
}

/* The tensor is [rows][columns] of one of two types. */
static mr_status check_tensor(const finder *f, const mr_model_tensor *tensor, uint64_t rows,
                              uint64_t columns, mr_dtype type)
{
    if (tensor->dtype != type || tensor->n_dims != 2 || tensor->shape[0] != rows ||
        tensor->shape[1] != columns) {
        char shape[96];
        mr_tensor_shape_text(tensor, shape);
        return mr_fail(f->err, MR_DATA_LOSS,
                       "tensor '%s' is %s %s where %" PRIu32 " outputs by %" PRIu32
                       " inputs in %" PRIu32 " bits need %s [%" PRIu64 ", %" PRIu64
                       "]; config.json and the weights do not belong together",
                       tensor->name, mr_dtype_info_get(tensor->dtype)->name, shape, f->module->rows,
                       f->module->k, f->scheme.bits, mr_dtype_info_get(type)->name, rows, columns);
    }
    return MR_OK;
}

/* ---- sizes (Q3) ---- */

static mr_status check_multiple(const finder *f, const char *what, uint32_t size, uint32_t of,
                                const char *why)
{
    if (size % of == 0) {
        return MR_OK;
    }
    return mr_fail(f->err, MR_DATA_LOSS,
                   "layer '%s': its %" PRIu32 " %s are not a multiple of %" PRIu32
                   ", %s; take a checkpoint of another group size",
                   f->module->name, size, what, of, why);
}

/* Codes in a word, or what fills words where codes lie across them. */
static uint32_t pack_unit(uint32_t bits)
{
    return bits == 3 ? 32 : 32 / bits;
}

/* The scheme's groups of this module's inputs. */
static mr_status set_groups(finder *f)
{
    const uint32_t k = f->module->k;
    const uint32_t group = f->scheme.group == 0 ? k : f->scheme.group;
    if (f->scheme.rows <= 1) {
        MR_TRY(check_multiple(f, "inputs", k, group, "the group size"));
    }
    f->out->group = group;
    f->groups = k / group + (k % group != 0);
    f->out->scale_rows = f->scheme.rows == 0 ? 1 : f->scheme.rows;
    return MR_OK;
}

/* ---- parts ---- */

static void set_words(mr_code_matrix *m, const mr_model_tensor *tensor, uint32_t bits,
                      bool packs_rows)
{
    *m = (mr_code_matrix){
        .data = tensor->data, .bytes = tensor->bytes, .bits = bits, .packs_rows = packs_rows};
}

/* Lines go down the columns of the tensor. */
static void lines_down(mr_code_matrix *m, uint64_t columns)
{
    m->next = columns * 4;
    m->line = 4;
}

/* Lines go along its rows. */
static void lines_along(mr_code_matrix *m, uint64_t columns)
{
    m->next = 4;
    m->line = columns * 4;
}

static mr_status take_scale_type(const finder *f, const mr_model_tensor *scales)
{
    if (scales->dtype != MR_DTYPE_F16 && scales->dtype != MR_DTYPE_BF16 &&
        scales->dtype != MR_DTYPE_F32) {
        return mr_fail(f->err, MR_UNIMPLEMENTED,
                       "tensor '%s' is of type %s; scales of F16, BF16 and F32 are supported",
                       scales->name, mr_dtype_info_get(scales->dtype)->name);
    }
    f->out->scales = scales->data;
    f->out->scale_bytes = scales->bytes;
    f->out->scale_dtype = scales->dtype;
    return MR_OK;
}

/* Scales [G][N] of GPTQ and AWQ. */
static mr_status take_scales_down(const finder *f)
{
    const mr_model_tensor *scales = take(f, "scales");
    if (scales == NULL) {
        return missing(f, "scales");
    }
    MR_TRY(take_scale_type(f, scales));
    f->out->scale_row = 1;
    f->out->scale_group = f->module->rows;
    return check_tensor(f, scales, f->groups, f->module->rows, scales->dtype);
}

/* Which group each input is in; NULL if they are in order. */
static mr_status take_order(const finder *f, const mr_model_tensor *order)
{
    bool plain = true;
    if (order->dtype != MR_DTYPE_I32 || order->n_dims != 1 || order->shape[0] != f->module->k) {
        return mr_fail(f->err, MR_DATA_LOSS,
                       "tensor '%s' is no list of the groups of %" PRIu32 " inputs", order->name,
                       f->module->k);
    }
    for (uint32_t i = 0; i < f->module->k; i++) {
        int32_t group;
        memcpy(&group, (const uint8_t *)order->data + 4 * (size_t)i, sizeof(group));
        if (group < 0 || (uint32_t)group >= f->groups) {
            return mr_fail(f->err, MR_DATA_LOSS,
                           "tensor '%s' has input %" PRIu32 " in group %" PRId32 " of %" PRIu32
                           " groups of %" PRIu32 " inputs; group_size does not belong to the "
                           "weights",
                           order->name, i, group, f->groups, f->out->group);
        }
        plain = plain && (uint32_t)group == i / f->out->group;
    }
    f->out->group_of = plain ? NULL : order->data;
    return MR_OK;
}

/* ---- GPTQ ---- */

/* Symmetric zeros tell the two formats of GPTQ apart: the first stores them less 1 (Q1). */
static mr_status check_symmetric(const finder *f, uint32_t zero)
{
    const uint32_t middle = 1u << (f->scheme.bits - 1);
    if (f->config->method != MR_QUANT_GPTQ || !f->scheme.symmetric || zero == middle ||
        zero == MR_CODES_NO_ZERO) {
        return MR_OK;
    }
    const bool other = zero == (f->config->v2 ? middle - 1 : middle + 1);
    if (!other) {
        return mr_fail(f->err, MR_DATA_LOSS,
                       "layer '%s': every zero is %" PRIu32 ", where symmetric codes of %" PRIu32
                       " bits have %" PRIu32 "; set sym to false in quantization_config if that is "
                       "what the checkpoint is",
                       f->module->name, zero, f->scheme.bits, middle);
    }
    return mr_fail(f->err, MR_DATA_LOSS,
                   "layer '%s': every stored zero is %" PRIu32 ", as symmetric %" PRIu32
                   "-bit files of checkpoint_format %s have it, and the configuration says %s; set "
                   "\"checkpoint_format\": \"%s\" in the quantization_config of config.json",
                   f->module->name, f->config->v2 ? zero : zero - 1, f->scheme.bits,
                   f->config->v2 ? "gptq" : "gptq_v2", f->config->v2 ? "gptq_v2" : "gptq",
                   f->config->v2 ? "gptq" : "gptq_v2");
}

/* A bias that the architecture lacks and that adds nothing, as some quantisers write it. */
static void take_empty_bias(const finder *f)
{
    const mr_model_tensor *bias = look_up(f->tensors, f->module->name, "bias");
    const uint8_t *bytes = bias != NULL ? bias->data : NULL;
    if (bias == NULL || bias->used) {
        return;
    }
    for (uint64_t i = 0; i < bias->bytes; i++) {
        if (bytes[i] != 0) {
            return;
        }
    }
    mr_tensor_table_mark_used(f->tensors, bias);
}

static mr_status find_gptq(finder *f, const mr_model_tensor *codes)
{
    const mr_quant_module *m = f->module;
    const uint32_t bits = f->scheme.bits;
    const uint32_t unit = pack_unit(bits);
    MR_TRY(set_groups(f));
    MR_TRY(check_multiple(f, "inputs", m->k, unit, "what its codes are packed by"));
    MR_TRY(check_multiple(f, "outputs", m->rows, unit, "what its zeros are packed by"));
    MR_TRY(check_tensor(f, codes, (uint64_t)m->k * bits / 32, m->rows, MR_DTYPE_I32));
    mr_tensor_table_mark_used(f->tensors, codes);
    set_words(&f->out->codes, codes, bits, false);
    lines_down(&f->out->codes, m->rows);
    MR_TRY(take_scales_down(f));
    const mr_model_tensor *zeros = take(f, "qzeros");
    if (zeros == NULL) {
        return missing(f, "qzeros");
    }
    const uint64_t columns = (uint64_t)m->rows * bits / 32;
    MR_TRY(check_tensor(f, zeros, f->groups, columns, MR_DTYPE_I32));
    set_words(&f->out->zeros, zeros, bits, true);
    lines_along(&f->out->zeros, columns);
    f->out->zero_add = f->config->v2 ? 0 : 1;
    const mr_model_tensor *order = take(f, "g_idx");
    if (order == NULL && f->config->act_order) {
        return missing(f, "g_idx");
    }
    if (order != NULL) {
        MR_TRY(take_order(f, order));
    }
    take_empty_bias(f);
    return MR_OK;
}

/* ---- AWQ ---- */

static mr_status find_awq(finder *f, const mr_model_tensor *codes)
{
    const mr_quant_module *m = f->module;
    const uint64_t columns = m->rows / 8;
    MR_TRY(set_groups(f));
    MR_TRY(check_multiple(f, "outputs", m->rows, 8, "what its codes are packed by"));
    MR_TRY(check_tensor(f, codes, m->k, columns, MR_DTYPE_I32));
    mr_tensor_table_mark_used(f->tensors, codes);
    set_words(&f->out->codes, codes, 4, true);
    f->out->codes.form = MR_CODES_SHUFFLED;
    lines_along(&f->out->codes, columns);
    MR_TRY(take_scales_down(f));
    const mr_model_tensor *zeros = take(f, "qzeros");
    if (zeros == NULL) {
        return f->scheme.symmetric ? MR_OK : missing(f, "qzeros");
    }
    MR_TRY(check_tensor(f, zeros, f->groups, columns, MR_DTYPE_I32));
    set_words(&f->out->zeros, zeros, 4, true);
    f->out->zeros.form = MR_CODES_SHUFFLED;
    lines_along(&f->out->zeros, columns);
    take_empty_bias(f);
    return MR_OK;
}

/* ---- compressed-tensors and FP8 ---- */

/* The scheme of the configuration that these codes are of. */
static mr_status choose_scheme(finder *f, bool e4m3, uint32_t bits, bool packed, const char *tensor)
{
    for (uint32_t i = 0; i < f->config->n_schemes; i++) {
        const mr_quant_scheme *scheme = &f->config->schemes[i];
        if (scheme->e4m3 == e4m3 && scheme->bits == bits && scheme->packed == packed) {
            f->scheme = *scheme;
            return MR_OK;
        }
    }
    return mr_fail(f->err, MR_DATA_LOSS,
                   "tensor '%s' has %s codes of %" PRIu32 " bits, and quantization_config has no "
                   "such scheme; config.json and the weights do not belong together",
                   tensor, e4m3 ? "float" : "integer", bits);
}

/* Scales [N][G], [N / rows][G], [N][1], [N], [1] or a scalar. The tensor says which of the last
 * four: files that name one strategy are known to have another. */
static mr_status take_scales_along(finder *f, const char *suffix)
{
    const mr_model_tensor *scales = take(f, suffix);
    if (scales == NULL) {
        return missing(f, suffix);
    }
    const uint64_t first = scales->n_dims > 0 ? scales->shape[0] : 1;
    const uint64_t second = scales->n_dims > 1 ? scales->shape[1] : 1;
    const uint32_t rows = f->out->scale_rows;
    const uint64_t lines = f->module->rows / rows + (f->module->rows % rows != 0);
    MR_TRY(take_scale_type(f, scales));
    if (scales->n_dims <= 2 && first == lines && second == f->groups) {
        f->out->scale_row = second;
        f->out->scale_group = 1;
        return MR_OK;
    }
    if (scales->n_dims <= 2 && first == 1 && second == 1 && f->groups == 1 && rows == 1) {
        return MR_OK; /* strides of 0 */
    }
    char shape[96];
    mr_tensor_shape_text(scales, shape);
    return mr_fail(f->err, MR_DATA_LOSS,
                   "tensor '%s' has shape %s where %" PRIu64 " lines of %" PRIu32
                   " scales are wanted (groups of %" PRIu32 " of %" PRIu32 " inputs); "
                   "config.json and the weights do not belong together",
                   scales->name, shape, lines, f->groups, f->out->group, f->module->k);
}

static mr_status find_packed(finder *f, const mr_model_tensor *codes)
{
    const mr_quant_module *m = f->module;
    const uint64_t bits = codes->n_dims == 2 ? codes->shape[1] * 32 / m->k : 0;
    MR_TRY(choose_scheme(f, false, bits <= 32 ? (uint32_t)bits : 0, true, codes->name));
    const uint32_t unit = pack_unit(f->scheme.bits);
    const uint64_t columns = (uint64_t)m->k * bits / 32;
    MR_TRY(set_groups(f));
    MR_TRY(check_multiple(f, "inputs", m->k, unit, "what its codes are packed by"));
    MR_TRY(check_tensor(f, codes, m->rows, columns, MR_DTYPE_I32));
    mr_tensor_table_mark_used(f->tensors, codes);
    set_words(&f->out->codes, codes, f->scheme.bits, false);
    lines_along(&f->out->codes, columns);
    MR_TRY(take_scales_along(f, "weight_scale"));
    (void)take(f, "weight_shape"); /* says what the configuration does */
    const mr_model_tensor *zeros = take(f, "weight_zero_point");
    if (zeros == NULL && !f->scheme.symmetric) {
        return missing(f, "weight_zero_point");
    }
    if (zeros != NULL) {
        MR_TRY(check_multiple(f, "outputs", m->rows, unit, "what its zeros are packed by"));
        MR_TRY(check_tensor(f, zeros, (uint64_t)m->rows * bits / 32, f->groups, MR_DTYPE_I32));
        set_words(&f->out->zeros, zeros, f->scheme.bits, true);
        lines_down(&f->out->zeros, f->groups);
    }
    const mr_model_tensor *order = take(f, "weight_g_idx");
    return order != NULL ? take_order(f, order) : MR_OK;
}

static void set_bytes(mr_code_matrix *m, const mr_model_tensor *tensor, mr_code_form form,
                      uint64_t columns)
{
    *m = (mr_code_matrix){.data = tensor->data,
                          .bytes = tensor->bytes,
                          .form = form,
                          .bits = 8,
                          .next = 1,
                          .line = columns};
}

/* The scale that inputs are rounded by, where the checkpoint has one for all of them. */
static mr_status take_input_scale(const finder *f)
{
    const mr_model_tensor *scale = take(f, "input_scale");
    if (scale == NULL) {
        return MR_OK;
    }
    float value = 0.0f;
    if (!mr_tensor_number(scale, &value)) {
        return mr_fail(f->err, MR_DATA_LOSS,
                       "tensor '%s' is no positive number; the checkpoint is damaged, download it "
                       "again",
                       scale->name);
    }
    f->out->input_scale = value;
    return MR_OK;
}

static mr_status find_bytes(finder *f, const mr_model_tensor *codes)
{
    const mr_quant_module *m = f->module;
    const bool e4m3 = codes->dtype == MR_DTYPE_F8_E4M3;
    MR_TRY(choose_scheme(f, e4m3, 8, false, codes->name));
    MR_TRY(set_groups(f));
    MR_TRY(check_tensor(f, codes, m->rows, m->k, codes->dtype));
    mr_tensor_table_mark_used(f->tensors, codes);
    set_bytes(&f->out->codes, codes, e4m3 ? MR_CODES_E4M3 : MR_CODES_INT8, m->k);
    const bool inverse = look_up(f->tensors, m->name, "weight_scale_inv") != NULL;
    MR_TRY(take_scales_along(f, inverse ? "weight_scale_inv" : "weight_scale"));
    if (e4m3) {
        MR_TRY(take_input_scale(f));
    }
    const mr_model_tensor *zeros = e4m3 ? NULL : take(f, "weight_zero_point");
    if (zeros == NULL && !e4m3 && !f->scheme.symmetric) {
        return missing(f, "weight_zero_point");
    }
    if (zeros != NULL) {
        const bool one = zeros->bytes == 1 && f->out->scale_row == 0;
        if (!one) {
            MR_TRY(check_tensor(f, zeros, m->rows, f->groups, MR_DTYPE_I8));
        }
        set_bytes(&f->out->zeros, zeros, MR_CODES_INT8, one ? 0 : f->groups);
    }
    return MR_OK;
}

/* ---- weights made of nothing ---- */

static mr_status find_random(finder *f, bool *found)
{
    const mr_quant_module *m = f->module;
    const bool head = m->head && f->config->method == MR_QUANT_GPTQ && !f->config->head;
    *found = m->linear && !head && !(m->head && f->config->method == MR_QUANT_AWQ);
    if (*found) {
        bool leaves = false;
        MR_TRY(mr_quant_config_leaves(f->config, m->name, &leaves, f->err));
        *found = !leaves;
    }
    if (!*found) {
        return MR_OK;
    }
    MR_TRY(set_groups(f));
    f->out->codes.bits = f->scheme.bits;
    f->out->codes.form = f->scheme.e4m3 ? MR_CODES_E4M3 : MR_CODES_WORDS;
    f->out->scale_dtype = m->scale_type;
    f->out->centred = f->scheme.symmetric;
    f->out->halves = true;
    if (mr_weight_codes_dtype(f->out, m->k) == MR_DTYPE_F32) {
        MR_TRY(check_multiple(f, "inputs", m->k, MR_CODES_BLOCK, "which random codes need"));
        return check_multiple(f, "inputs a group", f->out->group, MR_CODES_BLOCK,
                              "which random codes need");
    }
    return MR_OK;
}

/* ---- all ---- */

typedef mr_status (*find_fn)(finder *f, const mr_model_tensor *codes);

/* The tensor that has the module's codes, NULL if its weight is plain; and who reads it. */
static const mr_model_tensor *codes_of(const mr_quant_config *config,
                                       const mr_tensor_table *tensors, const char *module,
                                       find_fn *find)
{
    const mr_model_tensor *tensor = NULL;
    switch (config->method) {
    case MR_QUANT_GPTQ:
        *find = find_gptq;
        return look_up(tensors, module, "qweight");
    case MR_QUANT_AWQ:
        *find = find_awq;
        return look_up(tensors, module, "qweight");
    case MR_QUANT_COMPRESSED:
    case MR_QUANT_FP8:
        *find = find_packed;
        tensor = look_up(tensors, module, "weight_packed");
        if (tensor == NULL) {
            *find = find_bytes;
            tensor = look_up(tensors, module, "weight");
        }
        break;
    case MR_QUANT_NONE:
    default:
        return NULL;
    }
    const bool plain = tensor != NULL && *find == find_bytes && tensor->dtype != MR_DTYPE_I8 &&
                       tensor->dtype != MR_DTYPE_F8_E4M3;
    return plain ? NULL : tensor;
}

mr_status mr_quant_find(const mr_quant_config *config, const mr_tensor_table *tensors,
                        const mr_quant_module *module, mr_weight_codes *out, bool *found,
                        mr_error *err)
{
    finder f = {.config = config, .tensors = tensors, .module = module, .out = out, .err = err};
    *found = false;
    *out = (mr_weight_codes){.scale_rows = 1, .first = module->first};
    if (config == NULL || config->method == MR_QUANT_NONE) {
        return MR_OK;
    }
    f.scheme = config->schemes[0];
    if (tensors == NULL) {
        return find_random(&f, found);
    }
    find_fn find = NULL;
    const mr_model_tensor *codes = codes_of(config, tensors, module->name, &find);
    if (codes == NULL) {
        return MR_OK;
    }
    *found = true;
    MR_TRY(find(&f, codes));
    if (f.scheme.e4m3) {
        return MR_OK;
    }
    const uint32_t zero = mr_weight_codes_common_zero(out, module->n, f.groups);
    out->centred = zero == 1u << (f.scheme.bits - 1);
    out->halves = mr_weight_codes_fit_halves(out, module->n, f.groups);
    return check_symmetric(&f, zero);
}

uint32_t mr_quant_unit(const mr_quant_config *config, const mr_tensor_table *tensors,
                       const char *module, uint32_t k)
{
    find_fn find = NULL;
    if (config == NULL || tensors == NULL || codes_of(config, tensors, module, &find) == NULL) {
        return 1;
    }
    const uint32_t group = config->schemes[0].group;
    if (config->act_order) {
        return k;
    }
    return group == 0 ? MR_CODES_BLOCK : group;
}
