/* SPDX-License-Identifier: Apache-2.0 */
/* Where a name comes from: each surface spells the same thing its own way. */
#ifndef MILLRACE_SERVICE_SURFACE_H
#define MILLRACE_SERVICE_SURFACE_H

typedef enum mr_surface {
    MR_SURFACE_PROTO, /* "sampling.top_p" */
    MR_SURFACE_JSONL, /* "top_p" */
    MR_SURFACE_CONFIG,
    MR_SURFACE_CLI, /* "--top-p" */
} mr_surface;

#endif
