/* SPDX-License-Identifier: Apache-2.0 */
/* What requests to the scripted model must give, worked out in the plainest way: no batches, no
 * blocks, no automata, no bounds. */
#ifndef MILLRACE_TESTS_SCHEDULER_ORACLE_H
#define MILLRACE_TESTS_SCHEDULER_ORACLE_H

#include "scripted.h"

/* The whole output that a choice of a request must have, independent of any scheduling. */
typedef struct scripted_result {
    uint32_t tokens[512];
    uint32_t n_tokens;
    mr_finish finish;
    uint32_t matched_token;
    uint32_t matched_stop; /* MR_NO_STOP: none */
    uint8_t text[4096];    /* of all tokens that are text, uncut */
    size_t text_bytes;
    size_t shown[512]; /* text that may be shown after each token; SIZE_MAX: all */
} scripted_result;

void scripted_output(const mr_scheduler_options *options, const mr_request *request,
                     uint32_t choice, scripted_result *out);

/* The `n` best hypotheses of a beam search that goes on to the end, best first; gives their
 * number. */
uint32_t scripted_beams(const mr_scheduler_options *options, const mr_request *request,
                        scripted_result *out, double *cumulative);

#endif
