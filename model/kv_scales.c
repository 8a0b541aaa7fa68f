/* SPDX-License-Identifier: Apache-2.0 */
#include "model/kv_scales.h"

#include <stdio.h>
#include <string.h>

#define NAME_BYTES 160u

/* Names that tools have for it, by the key or value projection or the attention around it. */
static const mr_model_tensor *kv_scale_of(const mr_tensor_table *tensors, const char *projection,
                                          bool key)
{
    const char *own = key ? "k_scale" : "v_scale";
    const char *dot = strrchr(projection, '.');
    char attention[NAME_BYTES];
    char inner[NAME_BYTES];
    (void)snprintf(attention, sizeof(attention), "%.*s", dot != NULL ? (int)(dot - projection) : 0,
                   projection);
    (void)snprintf(inner, sizeof(inner), "%.140s.attn", attention);
    const char *const modules[] = {projection, projection, attention, inner, attention};
    const char *const suffixes[] = {own, "output_scale", own, own, "kv_scale"};
    const mr_model_tensor *tensor = NULL;
    for (size_t i = 0; tensor == NULL && i < sizeof(modules) / sizeof(modules[0]); i++) {
        char name[NAME_BYTES];
        (void)snprintf(name, sizeof(name), "%s.%s", modules[i], suffixes[i]);
        tensor = mr_tensor_table_find(tensors, name);
    }
    return tensor;
}

bool mr_kv_scale_find(const mr_tensor_table *tensors, const char *projection, bool key,
                      float *scale)
{
    const mr_model_tensor *tensor = kv_scale_of(tensors, projection, key);
    float value = 0.0f;
    if (tensor == NULL || !mr_tensor_number(tensor, &value)) {
        return false;
    }
    mr_tensor_table_mark_used(tensors, tensor);
    *scale = value;
    return true;
}

static bool ends_with(const char *text, const char *end)
{
    const size_t bytes = strlen(text);
    return bytes >= strlen(end) && strcmp(text + bytes - strlen(end), end) == 0;
}

uint32_t mr_kv_scale_layers(const mr_tensor_table *tensors)
{
    uint32_t layers = 0;
    for (size_t i = 0; i < tensors->count; i++) {
        const char *name = tensors->items[i].name;
        layers += ends_with(name, ".k_scale") || ends_with(name, ".k_proj.output_scale") ||
                  ends_with(name, ".kv_scale");
    }
    return layers;
}
