/* SPDX-License-Identifier: Apache-2.0 */
/* The architectures of this build: a row each. */
#ifndef MILLRACE_MODEL_ARCH_H
#define MILLRACE_MODEL_ARCH_H

#include "base/status.h"
#include "kernels/plan.h"
#include "model/gguf.h"
#include "model/hf_config.h"
#include "model/model_config.h"
#include "model/tensor_names.h"
#include "model/tensor_table.h"

typedef struct mr_arch {
    const char *name;  /* as general.architecture and model_type say it */
    const char *about; /* for docs/models.md: models of it, and what is special */

    /* NULL where this build does not read the architecture from GGUF. Fills the shape of the
     * network (layers … rope) from the metadata and the tensors' shapes, and checks it; marks the
     * tensors it reads as used. config->rope is the caller's to free, also after a failure.
     * DATA_LOSS, UNIMPLEMENTED (a variant this build lacks, named), RESOURCE_EXHAUSTED. */
    mr_status (*read_gguf)(mr_gguf *gguf, mr_model_config *config, mr_error *err);
    const mr_tensor_names *gguf_names;

    /* NULL where this build does not read it from model directories. */
    const mr_hf_traits *hf;
    const mr_tensor_names *hf_names;
} mr_arch;

size_t mr_arch_count(void);
const mr_arch *mr_arch_at(size_t index);

/* UNIMPLEMENTED, naming those there are, for a name that is not in the table or cannot be read
 * from that kind of file. */
MR_MUST_USE mr_status mr_arch_find_gguf(const char *name, const mr_arch **out, mr_error *err);
MR_MUST_USE mr_status mr_arch_find_hf(const char *name, const mr_arch **out, mr_error *err);

#endif
