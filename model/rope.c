/* SPDX-License-Identifier: Apache-2.0 */
#include "model/rope.h"

#include "base/checked.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

mr_status mr_rope_create(const mr_rope_params *params, float **inv_freq, mr_error *err)
{
    const uint32_t pairs = params->dims / 2;
    float *table = mr_calloc(pairs > 0 ? pairs : 1, sizeof(*table));
    if (table == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "no memory for %" PRIu32 " RoPE frequencies",
                       pairs);
    }
    const double theta = (double)params->theta;
    for (uint32_t i = 0; i < pairs; i++) {
        double divisor = (double)params->linear_factor;
        if (params->factors != NULL) {
            divisor *= (double)params->factors[i];
        }
        const double exponent = -2.0 * (double)i / (double)params->dims;
        const double frequency = pow(theta, exponent) / divisor;
        if (!(frequency > 0.0 && frequency < 3.0e38)) {
            free(table);
            return mr_fail(err, MR_DATA_LOSS,
                           "RoPE frequency %" PRIu32 " is not finite and positive (base %g, "
                           "divisor %g); the file is corrupt",
                           i, theta, divisor);
        }
        table[i] = (float)frequency;
    }
    *inv_freq = table;
    return MR_OK;
}
