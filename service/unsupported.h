/* SPDX-License-Identifier: Apache-2.0 */
/* Things the contracts name and this build does not do yet; service/unsupported.def lists them,
 * one row each. */
#ifndef MILLRACE_SERVICE_UNSUPPORTED_H
#define MILLRACE_SERVICE_UNSUPPORTED_H

#include "base/status.h"
#include "service/surface.h"

#include <stddef.h>

typedef struct mr_unsupported {
    mr_surface surface;
    const char *name;   /* as the surface spells it */
    const char *sample; /* a value that asks for it, as JSON; tests use it */
    const char *what;   /* the feature, for the message */
} mr_unsupported;

const mr_unsupported *mr_unsupported_table(size_t *count);
/* The row that covers `name` (rows "x.*" cover all names below x), NULL if there is none. */
const mr_unsupported *mr_unsupported_find(mr_surface surface, const char *name);
/* Fails with UNIMPLEMENTED (MR_SURFACE_CONFIG and CLI: FAILED_PRECONDITION), naming field and
 * feature. `name` must be in the table. */
mr_status mr_unsupported_fail(mr_surface surface, const char *name, mr_error *err);

#endif
