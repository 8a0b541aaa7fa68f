/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each family is one pattern that is matched, anchored, at the end of the last match. Hugging Face
 * tokenizers 0.23 classifies characters by Unicode 16 in its patterns and by Unicode 17 in its
 * digit splitter; PCRE2 10.42 knows Unicode 14. The characters that became letters or numbers in
 * between are spelled out, and so is white space, to which PCRE2 also counts U+180E.
 */
#include "model/pretokenizer.h"

#include "base/checked.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <stdlib.h>
#include <string.h>

/* Letters and numbers of Unicode 16 that Unicode 14 lacks. */
#define NEW_LETTERS                                                                                \
    "\\x{1C89}-\\x{1C8A}\\x{A7CB}-\\x{A7CD}\\x{A7DA}-\\x{A7DC}\\x{105C0}-\\x{105F3}"               \
    "\\x{10D4A}-\\x{10D65}\\x{10D6F}-\\x{10D85}\\x{10EC2}-\\x{10EC4}\\x{1123F}-\\x{11240}"         \
    "\\x{11380}-\\x{11389}\\x{1138B}\\x{1138E}\\x{11390}-\\x{113B5}\\x{113B7}\\x{113D1}"           \
    "\\x{113D3}\\x{11BC0}-\\x{11BE0}\\x{11F02}\\x{11F04}-\\x{11F10}\\x{11F12}-\\x{11F33}"          \
    "\\x{1342F}\\x{13441}-\\x{13446}\\x{13460}-\\x{143FA}\\x{16100}-\\x{1611D}"                    \
    "\\x{16D40}-\\x{16D6C}\\x{18CFF}\\x{1B132}\\x{1B155}\\x{1DF25}-\\x{1DF2A}"                     \
    "\\x{1E030}-\\x{1E06D}\\x{1E4D0}-\\x{1E4EB}\\x{1E5D0}-\\x{1E5ED}\\x{1E5F0}\\x{2B739}"          \
    "\\x{2EBF0}-\\x{2EE5D}\\x{31350}-\\x{323AF}"

#define NEW_NUMBERS                                                                                \
    "\\x{10D40}-\\x{10D49}\\x{116D0}-\\x{116E3}\\x{11BF0}-\\x{11BF9}\\x{11F50}-\\x{11F59}"         \
    "\\x{16130}-\\x{16139}\\x{16D70}-\\x{16D79}\\x{1CCF0}-\\x{1CCF9}\\x{1D2C0}-\\x{1D2D3}"         \
    "\\x{1E4F0}-\\x{1E4F9}\\x{1E5F1}-\\x{1E5FA}"

#define NEWER_NUMBERS "\\x{11DE0}-\\x{11DE9}\\x{16FF4}-\\x{16FF6}"

#define SPACE                                                                                      \
    "\\t-\\r "                                                                                     \
    "\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"
#define LETTER "\\p{L}" NEW_LETTERS
#define NUMBER "\\p{N}" NEW_NUMBERS
#define DIGIT  NUMBER NEWER_NUMBERS

#define GPT2_CONTRACTION "'(?:s|t|re|ve|m|ll|d)"

#define LLAMA3_PATTERN                                                                             \
    "(?i:" GPT2_CONTRACTION ")|[^\\r\\n" LETTER NUMBER "]?[" LETTER "]+|[" NUMBER "]{1,3}"         \
    "| ?[^" SPACE LETTER NUMBER "]+[\\r\\n]*|[" SPACE "]*[\\r\\n]+"                                \
    "|[" SPACE "]+(?![^" SPACE "])|[" SPACE "]+"

typedef struct family {
    const char *name;
    const char *pattern;
    bool whole_tokens;
} family;

static const family families[] = {
    {
        .name = "gpt-2",
        .pattern = GPT2_CONTRACTION "| ?[" LETTER "]+| ?[" NUMBER "]+| ?[^" SPACE LETTER NUMBER "]+"
                                    "|[" SPACE "]+(?![^" SPACE "])|[" SPACE "]+",
    },
    {
        /* Each digit is a piece, and what lies between digits is split as by GPT-2. The digit
         * ends the text for GPT-2's look-ahead, so white space before a digit stays whole. */
        .name = "smollm",
        .pattern = GPT2_CONTRACTION "| ?[" LETTER "]+|[" DIGIT "]| ?[^" SPACE LETTER DIGIT "]+"
                                    "|[" SPACE "]+(?![^" SPACE DIGIT "])|[" SPACE "]+",
    },
    /* Llama 3 under the three names that converters have given it. */
    {.name = "llama-bpe", .pattern = LLAMA3_PATTERN, .whole_tokens = true},
    {.name = "llama3", .pattern = LLAMA3_PATTERN, .whole_tokens = true},
    {.name = "llama-v3", .pattern = LLAMA3_PATTERN, .whole_tokens = true},
};

