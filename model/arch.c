/* SPDX-License-Identifier: Apache-2.0 */
#include "model/arch.h"

#include "model/llama.h"

#include <stdio.h>
#include <string.h>

static const mr_arch archs[] = {
    {.name = "llama", .read_gguf = mr_llama_read_gguf, .plan = mr_llama_plan},
};

#define N_ARCHS (sizeof(archs) / sizeof(archs[0]))

mr_status mr_arch_find(const char *name, const mr_arch **out, mr_error *err)
{
    char known[192] = "";
    size_t used = 0;
    for (size_t i = 0; i < N_ARCHS; i++) {
        if (strcmp(archs[i].name, name) == 0) {
            *out = &archs[i];
            return MR_OK;
        }
        const int length =
            snprintf(known + used, sizeof(known) - used, "%s%s", i == 0 ? "" : ", ", archs[i].name);
        if (length > 0 && (size_t)length < sizeof(known) - used) {
            used += (size_t)length;
        }
    }
    return mr_fail(err, MR_UNIMPLEMENTED,
                   "architecture '%s' (general.architecture) is not supported; this build has: %s",
                   name, known);
}
