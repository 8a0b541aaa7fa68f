/* SPDX-License-Identifier: Apache-2.0 */
#include "model/rope.h"

#include "base/checked.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define TWO_PI 6.283185307179586

/* Pairs at which YaRN's ramp begins and ends. */
typedef struct ramp {
    double low;
    double high;
} ramp;

static double llama3(const mr_rope_params *p, double frequency)
{
    const double wavelength = TWO_PI / frequency;
    if (wavelength > p->original / p->low_freq_factor) {
        return frequency / p->factor;
    }
    if (wavelength < p->original / p->high_freq_factor) {
        return frequency;
    }
    const double smooth = (p->original / wavelength - p->low_freq_factor) /
                          (p->high_freq_factor - p->low_freq_factor);
    return (1.0 - smooth) * frequency / p->factor + smooth * frequency;
}

/* The pair that turns `rotations` times in the original context. */
static double pair_of(const mr_rope_params *p, double rotations)
{
    return p->dims * log(p->original / (rotations * TWO_PI)) / (2.0 * log(p->theta));
}

static ramp yarn_ramp(const mr_rope_params *p)
{
    ramp r = {.low = pair_of(p, p->beta_fast), .high = pair_of(p, p->beta_slow)};
    if (p->truncate) {
        r.low = floor(r.low);
        r.high = ceil(r.high);
    }
    r.low = fmax(r.low, 0.0);
    r.high = fmin(r.high, p->dims - 1.0);
    if (r.low == r.high) {
        r.high += 0.001; /* no step without a slope */
    }
    return r;
}

static double yarn(const mr_rope_params *p, const ramp *r, double frequency, uint32_t pair)
{
    const double slow = fmin(fmax((pair - r->low) / (r->high - r->low), 0.0), 1.0);
    return frequency / p->factor * slow + frequency * (1.0 - slow);
}

mr_status mr_rope_create(const mr_rope_params *params, float **inv_freq, mr_error *err)
{
    const uint32_t pairs = params->dims / 2;
    float *table = mr_calloc(pairs > 0 ? pairs : 1, sizeof(*table));
    if (table == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "no memory for %" PRIu32 " RoPE frequencies",
                       pairs);
    }
    const ramp r = params->scaling == MR_ROPE_SCALE_YARN ? yarn_ramp(params) : (ramp){0};
    for (uint32_t i = 0; i < pairs; i++) {
        double frequency = pow(params->theta, -2.0 * (double)i / (double)params->dims);
        switch (params->scaling) {
        case MR_ROPE_SCALE_LINEAR:
            frequency /= params->factor;
            break;
        case MR_ROPE_SCALE_LLAMA3:
            frequency = llama3(params, frequency);
            break;
        case MR_ROPE_SCALE_YARN:
            frequency = yarn(params, &r, frequency, i);
            break;
        }
        if (params->factors != NULL) {
            frequency /= params->factors[i];
        }
        if (!(frequency > 0.0 && frequency < 3.0e38)) {
            free(table);
            return mr_fail(err, MR_DATA_LOSS,
                           "RoPE frequency %" PRIu32 " is not finite and positive (base %g, "
                           "factor %g); the file is corrupt",
                           i, params->theta, params->factor);
        }
        table[i] = (float)frequency;
    }
    *inv_freq = table;
    return MR_OK;
}

double mr_rope_yarn_mscale(double factor, double mscale)
{
    return factor > 1.0 ? 0.1 * mscale * log(factor) + 1.0 : 1.0;
}

double mr_rope_long_factor(double factor, double original)
{
    return factor > 1.0 ? sqrt(1.0 + log(factor) / log(original)) : 1.0;
}

void mr_rope_describe(mr_model_config *config)
{
    char *out = config->rope_in_effect;
    const size_t room = sizeof(config->rope_in_effect);
    size_t used = (size_t)snprintf(out, room, "%s", config->rope_type);
    if (config->rope_factor > 0.0f) {
        used +=
            (size_t)snprintf(out + used, room - used, ", factor %g", (double)config->rope_factor);
    }
    if (config->rope_original > 0) {
        used += (size_t)snprintf(out + used, room - used, " of %" PRIu32 " tokens",
                                 config->rope_original);
    }
    if (config->learned_positions == 0 && config->rope.attention_factor != 1.0f) {
        used += (size_t)snprintf(out + used, room - used, ", attention factor %.6g",
                                 (double)config->rope.attention_factor);
    }
    MR_CHECK(used < room);
}
