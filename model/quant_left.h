/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Modules that a checkpoint left as they were when it was quantised: a list of names, and patterns
 * with "re:" in front, from a file that nobody vouches for.
 */
#ifndef MILLRACE_MODEL_QUANT_LEFT_H
#define MILLRACE_MODEL_QUANT_LEFT_H

#include "base/status.h"

#include <jansson.h>
#include <stdbool.h>

/* For one module: a name is one, a pattern one for each item of it that is tried. */
#define MR_QUANT_LEFT_STEPS 8192u

typedef struct mr_quant_left mr_quant_left;

/* Of an array of strings, which is shared. RESOURCE_EXHAUSTED; destroy after that too. */
MR_MUST_USE mr_status mr_quant_left_create(json_t *list, mr_quant_left **out);
void mr_quant_left_destroy(mr_quant_left *left);

/* Whether the module is in the list: itself, one around it, or by a pattern. RESOURCE_EXHAUSTED
 * when that takes more steps than above. Any thread. */
MR_MUST_USE mr_status mr_quant_left_has(const mr_quant_left *left, const char *module, bool *has,
                                        mr_error *err);

#endif
