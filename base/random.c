/* SPDX-License-Identifier: Apache-2.0 */
#include "base/random.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/random.h>

mr_status mr_random_fill(void *out, size_t bytes, const char *use, mr_error *err)
{
    uint8_t *at = out;
    while (bytes > 0) {
        /* A signal may end a long read early. */
        const ssize_t given = getrandom(at, bytes, 0);
        if (given < 0 && errno != EINTR) {
            return mr_fail(err, MR_INTERNAL,
                           "the system gave no random bytes for %s (%s): it lacks getrandom, or a "
                           "sandbox forbids it",
                           use, strerror(errno));
        }
        at += given > 0 ? given : 0;
        bytes -= given > 0 ? (size_t)given : 0;
    }
    return MR_OK;
}
