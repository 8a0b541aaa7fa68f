/* SPDX-License-Identifier: Apache-2.0 */
/* The architectures of this build: a row each. */
#ifndef MILLRACE_MODEL_ARCH_H
#define MILLRACE_MODEL_ARCH_H

#include "base/status.h"
#include "kernels/plan.h"
#include "model/gguf.h"
#include "model/model.h"
#include "model/tensor_table.h"

typedef struct mr_arch {
    const char *name; /* as general.architecture says it */

    /* Fills the shape of the network (layers … rope) from the metadata and the tensors' shapes,
     * and checks it; marks the tensors it reads as used. config->rope.inv_freq is the caller's to
     * free, also after a failure. DATA_LOSS, UNIMPLEMENTED (a variant this build lacks, named),
     * RESOURCE_EXHAUSTED. */
    mr_status (*read_gguf)(mr_gguf *gguf, mr_model_config *config, mr_error *err);

    /* Gives the plan; weight data is borrowed from the tensors. DATA_LOSS (a tensor is missing or
     * has another shape), RESOURCE_EXHAUSTED. */
    mr_status (*plan)(const mr_model_config *config, const mr_tensor_table *tensors, mr_plan **out,
                      mr_error *err);
} mr_arch;

/* UNIMPLEMENTED, naming those there are, for a name that is not in the table. */
MR_MUST_USE mr_status mr_arch_find(const char *name, const mr_arch **out, mr_error *err);

#endif
