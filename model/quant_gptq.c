/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of GPTQ and AWQ: codes in words, scales and zeros a group. */
#include "model/quant_tensors.h"

#include <inttypes.h>

/* Scales [G][N] of GPTQ and AWQ. */
static mr_status take_scales_down(const mr_quant_finder *f)
{
    const mr_model_tensor *scales = mr_quant_take(f, "scales");
    if (scales == NULL) {
        return mr_quant_missing(f, "scales");
    }
    MR_TRY(mr_quant_take_scale_type(f, scales));
    f->out->scale_row = 1;
    f->out->scale_group = f->module->rows;
    return mr_quant_check_tensor(f, scales, f->groups, f->module->rows, scales->dtype);
}

/* Symmetric zeros tell the two formats of GPTQ apart: the first stores them less 1 (Q1). */
mr_status mr_quant_check_symmetric(const mr_quant_finder *f, uint32_t zero)
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
static void take_empty_bias(const mr_quant_finder *f)
{
    const mr_model_tensor *bias = mr_quant_look_up(f->tensors, f->module->name, "bias");
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

mr_status mr_quant_find_gptq(mr_quant_finder *f, const mr_model_tensor *codes)
{
    const mr_quant_module *m = f->module;
    const uint32_t bits = f->scheme.bits;
    const uint32_t unit = mr_quant_pack_unit(bits);
    MR_TRY(mr_quant_set_groups(f));
    MR_TRY(mr_quant_check_multiple(f, "inputs", m->k, unit, "what its codes are packed by"));
    MR_TRY(mr_quant_check_multiple(f, "outputs", m->rows, unit, "what its zeros are packed by"));
    MR_TRY(mr_quant_check_tensor(f, codes, (uint64_t)m->k * bits / 32, m->rows, MR_DTYPE_I32));
    mr_tensor_table_mark_used(f->tensors, codes);
    mr_quant_set_words(&f->out->codes, codes, bits, false);
    mr_quant_lines_down(&f->out->codes, m->rows);
    MR_TRY(take_scales_down(f));
    const mr_model_tensor *zeros = mr_quant_take(f, "qzeros");
    if (zeros == NULL) {
        return mr_quant_missing(f, "qzeros");
    }
    const uint64_t columns = (uint64_t)m->rows * bits / 32;
    MR_TRY(mr_quant_check_tensor(f, zeros, f->groups, columns, MR_DTYPE_I32));
    mr_quant_set_words(&f->out->zeros, zeros, bits, true);
    mr_quant_lines_along(&f->out->zeros, columns);
    f->out->zero_add = f->config->v2 ? 0 : 1;
    const mr_model_tensor *order = mr_quant_take(f, "g_idx");
    if (order == NULL && f->config->act_order) {
        return mr_quant_missing(f, "g_idx");
    }
    if (order != NULL) {
        MR_TRY(mr_quant_take_order(f, order));
    }
    take_empty_bias(f);
    return MR_OK;
}

/* ---- AWQ ---- */

mr_status mr_quant_find_awq(mr_quant_finder *f, const mr_model_tensor *codes)
{
    const mr_quant_module *m = f->module;
    const uint64_t columns = m->rows / 8;
    MR_TRY(mr_quant_set_groups(f));
    MR_TRY(mr_quant_check_multiple(f, "outputs", m->rows, 8, "what its codes are packed by"));
    MR_TRY(mr_quant_check_tensor(f, codes, m->k, columns, MR_DTYPE_I32));
    mr_tensor_table_mark_used(f->tensors, codes);
    mr_quant_set_words(&f->out->codes, codes, 4, true);
    f->out->codes.form = MR_CODES_SHUFFLED;
    mr_quant_lines_along(&f->out->codes, columns);
    MR_TRY(take_scales_down(f));
    const mr_model_tensor *zeros = mr_quant_take(f, "qzeros");
    if (zeros == NULL) {
        return f->scheme.symmetric ? MR_OK : mr_quant_missing(f, "qzeros");
    }
    MR_TRY(mr_quant_check_tensor(f, zeros, f->groups, columns, MR_DTYPE_I32));
    mr_quant_set_words(&f->out->zeros, zeros, 4, true);
    f->out->zeros.form = MR_CODES_SHUFFLED;
    mr_quant_lines_along(&f->out->zeros, columns);
    take_empty_bias(f);
    return MR_OK;
}
