/* SPDX-License-Identifier: Apache-2.0 */
#include "base/utf8.h"

typedef enum sequence_kind {
    SEQUENCE_VALID,
    SEQUENCE_INVALID,
    SEQUENCE_INCOMPLETE, /* the data ends inside a character that could still become valid */
} sequence_kind;

/* Length that a lead byte announces (0: not a lead byte) and the range of its second byte, which
 * alone excludes overlong forms, surrogates and what lies above U+10FFFF (RFC 3629, section 4). */
static size_t lead_length(uint8_t lead, uint8_t *low, uint8_t *high)
{
    *low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    *high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    if (lead < 0x80) {
        return 1;
    }
    if (lead >= 0xC2 && lead <= 0xDF) {
        return 2;
    }
    if (lead >= 0xE0 && lead <= 0xEF) {
        return 3;
    }
    return lead >= 0xF0 && lead <= 0xF4 ? 4 : 0;
}

/* Looks at the sequence at data[0 .. bytes), bytes > 0. *length gets the bytes of the character,
 * or of the maximal part that a decoder replaces at once. */
static sequence_kind scan_sequence(const uint8_t *data, size_t bytes, size_t *length)
{
    uint8_t low;
    uint8_t high;
    const size_t need = lead_length(data[0], &low, &high);
    *length = 1;
    if (need == 0) {
        return SEQUENCE_INVALID;
    }
    for (; *length < need; (*length)++) {
        if (*length == bytes) {
            return SEQUENCE_INCOMPLETE;
        }
        const uint8_t byte = data[*length];
        if (byte < low || byte > high) {
            return SEQUENCE_INVALID;
        }
        low = 0x80;
        high = 0xBF;
    }
    return SEQUENCE_VALID;
}

bool mr_utf8_valid(const void *data, size_t bytes, size_t *bad)
{
    const uint8_t *text = data;
    size_t at = 0;
    size_t length;
    while (at < bytes &&
           (text[at] < 0x80 || scan_sequence(text + at, bytes - at, &length) == SEQUENCE_VALID)) {
        at += text[at] < 0x80 ? 1 : length;
    }
    if (bad != NULL) {
        *bad = at;
    }
    return at == bytes;
}

size_t mr_utf8_pending(const void *data, size_t bytes)
{
    const uint8_t *text = data;
    for (size_t back = 1; back <= 3 && back <= bytes; back++) {
        const uint8_t byte = text[bytes - back];
        if (byte >= 0x80 && byte <= 0xBF) {
            continue;
        }
        size_t length;
        const sequence_kind kind = scan_sequence(text + bytes - back, back, &length);
        return kind == SEQUENCE_INCOMPLETE ? back : 0;
    }
    return 0;
}

mr_status mr_utf8_append_lossy(mr_buffer *out, const void *data, size_t bytes)
{
    static const uint8_t replacement[] = {0xEF, 0xBF, 0xBD}; /* U+FFFD */
    const uint8_t *text = data;
    size_t at = 0;
    while (at < bytes) {
        size_t good;
        const bool valid = mr_utf8_valid(text + at, bytes - at, &good);
        MR_TRY(mr_buffer_append(out, text + at, good));
        at += good;
        if (!valid) {
            size_t length;
            scan_sequence(text + at, bytes - at, &length);
            MR_TRY(mr_buffer_append(out, replacement, sizeof(replacement)));
            at += length;
        }
    }
    return MR_OK;
}
