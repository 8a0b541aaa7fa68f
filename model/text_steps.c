/* SPDX-License-Identifier: Apache-2.0 */
#include "model/text_steps.h"

#include "base/checked.h"
#include "base/utf8.h"
#include "model/unicode_form.h"

#include <stdlib.h>
#include <string.h>

/* --- The steps ------------------------------------------------------------------------------ */

static mr_status check_steps(const mr_text_step *items, uint32_t count, uint64_t *bytes,
                             mr_error *err)
{
    if (count > MR_MAX_TEXT_STEPS) {
        return mr_fail(err, MR_INVALID_ARGUMENT, "%u changes to text where at most %u are allowed",
                       count, MR_MAX_TEXT_STEPS);
    }
    for (uint32_t i = 0; i < count; i++) {
        const mr_text_step *step = &items[i];
        if (step->kind == MR_TEXT_REPLACE && step->from.size == 0) {
            return mr_fail(err, MR_INVALID_ARGUMENT, "the text to replace is empty");
        }
        if (!mr_utf8_valid(step->from.data, step->from.size, NULL) ||
            !mr_utf8_valid(step->to.data, step->to.size, NULL)) {
            return mr_fail(err, MR_INVALID_ARGUMENT, "the text of a change is not UTF-8");
        }
        if (!mr_add_u64(*bytes, step->from.size, bytes) ||
            !mr_add_u64(*bytes, step->to.size, bytes)) {
            return mr_fail(err, MR_RESOURCE_EXHAUSTED, "the texts of changes are too long");
        }
    }
    return MR_OK;
}

static mr_bytes copy_bytes(mr_bytes text, uint8_t **next)
{
    const mr_bytes copy = {.data = *next, .size = text.size};
    if (text.size > 0) {
        memcpy(*next, text.data, text.size);
    }
    *next += text.size;
    return copy;
}

mr_status mr_text_steps_init(mr_text_steps *steps, const mr_text_step *items, uint32_t count,
                             mr_error *err)
{
    *steps = (mr_text_steps){0};
    uint64_t bytes = 1;
    MR_TRY(check_steps(items, count, &bytes, err));
    steps->texts = mr_calloc(bytes, 1);
    if (steps->texts == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "no memory for the tokenizer");
    }
    uint8_t *next = steps->texts;
    for (uint32_t i = 0; i < count; i++) {
        steps->items[i] = (mr_text_step){.kind = items[i].kind,
                                         .from = copy_bytes(items[i].from, &next),
                                         .to = copy_bytes(items[i].to, &next)};
    }
    steps->count = count;
    return MR_OK;
}

void mr_text_steps_deinit(mr_text_steps *steps)
{
    free(steps->texts);
    *steps = (mr_text_steps){0};
}

/* --- Text at work --------------------------------------------------------------------------- */

void mr_text_work_deinit(mr_text_work *work)
{
    mr_buffer_deinit(&work->text);
    mr_buffer_deinit(&work->marks);
    mr_buffer_deinit(&work->other_text);
    mr_buffer_deinit(&work->other_marks);
    *work = (mr_text_work){0};
}

static mr_status append_mark(mr_buffer *marks, bool mark, size_t count)
{
    MR_TRY(mr_buffer_reserve(marks, count));
    if (count > 0) {
        memset(marks->data + marks->size, mark, count);
    }
    marks->size += count;
    return MR_OK;
}

mr_status mr_text_work_set(mr_text_work *work, const uint8_t *text, size_t bytes)
{
    work->text.size = 0;
    work->marks.size = 0;
    MR_TRY(mr_buffer_append(&work->text, text, bytes));
    return work->marked ? append_mark(&work->marks, false, bytes) : MR_OK;
}

static void swap(mr_buffer *a, mr_buffer *b)
{
    const mr_buffer held = *a;
    *a = *b;
    *b = held;
}

/* What was put together in `other` becomes the text. */
static void turn(mr_text_work *work)
{
    swap(&work->text, &work->other_text);
    swap(&work->marks, &work->other_marks);
    work->other_text.size = 0;
    work->other_marks.size = 0;
}

static mr_status check_growth(const mr_text_work *work, size_t more)
{
    const bool fits =
        work->other_text.size <= work->limit && more <= work->limit - work->other_text.size;
    return fits ? MR_OK : MR_INVALID_ARGUMENT;
}

