/* SPDX-License-Identifier: Apache-2.0 */
#include "service/proto_request.h"

#include "base/checked.h"
#include "base/utf8.h"
#include "service/generation.h"
#include "service/prompt.h"
#include "service/unsupported.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* At least so many bytes are counted for a token when a text is too long by its size alone. */
#define MIN_TOKEN_BYTES 16

static mr_status refuse(const char *name, mr_error *err)
{
    return mr_unsupported_fail(MR_SURFACE_PROTO, name, err);
}

static mr_status refuse_if(bool asked, const char *name, mr_error *err)
{
    return asked ? refuse(name, err) : MR_OK;
}

static mr_status check_text(const ProtobufCBinaryData *text, const char *field, mr_error *err)
{
    size_t bad = 0;
    if (mr_utf8_valid(text->data, text->len, &bad)) {
        return MR_OK;
    }
    return mr_fail_field(err, MR_INVALID_ARGUMENT, field,
                         "%s is not UTF-8: the byte at offset %zu begins no character", field, bad);
}

/* protobuf-c keeps numbers that the enum does not have. */
static mr_status check_enum(int value, const ProtobufCEnumDescriptor *type, const char *field,
                            mr_error *err)
{
    if (protobuf_c_enum_descriptor_get_value(type, value) != NULL) {
        return MR_OK;
    }
    return mr_fail_field(err, MR_INVALID_ARGUMENT, field, "%s is %d: %s has no such value", field,
                         value, type->name);
}

mr_status mr_proto_id_read(const ProtobufCBinaryData *id, char out[MR_REQUEST_ID_MAX + 1],
                           mr_error *err)
{
    MR_TRY(check_text(id, "request_id", err));
    if (id->len > MR_REQUEST_ID_MAX) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, "request_id",
                             "request_id has %zu bytes: at most %d are allowed", id->len,
                             MR_REQUEST_ID_MAX);
    }
    if (id->len > 0 && memchr(id->data, 0, id->len) != NULL) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, "request_id",
                             "request_id holds a NUL: leave it out");
    }
    if (id->len > 0) {
        memcpy(out, id->data, id->len);
    }
    out[id->len] = '\0';
    return MR_OK;
}

static mr_status check_model(const ProtobufCBinaryData *model, const mr_runtime *runtime,
                             mr_error *err)
{
    MR_TRY(check_text(model, "model", err));
    const char *served = mr_runtime_model_name(runtime);
    if (model->len == 0 ||
        (model->len == strlen(served) && memcmp(model->data, served, model->len) == 0)) {
        return MR_OK;
    }
    const int shown = model->len < 128 ? (int)model->len : 128;
    return mr_fail_field(err, MR_NOT_FOUND, "model",
                         "model: \"%.*s\" is not served here; use \"%s\", or leave it out", shown,
                         (const char *)model->data, served);
}

static mr_status out_of_lists(mr_error *err)
{
    return mr_fail(err, MR_RESOURCE_EXHAUSTED, "out of memory for the lists of the request");
}

static mr_status read_choices(const Millrace__V1__Sampling *sampling, mr_generation_ask *ask,
                              mr_generation_lists *lists, mr_error *err)
{
    ask->has_n = sampling->_n_case != MILLRACE__V1__SAMPLING___N__NOT_SET;
    ask->n = sampling->n;
    ask->has_beam_width =
        sampling->_beam_width_case != MILLRACE__V1__SAMPLING___BEAM_WIDTH__NOT_SET;
    ask->beam_width = sampling->beam_width;
    ask->has_length_penalty =
        sampling->_length_penalty_case != MILLRACE__V1__SAMPLING___LENGTH_PENALTY__NOT_SET;
    ask->length_penalty = sampling->length_penalty;
    for (size_t i = 0; i < sampling->n_logit_bias; i++) {
        const Millrace__V1__LogitBias *bias = sampling->logit_bias[i];
        if (mr_generation_lists_bias(lists, bias->token, bias->bias) != MR_OK) {
            return out_of_lists(err);
        }
    }
    return MR_OK;
}

