/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The weights of a decoder's forward plan: which tensor, or rows of one, or module with codes, each
 * of them is; made of nothing where there are no tensors. For decoder_plan.c, one thread.
 *
 * Each function appends one weight to the plan and gives its id; its data is borrowed from the
 * tensors, which are marked as used. Errors are put into `err`, as of mr_decoder_plan.
 */
#ifndef MILLRACE_MODEL_DECODER_WEIGHTS_H
#define MILLRACE_MODEL_DECODER_WEIGHTS_H

#include "model/decoder_plan.h"

#include <stdbool.h>
#include <stdint.h>

#define MR_DECODER_NO_ROLE MR_ROLE_COUNT

typedef struct mr_decoder_weights {
    const mr_decoder_source *source; /* borrows, as the next two */
    mr_plan *plan;
    mr_error *err;
} mr_decoder_weights;

/* What is done with a weight. */
typedef enum mr_decoder_use {
    MR_DECODER_VECTOR, /* no module of its own: it has no codes */
    MR_DECODER_LOOKUP,
    MR_DECODER_LINEAR,
    MR_DECODER_HEAD,
} mr_decoder_use;

/* One matrix of a linear operator: a tensor, or some rows of one that has more in it. */
typedef struct mr_decoder_part {
    mr_tensor_role role;
    mr_tensor_role fused; /* has these rows if the family has it; MR_DECODER_NO_ROLE: none */
    uint32_t fused_first; /* row */
    uint32_t fused_rows;  /* of the whole tensor */
    uint32_t n;
    mr_shard shard;
    uint32_t unit;
    mr_bias_use bias; /* NONE in families that have it fused */
} mr_decoder_part;

/* A whole tensor outside the layers; `shape` has n, k and how ranks divide it. */
MR_MUST_USE mr_status mr_decoder_add_tensor(const mr_decoder_weights *d, mr_tensor_role role,
                                            mr_decoder_use use, const mr_plan_weight *shape,
                                            mr_weight_id *id);
/* A vector that every rank has all of; `suffix` is "weight" or "bias". */
MR_MUST_USE mr_status mr_decoder_add_vector(const mr_decoder_weights *d, mr_tensor_role role,
                                            uint32_t layer, const char *suffix, uint32_t k,
                                            mr_weight_id *id);
/* [p->n][k]. */
MR_MUST_USE mr_status mr_decoder_add_matrix(const mr_decoder_weights *d, uint32_t layer, uint32_t k,
                                            const mr_decoder_part *p, mr_weight_id *id);
/* The bias that goes with it, if the model has it, else MR_NO_WEIGHT. */
MR_MUST_USE mr_status mr_decoder_add_bias(const mr_decoder_weights *d, uint32_t layer,
                                          const mr_decoder_part *p, mr_weight_id *id);
/* Scales of an F8_E4M3 cache, of checkpoints that have them. */
MR_MUST_USE mr_status mr_decoder_add_kv_scales(const mr_decoder_weights *d);

/* The multiple of `unit` that is also whole blocks of the tensor's type, or whole groups of a
 * module with codes for its k inputs; `unit` if it is missing, which adding it then reports. */
uint32_t mr_decoder_unit(const mr_decoder_weights *d, uint32_t layer, mr_tensor_role role,
                         uint32_t unit, uint32_t k);

/* The status of an append to the plan, with its words in `err`. */
MR_MUST_USE mr_status mr_decoder_appended(const mr_decoder_weights *d, mr_status status);

#endif
