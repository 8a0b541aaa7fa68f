/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each step is one pattern that is looked for in a piece of the step before, as Hugging Face's
 * steps are. Two well-known steps in a row, digits and GPT-2's pattern, are one pattern here.
 */
#include "model/pretokenizer.h"

#include "base/buffer.h"
#include "base/checked.h"
#include "base/utf8.h"
#include "model/character_classes.h"
#include "model/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Steps of the matcher, backtracks mostly. A pattern that came with a model may take a few at each
 * place of a text; what one place needs beyond is counted, and all of that together is bounded:
 * some tenths of a second, and for long texts as much a byte as one match of all of it needs. */
#define FREE_STEPS   64u
#define STEPS        (16u << 20)
#define STEPS_A_BYTE 16u

#define LETTER      MR_CLASS_LETTER
#define NUMBER      MR_CLASS_NUMBER
#define DIGIT       MR_CLASS_DIGIT
#define SPACE       MR_CLASS_SPACE
#define CONTRACTION "'(?:s|t|re|ve|m|ll|d)"

static const char gpt2_pattern[] =
    CONTRACTION "| ?[" LETTER "]+| ?[" NUMBER "]+| ?[^" SPACE LETTER NUMBER "]+"
                "|[" SPACE "]+(?![^" SPACE "])|[" SPACE "]+";

/* Each digit is a piece, and what lies between digits is split as by GPT-2. The digit ends the text
 * for GPT-2's look-ahead, so white space before a digit stays whole. */
static const char digit_gpt2_pattern[] =
    CONTRACTION "| ?[" LETTER "]+|[" DIGIT "]| ?[^" SPACE LETTER DIGIT "]+"
                "|[" SPACE "]+(?![^" SPACE DIGIT "])|[" SPACE "]+";

/* --- Families ------------------------------------------------------------------------------- */

#define TEXT(literal)                                                                              \
    {                                                                                              \
        .data = (const uint8_t *)(literal), .size = sizeof(literal) - 1                            \
    }

#define PATTERN(text)                                                                              \
    {                                                                                              \
        .kind = MR_SPLIT_PATTERN, .behavior = MR_SPLIT_ISOLATED, .pattern = TEXT(text)             \
    }

/* As the families' tokenizer.json files have them. */
#define LLAMA3                                                                                     \
    PATTERN("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}"               \
            "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+")
#define QWEN2                                                                                      \
    PATTERN("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}"                    \
            "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+")
#define DEEPSEEK3                                                                                  \
    PATTERN("\\p{N}{1,3}"), PATTERN("[一-龥぀-ゟ゠-ヿ]+"),                                   \
        PATTERN("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"                            \
                "|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*"          \
                "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+")

static const mr_tokenizer_family families[] = {
    {.name = "gpt-2", .splits = {{.kind = MR_SPLIT_GPT2}}, .n_splits = 1},
    {
        .name = "smollm",
        .splits = {{.kind = MR_SPLIT_DIGIT}, {.kind = MR_SPLIT_GPT2}},
        .n_splits = 2,
    },
    /* Llama 3 under the three names that converters have given it. */
    {.name = "llama-bpe", .splits = {LLAMA3}, .n_splits = 1, .whole_tokens = true},
    {.name = "llama3", .splits = {LLAMA3}, .n_splits = 1, .whole_tokens = true},
    {.name = "llama-v3", .splits = {LLAMA3}, .n_splits = 1, .whole_tokens = true},
    {.name = "qwen2", .splits = {QWEN2}, .n_splits = 1, .nfc = true},
    {.name = "deepseek-r1-qwen", .splits = {QWEN2}, .n_splits = 1, .nfc = true},
    {.name = "deepseek-v3", .splits = {DEEPSEEK3}, .n_splits = 3},
};

