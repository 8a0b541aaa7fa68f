/* SPDX-License-Identifier: Apache-2.0 */
#include "service/codec.h"

#include "base/checked.h"

#include <grpc/byte_buffer_reader.h>
#include <grpc/slice.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>

#define BUDGET_FACTOR 8u
#define BUDGET_FLOOR  (UINT64_C(1) << 20)
/* What malloc adds to a block, and its smallest step. */
#define HEAP_OVERHEAD UINT64_C(16)

/* The allocator's own overhead included. */
static uint64_t budget_of(size_t bytes)
{
    uint64_t scaled = 0;
    uint64_t budget = 0;
    if (!mr_mul_u64(bytes, BUDGET_FACTOR, &scaled) || !mr_add_u64(scaled, BUDGET_FLOOR, &budget)) {
        return UINT64_MAX;
    }
    return budget;
}

/* Counts what is taken and never what is given back: protobuf-c frees little before the end. */
typedef struct heap_meter {
    uint64_t left;
    bool over;
} heap_meter;

static void *metered_alloc(void *ctx, size_t size)
{
    heap_meter *meter = ctx;
    uint64_t rounded = 0;
    uint64_t cost = 0;
    if (!mr_align_u64(size, HEAP_OVERHEAD, &rounded) ||
        !mr_add_u64(rounded, HEAP_OVERHEAD, &cost) || cost > meter->left) {
        meter->over = true;
        return NULL;
    }
    meter->left -= cost;
    return malloc(size);
}

static void metered_free(void *ctx, void *block)
{
    (void)ctx;
    free(block);
}

mr_status mr_codec_decode(const ProtobufCMessageDescriptor *type, const uint8_t *data, size_t bytes,
                          ProtobufCMessage **out, mr_error *err)
{
    const uint64_t budget = budget_of(bytes);
    heap_meter meter = {.left = budget};
    ProtobufCAllocator allocator = {
        .alloc = metered_alloc, .free = metered_free, .allocator_data = &meter};
    ProtobufCMessage *message = protobuf_c_message_unpack(type, &allocator, bytes, data);
    if (message != NULL) {
        *out = message;
        return MR_OK;
    }
    if (meter.over) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED,
                       "a %s of %zu bytes needs more than %" PRIu64
                       " bytes once decoded: send fewer small parts",
                       type->name, bytes, budget);
    }
    return mr_fail(
        err, MR_INVALID_ARGUMENT,
        "the %zu bytes received are no %s: compare the .proto files of client and server", bytes,
        type->name);
}

void mr_codec_free(ProtobufCMessage *message)
{
    if (message != NULL) {
        /* metered_free is free(), which is what protobuf-c uses by itself. */
        protobuf_c_message_free_unpacked(message, NULL);
    }
}

mr_status mr_codec_unpack(const ProtobufCMessageDescriptor *type, grpc_byte_buffer *buffer,
                          ProtobufCMessage **out, mr_error *err)
{
    if (buffer == NULL) {
        return mr_fail(err, MR_CANCELLED, "the client went away before its request was complete");
    }
    grpc_byte_buffer_reader reader;
    if (!grpc_byte_buffer_reader_init(&reader, buffer)) {
        return mr_fail(err, MR_INTERNAL, "the request could not be decompressed");
    }
    grpc_slice slice = grpc_byte_buffer_reader_readall(&reader);
    const mr_status status =
        mr_codec_decode(type, GRPC_SLICE_START_PTR(slice), GRPC_SLICE_LENGTH(slice), out, err);
    grpc_slice_unref(slice);
    grpc_byte_buffer_reader_destroy(&reader);
    return status;
}

grpc_byte_buffer *mr_codec_pack(const ProtobufCMessage *message)
{
    grpc_slice slice = grpc_slice_malloc(protobuf_c_message_get_packed_size(message));
    protobuf_c_message_pack(message, GRPC_SLICE_START_PTR(slice));
    grpc_byte_buffer *buffer = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    return buffer;
}
