/* SPDX-License-Identifier: Apache-2.0 */
#include "model/safetensors.h"

#include "base/buffer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "safetensors_writer.h"

#include <stdlib.h>
#include <string.h>

static void test_tensors_come_in_the_order_of_their_data(void **state)
{
    (void)state;
    /* Spaces behind the header are how writers align the data. */
    safetensors_bytes f = safetensors_make(
        "{\"__metadata__\":{\"format\":\"pt\",\"deep\":\"x\"},"
        "\"b\":{\"data_offsets\":[12,16],\"shape\":[2,1],\"dtype\":\"BF16\"},"
        "\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]},"
        "\"empty\":{\"dtype\":\"I64\",\"shape\":[4,0],\"data_offsets\":[12,12]},"
        "\"scalar\":{\"dtype\":\"F8_E4M3\",\"shape\":[],\"data_offsets\":[16,17]}}   ",
        17);
    mr_safetensors *file;
    mr_error err = {0};
    assert_int_equal(mr_safetensors_create(f.data, f.size, &file, &err), MR_OK);
    assert_int_equal(mr_safetensors_count(file), 4);
    static const char *const names[] = {"a", "empty", "b", "scalar"};
    static const mr_dtype types[] = {MR_DTYPE_F32, MR_DTYPE_I64, MR_DTYPE_BF16, MR_DTYPE_F8_E4M3};
    static const uint64_t bytes[] = {12, 0, 4, 1};
    const uint8_t *body = f.data + f.size - 17;
    uint64_t at = 0;
    for (size_t i = 0; i < 4; i++) {
        const mr_model_tensor *tensor = mr_safetensors_at(file, i);
        assert_string_equal(tensor->name, names[i]);
        assert_int_equal(tensor->dtype, types[i]);
        assert_int_equal(tensor->bytes, bytes[i]);
        assert_ptr_equal(tensor->data, body + at);
        at += bytes[i];
    }
    assert_int_equal(mr_safetensors_at(file, 2)->n_dims, 2);
    assert_int_equal(mr_safetensors_at(file, 2)->shape[0], 2);
    assert_int_equal(mr_safetensors_at(file, 2)->shape[1], 1);
    assert_int_equal(mr_safetensors_at(file, 3)->n_dims, 0);
    mr_safetensors_destroy(file);
    free(f.data);
}

typedef struct fault {
    const char *header;
    size_t body;
    mr_status status;
    const char *words;
} fault;

#define T(name, fields) "\"" name "\":{" fields "}"
#define A4              T("a", "\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]")

static const fault faults[] = {
    /* shape × type against the data */
    {"{" T("a", "\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]") "}", 4, MR_DATA_LOSS,
     "'a' of shape [2] and type F32"},
    {"{" T("a", "\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,4]") "}",
     4, MR_DATA_LOSS, "does not fit"},
    /* 2^66 bytes are 0 modulo 2^64 */
    {"{" T("a", "\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]") "}",
     0, MR_DATA_LOSS, "does not fit"},
    {"{" T("a", "\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,8]") "}", 8, MR_DATA_LOSS,
     "'a' of shape [1] and type F32 does not fit"},
    {"{" T("a", "\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]") "}", 4, MR_DATA_LOSS,
     "4 to 0 bytes"},
    {"{" A4 "}", 3, MR_DATA_LOSS, "ends at byte 4 of the data, which has 3"},
    /* order, overlap, holes */
    {"{" A4 "," T("b", "\"dtype\":\"I8\",\"shape\":[2],\"data_offsets\":[3,5]") "}", 5,
     MR_DATA_LOSS, "'b' begins at byte 3 of the data where 4 is wanted"},
    {"{" A4 "," T("b", "\"dtype\":\"I8\",\"shape\":[2],\"data_offsets\":[5,7]") "}", 7,
     MR_DATA_LOSS, "'b' begins at byte 5 of the data where 4 is wanted"},
    {"{" A4 "," T("b", "\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]") "}", 4,
     MR_DATA_LOSS, "'b' begins at byte 0"},
    {"{" A4 "}", 9, MR_DATA_LOSS, "5 bytes behind the last tensor"},
    {"{}", 1, MR_DATA_LOSS, "1 bytes behind"},
    /* twice */
    {"{" A4 "," T("a", "\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]") "}", 8,
     MR_DATA_LOSS, "'a' is there twice"},
    {"{" T("a", "\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]") "}", 4,
     MR_DATA_LOSS, "'dtype' twice"},
    {"{" T("a", "\"dtype\":\"F32\",\"shape\":[1],\"shape\":[1],\"data_offsets\":[0,4]") "}", 4,
     MR_DATA_LOSS, "'shape' twice"},
    {"{\"__metadata__\":{},\"__metadata__\":{}," A4 "}", 4, MR_DATA_LOSS, "no tensor"},
    {"{\"__metadata__\":{\"a\":[\"x\"]}," A4 "}", 4, MR_DATA_LOSS, "no text"},
    {"{\"__metadata__\":{\"a\":1}," A4 "}", 4, MR_DATA_LOSS, "no text"},
    /* types */
    {"{" T("a", "\"dtype\":\"F8_E5M2\",\"shape\":[1],\"data_offsets\":[0,1]") "}", 1,
     MR_UNIMPLEMENTED, "'F8_E5M2'"},
    {"{" T("a", "\"dtype\":\"f32\",\"shape\":[1],\"data_offsets\":[0,4]") "}", 4, MR_UNIMPLEMENTED,
     "'f32'"},
    {"{" T("a", "\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,4]") "}", 4, MR_DATA_LOSS,
     "'dtype'"},
    /* fields */
    {"{" T("a", "\"dtype\":\"F32\",\"shape\":[1]") "}", 4, MR_DATA_LOSS, "lacks"},
    {"{" T("a", "\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]") "}", 4, MR_DATA_LOSS,
     "lacks"},
    {"{" T("a", "\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]") "}", 4, MR_DATA_LOSS,
     "'data_offsets'"},
    {"{" T("a", "\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]") "}", 4, MR_DATA_LOSS,
     "'shape'"},
    {"{" T("a", "\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]") "}", 4, MR_DATA_LOSS,
     "'shape'"},
    {"{" T("a", "\"dtype\":\"F32\",\"shape\":[[1]],\"data_offsets\":[0,4]") "}", 4, MR_DATA_LOSS,
     "numbers in an array"},
    {"{" T("a", "\"dtype\":\"F32\",\"shape\":1,\"data_offsets\":[0,4]") "}", 4, MR_DATA_LOSS,
     "'shape' is not an array"},
    {"{" T("a", "\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1") "}", 4,
     MR_DATA_LOSS, "unknown field"},
    {"{" T("a", "\"dtype\":\"I8\",\"shape\":[1,1,1,1,1],\"data_offsets\":[0,1]") "}", 1,
     MR_UNIMPLEMENTED, "4 dimensions"},
    {"{" T("", "\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]") "}", 4, MR_DATA_LOSS,
     "the name of tensor 0"},
    {"{" T("a\\u0000b", "\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]") "}", 4,
     MR_DATA_LOSS, "the name of tensor 0"},
    /* the header as a whole */
    {"[]", 0, MR_DATA_LOSS, "no object"},
    {"7", 0, MR_DATA_LOSS, "no object"},
    {"{\"a\":1}", 0, MR_DATA_LOSS, "no tensor"},
    {"{" A4 "} {}", 4, MR_DATA_LOSS, "no valid JSON"},
    {"", 4, MR_DATA_LOSS, "0 bytes"},
};

