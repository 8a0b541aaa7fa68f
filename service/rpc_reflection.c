/* SPDX-License-Identifier: Apache-2.0 */
/* grpc.reflection v1 and v1alpha, whose messages are the same: one request is answered, then the
 * next is received. */
#include "base/utf8.h"
#include "service/call.h"
#include "service/codec.h"
#include "service/descriptors.h"

#include "grpc/reflection/v1/reflection.pb-c.h"

#include <stdlib.h>
#include <string.h>

/* A request is echoed, so it is bounded. */
#define MAX_REQUEST_BYTES 8192u
#define MAX_FILES         16u
#define MAX_SERVICES      16u
#define ADMIN_SERVICE     "millrace.v1.AdminService"

typedef Grpc__Reflection__V1__ServerReflectionRequest reflection_request;
typedef Grpc__Reflection__V1__ServerReflectionResponse reflection_response;

/* A response and what it points to. */
typedef struct answer {
    reflection_response message;
    Grpc__Reflection__V1__FileDescriptorResponse files;
    ProtobufCBinaryData contents[MAX_FILES];
    Grpc__Reflection__V1__ListServiceResponse list;
    Grpc__Reflection__V1__ServiceResponse services[MAX_SERVICES];
    Grpc__Reflection__V1__ServiceResponse *service_refs[MAX_SERVICES];
    Grpc__Reflection__V1__ExtensionNumberResponse extensions;
    Grpc__Reflection__V1__ErrorResponse failure;
    mr_error err;
} answer;

static ProtobufCBinaryData text(const char *value)
{
    /* protobuf-c only reads what it packs. */
    return (ProtobufCBinaryData){.len = strlen(value), .data = (uint8_t *)value};
}

static void answer_error(answer *a)
{
    grpc__reflection__v1__error_response__init(&a->failure);
    a->failure.error_code = (int32_t)a->err.status;
    a->failure.error_message = text(a->err.message);
    a->message.message_response_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_ERROR_RESPONSE;
    a->message.error_response = &a->failure;
}

static void answer_not_found(answer *a, const char *what, const ProtobufCBinaryData *name)
{
    const int shown = name->len < 200 ? (int)name->len : 200;
    (void)mr_fail(&a->err, MR_NOT_FOUND, "there is no %s \"%.*s\" here", what, shown,
                  (const char *)name->data);
    answer_error(a);
}

static void answer_file(answer *a, const mr_descriptor_file *file)
{
    MR_CHECK(file->n_closure <= MAX_FILES);
    for (size_t i = 0; i < file->n_closure; i++) {
        const mr_descriptor_file *needed = &mr_descriptor_files[file->closure[i]];
        a->contents[i] =
            (ProtobufCBinaryData){.len = needed->size, .data = (uint8_t *)needed->data};
    }
    grpc__reflection__v1__file_descriptor_response__init(&a->files);
    a->files.n_file_descriptor_proto = file->n_closure;
    a->files.file_descriptor_proto = a->contents;
    a->message.message_response_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_FILE_DESCRIPTOR_RESPONSE;
    a->message.file_descriptor_response = &a->files;
}

static bool equals(const ProtobufCBinaryData *name, const char *known)
{
    return name->len == strlen(known) && memcmp(name->data, known, name->len) == 0;
}

static void answer_file_name(answer *a, const ProtobufCBinaryData *name)
{
    for (size_t i = 0; i < mr_descriptor_n_files; i++) {
        if (name->len > 0 && equals(name, mr_descriptor_files[i].name)) {
            answer_file(a, &mr_descriptor_files[i]);
            return;
        }
    }
    answer_not_found(a, "file", name);
}

static int compare_symbol(const void *key, const void *entry)
{
    const ProtobufCBinaryData *name = key;
    const mr_descriptor_symbol *symbol = entry;
    const size_t length = strlen(symbol->name);
    const size_t common = name->len < length ? name->len : length;
    const int order = common == 0 ? 0 : memcmp(name->data, symbol->name, common);
    if (order != 0) {
        return order;
    }
    return name->len < length ? -1 : name->len > length;
}

static const mr_descriptor_symbol *find_symbol(const ProtobufCBinaryData *name)
{
    return bsearch(name, mr_descriptor_symbols, mr_descriptor_n_symbols,
                   sizeof(mr_descriptor_symbols[0]), compare_symbol);
}

static void answer_symbol(answer *a, const ProtobufCBinaryData *name)
{
    const mr_descriptor_symbol *symbol = find_symbol(name);
    if (symbol == NULL) {
        answer_not_found(a, "symbol", name);
        return;
    }
    answer_file(a, &mr_descriptor_files[symbol->file]);
}

/* No file here extends anything: a known type has no extensions. */
static void answer_extension_numbers(answer *a, const ProtobufCBinaryData *type)
{
    if (find_symbol(type) == NULL) {
        answer_not_found(a, "message type", type);
        return;
    }
    grpc__reflection__v1__extension_number_response__init(&a->extensions);
    a->extensions.base_type_name = *type;
    a->message.message_response_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_ALL_EXTENSION_NUMBERS_RESPONSE;
    a->message.all_extension_numbers_response = &a->extensions;
}

