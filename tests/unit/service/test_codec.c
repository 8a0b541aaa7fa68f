/* SPDX-License-Identifier: Apache-2.0 */
#include "service/codec.h"

#include "millrace/v1/inference.pb-c.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <grpc/grpc.h>
#include <grpc/slice.h>

static uint64_t taken; /* bytes that malloc gave while counting */
static bool counting;

void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);

void *__wrap_malloc(size_t size)
{
    if (counting) {
        taken += size;
    }
    return __real_malloc(size);
}

static mr_status decode(const uint8_t *data, size_t bytes, ProtobufCMessage **out, mr_error *err)
{
    taken = 0;
    counting = true;
    const mr_status status =
        mr_codec_decode(&millrace__v1__generate_request__descriptor, data, bytes, out, err);
    counting = false;
    return status;
}

/* A varint of at most four bytes. */
static size_t put_varint(uint8_t *out, size_t value)
{
    size_t n = 0;
    while (value >= 0x80) {
        out[n++] = (uint8_t)(value | 0x80);
        value >>= 7;
    }
    out[n++] = (uint8_t)value;
    return n;
}

/* GenerateRequest.chat (5) of `count` empty Messages (1), two bytes each: "0a 00". */
static uint8_t *many_messages(size_t count, size_t *bytes)
{
    uint8_t *data = malloc(2 * count + 8);
    assert_non_null(data);
    size_t n = 0;
    data[n++] = 5 << 3 | 2;
    n += put_varint(data + n, 2 * count);
    for (size_t i = 0; i < count; i++) {
        data[n++] = 1 << 3 | 2;
        data[n++] = 0;
    }
    *bytes = n;
    return data;
}

static void test_codec_keeps_text_with_nul(void **state)
{
    (void)state;
    /* text (3) = "a\0b", request_id (1) = "x" */
    static const uint8_t data[] = {0x1a, 3, 'a', 0, 'b', 0x0a, 1, 'x'};
    ProtobufCMessage *message = NULL;
    mr_error err;
    assert_int_equal(decode(data, sizeof(data), &message, &err), MR_OK);
    const Millrace__V1__GenerateRequest *request = (const Millrace__V1__GenerateRequest *)message;
    assert_int_equal(request->input_case, MILLRACE__V1__GENERATE_REQUEST__INPUT_TEXT);
    assert_int_equal(request->text.len, 3);
    assert_memory_equal(request->text.data, "a\0b", 3);
    assert_int_equal(request->request_id.len, 1);
    mr_codec_free(message);
}

static void test_codec_optional_presence(void **state)
{
    (void)state;
    /* sampling (6) { temperature (1) = 0.0f } and an empty sampling. */
    static const uint8_t zero[] = {0x32, 5, 0x0d, 0, 0, 0, 0};
    static const uint8_t none[] = {0x32, 0};
    ProtobufCMessage *message = NULL;
    mr_error err;
    assert_int_equal(decode(zero, sizeof(zero), &message, &err), MR_OK);
    assert_int_equal(((Millrace__V1__GenerateRequest *)message)->sampling->_temperature_case,
                     MILLRACE__V1__SAMPLING___TEMPERATURE_TEMPERATURE);
    mr_codec_free(message);
    assert_int_equal(decode(none, sizeof(none), &message, &err), MR_OK);
    assert_int_equal(((Millrace__V1__GenerateRequest *)message)->sampling->_temperature_case,
                     MILLRACE__V1__SAMPLING___TEMPERATURE__NOT_SET);
    mr_codec_free(message);
}

static void test_codec_F5_refuses_amplification(void **state)
{
    (void)state;
    size_t bytes = 0;
    uint8_t *data = many_messages(500000, &bytes);
    ProtobufCMessage *message = NULL;
    mr_error err;
    assert_int_equal(decode(data, bytes, &message, &err), MR_RESOURCE_EXHAUSTED);
    assert_int_equal(err.status, MR_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(err.message, "GenerateRequest"));
    assert_true(taken <= 8 * (uint64_t)bytes + (1u << 20));
    free(data);
}