mr_status mr_tokenizer_family_find(const char *name, const mr_tokenizer_family **out, mr_error *err)
{
    char known[256] = "";
    size_t used = 0;
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
        if (name != NULL && strcmp(families[i].name, name) == 0) {
            *out = &families[i];
            return MR_OK;
        }
        const int wrote = snprintf(known + used, sizeof(known) - used, "%s%s", i > 0 ? ", " : "",
                                   families[i].name);
        used += wrote > 0 && (size_t)wrote < sizeof(known) - used ? (size_t)wrote : 0;
    }
    *out = NULL;
    return mr_fail(err, MR_UNIMPLEMENTED,
                   "pre-tokenizer \"%s\" is not implemented (%s are): use a model of one of these "
                   "families, or send token ids",
                   name != NULL ? name : "", known);
}

/* --- Making one ----------------------------------------------------------------------------- */

typedef struct stage {
    pcre2_code *code; /* owns */
    mr_split_behavior behavior;
    bool invert;
    bool jit;
} stage;

struct mr_pretokenizer {
    stage stages[MR_MAX_SPLIT_STEPS];
    uint32_t n_stages;
};

/* Appends the PCRE2 pattern of a step. */
static mr_status write_pattern(const mr_split_step *step, mr_buffer *out, mr_error *err)
{
    mr_status status = MR_OK;
    switch (step->kind) {
    case MR_SPLIT_PATTERN:
        return mr_pattern_translate(step->pattern, out, err);
    case MR_SPLIT_LITERAL:
        status = mr_pattern_quote(step->pattern, out);
        break;
    case MR_SPLIT_DIGIT:
    case MR_SPLIT_DIGITS:
        status = mr_buffer_append(out, "[" DIGIT "]", strlen("[" DIGIT "]"));
        break;
    case MR_SPLIT_GPT2:
        status = mr_buffer_append(out, gpt2_pattern, strlen(gpt2_pattern));
        break;
    }
    return status == MR_OK ? MR_OK : mr_fail(err, status, "no memory for the pre-tokenizer");
}

static mr_status compile(stage *made, const uint8_t *pattern, size_t bytes, mr_error *err)
{
    int code = PCRE2_ERROR_HEAP_FAILED;
    size_t offset = 0;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (context != NULL) {
        (void)pcre2_set_newline(context, PCRE2_NEWLINE_LF);
        made->code = pcre2_compile(pattern, bytes, PCRE2_UTF | PCRE2_UCP | PCRE2_USE_OFFSET_LIMIT,
                                   &code, &offset, context);
        pcre2_compile_context_free(context);
    }
    if (made->code == NULL) {
        return mr_fail(
            err, code == PCRE2_ERROR_HEAP_FAILED ? MR_RESOURCE_EXHAUSTED : MR_INVALID_ARGUMENT,
            "a pre-tokenizer has the pattern \"%.*s\", which PCRE2 does not take: error "
            "%d at offset %zu",
            (int)(bytes < 100 ? bytes : 100), (const char *)pattern, code, offset);
    }
    /* Fails where memory must not be executable; the interpreter then gives the same pieces. */
    made->jit = pcre2_jit_compile(made->code, PCRE2_JIT_COMPLETE) == 0;
    return MR_OK;
}

static mr_status add_step(mr_pretokenizer *made, const mr_split_step *step, mr_error *err)
{
    if (step->pattern.size == 0 &&
        (step->kind == MR_SPLIT_PATTERN || step->kind == MR_SPLIT_LITERAL)) {
        return mr_fail(err, MR_INVALID_ARGUMENT, "a pre-tokenizer splits at an empty pattern");
    }
    if (!mr_utf8_valid(step->pattern.data, step->pattern.size, NULL)) {
        return mr_fail(err, MR_INVALID_ARGUMENT, "the pattern of a pre-tokenizer is not UTF-8");
    }
    mr_buffer pattern = {0};
    stage *next = &made->stages[made->n_stages++];
    next->behavior = step->kind == MR_SPLIT_DIGITS ? MR_SPLIT_CONTIGUOUS : step->behavior;
    next->invert = step->invert;
    mr_status status = write_pattern(step, &pattern, err);
    if (status == MR_OK) {
        status = compile(next, pattern.data, pattern.size, err);
    }
    mr_buffer_deinit(&pattern);
    return status;
}

