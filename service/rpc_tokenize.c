/* SPDX-License-Identifier: Apache-2.0 */
/* Tokenize and Detokenize, on the text worker when that takes long. */
#include "base/checked.h"
#include "base/utf8.h"
#include "service/call.h"
#include "service/codec.h"
#include "service/proto_request.h"

#include <stdio.h>
#include <stdlib.h>

static mr_status need_tokenizer(const mr_model *model, mr_error *err)
{
    if (mr_model_tokenizer(model) != NULL) {
        return MR_OK;
    }
    return mr_fail(err, MR_FAILED_PRECONDITION, "the model has no tokenizer");
}

/* A call of one of the two, on its way through the text worker. */
typedef struct text_call {
    mr_text_job job; /* first */
    mr_call *call;
    const mr_model *model;
    ProtobufCMessage *message; /* owns */
    mr_ids ids;                /* Tokenize: the answer */
    ProtobufCBinaryData *raw;
    mr_buffer text; /* Detokenize: the answer */
    mr_status status;
    mr_error err;
} text_call;

static void text_call_free(text_call *work)
{
    if (work->message != NULL) {
        mr_codec_free(work->message);
    }
    mr_ids_deinit(&work->ids);
    free(work->raw);
    mr_buffer_deinit(&work->text);
    free(work);
}

/* Answers, if the answer fits into what a client takes. */
static void answer(mr_call *call, const ProtobufCMessage *response)
{
    const size_t bytes = protobuf_c_message_get_packed_size(response);
    if (bytes <= MR_RPC_MAX_ANSWER_BYTES) {
        mr_call_finish(call, response, NULL);
        return;
    }
    mr_error err;
    (void)mr_fail(&err, MR_RESOURCE_EXHAUSTED,
                  "the answer has %zu bytes, and one message may have %d: send it in parts", bytes,
                  MR_RPC_MAX_ANSWER_BYTES);
    mr_call_finish(call, NULL, &err);
}

/* `response` is NULL when the work failed. */
static void end(text_call *work, const ProtobufCMessage *response)
{
    mr_call *call = work->call;
    call->state = NULL;
    if (call->finished) {
        /* The client left, or a drain cut the call off. */
    } else if (work->job.skipped) {
        mr_server_fail_cut_off(&work->err);
        mr_call_finish(call, NULL, &work->err);
    } else if (response == NULL) {
        mr_call_finish(call, NULL, &work->err);
    } else {
        answer(call, response);
    }
    text_call_free(work);
    mr_call_release(call);
}

/* An answer has all the bytes of the text, and more: what it cannot hold is not turned into tokens
 * first, for as long as that takes other long texts wait. */
static mr_status check_length(const Millrace__V1__TokenizeRequest *asked, mr_error *err)
{
    const bool chat = asked->input_case == MILLRACE__V1__TOKENIZE_REQUEST__INPUT_CHAT;
    const bool text = asked->input_case == MILLRACE__V1__TOKENIZE_REQUEST__INPUT_TEXT;
    size_t bytes = text ? asked->text.len : 0;
    for (size_t i = 0; chat && i < asked->chat->n_messages; i++) {
        bytes += asked->chat->messages[i]->content.len;
    }
    if (bytes <= MR_RPC_MAX_ANSWER_BYTES) {
        return MR_OK;
    }
    return mr_fail_field(err, MR_RESOURCE_EXHAUSTED, chat ? "chat.messages" : "text",
                         "%s has %zu bytes, and one message of the answer may have %d: send it in "
                         "parts",
                         chat ? "chat.messages" : "text", bytes, MR_RPC_MAX_ANSWER_BYTES);
}

static mr_status open_call(text_call *work, const ProtobufCMessageDescriptor *type)
{
    mr_runtime *runtime = NULL;
    MR_TRY(mr_server_runtime(work->call->queue->server, &runtime, &work->err));
    work->model = mr_runtime_model(runtime);
    MR_TRY(need_tokenizer(work->model, &work->err));
    return mr_call_unpack(work->call, type, &work->message, &work->err);
}

/* Decodes the payload and has the work done. */
static void begin(mr_call *call, const ProtobufCMessageDescriptor *type,
                  void (*run)(mr_text_job *job), void (*done)(mr_text_job *job))
{
    text_call *work = mr_calloc(1, sizeof(*work));
    if (work == NULL) {
        mr_error err;
        (void)mr_fail(&err, MR_RESOURCE_EXHAUSTED, "out of memory for a text");
        mr_call_finish(call, NULL, &err);
        return;
    }
    work->call = call;
    call->state = work;
    work->job.run = run;
    work->job.done = done;
    const uint64_t bytes = mr_call_payload_bytes(call);
    mr_call_hold(call); /* until `done` */
    if (open_call(work, type) != MR_OK) {
        end(work, NULL);
        return;
    }
    mr_call_drop_payload(call);
    mr_text_work(call->queue, &work->job, bytes);
}

static bool parses_special(const Millrace__V1__TokenizeRequest *asked)
{
    return asked->_parse_special_case == MILLRACE__V1__TOKENIZE_REQUEST___PARSE_SPECIAL__NOT_SET ||
           asked->parse_special;
}

static mr_status encode_text(const Millrace__V1__TokenizeRequest *asked, const mr_model *model,
                             mr_ids *ids, mr_error *err)
{
    const mr_encode_options options = {.add_special = asked->add_special != 0,
                                       .parse_special = parses_special(asked)};
    const mr_status status = mr_tokenizer_encode(mr_model_tokenizer(model), asked->text.data,
                                                 asked->text.len, &options, ids, err);
    if (status == MR_INVALID_ARGUMENT) {
        snprintf(err->field, sizeof(err->field), "text");
        (void)mr_fail_context(err, "text");
    }
    return status;
}

