/* SPDX-License-Identifier: Apache-2.0 */
/* A URL of Redis. What is taken can be shown, and what is shown is the same place. */
#include "cache/redis_url.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[MR_REDIS_URL_MAX];
    if (size >= sizeof(text)) {
        return 0;
    }
    memcpy(text, data, size);
    text[size] = '\0';
    mr_redis_url url;
    mr_error err = {0};
    const mr_status status = mr_redis_url_parse(text, &url, &err);
    if (status != MR_OK) {
        MR_CHECK(err.status == status && err.message[0] != '\0');
        return 0;
    }
    char shown[320];
    mr_redis_url_show(&url, shown, sizeof(shown));
    MR_CHECK(url.host[0] != '\0');
    MR_CHECK(url.is_socket == (strncmp(shown, "unix://", 7) == 0));
    MR_CHECK(url.is_socket || (url.port != 0 && strstr(shown, url.host) != NULL));
    return 0;
}
