/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/random_weight.h"

#include "base/checked.h"
#include "base/philox.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define QUANTILES MR_RANDOM_PATTERNS
#define A_DRAW    8u /* elements of one Philox call */
#define E4M3_MAX  448.0
#define OF_GROUPS ((uint64_t)1 << 63) /* draws of scales and zeros */

struct mr_random_table {
    uint32_t bytes; /* of an element */
    union {
        uint16_t half[QUANTILES];
        float full[QUANTILES];
        int8_t code[QUANTILES]; /* less its zero; F8_E4M3: its byte */
    } of;
};

bool mr_random_weight_has(mr_dtype dtype)
{
    return dtype == MR_DTYPE_F32 || dtype == MR_DTYPE_F16 || dtype == MR_DTYPE_BF16 ||
           dtype == MR_DTYPE_CODES4 || dtype == MR_DTYPE_CODES8 || dtype == MR_DTYPE_CODES_F8;
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
    MR_CHECK(mr_random_weight_has(dtype) && dtype < MR_DTYPE_COUNT);
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

/* ---- codes ---- */

static double step_of(const mr_weight_codes *codes)
{
    return codes->codes.form == MR_CODES_E4M3
               ? 5 * MR_RANDOM_DEVIATION / E4M3_MAX
               : 3 * MR_RANDOM_DEVIATION / (double)(1u << (codes->codes.bits - 1));
}

/* The byte of the F8_E4M3 number nearest to a magnitude; the even one of two. */
static uint8_t nearest_e4m3(double magnitude)
{
    uint8_t below = 0; /* numbers grow with their bytes */
    for (uint8_t step = 0x40; step > 0; step /= 2) {
        const uint8_t next = below | step;
        if (next < 0x7f && (double)mr_f8_e4m3_to_f32(next) <= magnitude) {
            below = next;
        }
    }
    if (below == 0x7e) {
        return below;
    }
    const uint8_t above = below + 1;
    const double under = magnitude - (double)mr_f8_e4m3_to_f32(below);
    const double over = (double)mr_f8_e4m3_to_f32(above) - magnitude;
    return over < under || (over == under && above % 2 == 0) ? above : below;
}

static int8_t code_of(const mr_weight_codes *codes, double value)
{
    if (codes->codes.form == MR_CODES_E4M3) {
        return (int8_t)(nearest_e4m3(fabs(value)) | (value < 0.0 ? 0x80 : 0));
    }
    const double top = (double)(1u << (codes->codes.bits - 1)) - 1.0;
    return (int8_t)fmin(fmax(rint(value), -top - 1.0), top);
}

mr_status mr_random_codes_table_create(const mr_weight_codes *codes, mr_random_table **out)
{
    mr_random_table *table = mr_calloc(1, sizeof(*table));
    if (table == NULL) {
        return MR_RESOURCE_EXHAUSTED;
    }
    table->bytes = 1;
    const double step = step_of(codes);
    for (uint32_t b = 0; b < QUANTILES / 2; b++) {
        const double z =
            mr_normal_quantile(0.5 + (b + 0.5) / QUANTILES) * MR_RANDOM_DEVIATION / step;
        table->of.code[b] = code_of(codes, z);
        table->of.code[QUANTILES / 2 + b] = code_of(codes, -z);
    }
    *out = table;
    return MR_OK;
}

void mr_random_table_destroy(mr_random_table *table)
{
    free(table);
}

const void *mr_random_table_elements(const mr_random_table *table)
{
    return &table->of;
}

/* ---- tables that are kept ---- */

bool mr_random_same_table(const mr_plan_weight *a, const mr_plan_weight *b)
{
    if (a->dtype != b->dtype || a->random_mean != b->random_mean) {
        return false;
    }
    return a->codes == NULL || (a->codes->codes.bits == b->codes->codes.bits &&
                                a->codes->codes.form == b->codes->codes.form);
}

mr_status mr_random_tables_find(mr_random_tables *tables, const mr_plan_weight *weight,
                                const mr_random_table **out)
{
    for (uint32_t i = 0; i < 2; i++) {
        if (tables->kept[i].table != NULL && mr_random_same_table(&tables->kept[i].of, weight)) {
            *out = tables->kept[i].table;
            return MR_OK;
        }
    }
    mr_random_table **next = &tables->kept[tables->oldest].table;
    mr_random_table_destroy(*next);
    *next = NULL;
    tables->kept[tables->oldest].of = *weight;
    tables->oldest = 1 - tables->oldest;
    MR_TRY(weight->codes != NULL
               ? mr_random_codes_table_create(weight->codes, next)
               : mr_random_table_create(weight->dtype, weight->random_mean, next));
    *out = *next;
    return MR_OK;
}

void mr_random_tables_deinit(mr_random_tables *tables)
{
    mr_random_table_destroy(tables->kept[0].table);
    mr_random_table_destroy(tables->kept[1].table);
    *tables = (mr_random_tables){0};
}

/* ---- elements ---- */

static void draw_words(const mr_plan_weight *weight, uint64_t index, uint32_t out[4])
{
    const uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), MR_DRAW_WEIGHT,
                                 weight->random_stream};
    const uint32_t key[2] = {(uint32_t)weight->random_seed, (uint32_t)(weight->random_seed >> 32)};
    mr_philox4x32(counter, key, out);
}

