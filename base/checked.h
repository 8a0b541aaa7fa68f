/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic on sizes. What returns bool returns false, and leaves *out alone, when the true result
 * does not fit. Use these on every number that comes from outside. */
#ifndef MILLRACE_BASE_CHECKED_H
#define MILLRACE_BASE_CHECKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool mr_add_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    uint64_t sum;
    if (__builtin_add_overflow(a, b, &sum)) {
        return false;
    }
    *out = sum;
    return true;
}

static inline bool mr_mul_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    uint64_t product;
    if (__builtin_mul_overflow(a, b, &product)) {
        return false;
    }
    *out = product;
    return true;
}

static inline uint32_t mr_min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static inline uint64_t mr_min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Rounds up to a multiple of `alignment`, a power of two. */
static inline bool mr_align_u64(uint64_t value, uint64_t alignment, uint64_t *out)
{
    uint64_t sum;
    if (!mr_add_u64(value, alignment - 1, &sum)) {
        return false;
    }
    *out = sum & ~(alignment - 1);
    return true;
}

/* calloc(count, size) that also refuses sizes over PTRDIFF_MAX; NULL when memory is short. */
void *mr_calloc(size_t count, size_t size) __attribute__((malloc, alloc_size(1, 2)));

/* Grows `ptr` to hold count * size bytes as realloc does; NULL (and `ptr` untouched) on failure. */
void *mr_reallocarray(void *ptr, size_t count, size_t size)
    __attribute__((alloc_size(2, 3), warn_unused_result));

/* `bytes` of zeroed memory aligned to 64; NULL when memory is short. Free with free(). */
void *mr_alloc_aligned(size_t bytes) __attribute__((malloc, alloc_size(1)));

#endif
