/* SPDX-License-Identifier: Apache-2.0 */
#include "gguf_writer.h"
#include "model/gguf.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define HEADER_BYTES 24

/* data[size] is refused with the status, and the message has the text. */
static void refused_bytes(const void *data, size_t size, mr_status status, const char *text)
{
    mr_gguf *gguf = NULL;
    mr_error err = {0};
    assert_int_equal(mr_gguf_create(data, size, &gguf, &err), status);
    assert_null(gguf);
    assert_int_equal(err.status, status);
    if (strstr(err.message, text) == NULL) {
        fail_msg("message \"%s\" lacks \"%s\"", err.message, text);
    }
}

static void refused(gguf_writer *w, mr_status status, const char *text)
{
    size_t size;
    const uint8_t *file = gguf_finish(w, &size);
    refused_bytes(file, size, status, text);
}

static mr_gguf *accepted(gguf_writer *w)
{
    size_t size;
    mr_gguf *gguf = NULL;
    mr_error err = {0};
    const uint8_t *file = gguf_finish(w, &size);
    if (mr_gguf_create(file, size, &gguf, &err) != MR_OK) {
        fail_msg("refused: %s", err.message);
    }
    return gguf;
}

/* A string of aligned memory, for what is no GGUF file. */
static void refused_text(const char *bytes, size_t size, mr_status status, const char *text)
{
    void *copy = malloc(size > 0 ? size : 1);
    assert_non_null(copy);
    memcpy(copy, bytes, size);
    refused_bytes(copy, size, status, text);
    free(copy);
}

static void put_every_kind(gguf_writer *w)
{
    gguf_key_u32(w, "a.u32", 7);
    gguf_key_f32(w, "a.f32", 0.5f);
    gguf_key_bool(w, "a.bool", 1);
    gguf_key_string(w, "a.string", "hello");
    gguf_key_strings(w, "a.strings", (const char *const[]){"x", "", "yz"}, 3);
    gguf_key(w, "a.i64", GGUF_I64);
    gguf_put_u64(&w->values, (uint64_t)-5);
    gguf_key(w, "a.i32s", GGUF_ARRAY);
    gguf_put_u32(&w->values, GGUF_I32);
    gguf_put_u64(&w->values, 2);
    gguf_put_u32(&w->values, 3);
    gguf_put_u32(&w->values, 4);
    gguf_tensor(w, "t.vector", 0, 3, GGML_F32, 12);
    gguf_tensor(w, "t.matrix", 2, 64, GGML_Q8_0, (size_t)2 * 2 * 34);
}

static void test_reads_every_kind(void **state)
{
    gguf_writer *w = *state;
    put_every_kind(w);
    mr_gguf *gguf = accepted(w);
    uint32_t u32 = 0;
    float f32 = 0.0f;
    bool flag = false;
    mr_bytes text = {0};
    mr_bytes *strings = NULL;
    uint32_t *numbers = NULL;
    uint32_t count = 0;
    assert_int_equal(mr_gguf_read_u32(gguf, "a.u32", MR_GGUF_REQUIRED, &u32, NULL), MR_OK);
    assert_int_equal(u32, 7);
    assert_int_equal(mr_gguf_read_f32(gguf, "a.f32", MR_GGUF_REQUIRED, &f32, NULL), MR_OK);
    assert_true(f32 == 0.5f);
    assert_int_equal(mr_gguf_read_bool(gguf, "a.bool", MR_GGUF_REQUIRED, &flag, NULL), MR_OK);
    assert_true(flag);
    assert_int_equal(mr_gguf_read_string(gguf, "a.string", MR_GGUF_REQUIRED, &text, NULL), MR_OK);
    assert_int_equal(text.size, 5);
    assert_memory_equal(text.data, "hello", 5);
    assert_int_equal(
        mr_gguf_read_strings(gguf, "a.strings", MR_GGUF_REQUIRED, &strings, &count, NULL), MR_OK);
    assert_int_equal(count, 3);
    assert_int_equal(strings[1].size, 0);
    assert_memory_equal(strings[2].data, "yz", 2);
    assert_int_equal(mr_gguf_read_u32s(gguf, "a.i32s", MR_GGUF_REQUIRED, &numbers, &count, NULL),
                     MR_OK);
    assert_int_equal(count, 2);
    assert_int_equal(numbers[1], 4);
    assert_int_equal(mr_gguf_value_count(gguf), 7);
    free(strings);
    free(numbers);
    mr_gguf_destroy(gguf);
}

