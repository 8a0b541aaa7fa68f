/* SPDX-License-Identifier: Apache-2.0 */
#include "service/proto_response.h"

#include "base/checked.h"
#include "base/clock.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Makes room for one more in two arrays that grow together. */
static bool grow(void **items, size_t item_size, void **refs, size_t count, size_t *capacity)
{
    if (count < *capacity) {
        return true;
    }
    const size_t wanted = *capacity < 32 ? 32 : *capacity * 2;
    void *grown = mr_reallocarray(*items, wanted, item_size);
    if (grown == NULL) {
        return false;
    }
    *items = grown;
    grown = mr_reallocarray(*refs, wanted, sizeof(void *));
    if (grown == NULL) {
        return false;
    }
    *refs = grown;
    *capacity = wanted;
    return true;
}

static Millrace__V1__Token *next_token(mr_token_list *list)
{
    void *items = list->tokens;
    void *refs = list->token_refs;
    const bool grown =
        grow(&items, sizeof(*list->tokens), &refs, list->n_tokens, &list->tokens_capacity);
    list->tokens = items;
    list->token_refs = refs;
    if (!grown) {
        return NULL;
    }
    Millrace__V1__Token *token = &list->tokens[list->n_tokens++];
    millrace__v1__token__init(token);
    return token;
}

static Millrace__V1__TopLogprob *next_top(mr_token_list *list)
{
    void *items = list->tops;
    void *refs = list->top_refs;
    const bool grown = grow(&items, sizeof(*list->tops), &refs, list->n_tops, &list->tops_capacity);
    list->tops = items;
    list->top_refs = refs;
    if (!grown) {
        return NULL;
    }
    Millrace__V1__TopLogprob *top = &list->tops[list->n_tops++];
    millrace__v1__top_logprob__init(top);
    return top;
}

static void list_deinit(mr_token_list *list)
{
    free(list->tokens);
    free(list->token_refs);
    free(list->tops);
    free(list->top_refs);
    *list = (mr_token_list){0};
}

/* Sets the pointers into the arrays, which no longer move. */
static void list_settle(mr_token_list *list)
{
    for (size_t i = 0; i < list->n_tops; i++) {
        list->top_refs[i] = &list->tops[i];
    }
    size_t first = 0;
    for (size_t i = 0; i < list->n_tokens; i++) {
        Millrace__V1__Token *token = &list->tokens[i];
        token->top = token->n_top > 0 ? list->top_refs + first : NULL;
        first += token->n_top;
        list->token_refs[i] = token;
    }
}

static ProtobufCBinaryData token_bytes(const mr_tokenizer *tokenizer, uint32_t id)
{
    if (tokenizer == NULL || id >= mr_tokenizer_vocab_size(tokenizer)) {
        return (ProtobufCBinaryData){0};
    }
    const mr_bytes bytes = mr_tokenizer_token_bytes(tokenizer, id);
    /* protobuf-c only reads what it packs. */
    return (ProtobufCBinaryData){.len = bytes.size, .data = (uint8_t *)bytes.data};
}

void mr_proto_response_init(mr_proto_response *response, const mr_request *request,
                            const mr_tokenizer *tokenizer, const mr_proto_response_options *options)
{
    memset(response, 0, sizeof(*response));
    response->tokenizer = tokenizer;
    response->request = request;
    response->skip_text = options->skip_text;
    response->echo_prompt = options->echo_prompt;
    response->matched_token = MR_NO_TOKEN;
    mr_text_stream_init(&response->stream, tokenizer, options->keep_special);
}

void mr_proto_response_deinit(mr_proto_response *response)
{
    mr_text_stream_deinit(&response->stream);
    list_deinit(&response->tokens);
    list_deinit(&response->prompt);
    mr_buffer_deinit(&response->text);
}

static mr_status add_token(mr_proto_response *response, const mr_token_event *event)
{
    mr_token_list *list = &response->tokens;
    Millrace__V1__Token *token = next_token(list);
    if (token == NULL) {
        return MR_RESOURCE_EXHAUSTED;
    }
    token->id = event->token;
    token->raw = token_bytes(response->tokenizer, event->token);
    if (response->request->params.logprobs && isfinite(event->logprob)) {
        token->_logprob_case = MILLRACE__V1__TOKEN___LOGPROB_LOGPROB;
        token->logprob = event->logprob;
        response->cumulative_logprob += (double)event->logprob;
    }
    for (uint32_t i = 0; i < event->n_top; i++) {
        /* A token that cannot be drawn has none: many encoders choke on -Infinity. */
        if (!isfinite(event->top[i].logprob)) {
            continue;
        }
        Millrace__V1__TopLogprob *top = next_top(list);
        if (top == NULL) {
            return MR_RESOURCE_EXHAUSTED;
        }
        top->id = event->top[i].token;
        top->raw = token_bytes(response->tokenizer, top->id);
        top->logprob = event->top[i].logprob;
        token->n_top++;
    }
    return response->skip_text ? MR_OK : mr_text_stream_push(&response->stream, event->token);
}

