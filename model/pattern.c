/* SPDX-License-Identifier: Apache-2.0 */
#include "model/pattern.h"

#include "base/utf8.h"
#include "model/character_classes.h"

#include <ctype.h>
#include <string.h>

#define SHOWN_BYTES 60 /* of a pattern in messages */

typedef struct reader {
    mr_bytes pattern;
    size_t at;
    mr_buffer *out;
    mr_error *err;
} reader;

typedef struct property {
    const char *name;
    const char *body; /* of a class */
} property;

static const property properties[] = {
    {"L", MR_CLASS_LETTER},
    {"N", MR_CLASS_NUMBER},
    {"M", "\\p{M}" MR_NEW_MARKS},
    {"P", "\\p{P}" MR_NEW_PUNCTUATION},
    {"S", "\\p{S}" MR_NEW_SYMBOLS},
    {"Z", "\\p{Z}"},
    {"Lu", "\\p{Lu}" MR_NEW_UPPER},
    {"Ll", "\\p{Ll}" MR_NEW_LOWER},
    {"Lt", "\\p{Lt}"},
    {"Lm", "\\p{Lm}" MR_NEW_MODIFIERS},
    {"Lo", "\\p{Lo}" MR_NEW_OTHER_LETTERS},
    {"Nd", "\\p{Nd}" MR_NEW_DIGITS},
};

static mr_status put(reader *r, const char *text)
{
    return mr_buffer_append(r->out, text, strlen(text));
}

/* Copies the next `count` bytes. */
static mr_status copy(reader *r, size_t count)
{
    MR_TRY(mr_buffer_append(r->out, r->pattern.data + r->at, count));
    r->at += count;
    return MR_OK;
}

static bool ahead(const reader *r, const char *text)
{
    const size_t bytes = strlen(text);
    return r->pattern.size - r->at >= bytes && memcmp(r->pattern.data + r->at, text, bytes) == 0;
}

static mr_status refuse(const reader *r, const char *what)
{
    const size_t begin = r->at;
    size_t bytes = r->pattern.size - begin;
    if (bytes > SHOWN_BYTES) {
        bytes = SHOWN_BYTES - mr_utf8_pending(r->pattern.data + begin, SHOWN_BYTES);
    }
    return mr_fail(r->err, MR_UNIMPLEMENTED,
                   "the pattern of a pre-tokenizer has %s at byte %zu (\"%.*s\"), which this build "
                   "does not read; send token ids",
                   what, begin, (int)bytes, (const char *)r->pattern.data + begin);
}

/* The body of the class that an escape stands for, and how long the escape is. NULL for an escape
 * that is no class. *negated for those with a capital letter. */
static const char *class_body(const reader *r, bool *negated, size_t *bytes)
{
    const uint8_t *p = r->pattern.data + r->at;
    const size_t left = r->pattern.size - r->at;
    const uint8_t letter = left > 1 ? p[1] : 0;
    *negated = letter == 'P' || letter == 'S' || letter == 'D';
    *bytes = 2;
    if (letter == 's' || letter == 'S') {
        return MR_CLASS_SPACE;
    }
    if (letter == 'd' || letter == 'D') {
        return "\\p{Nd}" MR_NEW_DIGITS;
    }
    if ((letter != 'p' && letter != 'P') || left < 3 || p[2] != '{') {
        return NULL;
    }
    for (size_t i = 0; i < sizeof(properties) / sizeof(properties[0]); i++) {
        const size_t name = strlen(properties[i].name);
        if (left >= name + 4 && memcmp(p + 3, properties[i].name, name) == 0 &&
            p[3 + name] == '}') {
            *bytes = name + 4;
            return properties[i].body;
        }
    }
    return NULL;
}

/* A character after a backslash that means itself, or a control character, in both syntaxes. */
static bool is_plain_escape(const reader *r)
{
    const uint8_t c = r->at + 1 < r->pattern.size ? r->pattern.data[r->at + 1] : 0;
    return c == 'n' || c == 'r' || c == 't' || (c < 0x80 && ispunct(c));
}

