/* SPDX-License-Identifier: Apache-2.0 */
#include "service/error_trailers.h"

#include "google/protobuf/any.pb-c.h"
#include "google/protobuf/duration.pb-c.h"
#include "google/rpc/error_details.pb-c.h"
#include "google/rpc/status.pb-c.h"

#include <grpc/slice.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define RETRY_INFO_URL "type.googleapis.com/google.rpc.RetryInfo"

static void add(mr_error_trailers *trailers, const char *key, grpc_slice value)
{
    grpc_metadata *entry = &trailers->metadata[trailers->count++];
    memset(entry, 0, sizeof(*entry));
    entry->key = grpc_slice_from_static_string(key);
    entry->value = value;
}

/* google.rpc.Status with one detail, RetryInfo. */
static grpc_slice status_details(const mr_error *err, const char *message)
{
    Google__Protobuf__Duration delay = GOOGLE__PROTOBUF__DURATION__INIT;
    delay.seconds = err->retry_after_ms / 1000;
    delay.nanos = (int32_t)(err->retry_after_ms % 1000) * 1000000;
    Google__Rpc__RetryInfo info = GOOGLE__RPC__RETRY_INFO__INIT;
    info.retry_delay = &delay;
    uint8_t packed_info[64]; /* tags, lengths and two varints: at most 22 bytes */
    MR_CHECK(google__rpc__retry_info__get_packed_size(&info) <= sizeof(packed_info));

    Google__Protobuf__Any detail = GOOGLE__PROTOBUF__ANY__INIT;
    Google__Protobuf__Any *details[] = {&detail};
    char url[] = RETRY_INFO_URL;
    detail.type_url = url;
    detail.value.len = google__rpc__retry_info__pack(&info, packed_info);
    detail.value.data = packed_info;

    Google__Rpc__Status status = GOOGLE__RPC__STATUS__INIT;
    status.code = (int32_t)err->status;
    status.message.len = strlen(message);
    status.message.data = (uint8_t *)message;
    status.n_details = 1;
    status.details = details;
    grpc_slice slice = grpc_slice_malloc(google__rpc__status__get_packed_size(&status));
    google__rpc__status__pack(&status, GRPC_SLICE_START_PTR(slice));
    return slice;
}

void mr_error_trailers_init(mr_error_trailers *trailers, const mr_error *err)
{
    trailers->count = 0;
    if (err == NULL || err->status == MR_OK) {
        trailers->code = GRPC_STATUS_OK;
        trailers->message = grpc_empty_slice();
        return;
    }
    char message[MR_ERROR_FIELD_MAX + MR_ERROR_MESSAGE_MAX + 2];
    const size_t field = strlen(err->field);
    if (field > 0 && strncmp(err->message, err->field, field) != 0) {
        snprintf(message, sizeof(message), "%s: %s", err->field, err->message);
    } else {
        snprintf(message, sizeof(message), "%s", err->message);
    }
    trailers->code = (grpc_status_code)err->status;
    trailers->message = grpc_slice_from_copied_string(message);
    if (err->retry_after_ms > 0) {
        char text[16];
        snprintf(text, sizeof(text), "%" PRIu32, err->retry_after_ms);
        add(trailers, "retry-after-ms", grpc_slice_from_copied_string(text));
        add(trailers, "grpc-status-details-bin", status_details(err, message));
    }
}

void mr_error_trailers_deinit(mr_error_trailers *trailers)
{
    grpc_slice_unref(trailers->message);
    for (size_t i = 0; i < trailers->count; i++) {
        grpc_slice_unref(trailers->metadata[i].value);
    }
}
