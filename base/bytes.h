/* SPDX-License-Identifier: Apache-2.0 */
/* A byte string that somebody else owns and that is not NUL-terminated: most text of files and
 * callers, which may hold NULs. Zero-initialised is empty. */
#ifndef MILLRACE_BASE_BYTES_H
#define MILLRACE_BASE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct mr_bytes {
    const uint8_t *data; /* borrows; NULL only with size 0 */
    size_t size;
} mr_bytes;

/* Borrows the text without its NUL. */
static inline mr_bytes mr_bytes_of(const char *text)
{
    return (mr_bytes){.data = (const uint8_t *)text, .size = strlen(text)};
}

static inline bool mr_bytes_equal(mr_bytes a, mr_bytes b)
{
    return a.size == b.size && (a.size == 0 || memcmp(a.data, b.data, a.size) == 0);
}

/* Whether it is exactly `text`. */
static inline bool mr_bytes_is(mr_bytes bytes, const char *text)
{
    return mr_bytes_equal(bytes, mr_bytes_of(text));
}

#endif