struct mr_pretokenizer {
    const family *family;
    pcre2_code *code;             /* owns */
    pcre2_match_context *context; /* owns; for the matcher without JIT */
    bool jit;
};

static const family *find_family(const char *name)
{
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
        if (name != NULL && strcmp(families[i].name, name) == 0) {
            return &families[i];
        }
    }
    return NULL;
}

mr_status mr_pretokenizer_create(const char *name, mr_pretokenizer **out, mr_error *err)
{
    *out = NULL;
    const family *found = find_family(name);
    if (found == NULL) {
        return mr_fail(err, MR_UNIMPLEMENTED,
                       "pre-tokenizer \"%s\" is not implemented (gpt-2, smollm and llama-bpe are): "
                       "use a model of one of these families, or send token ids",
                       name != NULL ? name : "");
    }
    mr_pretokenizer *made = mr_calloc(1, sizeof(*made));
    if (made == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "no memory for the pre-tokenizer");
    }
    int code = 0;
    size_t offset = 0;
    made->family = found;
    made->code = pcre2_compile((PCRE2_SPTR)found->pattern, PCRE2_ZERO_TERMINATED,
                               PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &code, &offset, NULL);
    made->context = pcre2_match_context_create(NULL);
    if (made->code == NULL || made->context == NULL) {
        mr_pretokenizer_destroy(made);
        return mr_fail(err, code == PCRE2_ERROR_HEAP_FAILED ? MR_RESOURCE_EXHAUSTED : MR_INTERNAL,
                       "pattern of pre-tokenizer \"%s\": PCRE2 error %d at offset %zu", name, code,
                       offset);
    }
    /* A long run costs one count a character, and no pattern here goes back over one twice. */
    pcre2_set_match_limit(made->context, UINT32_MAX);
    /* Fails where memory must not be executable; the interpreter then gives the same pieces. */
    made->jit = pcre2_jit_compile(made->code, PCRE2_JIT_COMPLETE) == 0;
    *out = made;
    return MR_OK;
}

void mr_pretokenizer_destroy(mr_pretokenizer *pretokenizer)
{
    if (pretokenizer != NULL) {
        pcre2_match_context_free(pretokenizer->context);
        pcre2_code_free(pretokenizer->code);
        free(pretokenizer);
    }
}

bool mr_pretokenizer_whole_tokens(const mr_pretokenizer *pretokenizer)
{
    return pretokenizer->family->whole_tokens;
}

mr_status mr_piece_cursor_init(mr_piece_cursor *cursor, const mr_pretokenizer *pretokenizer,
                               mr_error *err)
{
    *cursor = (mr_piece_cursor){.pretokenizer = pretokenizer};
    cursor->match = pcre2_match_data_create(1, NULL);
    if (cursor->match == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "no memory to split text");
    }
    return MR_OK;
}

void mr_piece_cursor_deinit(mr_piece_cursor *cursor)
{
    pcre2_match_data_free(cursor->match);
    *cursor = (mr_piece_cursor){0};
}

void mr_piece_cursor_start(mr_piece_cursor *cursor, const uint8_t *text, size_t bytes)
{
    cursor->text = text;
    cursor->bytes = bytes;
    cursor->at = 0;
}

mr_status mr_piece_cursor_next(mr_piece_cursor *cursor, mr_bytes *piece, mr_error *err)
{
    const mr_pretokenizer *pre = cursor->pretokenizer;
    const size_t begin = cursor->at;
    *piece = (mr_bytes){.data = cursor->text + begin};
    if (begin == cursor->bytes) {
        return MR_OK;
    }
    int code = PCRE2_ERROR_JIT_STACKLIMIT;
    if (pre->jit) {
        code = pcre2_jit_match(pre->code, cursor->text, cursor->bytes, begin, 0, cursor->match,
                               pre->context);
    }
    if (code == PCRE2_ERROR_JIT_STACKLIMIT) {
        /* Without NO_UTF_CHECK each call would read the rest of the text: quadratic. */
        code = pcre2_match(pre->code, cursor->text, cursor->bytes, begin,
                           PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, cursor->match, pre->context);
    }
    const size_t end = code > 0 ? pcre2_get_ovector_pointer(cursor->match)[1] : 0;
    if (end <= begin || end > cursor->bytes) {
        return mr_fail(err, code == PCRE2_ERROR_NOMEMORY ? MR_RESOURCE_EXHAUSTED : MR_INTERNAL,
                       "splitting text: PCRE2 error %d at byte %zu", code, begin);
    }
    piece->size = end - begin;
    cursor->at = end;
    return MR_OK;
}