static mr_status read_sampling(const Millrace__V1__Sampling *sampling, mr_generation_ask *ask,
                               mr_generation_lists *lists, mr_error *err)
{
    if (sampling == NULL) {
        return MR_OK;
    }
    MR_TRY(read_choices(sampling, ask, lists, err));
    ask->has_temperature =
        sampling->_temperature_case != MILLRACE__V1__SAMPLING___TEMPERATURE__NOT_SET;
    ask->temperature = sampling->temperature;
    ask->has_top_p = sampling->_top_p_case != MILLRACE__V1__SAMPLING___TOP_P__NOT_SET;
    ask->top_p = sampling->top_p;
    ask->has_top_k = sampling->_top_k_case != MILLRACE__V1__SAMPLING___TOP_K__NOT_SET;
    ask->top_k = sampling->top_k;
    ask->has_min_p = sampling->_min_p_case != MILLRACE__V1__SAMPLING___MIN_P__NOT_SET;
    ask->min_p = sampling->min_p;
    ask->has_seed = sampling->_seed_case != MILLRACE__V1__SAMPLING___SEED__NOT_SET;
    ask->seed = sampling->seed;
    ask->has_repetition_penalty =
        sampling->_repetition_penalty_case != MILLRACE__V1__SAMPLING___REPETITION_PENALTY__NOT_SET;
    ask->repetition_penalty = sampling->repetition_penalty;
    ask->presence_penalty = sampling->presence_penalty;
    ask->frequency_penalty = sampling->frequency_penalty;
    return MR_OK;
}

static mr_status read_stopping(const Millrace__V1__Stopping *stopping, mr_generation_ask *ask,
                               mr_generation_lists *lists, mr_error *err)
{
    if (stopping == NULL) {
        return MR_OK;
    }
    for (size_t i = 0; i < stopping->n_strings; i++) {
        const mr_stop_string string = {stopping->strings[i].data, stopping->strings[i].len};
        if (mr_generation_lists_stop(lists, string) != MR_OK) {
            return out_of_lists(err);
        }
    }
    if (mr_ids_append(&lists->stop_tokens, stopping->token_ids, stopping->n_token_ids) != MR_OK) {
        return out_of_lists(err);
    }
    ask->include_stop_in_text = stopping->include_stop_in_text != 0;
    ask->time_limit_ms = stopping->time_limit_ms;
    ask->has_max_tokens =
        stopping->_max_tokens_case != MILLRACE__V1__STOPPING___MAX_TOKENS__NOT_SET;
    ask->max_tokens = stopping->max_tokens;
    ask->min_tokens = stopping->min_tokens;
    ask->ignore_eos = stopping->ignore_eos != 0;
    return MR_OK;
}

static mr_status read_output(const Millrace__V1__Output *output, mr_generation_ask *ask,
                             mr_proto_request *out, mr_error *err)
{
    if (output == NULL) {
        return MR_OK;
    }
    MR_TRY(check_enum((int)output->logprobs_mode, &millrace__v1__logprobs_mode__descriptor,
                      "output.logprobs_mode", err));
    ask->prompt_logprobs = output->prompt_logprobs != 0;
    ask->logprobs = output->logprobs != 0;
    ask->top_logprobs = output->top_logprobs;
    ask->logprobs_processed =
        output->logprobs_mode == MILLRACE__V1__LOGPROBS_MODE__LOGPROBS_MODE_PROCESSED;
    ask->skip_text = output->skip_text != 0;
    ask->keep_special_tokens = output->keep_special_tokens != 0;
    out->skip_text = ask->skip_text;
    out->show_prompt = output->echo_prompt_ids != 0 || ask->prompt_logprobs;
    return MR_OK;
}

static mr_status read_cache_salt(const ProtobufCBinaryData *salt, mr_generation_lists *lists,
                                 mr_error *err)
{
    MR_TRY(check_text(salt, "cache_salt", err));
    return mr_generation_lists_salt(lists, salt->data, salt->len) == MR_OK
               ? MR_OK
               : mr_fail(err, MR_RESOURCE_EXHAUSTED, "out of memory for a cache salt");
}

static mr_status check_speculation(const Millrace__V1__Speculation *speculation, mr_error *err)
{
    if (speculation == NULL) {
        return MR_OK;
    }
    const Millrace__V1__SpeculationMethod method = speculation->method;
    MR_TRY(check_enum((int)method, &millrace__v1__speculation_method__descriptor,
                      "speculation.method", err));
    /* Left to the server, or none: none. */
    return refuse_if(method > MILLRACE__V1__SPECULATION_METHOD__SPECULATION_METHOD_NONE,
                     "speculation.method", err);
}

