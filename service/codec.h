/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between gRPC's byte buffers and protobuf-c messages. A small message of many tiny fields can ask
 * for fifty times its size in memory, so decoding has a budget: 8 times the
 * message and 1 MiB. Any thread.
 */
#ifndef MILLRACE_SERVICE_CODEC_H
#define MILLRACE_SERVICE_CODEC_H

#include "base/status.h"

#include <grpc/byte_buffer.h>
#include <protobuf-c/protobuf-c.h>
#include <stddef.h>
#include <stdint.h>

/* Gives the message, to be freed with mr_codec_free. INVALID_ARGUMENT (not a message of this type),
 * RESOURCE_EXHAUSTED (over the budget, or memory is short). */
MR_MUST_USE mr_status mr_codec_decode(const ProtobufCMessageDescriptor *type, const uint8_t *data,
                                      size_t bytes, ProtobufCMessage **out, mr_error *err);
void mr_codec_free(ProtobufCMessage *message);

/* As mr_codec_decode, of what a call received. `buffer` is borrowed; NULL, which gRPC gives when
 * the client went away, is CANCELLED. */
MR_MUST_USE mr_status mr_codec_unpack(const ProtobufCMessageDescriptor *type,
                                      grpc_byte_buffer *buffer, ProtobufCMessage **out,
                                      mr_error *err);

/* Gives a byte buffer; never NULL (gRPC's allocator aborts when memory is short). */
grpc_byte_buffer *mr_codec_pack(const ProtobufCMessage *message);

#endif
