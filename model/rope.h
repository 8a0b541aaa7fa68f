/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of rotary position embeddings. */
#ifndef MILLRACE_MODEL_ROPE_H
#define MILLRACE_MODEL_ROPE_H

#include "base/status.h"

#include <stdint.h>

typedef struct mr_rope_params {
    uint32_t dims;        /* rotated elements a head, even */
    float theta;          /* base */
    float linear_factor;  /* positions are divided by it; 1: no scaling */
    const float *factors; /* [dims / 2] divisors a frequency; NULL: none */
} mr_rope_params;

/* Gives inv_freq[dims / 2] = theta^(-2i/dims) / (linear_factor · factors[i]), computed in double
 * and rounded once (free with free()). DATA_LOSS when one is not finite and positive. */
MR_MUST_USE mr_status mr_rope_create(const mr_rope_params *params, float **inv_freq, mr_error *err);

#endif