static mr_status check_features(const Millrace__V1__GenerateRequest *message, mr_error *err)
{
    MR_TRY(check_speculation(message->speculation, err));
    if (message->constraint != NULL) {
        if (message->constraint->kind_case == MILLRACE__V1__CONSTRAINT__KIND__NOT_SET) {
            return mr_fail_field(err, MR_INVALID_ARGUMENT, "constraint",
                                 "constraint is empty: set its kind, or leave it out");
        }
        return refuse("constraint", err);
    }
    const bool sparse =
        message->sparse_attention != NULL && message->sparse_attention->budget_tokens > 0;
    return refuse_if(sparse, "sparse_attention", err);
}

static mr_status check_message(const Millrace__V1__Message *message, mr_error *err)
{
    MR_TRY(refuse_if(message->name.len > 0, "chat.messages.name", err));
    MR_TRY(refuse_if(message->tool_call_id.len > 0, "chat.messages.tool_call_id", err));
    MR_TRY(refuse_if(message->tool_calls_json.len > 0, "chat.messages.tool_calls_json", err));
    MR_TRY(check_text(&message->role, "chat.messages.role", err));
    return check_text(&message->content, "chat.messages.content", err);
}

/* No variables: nothing, or an object without members. */
static bool has_variables(const ProtobufCBinaryData *json)
{
    return json->len > 0 && !(json->len == 2 && memcmp(json->data, "{}", 2) == 0);
}

static mr_status check_chat(const Millrace__V1__Chat *chat, const mr_model *model, mr_error *err)
{
    MR_TRY(refuse_if(chat->n_tools_json > 0, "chat.tools_json", err));
    MR_TRY(refuse_if(has_variables(&chat->template_kwargs_json), "chat.template_kwargs_json", err));
    for (size_t i = 0; i < chat->n_messages; i++) {
        MR_TRY(check_message(chat->messages[i], err));
    }
    if (mr_model_tokenizer(model) == NULL) {
        return mr_fail_field(err, MR_FAILED_PRECONDITION, "chat",
                             "chat: the model has no tokenizer; give token ids instead");
    }
    return MR_OK;
}

static mr_status encode_chat(const mr_model *model, const mr_chat_message *messages,
                             const Millrace__V1__Chat *chat, mr_ids *out, mr_error *err)
{
    mr_chat_rendered rendered = {0};
    mr_status status = mr_chat_render(mr_model_chat(model), messages, chat->n_messages,
                                      !chat->no_generation_prompt, &rendered, err);
    if (status == MR_OK) {
        const mr_encode_options options = {
            .parse_special = true, .plain = rendered.plain, .n_plain = rendered.n_plain};
        status = mr_tokenizer_encode(mr_model_tokenizer(model), rendered.text.data,
                                     rendered.text.size, &options, out, err);
    }
    mr_chat_rendered_deinit(&rendered);
    return status;
}

mr_status mr_proto_chat_read(const Millrace__V1__Chat *chat, const mr_model *model, mr_ids *out,
                             mr_error *err)
{
    MR_TRY(check_chat(chat, model, err));
    mr_chat_message *messages = mr_calloc(chat->n_messages + 1, sizeof(*messages));
    if (messages == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "out of memory for %zu chat messages",
                       chat->n_messages);
    }
    for (size_t i = 0; i < chat->n_messages; i++) {
        const Millrace__V1__Message *message = chat->messages[i];
        messages[i].role = (mr_bytes){message->role.data, message->role.len};
        messages[i].content = (mr_bytes){message->content.data, message->content.len};
    }
    const mr_status status = encode_chat(model, messages, chat, out, err);
    free(messages);
    if (status != MR_OK && err != NULL) {
        /* The layers below do not know what the messages are called here. */
        snprintf(err->field, sizeof(err->field), "chat.messages");
    }
    return status;
}

/* Bytes of text, before a template. */
static size_t text_bytes(const Millrace__V1__GenerateRequest *message, const char **field)
{
    if (message->input_case == MILLRACE__V1__GENERATE_REQUEST__INPUT_TEXT) {
        *field = "text";
        return message->text.len;
    }
    if (message->input_case != MILLRACE__V1__GENERATE_REQUEST__INPUT_CHAT) {
        return 0;
    }
    *field = "chat.messages";
    size_t bytes = 0; /* of one message in memory: no overflow */
    for (size_t i = 0; i < message->chat->n_messages; i++) {
        bytes += message->chat->messages[i]->content.len;
    }
    return bytes;
}

/* What cannot be a prompt in any case is not turned into tokens first: that takes seconds for tens
 * of MiB, and all streams of this thread would wait. */