static void answer_services(answer *a, const mr_server *server)
{
    MR_CHECK(mr_descriptor_n_services <= MAX_SERVICES);
    size_t count = 0;
    for (size_t i = 0; i < mr_descriptor_n_services; i++) {
        const char *name = mr_descriptor_services[i];
        if (!server->admin && strcmp(name, ADMIN_SERVICE) == 0) {
            continue;
        }
        grpc__reflection__v1__service_response__init(&a->services[count]);
        a->services[count].name = text(name);
        a->service_refs[count] = &a->services[count];
        count++;
    }
    grpc__reflection__v1__list_service_response__init(&a->list);
    a->list.n_service = count;
    a->list.service = a->service_refs;
    a->message.message_response_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_LIST_SERVICES_RESPONSE;
    a->message.list_services_response = &a->list;
}

static void send_answer(mr_call *call, reflection_request *request)
{
    answer a;
    memset(&a, 0, sizeof(a));
    grpc__reflection__v1__server_reflection_response__init(&a.message);
    a.message.valid_host = request->host;
    a.message.original_request = request;
    switch (request->message_request_case) {
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_BY_FILENAME:
        answer_file_name(&a, &request->file_by_filename);
        break;
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_CONTAINING_SYMBOL:
        answer_symbol(&a, &request->file_containing_symbol);
        break;
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_CONTAINING_EXTENSION:
        answer_not_found(&a, "extension of", &request->file_containing_extension->containing_type);
        break;
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_ALL_EXTENSION_NUMBERS_OF_TYPE:
        answer_extension_numbers(&a, &request->all_extension_numbers_of_type);
        break;
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_LIST_SERVICES:
        answer_services(&a, call->queue->server);
        break;
    default:
        (void)mr_fail(&a.err, MR_INVALID_ARGUMENT, "message_request is not set: ask for something");
        answer_error(&a);
        break;
    }
    mr_call_send(call, &a.message.base);
}

static bool is_text(const ProtobufCBinaryData *value)
{
    return value->len == 0 || mr_utf8_valid(value->data, value->len, NULL);
}

/* What is echoed must be UTF-8, or clients could not decode it. */
static bool has_text(const reflection_request *request)
{
    if (!is_text(&request->host)) {
        return false;
    }
    switch (request->message_request_case) {
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_BY_FILENAME:
        return is_text(&request->file_by_filename);
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_CONTAINING_SYMBOL:
        return is_text(&request->file_containing_symbol);
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_CONTAINING_EXTENSION:
        return is_text(&request->file_containing_extension->containing_type);
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_ALL_EXTENSION_NUMBERS_OF_TYPE:
        return is_text(&request->all_extension_numbers_of_type);
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_LIST_SERVICES:
        return is_text(&request->list_services);
    default:
        return true;
    }
}

static mr_status read_request(mr_call *call, ProtobufCMessage **out, mr_error *err)
{
    if (grpc_byte_buffer_length(call->payload) > MAX_REQUEST_BYTES) {
        return mr_fail(err, MR_INVALID_ARGUMENT, "a reflection request has at most %u bytes",
                       MAX_REQUEST_BYTES);
    }
    MR_TRY(mr_call_unpack(call, &grpc__reflection__v1__server_reflection_request__descriptor, out,
                          err));
    if (!has_text((reflection_request *)*out)) {
        mr_codec_free(*out);
        return mr_fail(err, MR_INVALID_ARGUMENT, "a name in the reflection request is not UTF-8");
    }
    return MR_OK;
}

/* Ends a stream that should not go on: the client left, or the server goes. */
static bool ends(mr_call *call)
{
    mr_error err;
    if (call->gone) {
        (void)mr_fail(&err, MR_CANCELLED, "the client cancelled the call");
    } else if (mr_flag_get(&call->queue->server->leaving) &&
               mr_flag_get(&call->queue->server->refusing)) {
        (void)mr_fail(&err, MR_UNAVAILABLE, "the server is shutting down");
    } else {
        return false;
    }
    mr_call_finish(call, NULL, &err);
    return true;
}

static void handle(mr_call *call)
{
    if (call->finished || ends(call)) {
        return;
    }
    if (call->payload == NULL) {
        mr_call_finish(call, NULL, NULL); /* the client has asked all it wanted */
        return;
    }
    mr_error err;
    ProtobufCMessage *message = NULL;
    if (read_request(call, &message, &err) != MR_OK) {
        mr_call_finish(call, NULL, &err);
        return;
    }
    MR_CHECK(message != NULL);
    send_answer(call, (reflection_request *)message);
    mr_codec_free(message);
}

static void begin(mr_call *call)
{
    if (!call->queue->server->reflection) {
        mr_error err;
        (void)mr_fail(&err, MR_UNIMPLEMENTED,
                      "reflection is off here: start the server with --set reflection.enable=true");
        mr_call_finish(call, NULL, &err);
        return;
    }
    handle(call);
}

static void on_sent(mr_call *call)
{
    if (!ends(call)) {
        mr_call_receive(call);
    }
}

/* With an answer on its way, on_sent ends the call. */
static void look(mr_call *call)
{
    if (!call->finished && !call->sending) {
        (void)ends(call);
    }
}

const mr_rpc_method mr_rpc_reflection = {
    .path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    .begin = begin,
    .resume = on_sent,
    .received = handle,
    .cancelled = look,
    .tick = look,
};

const mr_rpc_method mr_rpc_reflection_alpha = {
    .path = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    .begin = begin,
    .resume = on_sent,
    .received = handle,
    .cancelled = look,
    .tick = look,
};