/* The template says which special tokens there are, and what was said never becomes one. */
static mr_status encode_chat(const Millrace__V1__TokenizeRequest *asked, const mr_model *model,
                             mr_ids *ids, mr_error *err)
{
    const char *field = asked->add_special       ? "add_special"
                        : !parses_special(asked) ? "parse_special"
                                                 : NULL;
    if (field != NULL) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, field,
                             "%s is for text: a chat's template has its special tokens; leave it "
                             "out",
                             field);
    }
    return mr_proto_chat_read(asked->chat, model, ids, err);
}

static mr_status encode(const Millrace__V1__TokenizeRequest *asked, const mr_model *model,
                        mr_ids *ids, mr_error *err)
{
    MR_TRY(check_length(asked, err));
    switch (asked->input_case) {
    case MILLRACE__V1__TOKENIZE_REQUEST__INPUT_TEXT:
        return encode_text(asked, model, ids, err);
    case MILLRACE__V1__TOKENIZE_REQUEST__INPUT_CHAT:
        return encode_chat(asked, model, ids, err);
    case MILLRACE__V1__TOKENIZE_REQUEST__INPUT__NOT_SET:
    default:
        return mr_fail_field(err, MR_INVALID_ARGUMENT, "input",
                             "input is missing: set text or chat");
    }
}

static mr_status list_bytes(const mr_tokenizer *tokenizer, const mr_ids *ids,
                            ProtobufCBinaryData **out, mr_error *err)
{
    *out = mr_calloc(ids->count + 1, sizeof(**out));
    if (*out == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "out of memory for %zu tokens", ids->count);
    }
    for (size_t i = 0; i < ids->count; i++) {
        const mr_bytes bytes = mr_tokenizer_token_bytes(tokenizer, ids->data[i]);
        /* protobuf-c only reads what it packs. */
        (*out)[i] = (ProtobufCBinaryData){bytes.size, (uint8_t *)(uintptr_t)bytes.data};
    }
    return MR_OK;
}

static void run_tokenize(mr_text_job *job)
{
    text_call *work = (text_call *)job;
    work->status = encode((const Millrace__V1__TokenizeRequest *)work->message, work->model,
                          &work->ids, &work->err);
    if (work->status == MR_OK) {
        work->status =
            list_bytes(mr_model_tokenizer(work->model), &work->ids, &work->raw, &work->err);
    }
}

static void tokenized(mr_text_job *job)
{
    text_call *work = (text_call *)job;
    Millrace__V1__TokenizeResponse response = MILLRACE__V1__TOKENIZE_RESPONSE__INIT;
    response.n_ids = work->ids.count;
    response.ids = work->ids.data;
    response.n_raw = work->ids.count;
    response.raw = work->raw;
    end(work, work->status == MR_OK ? &response.base : NULL);
}

static void begin_tokenize(mr_call *call)
{
    begin(call, &millrace__v1__tokenize_request__descriptor, run_tokenize, tokenized);
}

static mr_status decode(const Millrace__V1__DetokenizeRequest *asked, const mr_model *model,
                        mr_buffer *text, mr_error *err)
{
    mr_buffer bytes = {0};
    mr_status status = mr_tokenizer_decode(mr_model_tokenizer(model), asked->ids, asked->n_ids,
                                           asked->keep_special_tokens != 0, &bytes, err);
    if (status == MR_INVALID_ARGUMENT) {
        snprintf(err->field, sizeof(err->field), "ids");
        (void)mr_fail_context(err, "ids");
    }
    if (status == MR_OK && mr_utf8_append_lossy(text, bytes.data, bytes.size) != MR_OK) {
        status = mr_fail(err, MR_RESOURCE_EXHAUSTED, "out of memory for the text of %zu tokens",
                         asked->n_ids);
    }
    mr_buffer_deinit(&bytes);
    return status;
}

static void run_detokenize(mr_text_job *job)
{
    text_call *work = (text_call *)job;
    work->status = decode((const Millrace__V1__DetokenizeRequest *)work->message, work->model,
                          &work->text, &work->err);
}

static void detokenized(mr_text_job *job)
{
    text_call *work = (text_call *)job;
    Millrace__V1__DetokenizeResponse response = MILLRACE__V1__DETOKENIZE_RESPONSE__INIT;
    response.text = (ProtobufCBinaryData){work->text.size, work->text.data};
    end(work, work->status == MR_OK ? &response.base : NULL);
}

static void begin_detokenize(mr_call *call)
{
    begin(call, &millrace__v1__detokenize_request__descriptor, run_detokenize, detokenized);
}

/* What is still in the worker's hands need not be done. */
static void give_up(mr_call *call, const mr_error *err)
{
    text_call *work = call->state;
    mr_flag_set(&work->job.abandoned);
    mr_call_finish(call, NULL, err);
}

static void on_cancelled(mr_call *call)
{
    mr_error err;
    if (call->state != NULL && !call->finished) {
        (void)mr_fail(&err, MR_CANCELLED, "the client cancelled the call, or its deadline passed");
        give_up(call, &err);
    }
}

static void on_tick(mr_call *call)
{
    mr_error err;
    if (call->state != NULL && !call->finished && mr_flag_get(&call->queue->server->cut_off)) {
        mr_server_fail_cut_off(&err);
        give_up(call, &err);
    }
}

const mr_rpc_method mr_rpc_tokenize = {
    .path = "/millrace.v1.InferenceService/Tokenize",
    .begin = begin_tokenize,
    .cancelled = on_cancelled,
    .tick = on_tick,
};

const mr_rpc_method mr_rpc_detokenize = {
    .path = "/millrace.v1.InferenceService/Detokenize",
    .begin = begin_detokenize,
    .cancelled = on_cancelled,
    .tick = on_tick,
};
