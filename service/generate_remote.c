/* SPDX-License-Identifier: Apache-2.0 */
#include "service/generate_remote.h"

#include "service/client.h"

typedef struct receiver {
    mr_result *result;
    mr_result_fn news;
    void *ctx;
    mr_status status; /* why it stopped, MR_OK otherwise */
} receiver;

static mr_status take_token(mr_result *result, const Millrace__V1__Token *token)
{
    mr_result_token logprob = {.id = token->id, .logprob = token->logprob};
    for (size_t i = 0; i < token->n_top && i < MR_MAX_TOP; i++) {
        logprob.top[i] =
            (mr_alternative){.token = token->top[i]->id, .logprob = token->top[i]->logprob};
        logprob.n_top++;
    }
    return mr_result_add_token(result, token->id, &logprob);
}

static mr_status take_chunk(mr_result *result, const Millrace__V1__Chunk *chunk)
{
    MR_TRY(mr_buffer_append(&result->text, chunk->text.data, chunk->text.len));
    for (size_t i = 0; i < chunk->n_tokens; i++) {
        MR_TRY(take_token(result, chunk->tokens[i]));
    }
    if (chunk->seed != 0) {
        result->seed = chunk->seed;
    }
    if (chunk->finish_reason > 0 && (int)chunk->finish_reason <= MR_FINISH_ERROR) {
        result->finish = (mr_finish)chunk->finish_reason;
    }
    if (chunk->_matched_stop_token_case != MILLRACE__V1__CHUNK___MATCHED_STOP_TOKEN__NOT_SET) {
        result->matched_token = chunk->matched_stop_token;
    }
    return mr_buffer_append(&result->matched_stop, chunk->matched_stop.data,
                            chunk->matched_stop.len);
}

static bool on_response(void *ctx, const Millrace__V1__GenerateResponse *response)
{
    receiver *r = ctx;
    for (size_t i = 0; i < response->n_chunks && r->status == MR_OK; i++) {
        r->status = take_chunk(r->result, response->chunks[i]);
    }
    if (response->usage != NULL) {
        r->result->prompt_tokens = response->usage->prompt_tokens;
        r->result->cached_tokens = response->usage->cached_tokens;
    }
    r->news(r->ctx, r->result);
    return r->status == MR_OK;
}

void mr_generate_remote_sampling(const mr_generation_ask *ask, Millrace__V1__Sampling *sampling)
{
    if (ask->has_temperature) {
        sampling->_temperature_case = MILLRACE__V1__SAMPLING___TEMPERATURE_TEMPERATURE;
        sampling->temperature = ask->temperature;
    }
    if (ask->has_top_p) {
        sampling->_top_p_case = MILLRACE__V1__SAMPLING___TOP_P_TOP_P;
        sampling->top_p = ask->top_p;
    }
    if (ask->has_top_k) {
        sampling->_top_k_case = MILLRACE__V1__SAMPLING___TOP_K_TOP_K;
        sampling->top_k = (uint32_t)ask->top_k;
    }
    if (ask->has_min_p) {
        sampling->_min_p_case = MILLRACE__V1__SAMPLING___MIN_P_MIN_P;
        sampling->min_p = ask->min_p;
    }
    if (ask->has_seed) {
        sampling->_seed_case = MILLRACE__V1__SAMPLING___SEED_SEED;
        sampling->seed = ask->seed;
    }
}

static void fill_stopping(const mr_generation_ask *ask, ProtobufCBinaryData *strings,
                          Millrace__V1__Stopping *stopping)
{
    if (ask->has_max_tokens) {
        stopping->_max_tokens_case = MILLRACE__V1__STOPPING___MAX_TOKENS_MAX_TOKENS;
        stopping->max_tokens = (uint32_t)ask->max_tokens;
    }
    for (size_t i = 0; i < ask->n_stops; i++) {
        strings[i] = (ProtobufCBinaryData){.len = ask->stops[i].bytes,
                                           .data = (uint8_t *)(uintptr_t)ask->stops[i].data};
    }
    stopping->n_strings = ask->n_stops;
    stopping->strings = strings;
}

mr_status mr_generate_remote(const mr_remote_ask *ask, mr_result_fn news, void *ctx,
                             mr_result *result, mr_error *err)
{
    static const char user[] = "user";
    Millrace__V1__Sampling sampling;
    millrace__v1__sampling__init(&sampling);
    mr_generate_remote_sampling(ask->generation, &sampling);
    Millrace__V1__Stopping stopping;
    millrace__v1__stopping__init(&stopping);
    ProtobufCBinaryData stops[MR_MAX_STOP_STRINGS];
    fill_stopping(ask->generation, stops, &stopping);
    ProtobufCBinaryData prompt = {ask->prompt.size, (uint8_t *)(uintptr_t)ask->prompt.data};
    Millrace__V1__Message message;
    millrace__v1__message__init(&message);
    message.role = (ProtobufCBinaryData){sizeof(user) - 1, (uint8_t *)(uintptr_t)user};
    message.content = prompt;
    Millrace__V1__Message *messages[] = {&message};
    Millrace__V1__Chat chat;
    millrace__v1__chat__init(&chat);
    chat.n_messages = 1;
    chat.messages = messages;

    Millrace__V1__GenerateRequest request;
    millrace__v1__generate_request__init(&request);
    request.sampling = &sampling;
    request.stopping = &stopping;
    if (ask->chat) {
        request.input_case = MILLRACE__V1__GENERATE_REQUEST__INPUT_CHAT;
        request.chat = &chat;
    } else {
        request.input_case = MILLRACE__V1__GENERATE_REQUEST__INPUT_TEXT;
        request.text = prompt;
    }
    receiver r = {.result = result, .news = news, .ctx = ctx};
    const mr_client_call call = {
        .timeout_ms = ask->timeout_ms, .on_response = on_response, .ctx = &r};
    mr_client *client;
    MR_TRY(mr_client_open(ask->server, ask->key, ask->tls, &client, err));
    mr_status status = mr_client_generate(client, &request, &call, err);
    mr_client_close(client);
    if (r.status != MR_OK) {
        status = mr_fail(err, r.status, "out of memory for the result");
    }
    return status;
}
