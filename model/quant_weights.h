/* SPDX-License-Identifier: Apache-2.0 */
/* Matrices of a quantised checkpoint: which tensors a module's weight is in, held against each
 * other and the configuration. */
#ifndef MILLRACE_MODEL_QUANT_WEIGHTS_H
#define MILLRACE_MODEL_QUANT_WEIGHTS_H

#include "base/status.h"
#include "kernels/weight_codes.h"
#include "model/quant_config.h"
#include "model/tensor_table.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct mr_quant_module {
    const char *name; /* "model.layers.0.mlp.down_proj" */
    uint32_t rows;    /* outputs of the module */
    uint32_t k;       /* its inputs */
    uint32_t first;   /* the wanted outputs are [first, first + n) */
    uint32_t n;
    bool linear;         /* no embedding */
    bool head;           /* the vocabulary projection */
    mr_dtype scale_type; /* of weights made of nothing */
} mr_quant_module;

/* Finds the module's codes; *found is false if its weight is plain (or missing, which is another's
 * to say). The tensors are marked as used, and what `out` has is borrowed from them. With tensors
 * NULL the codes have no arrays: what they would be like.
 * DATA_LOSS: a tensor is missing, or contradicts the configuration or another; names module, sizes
 * and the way out. UNIMPLEMENTED. */
MR_MUST_USE mr_status mr_quant_find(const mr_quant_config *config, const mr_tensor_table *tensors,
                                    const mr_quant_module *module, mr_weight_codes *out,
                                    bool *found, mr_error *err);

/* Inputs of the module that must stay together when ranks divide them: its groups; all of them
 * with act-order; 1 if its weight is plain. */
uint32_t mr_quant_unit(const mr_quant_config *config, const mr_tensor_table *tensors,
                       const char *module, uint32_t k);

#endif