static bool is_digit_gpt2(const mr_split_step *steps, uint32_t count)
{
    return count == 2 && steps[0].kind == MR_SPLIT_DIGIT && steps[1].kind == MR_SPLIT_GPT2;
}

static mr_status add_steps(mr_pretokenizer *made, const mr_split_step *steps, uint32_t count,
                           mr_error *err)
{
    if (is_digit_gpt2(steps, count)) {
        made->n_stages = 1;
        return compile(&made->stages[0], (const uint8_t *)digit_gpt2_pattern,
                       strlen(digit_gpt2_pattern), err);
    }
    for (uint32_t i = 0; i < count; i++) {
        MR_TRY(add_step(made, &steps[i], err));
    }
    return MR_OK;
}

mr_status mr_pretokenizer_create(const mr_split_step *steps, uint32_t count, mr_pretokenizer **out,
                                 mr_error *err)
{
    *out = NULL;
    if (count > MR_MAX_SPLIT_STEPS) {
        return mr_fail(err, MR_INVALID_ARGUMENT,
                       "a pre-tokenizer of %u steps where at most %u are allowed", count,
                       MR_MAX_SPLIT_STEPS);
    }
    mr_pretokenizer *made = mr_calloc(1, sizeof(*made));
    if (made == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "no memory for the pre-tokenizer");
    }
    const mr_status status = add_steps(made, steps, count, err);
    if (status != MR_OK) {
        mr_pretokenizer_destroy(made);
        return status;
    }
    *out = made;
    return MR_OK;
}

void mr_pretokenizer_destroy(mr_pretokenizer *pretokenizer)
{
    if (pretokenizer == NULL) {
        return;
    }
    for (uint32_t i = 0; i < pretokenizer->n_stages; i++) {
        pcre2_code_free(pretokenizer->stages[i].code);
    }
    free(pretokenizer);
}

/* --- One step ------------------------------------------------------------------------------- */

mr_status mr_piece_cursor_init(mr_piece_cursor *cursor, const mr_pretokenizer *pretokenizer,
                               mr_error *err)
{
    *cursor = (mr_piece_cursor){.pretokenizer = pretokenizer};
    cursor->steps = STEPS;
    cursor->match = pcre2_match_data_create(1, NULL);
    cursor->context = pcre2_match_context_create(NULL);
    if (cursor->match == NULL || cursor->context == NULL) {
        mr_piece_cursor_deinit(cursor);
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "no memory to split text");
    }
    return MR_OK;
}

void mr_piece_cursor_deinit(mr_piece_cursor *cursor)
{
    pcre2_match_data_free(cursor->match);
    pcre2_match_context_free(cursor->context);
    *cursor = (mr_piece_cursor){0};
}

static void walk_start(mr_split_walk *walk, const uint8_t *text, size_t bytes)
{
    walk->text = text;
    walk->bytes = bytes;
    walk->done = 0;
    walk->search = 0;
    walk->match_end = SIZE_MAX;
    walk->careful = false;
    walk->has_waiting = false;
    walk->has_ahead = false;
}

static mr_status fail_match(int code, size_t at, mr_error *err)
{
    const bool limit = code == PCRE2_ERROR_MATCHLIMIT || code == PCRE2_ERROR_HEAPLIMIT ||
                       code == PCRE2_ERROR_NOMEMORY;
    return mr_fail(err, limit ? MR_RESOURCE_EXHAUSTED : MR_INTERNAL,
                   "splitting text: PCRE2 error %d at byte %zu", code, at);
}