static void test_reads_tensors(void **state)
{
    gguf_writer *w = *state;
    put_every_kind(w);
    mr_gguf *gguf = accepted(w);
    const mr_tensor_table *tensors = mr_gguf_tensors(gguf);
    assert_int_equal(tensors->count, 2);
    const mr_model_tensor *matrix = mr_tensor_table_find(tensors, "t.matrix");
    assert_non_null(matrix);
    assert_int_equal(matrix->dtype, MR_DTYPE_Q8_0);
    assert_int_equal(matrix->n_dims, 2);
    assert_int_equal(matrix->shape[0], 2);
    assert_int_equal(matrix->shape[1], 64);
    assert_int_equal(matrix->bytes, 136);
    /* Behind the vector's 12 bytes, at the next multiple of 32. */
    const mr_model_tensor *vector = mr_tensor_table_find(tensors, "t.vector");
    assert_non_null(vector);
    assert_ptr_equal(matrix->data, (const uint8_t *)vector->data + 32);
    assert_null(mr_tensor_table_find(tensors, "t.other"));
    mr_gguf_destroy(gguf);
}

static void test_version_2_reads_the_same(void **state)
{
    gguf_writer *w = *state;
    w->version = 2;
    put_every_kind(w);
    mr_gguf_destroy(accepted(w));
}

static void test_access_names_key_and_types(void **state)
{
    gguf_writer *w = *state;
    put_every_kind(w);
    mr_gguf *gguf = accepted(w);
    mr_error err = {0};
    uint32_t u32 = 9;
    float f32;
    uint32_t *numbers;
    assert_int_equal(mr_gguf_read_u32(gguf, "a.string", MR_GGUF_OPTIONAL, &u32, &err),
                     MR_DATA_LOSS);
    assert_non_null(strstr(err.message, "the key 'a.string' must be an integer but is string"));
    assert_int_equal(mr_gguf_read_u32(gguf, "a.i64", MR_GGUF_OPTIONAL, &u32, &err), MR_DATA_LOSS);
    assert_non_null(strstr(err.message, "the key 'a.i64' is -5"));
    assert_int_equal(mr_gguf_read_f32(gguf, "a.i32s", MR_GGUF_OPTIONAL, &f32, &err), MR_DATA_LOSS);
    assert_non_null(strstr(err.message, "must be a float but is an array of i32"));
    assert_int_equal(mr_gguf_read_u32s(gguf, "a.strings", MR_GGUF_OPTIONAL, &numbers, &u32, &err),
                     MR_DATA_LOSS);
    assert_non_null(strstr(err.message, "an array of integers but is an array of string"));
    assert_int_equal(mr_gguf_read_u32(gguf, "a.none", MR_GGUF_REQUIRED, &u32, &err), MR_DATA_LOSS);
    assert_non_null(strstr(err.message, "the key 'a.none' is missing"));
    u32 = 9;
    assert_int_equal(mr_gguf_read_u32(gguf, "a.none", MR_GGUF_OPTIONAL, &u32, &err), MR_OK);
    assert_int_equal(u32, 9);
    mr_gguf_destroy(gguf);
}

static void test_float_values_must_be_finite(void **state)
{
    gguf_writer *w = *state;
    gguf_key(w, "a.inf", GGUF_F32);
    gguf_put_u32(&w->values, 0x7f800000u);
    gguf_key(w, "a.huge", GGUF_F64);
    gguf_put_u64(&w->values, 0x7fe0000000000000u); /* 2^1023 */
    gguf_key(w, "a.half", GGUF_F64);
    gguf_put_u64(&w->values, 0x3fe0000000000000u);
    gguf_key_bool(w, "a.bool", 2);
    mr_gguf *gguf = accepted(w);
    float value = 0.0f;
    bool flag = false;
    assert_int_equal(mr_gguf_read_f32(gguf, "a.inf", MR_GGUF_REQUIRED, &value, NULL), MR_DATA_LOSS);
    assert_int_equal(mr_gguf_read_f32(gguf, "a.huge", MR_GGUF_REQUIRED, &value, NULL),
                     MR_DATA_LOSS);
    assert_int_equal(mr_gguf_read_f32(gguf, "a.half", MR_GGUF_REQUIRED, &value, NULL), MR_OK);
    assert_true(value == 0.5f);
    assert_int_equal(mr_gguf_read_bool(gguf, "a.bool", MR_GGUF_REQUIRED, &flag, NULL),
                     MR_DATA_LOSS);
    mr_gguf_destroy(gguf);
}

