/* SPDX-License-Identifier: Apache-2.0 */
#include "service/progress.h"

#include "base/clock.h"

#include <stdio.h>
#include <unistd.h>

#define FIRST_NS    (MR_NS_PER_S / 2)
#define TERMINAL_NS (MR_NS_PER_S / 10)
#define LINES_NS    (5 * MR_NS_PER_S)

void mr_progress_init(mr_progress *progress, const char *what)
{
    *progress = (mr_progress){.what = what, .terminal = isatty(STDERR_FILENO) == 1};
    pthread_mutex_init(&progress->mutex, NULL);
    progress->next_ns = mr_monotonic_ns() + (progress->terminal ? FIRST_NS : LINES_NS);
}

void mr_progress_deinit(mr_progress *progress)
{
    if (progress->drawn) {
        fputs("\r\033[K", stderr);
    }
    pthread_mutex_destroy(&progress->mutex);
}

void mr_progress_update(void *ctx, uint64_t done, uint64_t total)
{
    mr_progress *progress = ctx;
    const uint64_t now = mr_monotonic_ns();
    pthread_mutex_lock(&progress->mutex);
    if (now >= progress->next_ns && total > 0) {
        const double percent = 100.0 * (double)done / (double)total;
        const double size = progress->counts ? (double)total : (double)total / (1 << 20);
        fprintf(stderr, "%s%s: %.0f %% of %.*f%s%s",
                progress->terminal ? "\r" : "millrace: ", progress->what, percent,
                progress->counts ? 0 : 1, size, progress->counts ? "" : " MiB",
                progress->terminal ? "\033[K" : "\n");
        progress->drawn = progress->terminal;
        progress->next_ns = now + (progress->terminal ? TERMINAL_NS : LINES_NS);
    }
    pthread_mutex_unlock(&progress->mutex);
}
