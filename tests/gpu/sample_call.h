/* SPDX-License-Identifier: Apache-2.0 */
/* One call of the table's `sample`, with logits, parameters and histories of the test's own. */
#ifndef MILLRACE_TESTS_SAMPLE_CALL_H
#define MILLRACE_TESTS_SAMPLE_CALL_H

#include "gpu.h"
#include "sample_rows.h"

#include <stdbool.h>

enum { SAMPLE_ROWS = 24, SAMPLE_WORKERS = 7, SAMPLE_HISTORY = 60 };

/* How logits are made. */
typedef struct sample_kind {
    const char *what;
    float low, high; /* they are drawn from here, */
    float scale;     /* times this, */
    float step;      /* rounded to multiples of this, unless it is 0, */
    float peaks;     /* and every 997th is larger by so much */
    float odd;       /* one logit, unless 0: the row is corrupt */
    bool banned;     /* every other but the last is impossible */
} sample_kind;

extern const sample_kind sample_kinds[];
extern const uint32_t sample_n_kinds;

/* `vocab` of them. */
void sample_make_logits(uint64_t *state, const sample_kind *k, float *logits, uint32_t vocab);

/* What the call is given, on the host. */
typedef struct sample_call {
    uint32_t vocab;
    uint32_t count; /* rows; at most SAMPLE_ROWS */
    float *logits;  /* [SAMPLE_ROWS][vocab] */
    sample_asked asked[SAMPLE_ROWS];
    uint32_t history[SAMPLE_ROWS][SAMPLE_HISTORY];
} sample_call;

typedef struct sample_results {
    uint32_t tokens[SAMPLE_ROWS];
    float logprobs[SAMPLE_ROWS];
    uint8_t n_top[SAMPLE_ROWS];
    uint8_t corrupt[SAMPLE_ROWS];
    mr_alternative top[SAMPLE_ROWS * MR_MAX_TOP];
} sample_results;

/* Row i of the results is of row i of the call, whose workers have several each. Fails where
 * something is left among the counts, or written to the logits or to rows that are none. What the
 * bench had given out before is given out anew. */
void sample_run(gpu_bench *b, const sample_call *c, sample_results *out);

#endif
