/* SPDX-License-Identifier: Apache-2.0 */
#include "model/unicode_form.h"

#include "base/checked.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#define NO_ENTRY      UINT16_MAX /* in utf8proc's table of properties */
#define FEW_MARKS     32u        /* sorted by insertion up to here */
#define MAX_EXPANSION 32         /* points that one character can become; Unicode's longest is 18 */

typedef struct point_range {
    int32_t first;
    int32_t last;
} point_range;

/* Combining marks that Hugging Face's older tables have as ordinary characters. */
static const point_range later_marks[] = {
    {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},
    {0xC3C, 0xC3C},     {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},
    {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},   {0xA82C, 0xA82C},   {0x10D24, 0x10D27},
    {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85},
    {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x11839, 0x1183A},
    {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0}, {0x11A34, 0x11A34},
    {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45},
    {0x11D97, 0x11D97}, {0x11F41, 0x11F42}, {0x16FF0, 0x16FF1}, {0x1E08F, 0x1E08F},
    {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF},
};

static bool in_ranges(const point_range *ranges, size_t count, int32_t point)
{
    size_t low = 0;
    while (low < count) {
        const size_t middle = low + (count - low) / 2;
        if (point > ranges[middle].last) {
            low = middle + 1;
        } else if (point < ranges[middle].first) {
            count = middle;
        } else {
            return true;
        }
    }
    return false;
}

#define IN_RANGES(ranges, point) in_ranges(ranges, sizeof(ranges) / sizeof((ranges)[0]), point)

int32_t mr_unicode_read(const uint8_t *text, size_t at, size_t *end)
{
    const uint8_t *c = text + at;
    if (c[0] < 0x80) {
        *end = at + 1;
        return c[0];
    }
    if (c[0] < 0xE0) {
        *end = at + 2;
        return (c[0] & 0x1F) << 6 | (c[1] & 0x3F);
    }
    if (c[0] < 0xF0) {
        *end = at + 3;
        return (c[0] & 0x0F) << 12 | (c[1] & 0x3F) << 6 | (c[2] & 0x3F);
    }
    *end = at + 4;
    return (c[0] & 0x07) << 18 | (c[1] & 0x3F) << 12 | (c[2] & 0x3F) << 6 | (c[3] & 0x3F);
}

/* --- What may stand alone ------------------------------------------------------------------- */

/* Whether the character is its own form and joins nothing before it. What is not may still be;
 * such characters are looked at together with what they follow. */
static bool stands_alone(mr_unicode_form form, int32_t point)
{
    /* In NFC everything below the combining marks is settled, the Latin letters with accents too.
     */
    if (point < 0x80 || (form == MR_UNICODE_NFC && point < 0x300)) {
        return true;
    }
    if (point >= 0xAC00 && point <= 0xD7A3) { /* Hangul syllables */
        return form == MR_UNICODE_NFC || form == MR_UNICODE_NFKC;
    }
    if (point >= 0x1100 && point <= 0x11FF) { /* Hangul letters, which make syllables */
        return false;
    }
    const utf8proc_property_t *property = utf8proc_get_property(point);
    return (property->combining_class == 0 && property->decomp_seqindex == NO_ENTRY &&
            property->comb_index == NO_ENTRY) ||
           IN_RANGES(later_marks, point);
}

bool mr_unicode_runs_settled(const mr_unicode_runs *runs)
{
    for (size_t at = 0; at < runs->bytes;) {
        if (runs->text[at] < 0x80) {
            at++;
        } else if (!stands_alone(runs->form, mr_unicode_read(runs->text, at, &at))) {
            return false;
        }
    }
    return true;
}

/* --- Runs ----------------------------------------------------------------------------------- */

