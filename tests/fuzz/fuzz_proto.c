/* SPDX-License-Identifier: Apache-2.0 */
/* The messages that clients send, as bytes: decoding stays within its budget and what was decoded
 * packs again. The first byte picks the message. */
#include "service/codec.h"

#include "millrace/v1/inference.pb-c.h"

#include <grpc/byte_buffer.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const ProtobufCMessageDescriptor *const types[] = {
        &millrace__v1__generate_request__descriptor,
        &millrace__v1__generate_unary_request__descriptor,
        &millrace__v1__tokenize_request__descriptor,
        &millrace__v1__detokenize_request__descriptor,
    };
    if (size == 0) {
        return 0;
    }
    ProtobufCMessage *message = NULL;
    mr_error err = {0};
    const mr_status status =
        mr_codec_decode(types[data[0] % 4], data + 1, size - 1, &message, &err);
    if (status != MR_OK) {
        MR_CHECK(err.status == status && err.message[0] != '\0');
        return 0;
    }
    grpc_byte_buffer *packed = mr_codec_pack(message);
    grpc_byte_buffer_destroy(packed);
    mr_codec_free(message);
    return 0;
}
