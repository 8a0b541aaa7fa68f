/* SPDX-License-Identifier: Apache-2.0 */
#include "model/gguf_reader.h"

#include "base/checked.h"

#include <inttypes.h>

uint32_t mr_gguf_load_u32(const uint8_t *data)
{
    return (uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 |
           (uint32_t)data[3] << 24;
}

uint64_t mr_gguf_load_u64(const uint8_t *data)
{
    return (uint64_t)mr_gguf_load_u32(data) | (uint64_t)mr_gguf_load_u32(data + 4) << 32;
}

mr_status mr_gguf_reader_cut_off(const mr_gguf_reader *in, const char *what)
{
    return mr_fail(in->err, MR_DATA_LOSS,
                   "the file ends inside %s at byte %" PRIu64
                   "; it is cut off or corrupt, download it again",
                   what, in->at);
}

mr_status mr_gguf_reader_u32(mr_gguf_reader *in, const char *what, uint32_t *out)
{
    if (in->size - in->at < 4) {
        return mr_gguf_reader_cut_off(in, what);
    }
    *out = mr_gguf_load_u32(in->data + in->at);
    in->at += 4;
    return MR_OK;
}

mr_status mr_gguf_reader_u64(mr_gguf_reader *in, const char *what, uint64_t *out)
{
    if (in->size - in->at < 8) {
        return mr_gguf_reader_cut_off(in, what);
    }
    *out = mr_gguf_load_u64(in->data + in->at);
    in->at += 8;
    return MR_OK;
}

mr_status mr_gguf_reader_skip(mr_gguf_reader *in, const char *what, uint64_t count, uint64_t bytes)
{
    uint64_t total;
    if (!mr_mul_u64(count, bytes, &total) || total > in->size - in->at) {
        return mr_fail(in->err, MR_DATA_LOSS,
                       "%s at byte %" PRIu64 " claims %" PRIu64 " × %" PRIu64
                       " bytes where %" PRIu64
                       " are left; the file is cut off or corrupt, download it again",
                       what, in->at, count, bytes, in->size - in->at);
    }
    in->at += total;
    return MR_OK;
}

mr_status mr_gguf_reader_string(mr_gguf_reader *in, const char *what, mr_bytes *out)
{
    uint64_t bytes = 0;
    MR_TRY(mr_gguf_reader_u64(in, what, &bytes));
    const uint8_t *data = in->data + in->at;
    MR_TRY(mr_gguf_reader_skip(in, what, bytes, 1));
    *out = (mr_bytes){.data = data, .size = (size_t)bytes};
    return MR_OK;
}

mr_status mr_gguf_reader_identifier(mr_gguf_reader *in, const char *what, size_t max, mr_bytes *out)
{
    const uint64_t start = in->at;
    MR_TRY(mr_gguf_reader_string(in, what, out));
    if (out->size == 0 || out->size > max) {
        return mr_fail(in->err, MR_DATA_LOSS,
                       "%s at byte %" PRIu64 " has %zu bytes where 1 to %zu are allowed; "
                       "the file is corrupt",
                       what, start, out->size, max);
    }
    for (size_t i = 0; i < out->size; i++) {
        const uint8_t c = out->data[i];
        if (c <= 0x20 || c >= 0x7f || c == '"' || c == '\\') {
            return mr_fail(in->err, MR_DATA_LOSS,
                           "%s at byte %" PRIu64 " has the byte 0x%02x, which is not allowed; "
                           "the file is corrupt",
                           what, start, c);
        }
    }
    return MR_OK;
}
