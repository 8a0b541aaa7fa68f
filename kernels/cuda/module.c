/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/internal.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MODULE "libmillrace-cuda.so"

/* From the program's folder: an installed one's, a bundle's, a build's. */
static const char *const places[] = {"", "../lib/", "../lib/millrace/", "kernels/cuda/"};

/* The folder of the running program, with its slash; false if the system does not tell. */
static bool program_folder(char *out, size_t bytes)
{
    const ssize_t length = readlink("/proc/self/exe", out, bytes - 1);
    if (length <= 0 || (size_t)length == bytes - 1) {
        return false;
    }
    out[length] = '\0';
    char *slash = strrchr(out, '/');
    if (slash == NULL) {
        return false;
    }
    slash[1] = '\0';
    return true;
}

/* The first place that has the module; false when none has. */
static bool find(char *out, size_t bytes)
{
    char folder[PATH_MAX];
    if (!program_folder(folder, sizeof(folder))) {
        return false;
    }
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        const int length = snprintf(out, bytes, "%s%s%s", folder, places[i], MODULE);
        if (length > 0 && (size_t)length < bytes && access(out, R_OK) == 0) {
            return true;
        }
    }
    return false;
}

static mr_status take_api(void *module, const char *path, const mr_cuda_api **api, mr_error *err)
{
    const mr_cuda_api *(*get)(void) = NULL;
    void *symbol = dlsym(module, MR_CUDA_API_SYMBOL);
    memcpy(&get, &symbol, sizeof(get));
    const mr_cuda_api *found = get != NULL ? get() : NULL;
    if (found == NULL || found->version != MR_CUDA_API_VERSION ||
        found->bytes != sizeof(mr_cuda_api)) {
        return mr_fail(err, MR_FAILED_PRECONDITION,
                       "%s is of another version of millrace: install both from one build", path);
    }
    *api = found;
    return MR_OK;
}

mr_status mr_cuda_module_open(const char *path, void **module, const mr_cuda_api **api,
                              mr_error *err)
{
    char found[2 * PATH_MAX];
    *module = NULL;
    if (path == NULL) {
        if (!find(found, sizeof(found))) {
            return mr_fail(err, MR_FAILED_PRECONDITION,
                           "no GPU: the module " MODULE
                           " is not beside the program; a build with -Dcuda=enabled has it");
        }
        path = found;
    }
    void *opened = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (opened == NULL) {
        const char *why = dlerror();
        return mr_fail(err, MR_FAILED_PRECONDITION,
                       "no GPU: the module cannot be loaded (%s); it needs the CUDA 13 runtime and "
                       "cuBLAS",
                       why != NULL ? why : path);
    }
    const mr_status status = take_api(opened, path, api, err);
    if (status != MR_OK) {
        dlclose(opened);
        return status;
    }
    *module = opened;
    return MR_OK;
}
