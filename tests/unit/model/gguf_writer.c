/* SPDX-License-Identifier: Apache-2.0 */
#include "gguf_writer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

void gguf_writer_init(gguf_writer *w)
{
    *w = (gguf_writer){.version = 3, .alignment = 32};
}

void gguf_writer_deinit(gguf_writer *w)
{
    mr_buffer_deinit(&w->values);
    mr_buffer_deinit(&w->tensors);
    mr_buffer_deinit(&w->data);
    free(w->file);
    w->file = NULL;
}

int gguf_writer_setup(void **state)
{
    gguf_writer *w = malloc(sizeof(*w));
    if (w == NULL) {
        return -1;
    }
    gguf_writer_init(w);
    *state = w;
    return 0;
}

int gguf_writer_teardown(void **state)
{
    gguf_writer_deinit(*state);
    free(*state);
    return 0;
}

void gguf_put(mr_buffer *out, const void *data, size_t bytes)
{
    assert_int_equal(mr_buffer_append(out, data, bytes), MR_OK);
}

void gguf_put_u32(mr_buffer *out, uint32_t value)
{
    const uint8_t bytes[4] = {(uint8_t)value, (uint8_t)(value >> 8), (uint8_t)(value >> 16),
                              (uint8_t)(value >> 24)};
    gguf_put(out, bytes, sizeof(bytes));
}

void gguf_put_u64(mr_buffer *out, uint64_t value)
{
    gguf_put_u32(out, (uint32_t)value);
    gguf_put_u32(out, (uint32_t)(value >> 32));
}

void gguf_put_string(mr_buffer *out, const char *text)
{
    gguf_put_u64(out, strlen(text));
    gguf_put(out, text, strlen(text));
}

void gguf_key(gguf_writer *w, const char *key, uint32_t type)
{
    gguf_put_string(&w->values, key);
    gguf_put_u32(&w->values, type);
    w->n_values++;
}

void gguf_key_u32(gguf_writer *w, const char *key, uint32_t value)
{
    gguf_key(w, key, GGUF_U32);
    gguf_put_u32(&w->values, value);
}

void gguf_key_f32(gguf_writer *w, const char *key, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    gguf_key(w, key, GGUF_F32);
    gguf_put_u32(&w->values, bits);
}

void gguf_key_bool(gguf_writer *w, const char *key, uint8_t value)
{
    gguf_key(w, key, GGUF_BOOL);
    gguf_put(&w->values, &value, 1);
}

void gguf_key_string(gguf_writer *w, const char *key, const char *value)
{
    gguf_key(w, key, GGUF_STRING);
    gguf_put_string(&w->values, value);
}

void gguf_key_strings(gguf_writer *w, const char *key, const char *const *values, size_t count)
{
    gguf_key(w, key, GGUF_ARRAY);
    gguf_put_u32(&w->values, GGUF_STRING);
    gguf_put_u64(&w->values, count);
    for (size_t i = 0; i < count; i++) {
        gguf_put_string(&w->values, values[i]);
    }
}

void gguf_record(gguf_writer *w, const char *name, uint32_t n_dims, const uint64_t *dims,
                 uint32_t type, uint64_t offset)
{
    gguf_put_string(&w->tensors, name);
    gguf_put_u32(&w->tensors, n_dims);
    for (uint32_t i = 0; i < n_dims; i++) {
        gguf_put_u64(&w->tensors, dims[i]);
    }
    gguf_put_u32(&w->tensors, type);
    gguf_put_u64(&w->tensors, offset);
    w->n_tensors++;
}

static void pad(mr_buffer *out, uint32_t alignment)
{
    while (out->size % alignment != 0) {
        gguf_put(out, "", 1);
    }
}

void gguf_tensor(gguf_writer *w, const char *name, uint64_t n, uint64_t k, uint32_t type,
                 size_t bytes)
{
    const uint64_t dims[2] = {k, n};
    pad(&w->data, w->alignment);
    gguf_record(w, name, n == 0 ? 1 : 2, dims, type, w->data.size);
    assert_int_equal(mr_buffer_reserve(&w->data, bytes), MR_OK);
    memset(w->data.data + w->data.size, 0, bytes);
    w->data.size += bytes;
}

void gguf_vector(gguf_writer *w, const char *name, const float *values, size_t k)
{
    gguf_tensor(w, name, 0, k, GGML_F32, k * sizeof(float));
    memcpy(w->data.data + w->data.size - k * sizeof(float), values, k * sizeof(float));
}

uint8_t *gguf_finish(gguf_writer *w, size_t *size)
{
    mr_buffer out = {0};
    gguf_put(&out, "GGUF", 4);
    gguf_put_u32(&out, w->version);
    gguf_put_u64(&out, w->n_tensors);
    gguf_put_u64(&out, w->n_values);
    gguf_put(&out, w->values.data, w->values.size);
    gguf_put(&out, w->tensors.data, w->tensors.size);
    if (w->data.size > 0) {
        pad(&out, w->alignment);
    }
    gguf_put(&out, w->data.data, w->data.size);

    /* A block of exactly that size, so that a sanitizer sees every read behind it. */
    free(w->file);
    w->file = malloc(out.size);
    assert_non_null(w->file);
    memcpy(w->file, out.data, out.size);
    *size = out.size;
    mr_buffer_deinit(&out);
    return w->file;
}
