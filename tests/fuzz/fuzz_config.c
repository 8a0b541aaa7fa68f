/* SPDX-License-Identifier: Apache-2.0 */
/* A configuration file. What is refused must say why. */
#include "service/config.h"

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const int fd = memfd_create("config", 0);
    MR_CHECK(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    char path[32];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    mr_config config;
    mr_error err = {0};
    MR_CHECK(mr_config_init(&config, &err) == MR_OK);
    mr_status status = mr_config_load_file(&config, path, &err);
    if (status == MR_OK) {
        status = mr_config_finish(&config, &err);
    }
    MR_CHECK(status == MR_OK || (err.status == status && err.message[0] != '\0'));
    close(fd);
    return 0;
}