static void test_every_fault_F4_is_refused_by_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        safetensors_bytes f = safetensors_make(faults[i].header, faults[i].body);
        mr_safetensors *file = NULL;
        mr_error err = {0};
        const mr_status status = mr_safetensors_create(f.data, f.size, &file, &err);
        if (status != faults[i].status || strstr(err.message, faults[i].words) == NULL) {
            fail_msg("fault %zu: status %d, \"%s\" lacks \"%s\"", i, status, err.message,
                     faults[i].words);
        }
        assert_null(file);
        free(f.data);
    }
}

/* A length of the header that the file does not have, up to one that would overflow. */
static void test_header_length_F4_F5_is_held_against_the_file(void **state)
{
    (void)state;
    static const uint64_t lengths[] = {3, 100, UINT64_MAX, UINT64_MAX - 7, (uint64_t)1 << 32};
    uint8_t data[10] = {0};
    data[8] = '{';
    data[9] = '}';
    mr_safetensors *file = NULL;
    mr_error err = {0};
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        memcpy(data, &lengths[i], 8);
        assert_int_equal(mr_safetensors_create(data, sizeof(data), &file, &err), MR_DATA_LOSS);
        assert_non_null(strstr(err.message, "the header says"));
    }
    for (size_t size = 0; size < 8; size++) {
        assert_int_equal(mr_safetensors_create(data, size, &file, &err), MR_DATA_LOSS);
        assert_non_null(strstr(err.message, "no header"));
    }
    const uint64_t whole = 2;
    memcpy(data, &whole, 8);
    assert_int_equal(mr_safetensors_create(data, sizeof(data), &file, &err), MR_OK);
    assert_int_equal(mr_safetensors_count(file), 0);
    mr_safetensors_destroy(file);
}

/* A header of the largest size has room for more than a million. */
static void test_tensors_F5_of_a_file_are_at_most_so_many(void **state)
{
    (void)state;
    enum { MOST = 262144 };
    mr_buffer header = {0};
    assert_int_equal(mr_buffer_printf(&header, "{"), MR_OK);
    for (int i = 0; i < MOST; i++) {
        assert_int_equal(mr_buffer_printf(&header,
                                          "%s\"%d\":{\"dtype\":\"U8\",\"shape\":[0],"
                                          "\"data_offsets\":[0,0]}",
                                          i == 0 ? "" : ",", i),
                         MR_OK);
    }
    const size_t open = header.size;
    mr_safetensors *file = NULL;
    mr_error err = {0};
    assert_int_equal(mr_buffer_printf(&header, "}%c", '\0'), MR_OK);
    safetensors_bytes f = safetensors_make((const char *)header.data, 0);
    assert_int_equal(mr_safetensors_create(f.data, f.size, &file, &err), MR_OK);
    assert_int_equal(mr_safetensors_count(file), MOST);
    mr_safetensors_destroy(file);
    free(f.data);
    header.size = open;
    assert_int_equal(mr_buffer_printf(&header,
                                      ",\"x\":{\"dtype\":\"U8\",\"shape\":[0],"
                                      "\"data_offsets\":[0,0]}}%c",
                                      '\0'),
                     MR_OK);
    f = safetensors_make((const char *)header.data, 0);
    assert_int_equal(mr_safetensors_create(f.data, f.size, &file, &err), MR_UNIMPLEMENTED);
    assert_non_null(strstr(err.message, "more than 262144 tensors"));
    free(f.data);
    mr_buffer_deinit(&header);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensors_come_in_the_order_of_their_data),
        cmocka_unit_test(test_every_fault_F4_is_refused_by_name),
        cmocka_unit_test(test_header_length_F4_F5_is_held_against_the_file),
        cmocka_unit_test(test_tensors_F5_of_a_file_are_at_most_so_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
