/* SPDX-License-Identifier: Apache-2.0 */
/* The key that a client shows. The server knows its SHA-256 only; see credentials.h. */
#ifndef MILLRACE_SERVICE_API_KEY_H
#define MILLRACE_SERVICE_API_KEY_H

#include "base/status.h"

#define MR_API_KEY_MAX      1024 /* bytes */
#define MR_API_KEY_VARIABLE "MILLRACE_API_KEY"

/* A key for a client: what the file holds, without white space at its end, or where there is no
 * file MILLRACE_API_KEY, or "". INVALID_ARGUMENT naming where it came from, not quoting it. */
MR_MUST_USE mr_status mr_api_key_load(const char *path, char key[MR_API_KEY_MAX + 1],
                                      mr_error *err);

#endif