static mr_status translate_escape(reader *r, bool in_class)
{
    bool negated = false;
    size_t bytes = 0;
    const char *body = class_body(r, &negated, &bytes);
    if (body == NULL) {
        return is_plain_escape(r) ? copy(r, 2) : refuse(r, "an escape");
    }
    if (in_class) {
        if (negated) {
            return refuse(r, "a negated class in a class");
        }
        r->at += bytes;
        return put(r, body);
    }
    r->at += bytes;
    MR_TRY(put(r, negated ? "[^" : "["));
    MR_TRY(put(r, body));
    return put(r, "]");
}

static mr_status translate_class(reader *r)
{
    MR_TRY(copy(r, 1));
    if (ahead(r, "^")) {
        MR_TRY(copy(r, 1));
    }
    if (ahead(r, "]")) {
        return refuse(r, "a class that begins with a bracket");
    }
    while (r->at < r->pattern.size && !ahead(r, "]")) {
        if (ahead(r, "[") || ahead(r, "&&")) {
            return refuse(r, "a class of classes");
        }
        MR_TRY(ahead(r, "\\") ? translate_escape(r, true) : copy(r, 1));
    }
    return r->at < r->pattern.size ? copy(r, 1) : refuse(r, "a class without end");
}

static mr_status translate_group(reader *r)
{
    static const char *const openings[] = {"(?:", "(?i:", "(?!", "(?=", "(?<!", "(?<=", "(?>"};
    for (size_t i = 0; i < sizeof(openings) / sizeof(openings[0]); i++) {
        if (ahead(r, openings[i])) {
            return copy(r, strlen(openings[i]));
        }
    }
    return ahead(r, "(?") || ahead(r, "(*") ? refuse(r, "a group") : copy(r, 1);
}

/* {n}, {n,} or {n,m}. */
static mr_status translate_count(reader *r)
{
    size_t at = r->at + 1;
    unsigned digits = 0;
    unsigned commas = 0;
    for (; at < r->pattern.size && r->pattern.data[at] != '}'; at++) {
        const uint8_t c = r->pattern.data[at];
        digits += c >= '0' && c <= '9' && commas == 0;
        commas += c == ',';
        if ((c < '0' || c > '9') && c != ',') {
            return refuse(r, "a brace");
        }
    }
    if (at == r->pattern.size || digits == 0 || commas > 1) {
        return refuse(r, "a brace");
    }
    MR_TRY(copy(r, at + 1 - r->at));
    /* To Oniguruma {1,2}+ is a repetition of a repetition, to PCRE2 a possessive one. */
    return ahead(r, "+") ? refuse(r, "a repeated count") : MR_OK;
}

/* To Oniguruma these stand at every line, as in Ruby; lines end with a line feed. */
static mr_status translate_anchor(reader *r)
{
    MR_TRY(put(r, "(?m:"));
    MR_TRY(copy(r, 1));
    return put(r, ")");
}

mr_status mr_pattern_translate(mr_bytes pattern, mr_buffer *out, mr_error *err)
{
    reader r = {.pattern = pattern, .out = out, .err = err};
    while (r.at < pattern.size) {
        mr_status status;
        switch (pattern.data[r.at]) {
        case '\\':
            status = translate_escape(&r, false);
            break;
        case '[':
            status = translate_class(&r);
            break;
        case '(':
            status = translate_group(&r);
            break;
        case '{':
            status = translate_count(&r);
            break;
        case '^':
        case '$':
            status = translate_anchor(&r);
            break;
        case ']':
        case '}':
        case '\0':
            status = refuse(&r, "a character with a meaning of its own");
            break;
        default:
            status = copy(&r, 1);
            break;
        }
        if (status == MR_RESOURCE_EXHAUSTED) {
            return mr_fail(err, status, "no memory for the pattern of a pre-tokenizer");
        }
        MR_TRY(status);
    }
    return MR_OK;
}

mr_status mr_pattern_quote(mr_bytes text, mr_buffer *out)
{
    for (size_t i = 0; i < text.size; i++) {
        const uint8_t c = text.data[i];
        if (c == 0) {
            MR_TRY(mr_buffer_append(out, "\\x00", 4));
            continue;
        }
        if (c < 0x80 && ispunct(c)) {
            MR_TRY(mr_buffer_append(out, "\\", 1));
        }
        MR_TRY(mr_buffer_append(out, &c, 1));
    }
    return MR_OK;
}
