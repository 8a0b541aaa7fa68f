/* SPDX-License-Identifier: Apache-2.0 */
#include "model/decoder_weights.h"

#include "base/checked.h"
#include "model/kv_scales.h"
#include "model/quant_weights.h"

#include <stdio.h>
#include <string.h>

#define NAME_BYTES sizeof(((mr_plan_weight *)0)->name)

/* A tensor, or rows [first, first + weight.n) of it, as a weight of the plan. */
typedef struct wanted {
    mr_decoder_use use;
    char tensor[NAME_BYTES];
    uint64_t rows; /* of the tensor */
    uint64_t first;
    mr_plan_weight weight; /* name, n, k, shard, unit, random mean */
} wanted;

mr_status mr_decoder_appended(const mr_decoder_weights *d, mr_status status)
{
    if (status != MR_OK) {
        return mr_fail(d->err, status, "the forward plan has too many entries or memory is short");
    }
    return MR_OK;
}

/* The name of a role's tensor: "blk.3.attn_q" and "weight" give "blk.3.attn_q.weight". */
static void name_tensor(const mr_decoder_weights *d, mr_tensor_role role, uint32_t layer,
                        const char *suffix, char out[NAME_BYTES])
{
    const char *module = d->source->names->module[role];
    const char *mark = strstr(module, "%u");
    if (mark == NULL) {
        snprintf(out, NAME_BYTES, "%s.%s", module, suffix);
    } else {
        snprintf(out, NAME_BYTES, "%.*s%u%s.%s", (int)(mark - module), module, layer, mark + 2,
                 suffix);
    }
}

/* "model.layers.0.mlp.up_proj" of that with ".weight". */
static void name_module(const char *tensor, char out[NAME_BYTES])
{
    const size_t bytes = strlen(tensor) - strlen(".weight");
    memcpy(out, tensor, bytes);
    out[bytes] = '\0';
}

static bool has_tensor(const mr_decoder_weights *d, const char *name)
{
    return d->source->tensors != NULL && mr_tensor_table_find(d->source->tensors, name) != NULL;
}

/* A weight that the backend makes of nothing. */
static void make_random(const mr_decoder_weights *d, mr_plan_weight *weight)
{
    uint64_t bytes = 0;
    weight->dtype = d->source->random_dtype;
    MR_CHECK(mr_dtype_row_bytes(weight->dtype, weight->k, &bytes));
    weight->bytes = bytes * weight->n;
    weight->random = true;
    weight->random_seed = d->source->random_seed;
    weight->random_stream = d->plan->n_weights;
}

/* The weight's codes, if it has some. */
static mr_status find_codes(const mr_decoder_weights *d, const wanted *w, mr_weight_codes *codes,
                            bool *found)
{
    char name[NAME_BYTES];
    *found = false;
    if (w->use == MR_DECODER_VECTOR) {
        return MR_OK;
    }
    name_module(w->tensor, name);
    const mr_quant_module module = {.name = name,
                                    .rows = (uint32_t)w->rows,
                                    .k = w->weight.k,
                                    .first = (uint32_t)w->first,
                                    .n = w->weight.n,
                                    .linear = w->use != MR_DECODER_LOOKUP,
                                    .head = w->use == MR_DECODER_HEAD,
                                    .scale_type = d->source->random_dtype};
    return mr_quant_find(d->source->quant, d->source->tensors, &module, codes, found, d->err);
}

static mr_status add_weight(const mr_decoder_weights *d, wanted *w, mr_weight_id *id)
{
    const mr_tensor_table *tensors = d->source->tensors;
    mr_plan_weight *weight = &w->weight;
    mr_weight_codes codes;
    bool found;
    MR_TRY(find_codes(d, w, &codes, &found));
    if (tensors == NULL) {
        make_random(d, weight);
    }
    if (found) {
        return mr_decoder_appended(d, mr_plan_add_codes(d->plan, weight, &codes, id));
    }
    if (tensors == NULL) {
        return mr_decoder_appended(d, mr_plan_add_weight(d->plan, weight, id));
    }
    const mr_model_tensor *tensor = NULL;
    uint64_t row_bytes;
    MR_TRY(mr_tensor_table_require(tensors, w->tensor, w->rows, weight->k, &tensor, d->err));
    if ((unsigned)tensor->dtype >= MR_DTYPE_COUNT ||
        !mr_dtype_row_bytes(tensor->dtype, weight->k, &row_bytes)) {
        return mr_fail(
            d->err, MR_UNIMPLEMENTED,
            "tensor '%s' is of type %s, which is none of weights: they are " MR_DTYPE_NAMES,
            w->tensor, mr_dtype_info_get(tensor->dtype)->name);
    }
    mr_tensor_table_mark_used(tensors, tensor);
    weight->dtype = tensor->dtype;
    weight->data = (const uint8_t *)tensor->data + w->first * row_bytes;
    weight->bytes = weight->n * row_bytes;
    return mr_decoder_appended(d, mr_plan_add_weight(d->plan, weight, id));
}