/* A match that begins at `search`, or behind it up to `last`, in so many steps a place. */
static int attempt(mr_piece_cursor *cursor, const stage *by, const mr_split_walk *walk, size_t last,
                   uint32_t steps)
{
    int code = PCRE2_ERROR_JIT_STACKLIMIT;
    (void)pcre2_set_match_limit(cursor->context, steps);
    (void)pcre2_set_offset_limit(cursor->context, last);
    if (by->jit) {
        code = pcre2_jit_match(by->code, walk->text, walk->bytes, walk->search, 0, cursor->match,
                               cursor->context);
    }
    if (code == PCRE2_ERROR_JIT_STACKLIMIT) {
        /* Without NO_UTF_CHECK each call would read the rest of the text: quadratic. */
        code = pcre2_match(by->code, walk->text, walk->bytes, walk->search,
                           PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, cursor->match, cursor->context);
    }
    return code;
}

/* The same anywhere. Once a place needs more than its free steps, places are tried one by one until
 * that one is found, since PCRE2 does not say which it was, and it gets what it needs. `last`: up
 * to where it was looked for. */
static int search(mr_piece_cursor *cursor, const stage *by, mr_split_walk *walk, size_t *last)
{
    *last = walk->careful ? walk->search : walk->bytes;
    int code = attempt(cursor, by, walk, *last, FREE_STEPS);
    if (code == PCRE2_ERROR_MATCHLIMIT && !walk->careful) {
        walk->careful = true;
        *last = walk->search;
        code = attempt(cursor, by, walk, *last, FREE_STEPS);
    }
    for (uint64_t steps = FREE_STEPS; code == PCRE2_ERROR_MATCHLIMIT && cursor->steps > 0;) {
        steps = mr_min_u64(8 * steps, cursor->steps);
        cursor->steps -= steps;
        walk->careful = false;
        code = attempt(cursor, by, walk, *last, (uint32_t)steps);
    }
    return code;
}

static void step_over_one(mr_split_walk *walk)
{
    do {
        walk->search++;
    } while (walk->search < walk->bytes && (walk->text[walk->search] & 0xC0) == 0x80);
}

/* The next match from `search` on; one that is empty right behind the last does not count. */
static mr_status next_match(mr_piece_cursor *cursor, uint32_t index, mr_split_part *part,
                            bool *found, mr_error *err)
{
    const stage *by = &cursor->pretokenizer->stages[index];
    mr_split_walk *walk = &cursor->walks[index];
    *found = false;
    while (walk->search <= walk->bytes) {
        size_t last = 0;
        const int code = search(cursor, by, walk, &last);
        if (code == PCRE2_ERROR_NOMATCH) {
            walk->search = last;
            step_over_one(walk);
            continue;
        }
        /* 0: the pattern has groups that the match data has no room for. */
        if (code < 0) {
            return fail_match(code, walk->search, err);
        }
        const size_t *ends = pcre2_get_ovector_pointer(cursor->match);
        if (ends[0] < walk->done || ends[1] < ends[0] || ends[1] > walk->bytes) {
            return fail_match(code, walk->search, err);
        }
        if (ends[0] < ends[1] || ends[1] != walk->match_end) {
            *part = (mr_split_part){.begin = ends[0], .end = ends[1], .match = true};
            walk->search = ends[1];
            walk->match_end = ends[1];
            *found = true;
            return MR_OK;
        }
        step_over_one(walk);
    }
    return MR_OK;
}

