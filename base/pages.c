/* SPDX-License-Identifier: Apache-2.0 */
#include "base/pages.h"

#include "base/status.h"

#include <sys/mman.h>

static size_t mapped_bytes(size_t bytes)
{
    return bytes > 0 ? bytes : 1;
}

void *mr_pages_alloc(size_t bytes)
{
    void *pages = mmap(NULL, mapped_bytes(bytes), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return pages == MAP_FAILED ? NULL : pages;
}

void mr_pages_free(void *pages, size_t bytes)
{
    if (pages != NULL) {
        MR_CHECK(munmap(pages, mapped_bytes(bytes)) == 0);
    }
}