/* A whole tensor [n][k]. */
static mr_status add_whole(const mr_decoder_weights *d, wanted *w, mr_weight_id *id)
{
    w->rows = w->weight.n;
    w->first = 0;
    memcpy(w->weight.name, w->tensor, NAME_BYTES);
    return add_weight(d, w, id);
}

mr_status mr_decoder_add_tensor(const mr_decoder_weights *d, mr_tensor_role role,
                                mr_decoder_use use, const mr_plan_weight *shape, mr_weight_id *id)
{
    wanted w = {.use = use, .weight = *shape};
    name_tensor(d, role, 0, "weight", w.tensor);
    return add_whole(d, &w, id);
}

mr_status mr_decoder_add_vector(const mr_decoder_weights *d, mr_tensor_role role, uint32_t layer,
                                const char *suffix, uint32_t k, mr_weight_id *id)
{
    const float mean = strcmp(suffix, "weight") == 0 ? 1.0f : 0.0f;
    wanted w = {.weight = {.n = 1, .k = k, .shard_unit = 1, .random_mean = mean}};
    name_tensor(d, role, layer, suffix, w.tensor);
    return add_whole(d, &w, id);
}

/* Ranks divide it as they divide the outputs; where the inputs are divided every rank has all of
 * it. */
mr_status mr_decoder_add_bias(const mr_decoder_weights *d, uint32_t layer, const mr_decoder_part *p,
                              mr_weight_id *id)
{
    wanted w = {.weight = {.n = 1, .k = p->n, .shard_unit = 1}};
    *id = MR_NO_WEIGHT;
    if (p->bias == MR_BIAS_NONE) {
        return MR_OK;
    }
    name_tensor(d, p->role, layer, "bias", w.tensor);
    if (p->shard == MR_SHARD_OUTPUTS) {
        w.weight.shard = MR_SHARD_INPUTS; /* a vector's elements lie along k */
        w.weight.shard_unit = p->unit;
    }
    if (p->bias == MR_BIAS_IF_PRESENT && !has_tensor(d, w.tensor)) {
        return MR_OK;
    }
    return add_whole(d, &w, id);
}

mr_status mr_decoder_add_matrix(const mr_decoder_weights *d, uint32_t layer, uint32_t k,
                                const mr_decoder_part *p, mr_weight_id *id)
{
    wanted w = {.use = MR_DECODER_LINEAR,
                .weight = {.n = p->n, .k = k, .shard = p->shard, .shard_unit = p->unit}};
    const bool fused = p->fused != MR_DECODER_NO_ROLE && d->source->names->module[p->fused] != NULL;
    name_tensor(d, fused ? p->fused : p->role, layer, "weight", w.tensor);
    if (!fused) {
        return add_whole(d, &w, id);
    }
    w.rows = p->fused_rows;
    w.first = p->fused_first;
    snprintf(w.weight.name, NAME_BYTES, "%.70s:%u", w.tensor, p->fused_first);
    return add_weight(d, &w, id);
}

mr_status mr_decoder_add_kv_scales(const mr_decoder_weights *d)
{
    const mr_tensor_table *tensors = d->source->tensors;
    const uint32_t layers = d->source->config->layers;
    const mr_tensor_role roles[2] = {MR_ROLE_K, MR_ROLE_V};
    if (tensors == NULL || mr_kv_scale_layers(tensors) == 0 ||
        d->source->names->module[MR_ROLE_K] == NULL) {
        return MR_OK;
    }
    for (uint32_t which = 0; which < 2; which++) {
        float *scales = mr_calloc(layers, sizeof(*scales));
        if (scales == NULL) {
            return mr_decoder_appended(d, MR_RESOURCE_EXHAUSTED);
        }
        *(which == 0 ? &d->plan->kv.key_scales : &d->plan->kv.value_scales) = scales;
        for (uint32_t layer = 0; layer < layers; layer++) {
            char tensor[NAME_BYTES];
            char module[NAME_BYTES];
            name_tensor(d, roles[which], layer, "weight", tensor);
            name_module(tensor, module);
            if (!mr_kv_scale_find(tensors, module, which == 0, &scales[layer])) {
                scales[layer] = 1.0f;
            }
        }
    }
    return MR_OK;
}

uint32_t mr_decoder_unit(const mr_decoder_weights *d, uint32_t layer, mr_tensor_role role,
                         uint32_t unit, uint32_t k)
{
    char name[NAME_BYTES];
    char module[NAME_BYTES];
    name_tensor(d, role, layer, "weight", name);
    name_module(name, module);
    uint32_t block = mr_quant_unit(d->source->quant, d->source->tensors, module, k);
    if (has_tensor(d, name)) {
        const mr_dtype dtype = mr_tensor_table_find(d->source->tensors, name)->dtype;
        const uint32_t stored = mr_dtype_info_get(dtype)->block_elements;
        block = block > stored ? block : stored;
    }
    uint32_t multiple = block;
    while (multiple % unit != 0 && multiple < unit * block) {
        multiple += block;
    }
    return multiple;
}
