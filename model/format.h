/* SPDX-License-Identifier: Apache-2.0 */
/* What a file that is not a GGUF file seems to be, for a message that helps. */
#ifndef MILLRACE_MODEL_FORMAT_H
#define MILLRACE_MODEL_FORMAT_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

/* True iff data begins with GGUF's magic number. */
bool mr_format_is_gguf(const void *data, size_t size);

/* Fails, saying what data[size] looks like and what to do: UNIMPLEMENTED for a known format that
 * this build does not read, DATA_LOSS for all else. Only for data that is not GGUF. */
MR_MUST_USE mr_status mr_format_refuse(const void *data, size_t size, mr_error *err);

#endif
