/* SPDX-License-Identifier: Apache-2.0 */
#include "model/tensor_table.h"

#include "base/checked.h"
#include "kernels/dtype.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

mr_status mr_tensor_table_init(mr_tensor_table *table, size_t capacity)
{
    *table = (mr_tensor_table){0};
    if (capacity > UINT32_MAX) {
        return MR_RESOURCE_EXHAUSTED;
    }
    table->items = mr_calloc(capacity > 0 ? capacity : 1, sizeof(*table->items));
    if (table->items == NULL) {
        return MR_RESOURCE_EXHAUSTED;
    }
    table->capacity = capacity;
    return mr_string_map_create(capacity, &table->by_name);
}

void mr_tensor_table_deinit(mr_tensor_table *table)
{
    free(table->items);
    mr_string_map_destroy(table->by_name);
    *table = (mr_tensor_table){0};
}

mr_status mr_tensor_table_add(mr_tensor_table *table, const mr_model_tensor *tensor)
{
    MR_CHECK(table->count < table->capacity);
    MR_TRY(mr_string_map_put(table->by_name, tensor->name, strlen(tensor->name),
                             (uint32_t)table->count));
    table->items[table->count++] = *tensor;
    return MR_OK;
}

const mr_model_tensor *mr_tensor_table_find(const mr_tensor_table *table, const char *name)
{
    uint32_t index;
    if (!mr_string_map_get(table->by_name, name, strlen(name), &index)) {
        return NULL;
    }
    return &table->items[index];
}

void mr_tensor_table_mark_used(const mr_tensor_table *table, const mr_model_tensor *tensor)
{
    const size_t index = (size_t)(tensor - table->items);
    MR_CHECK(index < table->count);
    if (!table->items[index].used) {
        table->items[index].used = true;
    }
}

bool mr_tensor_number(const mr_model_tensor *tensor, float *out)
{
    const mr_dtype_info *type = mr_dtype_info_get(tensor->dtype);
    if ((tensor->dtype != MR_DTYPE_F32 && tensor->dtype != MR_DTYPE_F16 &&
         tensor->dtype != MR_DTYPE_BF16) ||
        tensor->bytes != type->block_bytes) {
        return false;
    }
    mr_dequantize(tensor->dtype, tensor->data, out, 1);
    return *out > 0.0f && isfinite(*out);
}

void mr_tensor_shape_text(const mr_model_tensor *tensor, char out[96])
{
    size_t used = (size_t)snprintf(out, 96, "[");
    for (uint32_t i = 0; i < tensor->n_dims; i++) {
        used += (size_t)snprintf(out + used, 96 - used, "%s%" PRIu64, i == 0 ? "" : ", ",
                                 tensor->shape[i]);
    }
    snprintf(out + used, 96 - used, "]");
}

mr_status mr_tensor_table_require(const mr_tensor_table *table, const char *name, uint64_t n,
                                  uint64_t k, const mr_model_tensor **out, mr_error *err)
{
    const mr_model_tensor *tensor = mr_tensor_table_find(table, name);
    if (tensor == NULL) {
        return mr_fail(
            err, MR_DATA_LOSS,
            "tensor '%s' is missing; the file is incomplete, convert or download the model again",
            name);
    }
    const bool vector = n == 1 && tensor->n_dims == 1 && tensor->shape[0] == k;
    const bool matrix = tensor->n_dims == 2 && tensor->shape[0] == n && tensor->shape[1] == k;
    if (!vector && !matrix) {
        char found[96];
        mr_tensor_shape_text(tensor, found);
        return mr_fail(err, MR_DATA_LOSS,
                       "tensor '%s' has shape %s where the configuration wants [%" PRIu64
                       ", %" PRIu64
                       "]; the file is inconsistent, convert or download the model again",
                       name, found, n, k);
    }
    *out = tensor;
    return MR_OK;
}
