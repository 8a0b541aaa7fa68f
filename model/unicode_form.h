/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unicode normalisation (UAX #15) by utf8proc's tables, run by run: a run is what can be normalised
 * without a look at its neighbours. Marks that Hugging Face tokenizers 0.23 does not know as marks
 * (they joined Unicode after its version 10) are ordinary characters here too.
 */
#ifndef MILLRACE_MODEL_UNICODE_FORM_H
#define MILLRACE_MODEL_UNICODE_FORM_H

#include "base/bytes.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum mr_unicode_form {
    MR_UNICODE_NFC,
    MR_UNICODE_NFD,
    MR_UNICODE_NFKC,
    MR_UNICODE_NFKD,
} mr_unicode_form;

/* A walk over the runs of a text. Set form, text and bytes; the rest starts as zero. */
typedef struct mr_unicode_runs {
    mr_unicode_form form;
    const uint8_t *text; /* borrowed, valid UTF-8 */
    size_t bytes;
    size_t end;       /* of the last run */
    int32_t *points;  /* owns */
    size_t capacity;  /* of points, of which the second half is spare room */
    uint8_t *written; /* owns, 4 bytes a point */
} mr_unicode_runs;

/* True only if the text is in its form already; false is no proof of the opposite. */
bool mr_unicode_runs_settled(const mr_unicode_runs *runs);

/* Gives the next run in its form, text[the old end, the new end) before: NULL and 0 for one that
 * is in its form already, else borrowed until the next call. Call while end < bytes. A run takes
 * O(n) memory and time, however its marks lie. RESOURCE_EXHAUSTED. */
MR_MUST_USE mr_status mr_unicode_runs_next(mr_unicode_runs *runs, mr_bytes *changed);
void mr_unicode_runs_deinit(mr_unicode_runs *runs);

/* Whether a character is part of a word (UTS #18's \w): of letters, marks, digits, connectors. */
bool mr_unicode_is_word(int32_t point);
/* White_Space. */
bool mr_unicode_is_space(int32_t point);

/* The character that begins at text[at], which must be valid UTF-8; *end gets where it ends. */
int32_t mr_unicode_read(const uint8_t *text, size_t at, size_t *end);

#endif
