/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weights made of nothing (load_format: random). Every element is a pure function of seed, stream
 * and index, so any thread, rank or device makes its own part:
 *
 *   word i % 4 of Philox(counter = {i / 4 low, i / 4 high, MR_DRAW_WEIGHT, stream}, key = seed)
 *   has two elements: its low 16 bits element 2 · i, its high 16 bits element 2 · i + 1
 *   16 bits b stand for the normal quantile of ((b mod 2^15) + 1/2) / 2^16 + 1/2, negative if the
 *   top bit is set, times MR_RANDOM_DEVIATION, plus the mean, rounded once to the weight's type
 *
 * Weights with codes have no mean. Their element is the code q + zero, q the same normal number
 * over 3 · MR_RANDOM_DEVIATION / 2^(bits − 1), rounded to the nearest (even) integer, within those
 * of so many bits; or the F8_E4M3 number nearest to the normal number times 448 over
 * 5 · MR_RANDOM_DEVIATION. Group g of row n has what the first word w of
 * Philox(counter = {i low, i high | 2^31, MR_DRAW_WEIGHT, stream}) says, i = n · groups + g:
 *
 *   scale  what q was divided by (5 · MR_RANDOM_DEVIATION / 448), times 7/8 + (w mod 256) / 1024,
 *          rounded to float32 and then to the type of the scales
 *   zero   2^(bits − 1), if not all are that and bit 8 of w is set less 1
 */
#ifndef MILLRACE_KERNELS_RANDOM_WEIGHT_H
#define MILLRACE_KERNELS_RANDOM_WEIGHT_H

#include "base/status.h"
#include "kernels/dtype.h"
#include "kernels/plan.h"

#include <stdbool.h>
#include <stdint.h>

#define MR_RANDOM_PATTERNS 65536u /* of an element's 16 bits */

/* Whether elements of this type can be made: F32, F16, BF16 and the CODES types. */
bool mr_random_weight_has(mr_dtype dtype);

/* Quantiles as a table, for whoever makes many elements. Read-only once made. */
typedef struct mr_random_table mr_random_table;

/* For weights of this type and mean, F32, F16 or BF16. RESOURCE_EXHAUSTED. */
MR_MUST_USE mr_status mr_random_table_create(mr_dtype dtype, float mean, mr_random_table **out);
/* For weights with codes of these bits, or of F8_E4M3. RESOURCE_EXHAUSTED. */
MR_MUST_USE mr_status mr_random_codes_table_create(const mr_weight_codes *codes,
                                                   mr_random_table **out);
void mr_random_table_destroy(mr_random_table *table);
/* [MR_RANDOM_PATTERNS] what an element's 16 bits stand for, in the weight's type; of weights with
 * codes a byte each: the F8_E4M3 number, or the code less its zero. The table's. */
const void *mr_random_table_elements(const mr_random_table *table);

/* Tables of the weights before, for the next: gains are made around 1 and come between matrices
 * around 0. Zero-initialised is valid and empty. One thread. */
typedef struct mr_random_tables {
    struct {
        mr_random_table *table; /* owns; NULL: none */
        mr_plan_weight of;      /* the weight it was made for, whose codes must outlive it */
    } kept[2];
    uint32_t oldest;
} mr_random_tables;

/* The table for a random weight, valid until the next but one is made. RESOURCE_EXHAUSTED. */
MR_MUST_USE mr_status mr_random_tables_find(mr_random_tables *tables, const mr_plan_weight *weight,
                                            const mr_random_table **out);
void mr_random_tables_deinit(mr_random_tables *tables);
/* Whether two random weights have elements from the same table. */
bool mr_random_same_table(const mr_plan_weight *a, const mr_plan_weight *b);

/* Writes elements [first, first + count) of the weight, row after row, to out, which needs no
 * alignment. Of weights with codes whole rows, as blocks. Any thread. */
void mr_random_weight_fill(const mr_random_table *table, const mr_plan_weight *weight,
                           uint64_t first, uint64_t count, void *out);

/* The scale of group `group` of all groups of a weight with codes. Any thread. */
float mr_random_weight_scale(const mr_plan_weight *weight, uint64_t group);

/* The p-quantile of the normal distribution, 0 < p < 1, to 1e-9. */
double mr_normal_quantile(double p);

#endif
