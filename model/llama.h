/* SPDX-License-Identifier: Apache-2.0 */
/* The Llama family: pre-norm RMS, grouped-query attention with rotary positions, gated SiLU. */
#ifndef MILLRACE_MODEL_LLAMA_H
#define MILLRACE_MODEL_LLAMA_H

#include "base/status.h"
#include "model/gguf.h"
#include "model/model_config.h"

/* As mr_arch says. Metadata keys of the architecture that this build does not know are refused:
 * each could change what the network computes. */
MR_MUST_USE mr_status mr_llama_read_gguf(mr_gguf *gguf, mr_model_config *config, mr_error *err);

#endif
