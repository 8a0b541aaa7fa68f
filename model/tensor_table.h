/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors of a model by name, whatever file format they came from. Filled once by a reader of
 * files, then read-only (any thread). */
#ifndef MILLRACE_MODEL_TENSOR_TABLE_H
#define MILLRACE_MODEL_TENSOR_TABLE_H

#include "base/hash_map.h"
#include "base/status.h"
#include "model/model_tensor.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct mr_tensor_table {
    mr_model_tensor *items; /* [count] owns; their names are borrowed until deinit */
    size_t count;
    size_t capacity;
    mr_string_map *by_name;
} mr_tensor_table;

/* Room for `capacity` tensors. RESOURCE_EXHAUSTED. */
MR_MUST_USE mr_status mr_tensor_table_init(mr_tensor_table *table, size_t capacity);
void mr_tensor_table_deinit(mr_tensor_table *table);

/* Appends a tensor within the capacity. ALREADY_EXISTS for a name that is inside. */
MR_MUST_USE mr_status mr_tensor_table_add(mr_tensor_table *table, const mr_model_tensor *tensor);

/* NULL if there is none. */
const mr_model_tensor *mr_tensor_table_find(const mr_tensor_table *table, const char *name);

/* The tensor [n][k], or a vector [k] when n is 1. DATA_LOSS when it is missing or has another
 * shape: names the tensor, the shape wanted and the shape found. */
MR_MUST_USE mr_status mr_tensor_table_require(const mr_tensor_table *table, const char *name,
                                              uint64_t n, uint64_t k, const mr_model_tensor **out,
                                              mr_error *err);

/* Notes that the tensor is read. One thread at a time until all are noted. */
void mr_tensor_table_mark_used(const mr_tensor_table *table, const mr_model_tensor *tensor);

/* The one positive number of a tensor; false when it is none. */
bool mr_tensor_number(const mr_model_tensor *tensor, float *out);

/* Writes "[49152, 576]" into out. */
void mr_tensor_shape_text(const mr_model_tensor *tensor, char out[96]);

#endif
