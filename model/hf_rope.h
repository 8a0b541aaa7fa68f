/* SPDX-License-Identifier: Apache-2.0 */
/* The rotary positions of a config.json. */
#ifndef MILLRACE_MODEL_HF_ROPE_H
#define MILLRACE_MODEL_HF_ROPE_H

#include "base/status.h"
#include "model/model_config.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* Fills config->rope, its type, theta, and what it does to the context length, from rope_theta,
 * rope_scaling or rope_parameters (with "type" or "rope_type") and partial_rotary_factor. Head
 * width and context_length (max_position_embeddings) are set. DATA_LOSS, UNIMPLEMENTED (a type or
 * a key that is not known, named: each could change what is computed), RESOURCE_EXHAUSTED. */
MR_MUST_USE mr_status mr_hf_read_rope(const json_t *root, mr_model_config *config, mr_error *err);

/* The types by index, for docs: a name as files have it, and its keys, separated by spaces. False
 * behind the last. */
bool mr_hf_rope_type(size_t index, const char **name, const char **keys);

#endif