static void test_names_what_is_no_gguf(void **state)
{
    (void)state;
    static const char safetensors[] = "\x02\0\0\0\0\0\0\0{}";
    refused_text("", 0, MR_DATA_LOSS, "the file is empty");
    refused_text("GG", 2, MR_DATA_LOSS, "cut off after 2 bytes");
    refused_text("GGUF\3\0\0\0", 8, MR_DATA_LOSS, "cut off after 8 bytes");
    refused_text("PK\3\4....", 8, MR_UNIMPLEMENTED, "a zip archive");
    refused_text(safetensors, sizeof(safetensors) - 1, MR_UNIMPLEMENTED, "a safetensors file");
    refused_text("version https://git-lfs.github.com/spec/v1\n", 43, MR_DATA_LOSS, "git lfs pull");
    refused_text("<html><body>", 12, MR_DATA_LOSS, "a web page");
    refused_text("hello, world\n", 13, MR_DATA_LOSS, "but text");
    refused_text("\1\2\3\4\5\6\7\0", 8, MR_DATA_LOSS, "does not begin with \"GGUF\"");
}

static void test_refuses_other_versions_by_name(void **state)
{
    gguf_writer *w = *state;
    w->version = 1;
    refused(w, MR_UNIMPLEMENTED, "GGUF version 1 (at byte 4)");
    w->version = 4;
    refused(w, MR_UNIMPLEMENTED, "GGUF version 4");
    w->version = 0x03000000u;
    refused(w, MR_UNIMPLEMENTED, "big-endian");
    refused_text("FUGG\0\0\0\3", 8, MR_UNIMPLEMENTED, "big-endian");
}

static void test_F3_bad_keys(void **state)
{
    gguf_writer *w = *state;
    gguf_key_u32(w, "", 1);
    refused(w, MR_DATA_LOSS, "a key at byte 24 has 0 bytes");
    gguf_writer_deinit(w);

    gguf_writer_init(w);
    gguf_key_u32(w, "two words", 1);
    refused(w, MR_DATA_LOSS, "the byte 0x20");
}

static void test_F4_duplicates(void **state)
{
    gguf_writer *w = *state;
    gguf_key_u32(w, "a", 1);
    gguf_key_u32(w, "a", 1);
    refused(w, MR_DATA_LOSS, "the key 'a' at byte 41 is there twice");
    gguf_writer_deinit(w);

    gguf_writer_init(w);
    gguf_tensor(w, "t", 0, 8, GGML_F32, 32);
    gguf_tensor(w, "t", 0, 8, GGML_F32, 32);
    refused(w, MR_DATA_LOSS, "tensor 't' (record at byte 57) is there twice");
}

static void test_F5_counts_against_the_bytes_left(void **state)
{
    gguf_writer *w = *state;
    w->n_values = UINT64_MAX;
    refused(w, MR_DATA_LOSS, "18446744073709551615 keys");
    w->n_values = 0;
    w->n_tensors = (uint64_t)1 << 32;
    refused(w, MR_DATA_LOSS, "4294967296 tensors");
    w->n_tensors = 0;
    gguf_key(w, "a", GGUF_STRING);
    gguf_put_u64(&w->values, (uint64_t)1 << 30); /* F3: a short file that asks for 1 GiB */
    refused(w, MR_DATA_LOSS, "claims 1073741824");
}

