/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of compressed-tensors, and FP8: codes in words or bytes, as the scheme says. */
#include "model/quant_tensors.h"

#include <inttypes.h>

/* The scheme of the configuration that these codes are of. */
static mr_status choose_scheme(mr_quant_finder *f, bool e4m3, uint32_t bits, bool packed,
                               const char *tensor)
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
static mr_status take_scales_along(mr_quant_finder *f, const char *suffix)
{
    const mr_model_tensor *scales = mr_quant_take(f, suffix);
    if (scales == NULL) {
        return mr_quant_missing(f, suffix);
    }
    const uint64_t first = scales->n_dims > 0 ? scales->shape[0] : 1;
    const uint64_t second = scales->n_dims > 1 ? scales->shape[1] : 1;
    const uint32_t rows = f->out->scale_rows;
    const uint64_t lines = f->module->rows / rows + (f->module->rows % rows != 0);
    MR_TRY(mr_quant_take_scale_type(f, scales));
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

mr_status mr_quant_find_packed(mr_quant_finder *f, const mr_model_tensor *codes)
{
    const mr_quant_module *m = f->module;
    const uint64_t bits = codes->n_dims == 2 ? codes->shape[1] * 32 / m->k : 0;
    MR_TRY(choose_scheme(f, false, bits <= 32 ? (uint32_t)bits : 0, true, codes->name));
    const uint32_t unit = mr_quant_pack_unit(f->scheme.bits);
    const uint64_t columns = (uint64_t)m->k * bits / 32;
    MR_TRY(mr_quant_set_groups(f));
    MR_TRY(mr_quant_check_multiple(f, "inputs", m->k, unit, "what its codes are packed by"));
    MR_TRY(mr_quant_check_tensor(f, codes, m->rows, columns, MR_DTYPE_I32));
    mr_tensor_table_mark_used(f->tensors, codes);
    mr_quant_set_words(&f->out->codes, codes, f->scheme.bits, false);
    mr_quant_lines_along(&f->out->codes, columns);
    MR_TRY(take_scales_along(f, "weight_scale"));
    (void)mr_quant_take(f, "weight_shape"); /* says what the configuration does */
    const mr_model_tensor *zeros = mr_quant_take(f, "weight_zero_point");
    if (zeros == NULL && !f->scheme.symmetric) {
        return mr_quant_missing(f, "weight_zero_point");
    }
    if (zeros != NULL) {
        MR_TRY(
            mr_quant_check_multiple(f, "outputs", m->rows, unit, "what its zeros are packed by"));
        MR_TRY(mr_quant_check_tensor(f, zeros, (uint64_t)m->rows * bits / 32, f->groups,
                                     MR_DTYPE_I32));
        mr_quant_set_words(&f->out->zeros, zeros, f->scheme.bits, true);
        mr_quant_lines_down(&f->out->zeros, f->groups);
    }
    const mr_model_tensor *order = mr_quant_take(f, "weight_g_idx");
    return order != NULL ? mr_quant_take_order(f, order) : MR_OK;
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
static mr_status take_input_scale(const mr_quant_finder *f)
{
    const mr_model_tensor *scale = mr_quant_take(f, "input_scale");
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

mr_status mr_quant_find_bytes(mr_quant_finder *f, const mr_model_tensor *codes)
{
    const mr_quant_module *m = f->module;
    const bool e4m3 = codes->dtype == MR_DTYPE_F8_E4M3;
    MR_TRY(choose_scheme(f, e4m3, 8, false, codes->name));
    MR_TRY(mr_quant_set_groups(f));
    MR_TRY(mr_quant_check_tensor(f, codes, m->rows, m->k, codes->dtype));
    mr_tensor_table_mark_used(f->tensors, codes);
    set_bytes(&f->out->codes, codes, e4m3 ? MR_CODES_E4M3 : MR_CODES_INT8, m->k);
    const bool inverse = mr_quant_look_up(f->tensors, m->name, "weight_scale_inv") != NULL;
    MR_TRY(take_scales_along(f, inverse ? "weight_scale_inv" : "weight_scale"));
    if (e4m3) {
        MR_TRY(take_input_scale(f));
    }
    const mr_model_tensor *zeros = e4m3 ? NULL : mr_quant_take(f, "weight_zero_point");
    if (zeros == NULL && !e4m3 && !f->scheme.symmetric) {
        return mr_quant_missing(f, "weight_zero_point");
    }
    if (zeros != NULL) {
        const bool one = zeros->bytes == 1 && f->out->scale_row == 0;
        if (!one) {
            MR_TRY(mr_quant_check_tensor(f, zeros, m->rows, f->groups, MR_DTYPE_I8));
        }
        set_bytes(&f->out->zeros, zeros, MR_CODES_INT8, one ? 0 : f->groups);
    }
    return MR_OK;
}