static utf8proc_option_t options_of(mr_unicode_form form)
{
    const bool composed = form == MR_UNICODE_NFC || form == MR_UNICODE_NFKC;
    const bool compatible = form == MR_UNICODE_NFKC || form == MR_UNICODE_NFKD;
    return UTF8PROC_STABLE | (composed ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
           (compatible ? UTF8PROC_COMPAT : 0);
}

static unsigned class_of(int32_t point)
{
    return IN_RANGES(later_marks, point) ? 0
                                         : (unsigned)utf8proc_get_property(point)->combining_class;
}

static void sort_few(int32_t *points, size_t count)
{
    for (size_t i = 1; i < count; i++) {
        const int32_t point = points[i];
        const unsigned class = class_of(point);
        size_t at = i;
        while (at > 0 && class_of(points[at - 1]) > class) {
            points[at] = points[at - 1];
            at--;
        }
        points[at] = point;
    }
}

static void sort_many(int32_t *points, size_t count, int32_t *spare)
{
    size_t begins[257] = {0};
    for (size_t i = 0; i < count; i++) {
        begins[class_of(points[i]) + 1]++;
    }
    for (size_t class = 1; class < 257; class ++) {
        begins[class] += begins[class - 1];
    }
    for (size_t i = 0; i < count; i++) {
        spare[begins[class_of(points[i])]++] = points[i];
    }
    memcpy(points, spare, count * sizeof(*points));
}

/* The canonical order: marks of one character by their class, equal ones as they were. */
static void sort_marks(int32_t *points, size_t count, int32_t *spare)
{
    for (size_t begin = 0; begin < count;) {
        size_t end = begin;
        while (end < count && class_of(points[end]) != 0) {
            end++;
        }
        if (end - begin > FEW_MARKS) {
            sort_many(points + begin, end - begin, spare);
        } else if (end - begin > 1) {
            sort_few(points + begin, end - begin);
        }
        begin = end + 1;
    }
}

static mr_status reserve(mr_unicode_runs *runs, size_t count)
{
    if (count <= runs->capacity) {
        return MR_OK;
    }
    const size_t wanted = count * 2;
    int32_t *points = mr_reallocarray(runs->points, wanted * 2, sizeof(*points));
    if (points == NULL) {
        return MR_RESOURCE_EXHAUSTED;
    }
    runs->points = points;
    uint8_t *written = mr_reallocarray(runs->written, wanted, 4);
    if (written == NULL) {
        return MR_RESOURCE_EXHAUSTED;
    }
    runs->written = written;
    runs->capacity = wanted;
    return MR_OK;
}

/* Takes the run apart; utf8proc's own function would sort marks in quadratic time. */
static mr_status decompose(mr_unicode_runs *runs, size_t begin, size_t end, size_t *count)
{
    *count = 0;
    for (size_t at = begin; at < end;) {
        const int32_t point = mr_unicode_read(runs->text, at, &at);
        MR_TRY(reserve(runs, *count + MAX_EXPANSION));
        int boundary = 0;
        const utf8proc_ssize_t wrote = utf8proc_decompose_char(
            point, runs->points + *count, MAX_EXPANSION, options_of(runs->form), &boundary);
        if (wrote < 0 || wrote > MAX_EXPANSION) {
            return MR_RESOURCE_EXHAUSTED;
        }
        *count += (size_t)wrote;
    }
    return MR_OK;
}

static void write_points(mr_unicode_runs *runs, size_t count, mr_bytes *out)
{
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        bytes += (size_t)utf8proc_encode_char(runs->points[i], runs->written + bytes);
    }
    *out = (mr_bytes){.data = runs->written, .size = bytes};
}

mr_status mr_unicode_runs_next(mr_unicode_runs *runs, mr_bytes *changed)
{
    *changed = (mr_bytes){0};
    const size_t begin = runs->end;
    size_t last = begin; /* where the last character of the run begins */
    size_t at;
    bool alone = stands_alone(runs->form, mr_unicode_read(runs->text, begin, &at));
    bool all_alone = alone;
    /* A run of characters that stand alone is kept but for the last one, if something joins it. */
    while (at < runs->bytes) {
        size_t next;
        alone = stands_alone(runs->form, mr_unicode_read(runs->text, at, &next));
        if (alone != all_alone) {
            break;
        }
        last = at;
        at = next;
    }
    if (all_alone && (at == runs->bytes || last > begin)) {
        runs->end = at == runs->bytes ? at : last;
        return MR_OK;
    }
    while (at < runs->bytes) { /* the character and all that joins it */
        size_t next;
        if (stands_alone(runs->form, mr_unicode_read(runs->text, at, &next))) {
            break;
        }
        at = next;
    }
    runs->end = at;
    size_t count = 0;
    MR_TRY(decompose(runs, begin, at, &count));
    sort_marks(runs->points, count, runs->points + runs->capacity);
    const utf8proc_ssize_t left =
        utf8proc_normalize_utf32(runs->points, (utf8proc_ssize_t)count, options_of(runs->form));
    write_points(runs, left < 0 ? 0 : (size_t)left, changed);
    return MR_OK;
}

void mr_unicode_runs_deinit(mr_unicode_runs *runs)
{
    free(runs->points);
    free(runs->written);
    *runs = (mr_unicode_runs){0};
}

/* --- Classes -------------------------------------------------------------------------------- */

bool mr_unicode_is_space(int32_t point)
{
    static const point_range spaces[] = {
        {0x09, 0x0D},     {0x20, 0x20},     {0x85, 0x85},     {0xA0, 0xA0},     {0x1680, 0x1680},
        {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000},
    };
    return IN_RANGES(spaces, point);
}

bool mr_unicode_is_word(int32_t point)
{
    /* Alphabetic symbols, and the two joiners. */
    static const point_range others[] = {
        {0x200C, 0x200D},   {0x24B6, 0x24E9},   {0x1F130, 0x1F149},
        {0x1F150, 0x1F169}, {0x1F170, 0x1F189},
    };
    switch (utf8proc_category(point)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    default:
        return IN_RANGES(others, point);
    }
}
