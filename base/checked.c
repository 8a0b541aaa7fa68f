/* SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"

#include <stdlib.h>
#include <string.h>

#define ALIGNMENT 64u /* a cache line, and a ZMM register */

/* count * size where an object of that many bytes may exist. */
static bool object_bytes(size_t count, size_t size, size_t *bytes)
{
    return !__builtin_mul_overflow(count, size, bytes) && *bytes <= PTRDIFF_MAX;
}

void *mr_calloc(size_t count, size_t size)
{
    size_t bytes;
    return object_bytes(count, size, &bytes) ? calloc(count, size) : NULL;
}

void *mr_reallocarray(void *ptr, size_t count, size_t size)
{
    size_t bytes;
    if (!object_bytes(count, size, &bytes)) {
        return NULL;
    }
    /* realloc(ptr, 0) frees and returns NULL, which would read as a failure. */
    return realloc(ptr, bytes > 0 ? bytes : 1);
}

void *mr_alloc_aligned(size_t bytes)
{
    if (bytes > PTRDIFF_MAX - ALIGNMENT) {
        return NULL;
    }
    const size_t rounded = (bytes + ALIGNMENT - 1) & ~(size_t)(ALIGNMENT - 1);
    void *ptr = aligned_alloc(ALIGNMENT, rounded > 0 ? rounded : ALIGNMENT);
    if (ptr != NULL) {
        memset(ptr, 0, rounded);
    }
    return ptr;
}
