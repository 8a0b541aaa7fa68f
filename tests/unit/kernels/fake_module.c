/* SPDX-License-Identifier: Apache-2.0 */
/* The GPU that computes nothing as a module: every token is 0. MILLRACE_FAKE_FAIL=CALL:N lets the
 * call of the table of that name fail from its N-th time on. */
#include "fake_gpu.h"

#include <stdlib.h>
#include <string.h>

__attribute__((visibility("default"))) const mr_cuda_api *millrace_cuda_api(void);

const mr_cuda_api *millrace_cuda_api(void)
{
    static char name[64];
    const char *asked = getenv("MILLRACE_FAKE_FAIL");
    const char *colon = asked != NULL ? strchr(asked, ':') : NULL;
    fake_reset();
    if (colon != NULL && (size_t)(colon - asked) < sizeof(name)) {
        memcpy(name, asked, (size_t)(colon - asked));
        fake.fail = name;
        fake.fail_at = (uint32_t)strtoul(colon + 1, NULL, 10);
    }
    return fake_api();
}
