/* SPDX-License-Identifier: Apache-2.0 */
/* A tensor of a model, whatever file format it came from. */
#ifndef MILLRACE_MODEL_MODEL_TENSOR_H
#define MILLRACE_MODEL_MODEL_TENSOR_H

#include "kernels/dtype.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct mr_model_tensor {
    const char *name; /* borrowed from the model */
    mr_dtype dtype;
    uint32_t n_dims;
    uint64_t shape[4]; /* outermost first: [n][k] for a matrix */
    const void *data;  /* borrowed from the mapping */
    uint64_t bytes;
    bool used; /* the plan or the configuration reads it */
} mr_model_tensor;

#endif
