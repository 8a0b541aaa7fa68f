/* SPDX-License-Identifier: Apache-2.0 */
/* "Did you mean …": the known name nearest to one that is not known. */
#ifndef MILLRACE_SERVICE_NEAREST_H
#define MILLRACE_SERVICE_NEAREST_H

#include <stddef.h>

typedef struct mr_nearest {
    const char *wanted; /* borrowed */
    const char *best;   /* borrowed from what was offered; NULL while nothing is near */
    size_t distance;
} mr_nearest;

/* A third of the name, and at least two letters, may be wrong; names longer than 64 bytes are never
 * near. Offer every known name, then read `best`. Any thread. */
void mr_nearest_init(mr_nearest *nearest, const char *wanted);
void mr_nearest_offer(mr_nearest *nearest, const char *name);

#endif