static void test_F5_array_sizes(void **state)
{
    static const struct {
        uint32_t element;
        uint64_t count;
    } cases[] = {
        {GGUF_U64, (uint64_t)1 << 61}, /* 2^64 bytes: the product wraps to 0 */
        {GGUF_U8, UINT64_MAX},           {GGUF_STRING, (uint64_t)1 << 40},
        {GGUF_ARRAY, (uint64_t)1 << 40}, {GGUF_F32, 5}, /* one element more than there is */
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        gguf_writer *w = *state;
        gguf_key(w, "a", GGUF_ARRAY);
        gguf_put_u32(&w->values, cases[i].element);
        gguf_put_u64(&w->values, cases[i].count);
        gguf_put(&w->values, "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 16);
        refused(w, MR_DATA_LOSS, "byte");
        gguf_writer_deinit(w);
        gguf_writer_init(w);
    }
}

static void put_nested(gguf_writer *w, int depth)
{
    gguf_key(w, "a", GGUF_ARRAY);
    for (int i = 1; i < depth; i++) {
        gguf_put_u32(&w->values, GGUF_ARRAY);
        gguf_put_u64(&w->values, 1);
    }
    gguf_put_u32(&w->values, GGUF_U8);
    gguf_put_u64(&w->values, 0);
}

static void test_F5_array_depth(void **state)
{
    gguf_writer *w = *state;
    put_nested(w, 4);
    mr_gguf_destroy(accepted(w));
    gguf_writer_deinit(w);

    gguf_writer_init(w);
    put_nested(w, 100000);
    refused(w, MR_DATA_LOSS, "nested more than 4 deep");
}

static void test_refuses_unknown_value_types(void **state)
{
    gguf_writer *w = *state;
    gguf_key(w, "a", 13);
    gguf_put_u64(&w->values, 0);
    refused(w, MR_DATA_LOSS, "value type 13 at byte 33");
}

static void test_F3_alignment(void **state)
{
    static const uint32_t bad[] = {0, 1, 4, 12, 48, 131072, 1u << 30};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        gguf_writer *w = *state;
        gguf_key_u32(w, "general.alignment", bad[i]);
        refused(w, MR_DATA_LOSS, "a power of two from 8 to 65536");
        gguf_writer_deinit(w);
        gguf_writer_init(w);
    }
    gguf_writer *w = *state;
    w->alignment = 64;
    gguf_key_u32(w, "general.alignment", 64);
    gguf_tensor(w, "a", 0, 1, GGML_F32, 4);
    gguf_tensor(w, "b", 0, 1, GGML_F32, 4);
    mr_gguf *gguf = accepted(w);
    const mr_tensor_table *tensors = mr_gguf_tensors(gguf);
    const uint8_t *a = mr_tensor_table_find(tensors, "a")->data;
    assert_int_equal((size_t)(a - w->file) % 64, 0);
    assert_ptr_equal(mr_tensor_table_find(tensors, "b")->data, a + 64);
    mr_gguf_destroy(gguf);
}

/* One record with these dimensions over 64 bytes of data is refused. */
static void refused_dims(gguf_writer *w, uint32_t n_dims, const uint64_t *dims, uint32_t type,
                         const char *text)
{
    gguf_record(w, "t", n_dims, dims, type, 0);
    for (int i = 0; i < 8; i++) {
        gguf_put_u64(&w->data, 0);
    }
    refused(w, type == GGML_IQ2_XXS ? MR_UNIMPLEMENTED : MR_DATA_LOSS, text);
    gguf_writer_deinit(w);
    gguf_writer_init(w);
}

