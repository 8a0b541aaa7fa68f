/* SPDX-License-Identifier: Apache-2.0 */
#include "service/nearest.h"

#include <stdint.h>
#include <string.h>

#define NAME_MAX_BYTES 64u

static size_t min_of(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`; at most
 * `limit` + 1. Optimal string alignment over three rolling rows. */
static size_t edit_distance(const char *a, const char *b, size_t limit)
{
    const size_t n = strlen(a);
    const size_t m = strlen(b);
    if (n > NAME_MAX_BYTES || m > NAME_MAX_BYTES) {
        return limit + 1;
    }
    size_t rows[3][NAME_MAX_BYTES + 1];
    for (size_t j = 0; j <= m; j++) {
        rows[0][j] = j;
    }
    for (size_t i = 1; i <= n; i++) {
        size_t *row = rows[i % 3];
        const size_t *above = rows[(i + 2) % 3];
        const size_t *above2 = rows[(i + 1) % 3];
        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            const size_t replaced = above[j - 1] + (a[i - 1] != b[j - 1]);
            row[j] = min_of(replaced, 1 + min_of(above[j], row[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
                row[j] = min_of(row[j], above2[j - 2] + 1);
            }
        }
    }
    return min_of(rows[n % 3][m], limit + 1);
}

void mr_nearest_init(mr_nearest *nearest, const char *wanted)
{
    const size_t third = strlen(wanted) / 3;
    *nearest = (mr_nearest){.wanted = wanted, .distance = third < 2 ? 3 : third + 1};
}

void mr_nearest_offer(mr_nearest *nearest, const char *name)
{
    const size_t distance = edit_distance(nearest->wanted, name, nearest->distance);
    if (distance < nearest->distance) {
        nearest->best = name;
        nearest->distance = distance;
    }
}
