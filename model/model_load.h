/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of a model, and how its files fill it; for model.c. */
#ifndef MILLRACE_MODEL_MODEL_LOAD_H
#define MILLRACE_MODEL_MODEL_LOAD_H

#include "base/file_map.h"
#include "base/status.h"
#include "model/arch.h"
#include "model/checkpoint.h"
#include "model/gguf.h"
#include "model/model.h"
#include "model/quant_config.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct mr_model {
    mr_file_map map;           /* empty when the file is the caller's memory */
    mr_gguf *gguf;             /* a GGUF file, or */
    mr_checkpoint *checkpoint; /* a directory with weights, or neither */
    const mr_arch *arch;
    mr_model_config config;
    bool random; /* weights are made of random_seed, of random_dtype */
    uint64_t random_seed;
    mr_dtype random_dtype;
    mr_quant_config quant; /* of a directory */
    mr_tokenizer *tokenizer;
    mr_chat_template *chat;
};

/* Fills in a model from a GGUF file's contents, which stay until it is closed, or from a Hugging
 * Face directory, of whose weights it reads nothing when they are random. `label` and `dir` name it
 * where the file does not. After a failure it can be closed. Errors as of mr_model_open, without
 * the path. */
MR_MUST_USE mr_status mr_model_load_gguf(mr_model *model, const void *data, size_t size,
                                         const char *label, mr_error *err);
MR_MUST_USE mr_status mr_model_load_directory(mr_model *model, const char *dir, mr_error *err);

#endif
