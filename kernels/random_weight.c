/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/random_weight.h"

#include "base/checked.h"
#include "base/philox.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define QUANTILES 65536u /* by the 16 bits of an element */
#define A_DRAW    8u     /* elements of one Philox call */

struct mr_random_table {
    uint32_t bytes; /* of an element */
    union {
        uint16_t half[QUANTILES];
        float full[QUANTILES];
    } of;
};

bool mr_random_weight_has(mr_dtype dtype)
{
    return dtype == MR_DTYPE_F32 || dtype == MR_DTYPE_F16 || dtype == MR_DTYPE_BF16;
}

/* Newton's method on the complementary error function, from Abramowitz and Stegun's 26.2.23. */
double mr_normal_quantile(double p)
{
    const double tail = p < 0.5 ? p : 1.0 - p;
    const double t = sqrt(-2.0 * log(tail));
    double x = t - (2.515517 + t * (0.802853 + t * 0.010328)) /
                       (1.0 + t * (1.432788 + t * (0.189269 + t * 0.001308)));
    for (int i = 0; i < 3; i++) {
        /* 1 / sqrt(2), 1 / sqrt(2 pi) */
        const double error = 0.5 * erfc(x * 0.70710678118654752) - tail;
        x += error / (0.39894228040143268 * exp(-0.5 * x * x));
    }
    return p < 0.5 ? -x : x;
}

mr_status mr_random_table_create(mr_dtype dtype, float mean, mr_random_table **out)
{
    MR_CHECK(mr_random_weight_has(dtype));
    mr_random_table *table = mr_calloc(1, sizeof(*table));
    if (table == NULL) {
        return MR_RESOURCE_EXHAUSTED;
    }
    table->bytes = mr_dtype_info_get(dtype)->block_bytes;
    for (uint32_t b = 0; b < QUANTILES / 2; b++) {
        const double z = mr_normal_quantile(0.5 + (b + 0.5) / QUANTILES) * MR_RANDOM_DEVIATION;
        for (uint32_t sign = 0; sign < 2; sign++) {
            const float value = (float)((double)mean + (sign == 0 ? z : -z));
            const uint32_t at = b + sign * (QUANTILES / 2);
            if (dtype == MR_DTYPE_F32) {
                table->of.full[at] = value;
            } else {
                table->of.half[at] =
                    dtype == MR_DTYPE_F16 ? mr_f32_to_f16(value) : mr_f32_to_bf16(value);
            }
        }
    }
    *out = table;
    return MR_OK;
}

void mr_random_table_destroy(mr_random_table *table)
{
    free(table);
}

/* The eight elements of draw `index`. */
static void draw(const mr_plan_weight *weight, uint64_t index, uint16_t out[A_DRAW])
{
    const uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), MR_DRAW_WEIGHT,
                                 weight->random_stream};
    const uint32_t key[2] = {(uint32_t)weight->random_seed, (uint32_t)(weight->random_seed >> 32)};
    uint32_t words[4];
    mr_philox4x32(counter, key, words);
    for (uint32_t i = 0; i < 4; i++) {
        out[2 * i] = (uint16_t)words[i];
        out[2 * i + 1] = (uint16_t)(words[i] >> 16);
    }
}

void mr_random_weight_fill(const mr_random_table *table, const mr_plan_weight *weight,
                           uint64_t first, uint64_t count, void *out)
{
    uint8_t *to = out;
    uint16_t bits[A_DRAW];
    for (uint64_t done = 0; done < count;) {
        const uint64_t at = first + done;
        draw(weight, at / A_DRAW, bits);
        for (uint64_t i = at % A_DRAW; i < A_DRAW && done < count; i++, done++) {
            if (table->bytes == 2) {
                memcpy(to + 2 * done, &table->of.half[bits[i]], 2);
            } else {
                memcpy(to + 4 * done, &table->of.full[bits[i]], 4);
            }
        }
    }
}
