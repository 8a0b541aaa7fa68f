/* SPDX-License-Identifier: Apache-2.0 */
#include "model/format.h"

#include "base/utf8.h"
#include "kernels/dtype.h"

#include <stdint.h>
#include <string.h>

#define SNIFF_BYTES 512u /* of text that must look like text */

#define CONVERT "convert the model to GGUF (" MR_DTYPE_NAMES ")"

typedef struct signature {
    const char *bytes;
    size_t count;
    mr_status status;
    const char *what;
    const char *remedy;
} signature;

#define BYTES(text) text, sizeof(text) - 1

static const signature signatures[] = {
    {BYTES("FUGG"), MR_UNIMPLEMENTED, "a byte-swapped (big-endian) GGUF file",
     "convert it to little-endian"},
    {BYTES("tjgg"), MR_UNIMPLEMENTED, "a GGJT file, the format before GGUF", CONVERT},
    {BYTES("fmgg"), MR_UNIMPLEMENTED, "a GGMF file, the format before GGUF", CONVERT},
    {BYTES("lmgg"), MR_UNIMPLEMENTED, "a GGML file, the format before GGUF", CONVERT},
    {BYTES("algg"), MR_UNIMPLEMENTED, "a GGLA adapter, not a model", "give a model in GGUF"},
    {BYTES("PK\x03\x04"), MR_UNIMPLEMENTED, "a zip archive (or a PyTorch checkpoint)",
     "unpack it, or " CONVERT},
    {BYTES("\x1f\x8b"), MR_UNIMPLEMENTED, "a gzip archive", "unpack it first"},
    {BYTES("\x28\xb5\x2f\xfd"), MR_UNIMPLEMENTED, "a zstd archive", "unpack it first"},
    {BYTES("\xfd"
           "7zXZ"),
     MR_UNIMPLEMENTED, "an xz archive", "unpack it first"},
    {BYTES("\x80\x02"), MR_UNIMPLEMENTED, "a Python pickle", CONVERT},
    {BYTES("version https://git-lfs"), MR_DATA_LOSS, "a Git LFS pointer, not the model itself",
     "run 'git lfs pull' where it was cloned"},
    {BYTES("<!DOCTYPE"), MR_DATA_LOSS, "a web page", "download the model file itself"},
    {BYTES("<html"), MR_DATA_LOSS, "a web page", "download the model file itself"},
};

bool mr_format_is_gguf(const void *data, size_t size)
{
    return size >= 4 && memcmp(data, "GGUF", 4) == 0;
}

/* A safetensors file begins with the length of its header, a JSON object. */
static bool is_safetensors(const uint8_t *data, size_t size)
{
    if (size < 10 || data[8] != '{') {
        return false;
    }
    uint64_t header = 0;
    for (unsigned i = 0; i < 8; i++) {
        header |= (uint64_t)data[i] << (8 * i);
    }
    return header >= 2 && header <= size - 8;
}

static bool is_text(const uint8_t *data, size_t size)
{
    const size_t count = size < SNIFF_BYTES ? size : SNIFF_BYTES;
    for (size_t i = 0; i < count; i++) {
        const bool space = data[i] == '\t' || data[i] == '\n' || data[i] == '\r';
        if ((data[i] < 0x20 && !space) || data[i] == 0x7f) {
            return false;
        }
    }
    return mr_utf8_valid(data, count - mr_utf8_pending(data, count), NULL);
}

mr_status mr_format_refuse(const void *data, size_t size, mr_error *err)
{
    const uint8_t *bytes = data;
    if (size == 0) {
        return mr_fail(err, MR_DATA_LOSS, "the file is empty; download the model again");
    }
    for (size_t i = 0; i < sizeof(signatures) / sizeof(signatures[0]); i++) {
        const signature *known = &signatures[i];
        if (size >= known->count && memcmp(bytes, known->bytes, known->count) == 0) {
            return mr_fail(err, known->status, "not a GGUF file but %s; %s", known->what,
                           known->remedy);
        }
    }
    if (is_safetensors(bytes, size)) {
        return mr_fail(err, MR_UNIMPLEMENTED,
                       "not a GGUF file but a safetensors file; give the directory that it is in, "
                       "with its config.json");
    }
    if (size < 4 && memcmp(bytes, "GGUF", size) == 0) {
        return mr_fail(err, MR_DATA_LOSS,
                       "a GGUF file cut off after %zu bytes; download the model again", size);
    }
    if (is_text(bytes, size)) {
        return mr_fail(err, MR_DATA_LOSS, "not a GGUF file but text; give a model in GGUF");
    }
    return mr_fail(err, MR_DATA_LOSS,
                   "not a GGUF file: it does not begin with \"GGUF\"; give a model in GGUF");
}
