/* SPDX-License-Identifier: Apache-2.0 */
/* What a model is, in 32 bytes: two files with the same digest compute the same. */
#ifndef MILLRACE_MODEL_DIGEST_H
#define MILLRACE_MODEL_DIGEST_H

#include "base/flag.h"
#include "base/sha256.h"
#include "model/model.h"

/* SHA-256 over the configuration, the operators of the forward pass, the vocabulary, and of every
 * tensor its name, type, shape and SHA-256, in the order of the file. Reads all weights, so it
 * takes as long as that: any thread that has the time. CANCELLED once `stop` is set;
 * FAILED_PRECONDITION when a tensor has no data.
 */
MR_MUST_USE mr_status mr_model_digest(const mr_model *model, const mr_flag *stop,
                                      uint8_t out[MR_SHA256_BYTES], mr_error *err);

/* SHA-256 over the tables of rotary positions in effect. */
void mr_plan_rope_digest(mr_hasher *hasher, const mr_plan *plan, uint8_t out[MR_SHA256_BYTES]);

#endif
