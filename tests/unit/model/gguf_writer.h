/* SPDX-License-Identifier: Apache-2.0 */
/* Writes GGUF files into memory, well-formed ones and others. Test code: it fails the test when
 * memory is short. */
#ifndef MILLRACE_TESTS_GGUF_WRITER_H
#define MILLRACE_TESTS_GGUF_WRITER_H

#include "base/buffer.h"

#include <stddef.h>
#include <stdint.h>

/* Numbers that files use. */
enum {
    GGUF_U8 = 0,
    GGUF_U32 = 4,
    GGUF_I32 = 5,
    GGUF_F32 = 6,
    GGUF_BOOL = 7,
    GGUF_STRING = 8,
    GGUF_ARRAY = 9,
    GGUF_U64 = 10,
    GGUF_I64 = 11,
    GGUF_F64 = 12,
};
enum {
    GGML_F32 = 0,
    GGML_F16 = 1,
    GGML_Q4_0 = 2,
    GGML_Q4_1 = 3,
    GGML_Q8_0 = 8,
    GGML_Q6_K = 14,
    GGML_IQ2_XXS = 16,
    GGML_BF16 = 30,
};

typedef struct gguf_writer {
    uint32_t version;   /* 3 unless changed */
    uint32_t alignment; /* 32 unless changed; not written as a key */
    uint64_t n_values;
    uint64_t n_tensors;
    mr_buffer values;
    mr_buffer tensors;
    mr_buffer data;
    uint8_t *file; /* what finish gave */
} gguf_writer;

void gguf_writer_init(gguf_writer *w);
void gguf_writer_deinit(gguf_writer *w);

/* A test's fixture: *state is an empty writer. */
int gguf_writer_setup(void **state);
int gguf_writer_teardown(void **state);

/* Appends bytes as they are. */
void gguf_put(mr_buffer *out, const void *data, size_t bytes);
void gguf_put_u32(mr_buffer *out, uint32_t value);
void gguf_put_u64(mr_buffer *out, uint64_t value);
void gguf_put_string(mr_buffer *out, const char *text);

/* A key with the type; the caller puts the value into w->values. */
void gguf_key(gguf_writer *w, const char *key, uint32_t type);
void gguf_key_u32(gguf_writer *w, const char *key, uint32_t value);
void gguf_key_f32(gguf_writer *w, const char *key, float value);
void gguf_key_bool(gguf_writer *w, const char *key, uint8_t value);
void gguf_key_string(gguf_writer *w, const char *key, const char *value);
void gguf_key_strings(gguf_writer *w, const char *key, const char *const *values, size_t count);

/* A tensor record alone: dims innermost first, offset into the data. */
void gguf_record(gguf_writer *w, const char *name, uint32_t n_dims, const uint64_t *dims,
                 uint32_t type, uint64_t offset);
/* A record [n][k] (a vector [k] if n is 0) with `bytes` of zeroed data behind the last one's. */
void gguf_tensor(gguf_writer *w, const char *name, uint64_t n, uint64_t k, uint32_t type,
                 size_t bytes);
/* A float32 record with k values, a vector. */
void gguf_vector(gguf_writer *w, const char *name, const float *values, size_t k);

/* The file (valid until deinit, aligned to 16) and its size. */
uint8_t *gguf_finish(gguf_writer *w, size_t *size);

#endif