static mr_status check_length(const Millrace__V1__GenerateRequest *message, const mr_model *model,
                              uint32_t max_seq_length, mr_error *err)
{
    const mr_tokenizer *tokenizer = mr_model_tokenizer(model);
    const char *field = NULL;
    const size_t bytes = text_bytes(message, &field);
    if (tokenizer == NULL) {
        return MR_OK;
    }
    size_t most = mr_tokenizer_longest_token(tokenizer);
    /* Normalisers make text shorter, by less than this. */
    most = (most < MIN_TOKEN_BYTES ? MIN_TOKEN_BYTES : most) * max_seq_length;
    if (bytes <= most) {
        return MR_OK;
    }
    return mr_fail_field(err, MR_INVALID_ARGUMENT, field,
                         "%s has %zu bytes, more than any %" PRIu32 " tokens stand for, which "
                         "prompt and output together may have: shorten it",
                         field, bytes, max_seq_length);
}

static mr_status read_input(const Millrace__V1__GenerateRequest *message, const mr_model *model,
                            const char **field, mr_ids *out, mr_error *err)
{
    switch (message->input_case) {
    case MILLRACE__V1__GENERATE_REQUEST__INPUT_TEXT:
        *field = "text";
        return mr_prompt_from_text(model, (mr_bytes){message->text.data, message->text.len}, *field,
                                   out, err);
    case MILLRACE__V1__GENERATE_REQUEST__INPUT_TOKENS:
        *field = "tokens.ids";
        if (mr_ids_append(out, message->tokens->ids, message->tokens->n_ids) != MR_OK) {
            return mr_fail(err, MR_RESOURCE_EXHAUSTED, "out of memory for %zu prompt tokens",
                           message->tokens->n_ids);
        }
        return MR_OK;
    case MILLRACE__V1__GENERATE_REQUEST__INPUT_CHAT:
        *field = "chat.messages";
        return mr_proto_chat_read(message->chat, model, out, err);
    case MILLRACE__V1__GENERATE_REQUEST__INPUT__NOT_SET:
    default:
        return mr_fail_field(err, MR_INVALID_ARGUMENT, "input",
                             "input is missing: set text, tokens or chat");
    }
}

/* Beams run together or not at all. */
static mr_status check_beams(const mr_request_params *params, const mr_config *config,
                             mr_error *err)
{
    if (params->beam_width <= config->max_batch_size) {
        return MR_OK;
    }
    return mr_fail_field(err, MR_INVALID_ARGUMENT, "sampling.beam_width",
                         "sampling.beam_width is %" PRIu32 ", and max_batch_size of this server is "
                         "%" PRIu32 ": lower the one, or raise the other",
                         params->beam_width, config->max_batch_size);
}

mr_status mr_proto_request_read(const Millrace__V1__GenerateRequest *message,
                                const mr_runtime *runtime, mr_proto_request *out, mr_error *err)
{
    *out = (mr_proto_request){0};
    mr_generation_ask ask = {0};
    MR_TRY(mr_proto_id_read(&message->request_id, out->id, err));
    MR_TRY(check_model(&message->model, runtime, err));
    MR_TRY(check_features(message, err));
    MR_TRY(read_sampling(message->sampling, &ask, &out->lists, err));
    MR_TRY(read_stopping(message->stopping, &ask, &out->lists, err));
    MR_TRY(read_output(message->output, &ask, out, err));
    ask.priority = message->priority;
    MR_TRY(read_cache_salt(&message->cache_salt, &out->lists, err));
    mr_generation_lists_view(&out->lists, &ask);
    MR_TRY(mr_generation_check(&ask, MR_SURFACE_PROTO, &out->params, err));

    MR_TRY(check_beams(&out->params, mr_runtime_config(runtime), err));
    const mr_model *model = mr_runtime_model(runtime);
    MR_TRY(mr_generation_check_model(&ask, MR_SURFACE_PROTO, model, err));
    mr_generation_fill_defaults(&ask, model, &out->params);
    MR_TRY(mr_generation_lists_make_stop(&out->lists, err));
    const char *field = "input";
    MR_TRY(check_length(message, model, mr_runtime_config(runtime)->max_seq_length, err));
    MR_TRY(read_input(message, model, &field, &out->prompt, err));
    return mr_generation_check_prompt(&out->prompt, mr_model_config_get(model)->vocab_size,
                                      mr_runtime_config(runtime)->max_seq_length, field,
                                      &out->params, err);
}

void mr_proto_request_deinit(mr_proto_request *request)
{
    mr_ids_deinit(&request->prompt);
    mr_generation_lists_deinit(&request->lists);
}
