/* SPDX-License-Identifier: Apache-2.0 */
/* Changes to text before it is split: prefixes, replacements, Unicode normalisation. */
#ifndef MILLRACE_MODEL_TEXT_STEPS_H
#define MILLRACE_MODEL_TEXT_STEPS_H

#include "base/buffer.h"
#include "base/status.h"
#include "model/tokenizer_spec.h"

/* Unicode's longest decomposition has 11 times the bytes, a blank's mark three times. Steps that
 * make more of a text are a way to take memory. */
#define MR_TEXT_GROWTH      32u
#define MR_TEXT_GROWTH_FREE 256u /* bytes that any text may grow by */

/* Steps with texts of their own. Zero-initialised is valid: no step. Read-only once made. */
typedef struct mr_text_steps {
    mr_text_step items[MR_MAX_TEXT_STEPS];
    uint32_t count;
    uint8_t *texts; /* owns what the items' texts point to */
} mr_text_steps;

/* Copies `count` steps. INVALID_ARGUMENT (too many, a text to replace that is empty, texts that are
 * not UTF-8), RESOURCE_EXHAUSTED. */
MR_MUST_USE mr_status mr_text_steps_init(mr_text_steps *steps, const mr_text_step *items,
                                         uint32_t count, mr_error *err);
void mr_text_steps_deinit(mr_text_steps *steps);

/* A text at work, and whether each of its bytes is marked; memory is kept from text to text.
 * Zero-initialised is valid and empty, without marks. One thread at a time. */
typedef struct mr_text_work {
    mr_buffer text;
    mr_buffer marks; /* [text.size] 0 or 1; not in use unless marked */
    bool marked;     /* set before the first text */
    mr_buffer other_text;
    size_t limit; /* bytes that the text may grow to; of mr_text_steps_run */
    mr_buffer other_marks;
} mr_text_work;

void mr_text_work_deinit(mr_text_work *work);
/* Starts over with `text`, which must be UTF-8, without marks. RESOURCE_EXHAUSTED. */
MR_MUST_USE mr_status mr_text_work_set(mr_text_work *work, const uint8_t *text, size_t bytes);
/* Takes all steps; the text stays UTF-8. What came from a marked byte is marked; a sequence that
 * Unicode normalisation changed is marked if any of its bytes was. `starts`: the text is the
 * beginning of the whole input. O(n log n). INVALID_ARGUMENT for steps that make the text more than
 * MR_TEXT_GROWTH times as long, RESOURCE_EXHAUSTED. */
MR_MUST_USE mr_status mr_text_steps_run(const mr_text_steps *steps, bool starts,
                                        mr_text_work *work);

#endif