static void test_F1_number_of_dimensions(void **state)
{
    const uint64_t dims[64] = {1, 1, 1, 1, 1};
    refused_dims(*state, 0, dims, GGML_F32, "has 0 dimensions");
    refused_dims(*state, 5, dims, GGML_F32, "has 5 dimensions where 1 to 4");
    refused_dims(*state, 64, dims, GGML_F32, "has 64 dimensions");

    gguf_writer *w = *state;
    gguf_put_string(&w->tensors, "t");
    gguf_put_u32(&w->tensors, UINT32_MAX);
    gguf_put(&w->tensors, "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 20);
    w->n_tensors = 1;
    refused(w, MR_DATA_LOSS, "has 4294967295 dimensions");
}

static void test_F2_products_overflow(void **state)
{
    const uint64_t big = (uint64_t)1 << 32;
    refused_dims(*state, 2, (const uint64_t[]){big, big}, GGML_F32, "63 bits");
    refused_dims(*state, 3, (const uint64_t[]){1, big, big}, GGML_F32, "64 bits");
    refused_dims(*state, 4, (const uint64_t[]){big, 1, 1, (uint64_t)1 << 31}, GGML_F32, "63 bits");
    /* 2^62 elements: 2^64 bytes as float32, which wraps to 0. */
    refused_dims(*state, 2, (const uint64_t[]){big, (uint64_t)1 << 30}, GGML_F32, "64 bits");
    refused_dims(*state, 1, (const uint64_t[]){(uint64_t)1 << 62}, GGML_F32, "tensor 't'");
    /* 2^61 elements are 2^63 bytes: nothing wraps, but the file is shorter. */
    refused_dims(*state, 1, (const uint64_t[]){(uint64_t)1 << 61}, GGML_F32, "but the file has");
}

static void test_F3_zero_dimension(void **state)
{
    refused_dims(*state, 2, (const uint64_t[]){0, 4}, GGML_F32, "a dimension of 0");
    refused_dims(*state, 2, (const uint64_t[]){4, 0}, GGML_F32, "a dimension of 0");
}

static void test_refuses_partial_blocks(void **state)
{
    refused_dims(*state, 2, (const uint64_t[]){33, 1}, GGML_Q4_0, "not a whole number of Q4_0");
    refused_dims(*state, 2, (const uint64_t[]){576, 1}, GGML_Q6_K, "not a whole number of Q6_K");
}

static void test_reads_every_supported_type(void **state)
{
    /* Numbers and sizes of 512 elements as ggml defines them. */
    static const struct {
        uint32_t number;
        mr_dtype dtype;
        uint64_t bytes;
    } cases[] = {
        {0, MR_DTYPE_F32, 2048},    {1, MR_DTYPE_F16, 1024},    {2, MR_DTYPE_Q4_0, 288},
        {3, MR_DTYPE_Q4_1, 320},    {6, MR_DTYPE_Q5_0, 352},    {7, MR_DTYPE_Q5_1, 384},
        {8, MR_DTYPE_Q8_0, 544},    {10, MR_DTYPE_Q2_K, 168},   {11, MR_DTYPE_Q3_K, 220},
        {12, MR_DTYPE_Q4_K, 288},   {13, MR_DTYPE_Q5_K, 352},   {14, MR_DTYPE_Q6_K, 420},
        {20, MR_DTYPE_IQ4_NL, 288}, {23, MR_DTYPE_IQ4_XS, 272}, {30, MR_DTYPE_BF16, 1024},
    };
    assert_int_equal(sizeof(cases) / sizeof(cases[0]), MR_DTYPE_COUNT);
    gguf_writer *w = *state;
    for (size_t i = 0; i < MR_DTYPE_COUNT; i++) {
        gguf_tensor(w, "t", 1, 512, cases[i].number, (size_t)cases[i].bytes);
        mr_gguf *gguf = accepted(w);
        const mr_model_tensor *tensor = mr_tensor_table_find(mr_gguf_tensors(gguf), "t");
        assert_int_equal(tensor->dtype, cases[i].dtype);
        assert_int_equal(tensor->bytes, cases[i].bytes);
        mr_gguf_destroy(gguf);
        gguf_writer_deinit(w);
        gguf_writer_init(w);
    }
}

static void test_names_unsupported_tensor_types(void **state)
{
    refused_dims(*state, 1, (const uint64_t[]){256}, GGML_IQ2_XXS, "has type IQ2_XXS");
    gguf_writer *w = *state;
    gguf_tensor(w, "t", 0, 1, 1234, 4);
    refused(w, MR_UNIMPLEMENTED, "type number 1234");
    assert_string_equal(mr_gguf_tensor_type_name(16), "IQ2_XXS");
    assert_string_equal(mr_gguf_tensor_type_name(24), "I8");
    assert_string_equal(mr_gguf_tensor_type_name(30), "BF16");
    assert_string_equal(mr_gguf_tensor_type_name(39), "MXFP4");
    assert_null(mr_gguf_tensor_type_name(UINT32_MAX));
}

static void test_F2_tensor_ranges(void **state)
{
    static const struct {
        uint64_t k;
        uint64_t offset;
        const char *text;
    } cases[] = {
        {17, 0, "wants 68 bytes"},
        {8, 64, "wants 32 bytes"},
        {1, 96, "96 bytes into"},
        {8, UINT64_MAX - 31, "bytes into the data"},
        {1, 4, "not at a multiple of the alignment 32"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        gguf_writer *w = *state;
        gguf_record(w, "t", 1, &cases[i].k, GGML_F32, cases[i].offset);
        for (int j = 0; j < 8; j++) {
            gguf_put_u64(&w->data, 0);
        }
        refused(w, MR_DATA_LOSS, cases[i].text);
        gguf_writer_deinit(w);
        gguf_writer_init(w);
    }
}

static void test_refuses_overlapping_tensors(void **state)
{
    gguf_writer *w = *state;
    const uint64_t k = 9; /* 36 bytes: 4 over the next one's start */
    gguf_record(w, "second", 1, &k, GGML_F32, 32);
    gguf_record(w, "first", 1, &k, GGML_F32, 0);
    for (int i = 0; i < 12; i++) {
        gguf_put_u64(&w->data, 0);
    }
    refused(w, MR_DATA_LOSS, "tensors 'first' and 'second' overlap");
}

static void test_F3_bad_tensor_names(void **state)
{
    gguf_writer *w = *state;
    gguf_tensor(w, "", 0, 1, GGML_F32, 4);
    refused(w, MR_DATA_LOSS, "a tensor name at byte 24 has 0 bytes");
    gguf_writer_deinit(w);

    gguf_writer_init(w);
    char name[97];
    memset(name, 'n', sizeof(name) - 1);
    name[96] = '\0';
    gguf_tensor(w, name, 0, 1, GGML_F32, 4);
    refused(w, MR_DATA_LOSS, "has 96 bytes where 1 to 95");
}

/* Every proper prefix of a good file is refused, and nothing behind its end is read. */
static void test_F5_every_truncation_is_refused(void **state)
{
    gguf_writer *w = *state;
    put_every_kind(w);
    size_t size;
    const uint8_t *file = gguf_finish(w, &size);
    for (size_t keep = 0; keep < size; keep++) {
        refused_text((const char *)file, keep, MR_DATA_LOSS, "");
    }
}

/* A file without tensors may end right behind its keys. */
static void test_accepts_a_file_without_tensors(void **state)
{
    gguf_writer *w = *state;
    gguf_key_u32(w, "a", 1);
    mr_gguf *gguf = accepted(w);
    assert_int_equal(mr_gguf_tensors(gguf)->count, 0);
    assert_null(mr_gguf_find(gguf, "b"));
    assert_int_equal(mr_gguf_find(gguf, "a")->offset, HEADER_BYTES + 8 + 1 + 4);
    mr_gguf_destroy(gguf);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, gguf_writer_setup, gguf_writer_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_reads_every_kind),
        CASE(test_reads_tensors),
        CASE(test_version_2_reads_the_same),
        CASE(test_access_names_key_and_types),
        CASE(test_float_values_must_be_finite),
        CASE(test_names_what_is_no_gguf),
        CASE(test_refuses_other_versions_by_name),
        CASE(test_F3_bad_keys),
        CASE(test_F4_duplicates),
        CASE(test_F5_counts_against_the_bytes_left),
        CASE(test_F5_array_sizes),
        CASE(test_F5_array_depth),
        CASE(test_refuses_unknown_value_types),
        CASE(test_F3_alignment),
        CASE(test_F1_number_of_dimensions),
        CASE(test_F2_products_overflow),
        CASE(test_F3_zero_dimension),
        CASE(test_refuses_partial_blocks),
        CASE(test_reads_every_supported_type),
        CASE(test_names_unsupported_tensor_types),
        CASE(test_F2_tensor_ranges),
        CASE(test_refuses_overlapping_tensors),
        CASE(test_F3_bad_tensor_names),
        CASE(test_F5_every_truncation_is_refused),
        CASE(test_accepts_a_file_without_tensors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
