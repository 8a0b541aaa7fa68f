/* SPDX-License-Identifier: Apache-2.0 */
/* Large memory whose pages become resident only when they are touched: a KV pool is sized for the
 * busiest hour and mostly idle. */
#ifndef MILLRACE_BASE_PAGES_H
#define MILLRACE_BASE_PAGES_H

#include <stddef.h>

/* `bytes` of zeroed, page-aligned memory; NULL when the address space is short. Being short of
 * memory shows only when pages are touched: size it by mr_memory_available(). */
void *mr_pages_alloc(size_t bytes);
/* `bytes` as given to mr_pages_alloc; NULL is fine. */
void mr_pages_free(void *pages, size_t bytes);

#endif
