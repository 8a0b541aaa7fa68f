/* SPDX-License-Identifier: Apache-2.0 */
#include "base/histogram.h"

#include "base/status.h"

#include <string.h>

static uint64_t bits_of(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static double value_of(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

void mr_histogram_init(mr_histogram *histogram, const double *bounds, uint32_t n_bounds)
{
    MR_CHECK(n_bounds <= MR_HISTOGRAM_MAX_BOUNDS);
    histogram->bounds = bounds;
    histogram->n_bounds = n_bounds;
    for (uint32_t i = 0; i <= MR_HISTOGRAM_MAX_BOUNDS; i++) {
        mr_counter_set(&histogram->counts[i], 0);
    }
    mr_counter_set(&histogram->sum, bits_of(0.0));
}

void mr_histogram_observe(mr_histogram *histogram, double value, uint64_t times)
{
    uint32_t index = 0;
    while (index < histogram->n_bounds && !(value <= histogram->bounds[index])) {
        index++;
    }
    mr_counter_add(&histogram->counts[index], times);
    const double more = value * (double)times;
    uint64_t seen = mr_counter_get(&histogram->sum);
    while (!atomic_compare_exchange_weak_explicit(&histogram->sum.value, &seen,
                                                  bits_of(value_of(seen) + more),
                                                  memory_order_relaxed, memory_order_relaxed)) {
    }
}

double mr_histogram_sum(const mr_histogram *histogram)
{
    return value_of(mr_counter_get(&histogram->sum));
}