static mr_status out_of_memory(mr_error *err)
{
    return mr_fail(err, MR_RESOURCE_EXHAUSTED, "out of memory for the response");
}

mr_status mr_proto_response_add(mr_proto_response *response, const mr_token_event *event,
                                mr_error *err)
{
    if (event->token != MR_NO_TOKEN && add_token(response, event) != MR_OK) {
        return out_of_memory(err);
    }
    if (event->finish != MR_FINISH_NONE) {
        response->finish = (mr_finish)event->finish;
        response->matched_token = event->matched_token;
    }
    return MR_OK;
}

bool mr_proto_response_waiting(const mr_proto_response *response)
{
    return response->tokens.n_tokens > 0;
}

static mr_status build_prompt(mr_proto_response *response)
{
    const mr_request *request = response->request;
    for (uint32_t i = 0; i < request->n_prompt; i++) {
        Millrace__V1__Token *token = next_token(&response->prompt);
        if (token == NULL) {
            return MR_RESOURCE_EXHAUSTED;
        }
        token->id = request->prompt[i];
        token->raw = token_bytes(response->tokenizer, token->id);
    }
    list_settle(&response->prompt);
    response->message.n_prompt = response->prompt.n_tokens;
    response->message.prompt = response->prompt.token_refs;
    return MR_OK;
}

static double elapsed_ms(uint64_t from_ns, uint64_t to_ns)
{
    return from_ns != 0 && to_ns > from_ns ? (double)(to_ns - from_ns) / (double)MR_NS_PER_MS : 0.0;
}

static void build_end(mr_proto_response *response)
{
    const mr_request_usage *from = &response->request->usage;
    Millrace__V1__Usage *usage = &response->usage;
    millrace__v1__usage__init(usage);
    usage->prompt_tokens = from->prompt_tokens;
    usage->completion_tokens = from->completion_tokens;
    usage->cached_tokens = from->cached_tokens;
    usage->preemptions = from->preemptions;
    response->message.usage = usage;

    Millrace__V1__Timings *timings = &response->timings;
    millrace__v1__timings__init(timings);
    const uint64_t left_queue = from->scheduled_ns != 0 ? from->scheduled_ns : from->finished_ns;
    timings->queue_ms = elapsed_ms(from->arrived_ns, left_queue);
    timings->prefill_ms = elapsed_ms(from->scheduled_ns, from->first_token_ns);
    timings->decode_ms = elapsed_ms(from->first_token_ns, from->finished_ns);
    timings->first_token_ms = elapsed_ms(from->arrived_ns, from->first_token_ns);
    response->message.timings = timings;
}

static mr_status build_chunk(mr_proto_response *response)
{
    Millrace__V1__Chunk *chunk = &response->chunk;
    millrace__v1__chunk__init(chunk);
    const bool last = response->finish != MR_FINISH_NONE;
    response->text.size = 0;
    if (!response->skip_text) {
        MR_TRY(mr_text_stream_take(&response->stream, last, &response->text));
    }
    chunk->text = (ProtobufCBinaryData){response->text.size, response->text.data};
    list_settle(&response->tokens);
    chunk->n_tokens = response->tokens.n_tokens;
    chunk->tokens = response->tokens.token_refs;
    if (!response->begun) {
        chunk->seed = response->request->params.seed;
    }
    if (last) {
        chunk->finish_reason = (Millrace__V1__FinishReason)response->finish;
        if (response->matched_token != MR_NO_TOKEN) {
            chunk->_matched_stop_token_case =
                MILLRACE__V1__CHUNK___MATCHED_STOP_TOKEN_MATCHED_STOP_TOKEN;
            chunk->matched_stop_token = response->matched_token;
        }
        if (response->request->params.logprobs) {
            chunk->_cumulative_logprob_case =
                MILLRACE__V1__CHUNK___CUMULATIVE_LOGPROB_CUMULATIVE_LOGPROB;
            chunk->cumulative_logprob = response->cumulative_logprob;
        }
    }
    /* The arrays stay as they are until the next event is added: the message points into them. */
    response->tokens.n_tokens = 0;
    response->tokens.n_tops = 0;
    return MR_OK;
}

mr_status mr_proto_response_build(mr_proto_response *response,
                                  const Millrace__V1__GenerateResponse **out, mr_error *err)
{
    Millrace__V1__GenerateResponse *message = &response->message;
    millrace__v1__generate_response__init(message);
    const mr_request *request = response->request;
    message->request_id =
        (ProtobufCBinaryData){.len = strlen(request->id), .data = (uint8_t *)request->id};
    if (build_chunk(response) != MR_OK) {
        return out_of_memory(err);
    }
    response->chunk_refs[0] = &response->chunk;
    message->n_chunks = 1;
    message->chunks = response->chunk_refs;
    if (response->echo_prompt && !response->begun && build_prompt(response) != MR_OK) {
        return out_of_memory(err);
    }
    response->begun = true;
    if (response->finish != MR_FINISH_NONE) {
        build_end(response);
    }
    *out = message;
    return MR_OK;
}