/* The eight elements of draw `index`. */
static void draw(const mr_plan_weight *weight, uint64_t index, uint16_t out[A_DRAW])
{
    uint32_t words[4];
    draw_words(weight, index, words);
    for (uint32_t i = 0; i < 4; i++) {
        out[2 * i] = (uint16_t)words[i];
        out[2 * i + 1] = (uint16_t)(words[i] >> 16);
    }
}

static mr_codes_values values_of_group(const mr_plan_weight *weight, uint64_t index)
{
    const mr_weight_codes *codes = weight->codes;
    uint32_t words[4];
    draw_words(weight, index | OF_GROUPS, words);
    const float scale = (float)(step_of(codes) * (0.875 + (words[0] & 0xffu) / 1024.0));
    const bool less = !codes->centred && (words[0] >> 8 & 1u) != 0;
    mr_codes_values values = {.zero = (1u << (codes->codes.bits - 1)) - less, .scale = scale};
    if (codes->scale_dtype == MR_DTYPE_F16) {
        values.scale = mr_f16_to_f32(mr_f32_to_f16(scale));
    } else if (codes->scale_dtype == MR_DTYPE_BF16) {
        values.scale = mr_bf16_to_f32(mr_f32_to_bf16(scale));
    }
    return values;
}

float mr_random_weight_scale(const mr_plan_weight *weight, uint64_t group)
{
    return values_of_group(weight, group).scale;
}

/* One block, elements [at, at + 32) of the weight. */
static void fill_block(const mr_random_table *table, const mr_plan_weight *weight, uint64_t at,
                       const mr_codes_values *values, uint8_t *out)
{
    const int32_t top = (int32_t)(1u << weight->codes->codes.bits) - 1;
    const bool floats = weight->codes->codes.form == MR_CODES_E4M3;
    uint8_t codes[MR_CODES_BLOCK];
    uint16_t bits[A_DRAW];
    for (uint32_t i = 0; i < MR_CODES_BLOCK; i++) {
        if (i % A_DRAW == 0) {
            draw(weight, (at + i) / A_DRAW, bits);
        }
        const int32_t drawn = table->of.code[bits[i % A_DRAW]];
        const int32_t code = drawn + (int32_t)values->zero;
        codes[i] = (uint8_t)(floats ? drawn : code < 0 ? 0 : code > top ? top : code);
    }
    mr_codes_write(weight->dtype, weight->codes->codes.bits, codes, values, out);
}

static void fill_codes(const mr_random_table *table, const mr_plan_weight *weight, uint64_t first,
                       uint64_t count, uint8_t *out)
{
    const uint32_t block_bytes = mr_dtype_info_get(weight->dtype)->block_bytes;
    const uint32_t group = weight->codes->group;
    const uint64_t groups = (weight->k + group - 1) / group;
    mr_codes_values values = {0};
    MR_CHECK(first % weight->k == 0 && count % weight->k == 0);
    for (uint64_t at = first; at < first + count; at += MR_CODES_BLOCK, out += block_bytes) {
        const uint32_t column = (uint32_t)(at % weight->k);
        if (column % group == 0) {
            values = values_of_group(weight, at / weight->k * groups + column / group);
        }
        fill_block(table, weight, at, &values, out);
    }
}

void mr_random_weight_fill(const mr_random_table *table, const mr_plan_weight *weight,
                           uint64_t first, uint64_t count, void *out)
{
    uint8_t *to = out;
    uint16_t bits[A_DRAW];
    if (weight->codes != NULL) {
        fill_codes(table, weight, first, count, to);
        return;
    }
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