/* Puts text[begin, end) into `other` as it is. */
static mr_status keep(mr_text_work *work, size_t begin, size_t end)
{
    if (begin == end) {
        return MR_OK;
    }
    MR_TRY(check_growth(work, end - begin));
    MR_TRY(mr_buffer_append(&work->other_text, work->text.data + begin, end - begin));
    return work->marked
               ? mr_buffer_append(&work->other_marks, work->marks.data + begin, end - begin)
               : MR_OK;
}

/* Puts `text` into `other` for text[begin, end), which may be empty. */
static mr_status put(mr_text_work *work, mr_bytes text, size_t begin, size_t end)
{
    MR_TRY(check_growth(work, text.size));
    MR_TRY(mr_buffer_append(&work->other_text, text.data, text.size));
    if (!work->marked) {
        return MR_OK;
    }
    const bool mark = end > begin && memchr(work->marks.data + begin, 1, end - begin) != NULL;
    return append_mark(&work->other_marks, mark, text.size);
}

static mr_status prepend(mr_text_work *work, mr_bytes prefix)
{
    MR_TRY(put(work, prefix, 0, 0));
    MR_TRY(keep(work, 0, work->text.size));
    turn(work);
    return MR_OK;
}

static mr_status replace(mr_text_work *work, const mr_text_step *step)
{
    const size_t bytes = work->text.size;
    size_t at = 0;
    for (;;) {
        const uint8_t *found =
            memmem(work->text.data + at, bytes - at, step->from.data, step->from.size);
        if (found == NULL) {
            break;
        }
        const size_t begin = (size_t)(found - work->text.data);
        MR_TRY(keep(work, at, begin));
        at = begin + step->from.size;
        MR_TRY(put(work, step->to, begin, at));
    }
    if (at == 0) {
        return MR_OK;
    }
    MR_TRY(keep(work, at, bytes));
    turn(work);
    return MR_OK;
}

static mr_status normalize(mr_text_work *work, mr_unicode_form form)
{
    mr_unicode_runs runs = {.form = form, .text = work->text.data, .bytes = work->text.size};
    if (mr_unicode_runs_settled(&runs)) {
        return MR_OK;
    }
    mr_status status = MR_OK;
    while (status == MR_OK && runs.end < runs.bytes) {
        mr_bytes changed;
        const size_t begin = runs.end;
        status = mr_unicode_runs_next(&runs, &changed);
        if (status == MR_OK) {
            status = changed.data == NULL ? keep(work, begin, runs.end)
                                          : put(work, changed, begin, runs.end);
        }
    }
    mr_unicode_runs_deinit(&runs);
    if (status == MR_OK) {
        turn(work);
    }
    return status;
}

static bool begins_with(const mr_buffer *text, mr_bytes prefix)
{
    return text->size >= prefix.size && memcmp(text->data, prefix.data, prefix.size) == 0;
}

static mr_status run_step(const mr_text_step *step, bool starts, mr_text_work *work)
{
    switch (step->kind) {
    case MR_TEXT_PREPEND:
        return prepend(work, step->to);
    case MR_TEXT_PREPEND_MISSING:
        return begins_with(&work->text, step->to) ? MR_OK : prepend(work, step->to);
    case MR_TEXT_PREPEND_START:
        return !starts || begins_with(&work->text, step->to) ? MR_OK : prepend(work, step->to);
    case MR_TEXT_REPLACE:
        return replace(work, step);
    case MR_TEXT_NFC:
        return normalize(work, MR_UNICODE_NFC);
    case MR_TEXT_NFD:
        return normalize(work, MR_UNICODE_NFD);
    case MR_TEXT_NFKC:
        return normalize(work, MR_UNICODE_NFKC);
    case MR_TEXT_NFKD:
        return normalize(work, MR_UNICODE_NFKD);
    }
    return MR_OK;
}

mr_status mr_text_steps_run(const mr_text_steps *steps, bool starts, mr_text_work *work)
{
    work->other_text.size = 0;
    work->other_marks.size = 0;
    work->limit = SIZE_MAX;
    if (work->text.size < (SIZE_MAX - MR_TEXT_GROWTH_FREE) / MR_TEXT_GROWTH) {
        work->limit = MR_TEXT_GROWTH * work->text.size + MR_TEXT_GROWTH_FREE;
    }
    for (uint32_t i = 0; i < steps->count && work->text.size > 0; i++) {
        MR_TRY(run_step(&steps->items[i], starts, work));
    }
    return MR_OK;
}
