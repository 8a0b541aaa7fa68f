/* SPDX-License-Identifier: Apache-2.0 */
/* UTF-8 as RFC 3629 defines it: no surrogates, no overlong forms, nothing above U+10FFFF. */
#ifndef MILLRACE_BASE_UTF8_H
#define MILLRACE_BASE_UTF8_H

#include "base/buffer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* True iff all of data is valid. *bad (may be NULL) gets the offset at which the first
 * ill-formed sequence begins, `bytes` when there is none. */
bool mr_utf8_valid(const void *data, size_t bytes, size_t *bad);

/* Bytes at the end of data that begin a character which more bytes could complete (0..3). */
size_t mr_utf8_pending(const void *data, size_t bytes);

/* Appends data to `out`, each maximal invalid part as U+FFFD (the "maximal subpart" practice of
 * Unicode 15, section 3.9). RESOURCE_EXHAUSTED when memory is short. */
MR_MUST_USE mr_status mr_utf8_append_lossy(mr_buffer *out, const void *data, size_t bytes);

#endif
