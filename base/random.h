/* SPDX-License-Identifier: Apache-2.0 */
/* Random bytes of the system, for what nobody may guess: identities, salts, seeds. (Noise that is
 * to be the same every time is philox.h's.) */
#ifndef MILLRACE_BASE_RANDOM_H
#define MILLRACE_BASE_RANDOM_H

#include "base/status.h"

#include <stddef.h>

/* Fills out[bytes]. INTERNAL, which names what they are for ("the seed"), when the system gives
 * none. Any thread. */
MR_MUST_USE mr_status mr_random_fill(void *out, size_t bytes, const char *use, mr_error *err);

#endif
