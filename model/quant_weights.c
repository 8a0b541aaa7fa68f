/* SPDX-License-Identifier: Apache-2.0 */
#include "model/quant_weights.h"

#include "model/quant_tensors.h"

/* ---- weights made of nothing ---- */

static mr_status find_random(mr_quant_finder *f, bool *found)
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
    MR_TRY(mr_quant_set_groups(f));
    f->out->codes.bits = f->scheme.bits;
    f->out->codes.form = f->scheme.e4m3 ? MR_CODES_E4M3 : MR_CODES_WORDS;
    f->out->scale_dtype = m->scale_type;
    f->out->centred = f->scheme.symmetric;
    f->out->halves = true;
    if (mr_weight_codes_dtype(f->out, m->k) == MR_DTYPE_F32) {
        MR_TRY(
            mr_quant_check_multiple(f, "inputs", m->k, MR_CODES_BLOCK, "which random codes need"));
        return mr_quant_check_multiple(f, "inputs a group", f->out->group, MR_CODES_BLOCK,
                                       "which random codes need");
    }
    return MR_OK;
}

/* ---- all ---- */

/* The tensor that has the module's codes, NULL if its weight is plain; and who reads it. */
static const mr_model_tensor *codes_of(const mr_quant_config *config,
                                       const mr_tensor_table *tensors, const char *module,
                                       mr_quant_find_fn *find)
{
    const mr_model_tensor *tensor = NULL;
    switch (config->method) {
    case MR_QUANT_GPTQ:
        *find = mr_quant_find_gptq;
        return mr_quant_look_up(tensors, module, "qweight");
    case MR_QUANT_AWQ:
        *find = mr_quant_find_awq;
        return mr_quant_look_up(tensors, module, "qweight");
    case MR_QUANT_COMPRESSED:
    case MR_QUANT_FP8:
        *find = mr_quant_find_packed;
        tensor = mr_quant_look_up(tensors, module, "weight_packed");
        if (tensor == NULL) {
            *find = mr_quant_find_bytes;
            tensor = mr_quant_look_up(tensors, module, "weight");
        }
        break;
    case MR_QUANT_NONE:
    default:
        return NULL;
    }
    const bool plain = tensor != NULL && *find == mr_quant_find_bytes &&
                       tensor->dtype != MR_DTYPE_I8 && tensor->dtype != MR_DTYPE_F8_E4M3;
    return plain ? NULL : tensor;
}

mr_status mr_quant_find(const mr_quant_config *config, const mr_tensor_table *tensors,
                        const mr_quant_module *module, mr_weight_codes *out, bool *found,
                        mr_error *err)
{
    mr_quant_finder f = {
        .config = config, .tensors = tensors, .module = module, .out = out, .err = err};
    *found = false;
    *out = (mr_weight_codes){.scale_rows = 1, .first = module->first};
    if (config == NULL || config->method == MR_QUANT_NONE) {
        return MR_OK;
    }
    f.scheme = config->schemes[0];
    if (tensors == NULL) {
        return find_random(&f, found);
    }
    mr_quant_find_fn find = NULL;
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
    return mr_quant_check_symmetric(&f, zero);
}

uint32_t mr_quant_unit(const mr_quant_config *config, const mr_tensor_table *tensors,
                       const char *module, uint32_t k)
{
    mr_quant_find_fn find = NULL;
    if (config == NULL || tensors == NULL || codes_of(config, tensors, module, &find) == NULL) {
        return 1;
    }
    const uint32_t group = config->schemes[0].group;
    if (config->act_order) {
        return k;
    }
    return group == 0 ? MR_CODES_BLOCK : group;
}
