/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Drives an executor by hand, without a scheduler: sequences of known length whose KV blocks are
 * theirs from the start. For scoring and benchmarks. One thread.
 *
 *   rewind ─► begin ─► { sequence ─► token … } … ─► run ─► begin …
 *
 * Instead of run, submit and wait: a backend that takes two steps has the next one in time.
 */
#ifndef MILLRACE_SERVICE_STEPPER_H
#define MILLRACE_SERVICE_STEPPER_H

#include "base/status.h"
#include "kernels/batch.h"
#include "service/runtime.h"

#include <stdint.h>

typedef struct mr_stepper mr_stepper;

/* Room for `sequences` of `tokens` each: RESOURCE_EXHAUSTED, with advice, where the KV cache is
 * smaller. Borrows the runtime (one without an engine) until destroy. Gives the stepper. */
MR_MUST_USE mr_status mr_stepper_create(mr_runtime *runtime, uint32_t sequences, uint32_t tokens,
                                        mr_stepper **out, mr_error *err);
void mr_stepper_destroy(mr_stepper *stepper);

/* The next token of `sequence` is the one at `position`, at most as many as it has. */
void mr_stepper_rewind(mr_stepper *stepper, uint32_t sequence, uint32_t position);

/* As mr_batch_set_rope_length, for all sequences; without it each goes by its context length. */
void mr_stepper_set_rope_length(mr_stepper *stepper, uint32_t tokens);

void mr_stepper_begin(mr_stepper *stepper);
/* `count` tokens of `sequence` follow in this step. */
MR_MUST_USE mr_status mr_stepper_sequence(mr_stepper *stepper, uint32_t sequence, uint32_t count);
/* A literal id, or a row of the step before (mr_token_src_row). `row` asks for the token's logits;
 * NULL: not. Its position is filled in. */
MR_MUST_USE mr_status mr_stepper_token(mr_stepper *stepper, int32_t src, const mr_row_params *row);
MR_MUST_USE mr_status mr_stepper_run(mr_stepper *stepper, mr_step_output *out, mr_error *err);
/* With a backend that takes two steps, the next may be submitted before this one is waited for. */
MR_MUST_USE mr_status mr_stepper_submit(mr_stepper *stepper, mr_error *err);
/* The output of the first step that was not waited for. */
MR_MUST_USE mr_status mr_stepper_wait(mr_stepper *stepper, mr_step_output *out, mr_error *err);

#endif
