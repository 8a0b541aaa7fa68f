/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a safetensors file, whose tensors are read as quantised matrices of every method.
 * What is accepted can be dequantised. */
#include "base/status.h"
#include "model/quant_weights.h"
#include "model/safetensors.h"

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SIZE 1024u /* rows or columns that are tried */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const mr_quant_config configs[] = {
    {.method = MR_QUANT_GPTQ,
     .schemes = {{.packed = true, .bits = 4, .group = 32, .rows = 1, .symmetric = true}},
     .n_schemes = 1},
    {.method = MR_QUANT_GPTQ,
     .schemes = {{.packed = true, .bits = 3, .group = 0, .rows = 1}},
     .n_schemes = 1,
     .v2 = true,
     .act_order = true},
    {.method = MR_QUANT_AWQ,
     .schemes = {{.packed = true, .bits = 4, .group = 16, .rows = 1}},
     .n_schemes = 1},
    {.method = MR_QUANT_COMPRESSED,
     .schemes = {{.packed = true, .bits = 4, .group = 32, .rows = 1, .symmetric = true},
                 {.packed = true, .bits = 8, .group = 0, .rows = 1},
                 {.bits = 8, .group = 0, .rows = 1},
                 {.e4m3 = true, .bits = 8, .group = 0, .rows = 0, .symmetric = true}},
     .n_schemes = 4},
    {.method = MR_QUANT_FP8,
     .schemes = {{.e4m3 = true, .bits = 8, .group = 24, .rows = 16, .symmetric = true}},
     .n_schemes = 1},
};

/* Every row of the module, through the blocks that backends get. */
static void dequantise(const mr_weight_codes *codes, const mr_quant_module *module)
{
    const mr_dtype dtype = mr_weight_codes_dtype(codes, module->k);
    uint64_t row_bytes = 0;
    MR_CHECK(mr_dtype_row_bytes(dtype, module->k, &row_bytes));
    uint8_t *row = malloc(row_bytes);
    float *values = malloc(module->k * sizeof(*values));
    MR_CHECK(row != NULL && values != NULL);
    volatile float sink = 0.0f;
    for (uint32_t n = 0; n < module->n; n++) {
        mr_weight_codes_fill(codes, module->k, n, 1, row);
        mr_dequantize(dtype, row, values, module->k);
        sink = values[module->k - 1];
    }
    (void)sink;
    free(row);
    free(values);
}

static void try_module(const mr_tensor_table *tensors, const mr_quant_module *module)
{
    for (size_t i = 0; i < sizeof(configs) / sizeof(configs[0]); i++) {
        mr_weight_codes codes;
        bool found = false;
        mr_error err = {0};
        const mr_status status = mr_quant_find(&configs[i], tensors, module, &codes, &found, &err);
        if (status != MR_OK) {
            MR_CHECK(err.status == status && err.message[0] != '\0');
        } else if (found) {
            dequantise(&codes, module);
        }
    }
}

/* The sizes that a tensor of codes can stand for. */
static void try_sizes(const mr_tensor_table *tensors, const mr_model_tensor *tensor,
                      const char *module)
{
    if (tensor->n_dims != 2 || tensor->shape[0] == 0 || tensor->shape[0] > MAX_SIZE ||
        tensor->shape[1] == 0 || tensor->shape[1] > MAX_SIZE) {
        return;
    }
    const uint32_t first = (uint32_t)tensor->shape[0];
    const uint32_t second = (uint32_t)tensor->shape[1];
    const uint32_t sizes[][2] = {{second, first * 8}, {second, first * 32 / 3}, {second * 8, first},
                                 {first, second * 8}, {first, second * 4},      {first, second}};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        const uint32_t from = sizes[i][0] / 3;
        try_module(tensors, &(mr_quant_module){.name = module,
                                               .rows = sizes[i][0],
                                               .k = sizes[i][1],
                                               .first = from,
                                               .n = sizes[i][0] - from,
                                               .linear = true});
    }
}

static void try_all(const mr_tensor_table *tensors)
{
    for (size_t i = 0; i < tensors->count; i++) {
        const char *name = tensors->items[i].name;
        const char *dot = strrchr(name, '.');
        if (dot == NULL || dot - name >= 96 ||
            (strcmp(dot, ".qweight") != 0 && strcmp(dot, ".weight_packed") != 0 &&
             strcmp(dot, ".weight") != 0)) {
            continue;
        }
        char module[96] = "";
        memcpy(module, name, (size_t)(dot - name));
        try_sizes(tensors, &tensors->items[i], module);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    mr_safetensors *file = NULL;
    mr_error err = {0};
    if (mr_safetensors_create(data, size, &file, &err) != MR_OK) {
        return 0;
    }
    mr_tensor_table tensors;
    MR_CHECK(mr_tensor_table_init(&tensors, mr_safetensors_count(file)) == MR_OK);
    for (size_t i = 0; i < mr_safetensors_count(file); i++) {
        MR_CHECK(mr_tensor_table_add(&tensors, mr_safetensors_at(file, i)) == MR_OK);
    }
    try_all(&tensors);
    mr_tensor_table_deinit(&tensors);
    mr_safetensors_destroy(file);
    return 0;
}
