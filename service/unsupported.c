/* SPDX-License-Identifier: Apache-2.0 */
#include "service/unsupported.h"

#include <stdbool.h>
#include <string.h>

static const mr_unsupported unsupported[] = {
#define MR_UNSUPPORTED(surface, name, sample, what) {MR_SURFACE_##surface, name, sample, what},
#include "service/unsupported.def"
#undef MR_UNSUPPORTED
};

const mr_unsupported *mr_unsupported_table(size_t *count)
{
    *count = sizeof(unsupported) / sizeof(unsupported[0]);
    return unsupported;
}

/* A row "x.*" covers every name below x. */
static bool row_covers(const mr_unsupported *row, const char *name)
{
    const size_t length = strlen(row->name);
    if (length > 1 && row->name[length - 1] == '*') {
        return strncmp(row->name, name, length - 1) == 0;
    }
    return strcmp(row->name, name) == 0;
}

const mr_unsupported *mr_unsupported_find(mr_surface surface, const char *name)
{
    for (size_t i = 0; i < sizeof(unsupported) / sizeof(unsupported[0]); i++) {
        if (unsupported[i].surface == surface && row_covers(&unsupported[i], name)) {
            return &unsupported[i];
        }
    }
    return NULL;
}

mr_status mr_unsupported_fail(mr_surface surface, const char *name, mr_error *err)
{
    const mr_unsupported *row = mr_unsupported_find(surface, name);
    MR_CHECK(row != NULL);
    const bool local = surface == MR_SURFACE_CONFIG || surface == MR_SURFACE_CLI;
    if (surface == MR_SURFACE_CLI && name[0] != '-') {
        return mr_fail_field(err, MR_FAILED_PRECONDITION, name,
                             "%s: this build does not have %s yet; millrace --help lists what it "
                             "has",
                             name, row->what);
    }
    return mr_fail_field(err, local ? MR_FAILED_PRECONDITION : MR_UNIMPLEMENTED, name,
                         "%s: this build does not have %s yet; leave it out", name, row->what);
}