/* Gives matches and what lies between them, in order; false at the end. */
static mr_status next_part(mr_piece_cursor *cursor, uint32_t index, mr_split_part *part, bool *more,
                           mr_error *err)
{
    mr_split_walk *walk = &cursor->walks[index];
    *more = true;
    if (walk->has_ahead) {
        *part = walk->ahead;
        walk->has_ahead = false;
        return MR_OK;
    }
    bool found = walk->has_waiting;
    if (found) {
        *part = walk->waiting;
        walk->has_waiting = false;
    } else {
        MR_TRY(next_match(cursor, index, part, &found, err));
        const size_t gap_end = found ? part->begin : walk->bytes;
        if (gap_end > walk->done) {
            walk->waiting = *part;
            walk->has_waiting = found;
            *part = (mr_split_part){.begin = walk->done, .end = gap_end};
        } else if (!found) {
            *more = false;
            return MR_OK;
        }
    }
    walk->done = part->end;
    part->match = part->match != cursor->pretokenizer->stages[index].invert;
    return MR_OK;
}

/* Whether the part behind a part belongs to it. */
static bool joins(mr_split_behavior behavior, bool match, bool next_match_follows)
{
    switch (behavior) {
    case MR_SPLIT_WITH_PREVIOUS:
        return !match && next_match_follows;
    case MR_SPLIT_WITH_NEXT:
        return match && !next_match_follows;
    case MR_SPLIT_CONTIGUOUS:
        return match == next_match_follows;
    case MR_SPLIT_ISOLATED:
    case MR_SPLIT_REMOVED:
        break;
    }
    return false;
}

/* Gives the next piece of a step, of size 0 at the end. */
static mr_status next_of_step(mr_piece_cursor *cursor, uint32_t index, mr_bytes *piece,
                              mr_error *err)
{
    mr_split_walk *walk = &cursor->walks[index];
    const mr_split_behavior behavior = cursor->pretokenizer->stages[index].behavior;
    mr_split_part part;
    bool more;
    do {
        MR_TRY(next_part(cursor, index, &part, &more, err));
    } while (more && (part.end == part.begin || (behavior == MR_SPLIT_REMOVED && part.match)));
    *piece = (mr_bytes){.data = walk->text, .size = 0};
    if (!more) {
        return MR_OK;
    }
    if (behavior != MR_SPLIT_ISOLATED && behavior != MR_SPLIT_REMOVED) {
        for (;;) {
            mr_split_part next;
            MR_TRY(next_part(cursor, index, &next, &more, err));
            if (!more) {
                break;
            }
            if (!joins(behavior, part.match, next.match)) {
                walk->ahead = next;
                walk->has_ahead = true;
                break;
            }
            part.end = next.end;
            if (behavior != MR_SPLIT_CONTIGUOUS) {
                break;
            }
        }
    }
    *piece = (mr_bytes){.data = walk->text + part.begin, .size = part.end - part.begin};
    return MR_OK;
}

/* --- All steps ------------------------------------------------------------------------------ */

void mr_piece_cursor_start(mr_piece_cursor *cursor, const uint8_t *text, size_t bytes)
{
    const uint32_t count = cursor->pretokenizer->n_stages;
    cursor->whole = (mr_bytes){.data = text, .size = bytes};
    cursor->steps = mr_min_u64(cursor->steps + STEPS_A_BYTE * (uint64_t)bytes, UINT32_MAX);
    for (uint32_t i = 0; i < count; i++) {
        walk_start(&cursor->walks[i], text, i == 0 ? bytes : 0);
    }
}

mr_status mr_piece_cursor_next(mr_piece_cursor *cursor, mr_bytes *piece, mr_error *err)
{
    const uint32_t count = cursor->pretokenizer->n_stages;
    if (count == 0) {
        *piece = cursor->whole;
        cursor->whole.data += cursor->whole.size;
        cursor->whole.size = 0;
        return MR_OK;
    }
    uint32_t index = count - 1;
    for (;;) {
        MR_TRY(next_of_step(cursor, index, piece, err));
        if (piece->size > 0 && index == count - 1) {
            return MR_OK;
        }
        if (piece->size > 0) {
            walk_start(&cursor->walks[++index], piece->data, piece->size);
        } else if (index-- == 0) {
            return MR_OK;
        }
    }
}
