/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of rotary position embeddings, and what has become of them for longer contexts. */
#ifndef MILLRACE_MODEL_ROPE_H
#define MILLRACE_MODEL_ROPE_H

#include "base/status.h"
#include "model/model_config.h"

#include <stdbool.h>
#include <stdint.h>

/* How frequency f_i = theta^(-2i/dims) is scaled. */
typedef enum mr_rope_scaling {
    MR_ROPE_SCALE_LINEAR, /* f_i / factor; factor 1: none (Chen et al., 2306.15595) */
    MR_ROPE_SCALE_LLAMA3, /* by wavelength: long ones / factor, short ones as they are, between
                             low_freq_factor and high_freq_factor a blend (Llama 3.1) */
    MR_ROPE_SCALE_YARN,   /* by rotations in the original context: few / factor, many as they are,
                             between beta_slow and beta_fast a ramp (Peng et al., 2309.00071) */
} mr_rope_scaling;

typedef struct mr_rope_params {
    uint32_t dims; /* rotated elements a head, even */
    double theta;  /* base */
    mr_rope_scaling scaling;
    double factor;
    const double *factors; /* [dims / 2] divisors a frequency, behind the scaling; NULL: none */
    double original;       /* LLAMA3, YARN: context before scaling, tokens */
    double low_freq_factor, high_freq_factor; /* LLAMA3 */
    double beta_fast, beta_slow;              /* YARN */
    bool truncate;                            /* YARN: the ramp begins and ends at whole pairs */
} mr_rope_params;

/* Gives inv_freq[dims / 2], computed in double and rounded once (free with free()). DATA_LOSS when
 * one is not finite and positive. */
MR_MUST_USE mr_status mr_rope_create(const mr_rope_params *params, float **inv_freq, mr_error *err);

/* What YaRN multiplies sine and cosine by: 0.1 · mscale · ln(factor) + 1, 1 for factor ≤ 1. */
double mr_rope_yarn_mscale(double factor, double mscale);

/* What longrope multiplies them by: √(1 + ln(factor) / ln(original)), 1 for factor ≤ 1
 * (Ding et al., 2402.13753). */
double mr_rope_long_factor(double factor, double original);

/* Fills config->rope_in_effect from what is known of the scaling: the type, and what it has. */
void mr_rope_describe(mr_model_config *config);

#endif
