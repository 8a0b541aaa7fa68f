/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model on disk: configuration, tensors, tokenizer, chat template, and the plan of its forward
 * pass. One handle for every file format and architecture.
 */
#ifndef MILLRACE_MODEL_MODEL_H
#define MILLRACE_MODEL_MODEL_H

#include "base/status.h"
#include "kernels/plan.h"
#include "model/chat.h"
#include "model/model_config.h"
#include "model/model_tensor.h"
#include "model/tokenizer.h"

#include <stddef.h>
#include <stdint.h>

typedef struct mr_model mr_model;

/* Opens a GGUF file or a Hugging Face model directory. Nothing is copied but the tables.
 * NOT_FOUND, PERMISSION_DENIED, DATA_LOSS (corrupt: says what and at which offset), UNIMPLEMENTED
 * (an architecture, type or version this build lacks, named). Gives the model. */
MR_MUST_USE mr_status mr_model_open(const char *path, mr_model **out, mr_error *err);
/* The same for a directory that needs no weights: those of its plan are made of the seed, as
 * kernels/random_weight.h says. INVALID_ARGUMENT for a file. */
MR_MUST_USE mr_status mr_model_open_random(const char *path, uint64_t seed, mr_model **out,
                                           mr_error *err);
/* Opens what handles text and no more, tokenizer and chat template: of a directory, where weights
 * need not be, or of a GGUF file, whose architecture may be any. Nothing else of the model may be
 * asked for. Errors as above. */
MR_MUST_USE mr_status mr_model_open_text(const char *path, mr_model **out, mr_error *err);
void mr_model_close(mr_model *model);

/* "gguf", "safetensors", "random"; static. */
const char *mr_model_format(const mr_model *model);
const mr_model_config *mr_model_config_get(const mr_model *model);
/* NULL when the model has no tokenizer: ids in, ids out. */
const mr_tokenizer *mr_model_tokenizer(const mr_model *model);
const mr_chat_template *mr_model_chat(const mr_model *model);

size_t mr_model_tensor_count(const mr_model *model);
const mr_model_tensor *mr_model_tensor_at(const mr_model *model, size_t index);

/* Builds the forward plan over the model's tensors. Gives the plan; its weight data is borrowed
 * from the model, which must outlive it until upload() has returned. */
MR_MUST_USE mr_status mr_model_plan(const mr_model *model, mr_plan **out, mr_error *err);

#endif
