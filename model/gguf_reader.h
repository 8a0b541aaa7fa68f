/* SPDX-License-Identifier: Apache-2.0 */
/* A cursor over the bytes of a GGUF file that never leaves them. All failures are DATA_LOSS, say
 * `what` was being read, and name the byte offset. */
#ifndef MILLRACE_MODEL_GGUF_READER_H
#define MILLRACE_MODEL_GGUF_READER_H

#include "base/bytes.h"
#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

typedef struct mr_gguf_reader {
    const uint8_t *data; /* borrowed */
    uint64_t size;
    uint64_t at; /* never above size */
    mr_error *err;
} mr_gguf_reader;

MR_MUST_USE mr_status mr_gguf_reader_u32(mr_gguf_reader *in, const char *what, uint32_t *out);
MR_MUST_USE mr_status mr_gguf_reader_u64(mr_gguf_reader *in, const char *what, uint64_t *out);

/* Passes over `count` items of `bytes` each, if the file is that long. */
MR_MUST_USE mr_status mr_gguf_reader_skip(mr_gguf_reader *in, const char *what, uint64_t count,
                                          uint64_t bytes);

/* A string: u64 length, bytes. Borrowed from the file. */
MR_MUST_USE mr_status mr_gguf_reader_string(mr_gguf_reader *in, const char *what, mr_bytes *out);

/* A string that gets into messages, logs and C strings: 1 to `max` printable ASCII characters
 * without the two that need quoting there, '"' and '\\'. */
MR_MUST_USE mr_status mr_gguf_reader_identifier(mr_gguf_reader *in, const char *what, size_t max,
                                                mr_bytes *out);

/* Fails because the file ends inside `what`. */
mr_status mr_gguf_reader_cut_off(const mr_gguf_reader *in, const char *what);

/* Little-endian loads from memory of any alignment. */
uint32_t mr_gguf_load_u32(const uint8_t *data);
uint64_t mr_gguf_load_u64(const uint8_t *data);

#endif
