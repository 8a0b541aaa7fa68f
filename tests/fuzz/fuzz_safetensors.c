/* SPDX-License-Identifier: Apache-2.0 */
/* Parses any bytes as a safetensors file. What is accepted must cover its data exactly, by tensors
 * whose bytes can be read. */
#include "base/status.h"
#include "model/safetensors.h"

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    mr_safetensors *file = NULL;
    mr_error err = {0};
    const mr_status status = mr_safetensors_create(data, size, &file, &err);
    if (status != MR_OK) {
        MR_CHECK(file == NULL && err.status == status && err.message[0] != '\0');
        return 0;
    }
    volatile uint8_t sink = 0;
    const uint8_t *end = NULL;
    for (size_t i = 0; i < mr_safetensors_count(file); i++) {
        const mr_model_tensor *tensor = mr_safetensors_at(file, i);
        const uint8_t *bytes = tensor->data;
        MR_CHECK(end == NULL || bytes == end);
        MR_CHECK(tensor->name[0] != '\0' && (unsigned)tensor->dtype < MR_DTYPE_STORED_COUNT);
        for (uint64_t b = 0; b < tensor->bytes; b++) {
            sink = (uint8_t)(sink ^ bytes[b]);
        }
        end = bytes + tensor->bytes;
    }
    MR_CHECK(end == NULL || end == data + size);
    mr_safetensors_destroy(file);
    return 0;
}
