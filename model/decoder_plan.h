/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The forward plan of a decoder: pre-norm attention and feed-forward blocks with what the
 * configuration says of norms, biases, positions, windows and activations.
 */
#ifndef MILLRACE_MODEL_DECODER_PLAN_H
#define MILLRACE_MODEL_DECODER_PLAN_H

#include "base/status.h"
#include "kernels/plan.h"
#include "model/model_config.h"
#include "model/quant_config.h"
#include "model/tensor_names.h"
#include "model/tensor_table.h"

typedef struct mr_decoder_source {
    const mr_model_config *config;
    const mr_tensor_names *names;
    const mr_quant_config *quant;   /* NULL: no matrix has codes */
    const mr_tensor_table *tensors; /* NULL: weights are made of nothing, of the seed */
    mr_dtype random_dtype;          /* their type, or that of their scales */
    uint64_t random_seed;
} mr_decoder_source;

/* Gives the plan; weight data is borrowed from the tensors, and those it reads are marked as used.
 * DATA_LOSS (a tensor is missing or has another shape), UNIMPLEMENTED (a type that is none of
 * weights), RESOURCE_EXHAUSTED. */
MR_MUST_USE mr_status mr_decoder_plan(const mr_decoder_source *source, mr_plan **out,
                                      mr_error *err);

#endif
