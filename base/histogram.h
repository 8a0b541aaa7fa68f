/* SPDX-License-Identifier: Apache-2.0 */
/* Counts of observed values by upper bound, and their sum. Observed and read from any thread. */
#ifndef MILLRACE_BASE_HISTOGRAM_H
#define MILLRACE_BASE_HISTOGRAM_H

#include "base/flag.h"

#include <stdint.h>

#define MR_HISTOGRAM_MAX_BOUNDS 24u

typedef struct mr_histogram {
    const double *bounds; /* borrows, [n_bounds] rising */
    uint32_t n_bounds;
    mr_counter counts[MR_HISTOGRAM_MAX_BOUNDS + 1]; /* a value's first bound that is not below it */
    mr_counter sum;                                 /* the bits of a double */
} mr_histogram;

/* At most MR_HISTOGRAM_MAX_BOUNDS bounds. */
void mr_histogram_init(mr_histogram *histogram, const double *bounds, uint32_t n_bounds);
/* `times` observations of the same value. */
void mr_histogram_observe(mr_histogram *histogram, double value, uint64_t times);
double mr_histogram_sum(const mr_histogram *histogram);

#endif
