/* SPDX-License-Identifier: Apache-2.0 */
/* Counts what the program takes from the heap. For one file of a test that is linked with
 * --wrap=malloc, --wrap=calloc and --wrap=realloc. */
#ifndef MILLRACE_TESTS_ALLOCATIONS_H
#define MILLRACE_TESTS_ALLOCATIONS_H

#include <stddef.h>
#include <stdint.h>

static uint32_t allocations;

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *ptr, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *ptr, size_t bytes);

void *__wrap_malloc(size_t bytes)
{
    allocations++;
    return __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    allocations++;
    return __real_calloc(count, bytes);
}

void *__wrap_realloc(void *ptr, size_t bytes)
{
    allocations++;
    return __real_realloc(ptr, bytes);
}

#endif
