/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a load test sends and when, and what its times amount to. All of it is a pure function of
 * the seed, so that two runs ask the same; load_run.h does the sending.
 */
#ifndef MILLRACE_SERVICE_LOAD_H
#define MILLRACE_SERVICE_LOAD_H

#include "base/buffer.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Poisson arrivals: gaps are independent and exponential. */
typedef struct mr_load_arrivals {
    uint64_t seed;
    double rate;    /* a second */
    uint64_t index; /* of the next arrival */
    double at_s;    /* of the arrival before it; sums stay exact to well under a microsecond */
} mr_load_arrivals;

void mr_load_arrivals_init(mr_load_arrivals *arrivals, uint64_t seed, double rate);
/* Nanoseconds from the start to the next arrival; the first is at 0. */
uint64_t mr_load_arrivals_next(mr_load_arrivals *arrivals);

/* Fills ids[n], each below `vocab_size`, for the request with this index. */
void mr_load_prompt(uint64_t seed, uint64_t index, uint32_t vocab_size, uint32_t *ids, uint32_t n);

/* Whole numbers from `least` to `most`, each as likely as the others. */
typedef struct mr_load_range {
    uint32_t least, most;
} mr_load_range;

typedef struct mr_load_lengths {
    uint32_t prompt, output; /* tokens */
} mr_load_lengths;

/* Of the request with this index. */
mr_load_lengths mr_load_lengths_of(uint64_t seed, uint64_t index, mr_load_range prompt,
                                   mr_load_range output);

/* Times, in microseconds. Zero-initialised is valid and empty; those over 71 minutes count as 71
 * minutes. */
typedef struct mr_load_samples {
    mr_ids us; /* owns; sorted by mr_load_samples_sum_up */
} mr_load_samples;

typedef struct mr_load_summary {
    size_t count;                    /* 0: the rest says nothing */
    double p50, p90, p99, mean, max; /* milliseconds */
} mr_load_summary;

/* `times` equal samples. RESOURCE_EXHAUSTED when memory is short. */
MR_MUST_USE mr_status mr_load_samples_add(mr_load_samples *samples, uint64_t ns, uint32_t times);
/* Percentiles by nearest rank: the smallest sample that p % of all do not exceed. */
mr_load_summary mr_load_samples_sum_up(mr_load_samples *samples);
void mr_load_samples_deinit(mr_load_samples *samples);

#endif
