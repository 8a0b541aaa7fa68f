/* SPDX-License-Identifier: Apache-2.0 */
/* For tests and fuzzing. */
#ifndef MILLRACE_MODEL_MODEL_INTERNAL_H
#define MILLRACE_MODEL_MODEL_INTERNAL_H

#include "model/model.h"

/* As mr_model_open for a file's contents in memory, which must be aligned to 8 and stay until
 * close. `label` stands for the path. */
MR_MUST_USE mr_status mr_model_open_memory(const void *data, size_t size, const char *label,
                                           mr_model **out, mr_error *err);

#endif