static void test_codec_small_messages_fit_the_floor(void **state)
{
    (void)state;
    size_t bytes = 0;
    uint8_t *data = many_messages(1000, &bytes);
    ProtobufCMessage *message = NULL;
    mr_error err;
    assert_int_equal(decode(data, bytes, &message, &err), MR_OK);
    assert_int_equal(((Millrace__V1__GenerateRequest *)message)->chat->n_messages, 1000);
    mr_codec_free(message);
    free(data);
}

static void test_codec_large_prompts_fit(void **state)
{
    (void)state;
    /* tokens (4) { ids (1), packed }: one byte an id, four in memory. */
    enum { COUNT = 4 << 20 };
    uint8_t *data = malloc(COUNT + 16);
    assert_non_null(data);
    size_t n = 0;
    data[n++] = 4 << 3 | 2;
    n += put_varint(data + n, COUNT + 5);
    data[n++] = 1 << 3 | 2;
    const size_t inner = put_varint(data + n, COUNT);
    assert_int_equal(inner, 4);
    n += inner;
    memset(data + n, 7, COUNT);
    ProtobufCMessage *message = NULL;
    mr_error err;
    assert_int_equal(decode(data, n + COUNT, &message, &err), MR_OK);
    const Millrace__V1__Tokens *tokens = ((Millrace__V1__GenerateRequest *)message)->tokens;
    assert_int_equal(tokens->n_ids, COUNT);
    assert_int_equal(tokens->ids[COUNT - 1], 7);
    mr_codec_free(message);
    free(data);
}

static void test_codec_F5_refuses_truncated_and_malformed(void **state)
{
    (void)state;
    static const struct {
        const char *data;
        size_t bytes;
    } bad[] = {
        {"\x1a\x05"
         "ab",
         4},                                                  /* five bytes said, two there */
        {"\x1a", 1},                                          /* no length */
        {"\x1a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f", 11}, /* a length of more than 64 bits */
        {"\x32\x05\x0d\x00\x00", 5},                          /* a float cut short */
        {"\x1b", 1},                                          /* a group, which proto3 lacks */
        {"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 11}, /* a tag without end */
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        ProtobufCMessage *message = NULL;
        mr_error err = {0};
        assert_int_equal(decode((const uint8_t *)bad[i].data, bad[i].bytes, &message, &err),
                         MR_INVALID_ARGUMENT);
        assert_non_null(strstr(err.message, "GenerateRequest"));
    }
}

static void test_codec_byte_buffers(void **state)
{
    (void)state;
    Millrace__V1__GenerateRequest request;
    millrace__v1__generate_request__init(&request);
    char id[] = "abc";
    request.request_id = (ProtobufCBinaryData){3, (uint8_t *)id};
    grpc_byte_buffer *buffer = mr_codec_pack(&request.base);
    ProtobufCMessage *message = NULL;
    mr_error err;
    assert_int_equal(
        mr_codec_unpack(&millrace__v1__generate_request__descriptor, buffer, &message, &err),
        MR_OK);
    assert_memory_equal(((Millrace__V1__GenerateRequest *)message)->request_id.data, "abc", 3);
    mr_codec_free(message);
    grpc_byte_buffer_destroy(buffer);
    assert_int_equal(
        mr_codec_unpack(&millrace__v1__generate_request__descriptor, NULL, &message, &err),
        MR_CANCELLED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_codec_keeps_text_with_nul),
        cmocka_unit_test(test_codec_optional_presence),
        cmocka_unit_test(test_codec_F5_refuses_amplification),
        cmocka_unit_test(test_codec_small_messages_fit_the_floor),
        cmocka_unit_test(test_codec_large_prompts_fit),
        cmocka_unit_test(test_codec_F5_refuses_truncated_and_malformed),
        cmocka_unit_test(test_codec_byte_buffers),
    };
    grpc_init();
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    grpc_shutdown_blocking();
    return failed;
}
