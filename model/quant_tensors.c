/* SPDX-License-Identifier: Apache-2.0 */
#include "model/quant_tensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define NAME_BYTES 160u

/* NULL if there is none. */
const mr_model_tensor *mr_quant_look_up(const mr_tensor_table *tensors, const char *module,
                                        const char *suffix)
{
    char name[NAME_BYTES];
    snprintf(name, sizeof(name), "%s.%s", module, suffix);
    return mr_tensor_table_find(tensors, name);
}

/* The tensor, noted as used; NULL if there is none. */
const mr_model_tensor *mr_quant_take(const mr_quant_finder *f, const char *suffix)
{
    const mr_model_tensor *tensor = mr_quant_look_up(f->tensors, f->module->name, suffix);
    if (tensor != NULL) {
        mr_tensor_table_mark_used(f->tensors, tensor);
    }
    return tensor;
}

mr_status mr_quant_missing(const mr_quant_finder *f, const char *suffix)
{
    return mr_fail(f->err, MR_DATA_LOSS,
                   "tensor '%s.%s' is missing; the checkpoint is incomplete, download it again",
                   f->module->name, suffix);
}

/* The tensor is [rows][columns] of one of two types. */
mr_status mr_quant_check_tensor(const mr_quant_finder *f, const mr_model_tensor *tensor,
                                uint64_t rows, uint64_t columns, mr_dtype type)
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

mr_status mr_quant_check_multiple(const mr_quant_finder *f, const char *what, uint32_t size,
                                  uint32_t of, const char *why)
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
uint32_t mr_quant_pack_unit(uint32_t bits)
{
    return bits == 3 ? 32 : 32 / bits;
}

/* The scheme's groups of this module's inputs. */
mr_status mr_quant_set_groups(mr_quant_finder *f)
{
    const uint32_t k = f->module->k;
    const uint32_t group = f->scheme.group == 0 ? k : f->scheme.group;
    if (f->scheme.rows <= 1) {
        MR_TRY(mr_quant_check_multiple(f, "inputs", k, group, "the group size"));
    }
    f->out->group = group;
    f->groups = k / group + (k % group != 0);
    f->out->scale_rows = f->scheme.rows == 0 ? 1 : f->scheme.rows;
    return MR_OK;
}

/* ---- arrays of codes, and what goes with them ---- */

void mr_quant_set_words(mr_code_matrix *m, const mr_model_tensor *tensor, uint32_t bits,
                        bool packs_rows)
{
    *m = (mr_code_matrix){
        .data = tensor->data, .bytes = tensor->bytes, .bits = bits, .packs_rows = packs_rows};
}

/* Lines go down the columns of the tensor. */
void mr_quant_lines_down(mr_code_matrix *m, uint64_t columns)
{
    m->next = columns * 4;
    m->line = 4;
}

/* Lines go along its rows. */
void mr_quant_lines_along(mr_code_matrix *m, uint64_t columns)
{
    m->next = 4;
    m->line = columns * 4;
}

mr_status mr_quant_take_scale_type(const mr_quant_finder *f, const mr_model_tensor *scales)
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

/* Which group each input is in; NULL if they are in order. */
mr_status mr_quant_take_order(const mr_quant_finder *f, const mr_model_tensor *order)
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
