/* SPDX-License-Identifier: Apache-2.0 */
/* What models this build runs, as a page: docs/models.md. */
#ifndef MILLRACE_SERVICE_MODELS_DOCS_H
#define MILLRACE_SERVICE_MODELS_DOCS_H

#include "base/buffer.h"
#include "base/status.h"

/* Appends the page, from the table of architectures. RESOURCE_EXHAUSTED. */
MR_MUST_USE mr_status mr_models_markdown(mr_buffer *out);

#endif
