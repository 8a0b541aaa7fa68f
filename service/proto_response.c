/* SPDX-License-Identifier: Apache-2.0 */
#include "service/proto_response.h"

#include "base/checked.h"
#include "base/clock.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Of prompt tokens a message; leaves room for the chunks beside them. */
#define PROMPT_PART_BYTES ((size_t)1 << 20)
#define FIELD_BYTES       6 /* a tag and a length, at most */
#define ITEM_BYTES        2 /* a tag and a length, at least */

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

mr_status mr_proto_response_init(mr_proto_response *response, const mr_request *request,
                                 const mr_tokenizer *tokenizer,
                                 const mr_proto_response_options *options, mr_error *err)
{
    memset(response, 0, sizeof(*response));
    response->tokenizer = tokenizer;
    response->skip_text = options->skip_text;
    response->show_prompt = options->show_prompt;
    response->whole = options->whole;
    const uint32_t n = request->params.n;
    response->choices = mr_calloc(n, sizeof(*response->choices));
    response->chunk_refs = mr_calloc(n, sizeof(*response->chunk_refs));
    if (response->choices == NULL || response->chunk_refs == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "out of memory for %u choices", n);
    }
    response->request = request;
    for (uint32_t i = 0; i < n; i++) {
        mr_proto_choice *choice = &response->choices[i];
        choice->matched_token = MR_NO_TOKEN;
        choice->matched_stop = MR_NO_STOP;
        mr_text_stream_init(&choice->stream, tokenizer, request->params.keep_special_tokens);
    }
    return MR_OK;
}

void mr_proto_response_deinit(mr_proto_response *response)
{
    const uint32_t n = response->request == NULL ? 0 : response->request->params.n;
    for (uint32_t i = 0; i < n; i++) {
        mr_proto_choice *choice = &response->choices[i];
        mr_text_stream_deinit(&choice->stream);
        list_deinit(&choice->tokens);
        mr_buffer_deinit(&choice->text);
    }
    free(response->choices);
    free(response->chunk_refs);
    list_deinit(&response->prompt);
}

/* What is not finite is left out: many encoders choke on -Infinity. */
static void set_logprob(Millrace__V1__Token *token, float logprob)
{
    if (isfinite(logprob)) {
        token->_logprob_case = MILLRACE__V1__TOKEN___LOGPROB_LOGPROB;
        token->logprob = logprob;
    }
}

static mr_status add_tops(const mr_proto_response *response, mr_token_list *list,
                          Millrace__V1__Token *token, const mr_alternative *from, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (!isfinite(from[i].logprob)) {
            continue;
        }
        Millrace__V1__TopLogprob *top = next_top(list);
        if (top == NULL) {
            return MR_RESOURCE_EXHAUSTED;
        }
        top->id = from[i].token;
        top->raw = token_bytes(response->tokenizer, top->id);
        top->logprob = from[i].logprob;
        token->n_top++;
    }
    return MR_OK;
}

static mr_status add_token(mr_proto_response *response, mr_proto_choice *choice,
                           const mr_token_event *event)
{
    Millrace__V1__Token *token = next_token(&choice->tokens);
    if (token == NULL) {
        return MR_RESOURCE_EXHAUSTED;
    }
    token->id = event->token;
    token->raw = token_bytes(response->tokenizer, event->token);
    if (response->request->params.logprobs) {
        set_logprob(token, event->logprob);
    }
    choice->cumulative_logprob = event->cumulative_logprob;
    response->min_bytes += ITEM_BYTES + token->raw.len;
    const size_t first = choice->tokens.n_tops;
    MR_TRY(add_tops(response, &choice->tokens, token, event->top, event->n_top));
    for (size_t i = first; i < choice->tokens.n_tops; i++) {
        response->min_bytes += ITEM_BYTES + choice->tokens.tops[i].raw.len;
    }
    return response->skip_text ? MR_OK : mr_text_stream_add(&choice->stream, event);
}

static mr_status out_of_memory(mr_error *err)
{
    return mr_fail(err, MR_RESOURCE_EXHAUSTED, "out of memory for the response");
}

mr_status mr_proto_response_add(mr_proto_response *response, const mr_token_event *event,
                                mr_error *err)
{
    mr_proto_choice *choice = &response->choices[event->choice];
    if (event->token != MR_NO_TOKEN && add_token(response, choice, event) != MR_OK) {
        return out_of_memory(err);
    }
    choice->text_bytes = event->text_bytes;
    choice->news = true;
    if (event->finish != MR_FINISH_NONE) {
        choice->finish = (mr_finish)event->finish;
        choice->matched_token = event->matched_token;
        choice->matched_stop = event->matched_stop;
        response->finish = choice->finish > response->finish ? choice->finish : response->finish;
    }
    response->ended = response->ended || event->last;
    return MR_OK;
}

static bool prompt_is_shown(const mr_proto_response *response)
{
    return !response->show_prompt || response->n_prompt_shown == response->request->n_prompt;
}

bool mr_proto_response_waiting(const mr_proto_response *response)
{
    if (response->begun && !prompt_is_shown(response)) {
        return true;
    }
    for (uint32_t i = 0; i < response->request->params.n; i++) {
        if (response->choices[i].news) {
            return true;
        }
    }
    return false;
}

static mr_status add_prompt_token(mr_proto_response *response, uint32_t index, size_t *bytes)
{
    const mr_request *request = response->request;
    Millrace__V1__Token *token = next_token(&response->prompt);
    if (token == NULL) {
        return MR_RESOURCE_EXHAUSTED;
    }
    token->id = request->prompt[index];
    token->raw = token_bytes(response->tokenizer, token->id);
    *bytes += token->raw.len + 3 * FIELD_BYTES;
    if (request->prompt_logprobs == NULL || index == 0 || index >= request->n_prompt_scored) {
        return MR_OK;
    }
    const mr_prompt_logprob *scored = &request->prompt_logprobs[index];
    set_logprob(token, scored->logprob);
    const mr_alternative *top = &request->prompt_top[(size_t)index * request->params.top_logprobs];
    const size_t first = response->prompt.n_tops;
    MR_TRY(add_tops(response, &response->prompt, token, top, scored->n_top));
    for (size_t i = first; i < response->prompt.n_tops; i++) {
        *bytes += response->prompt.tops[i].raw.len + 4 * FIELD_BYTES;
    }
    return MR_OK;
}

/* The prompt's next part: all that is left of it where everything goes into one message. */
static mr_status build_prompt(mr_proto_response *response)
{
    size_t bytes = 0;
    while (!prompt_is_shown(response) && (response->whole || bytes < PROMPT_PART_BYTES)) {
        MR_TRY(add_prompt_token(response, response->n_prompt_shown, &bytes));
        response->n_prompt_shown++;
    }
    list_settle(&response->prompt);
    response->message.n_prompt = response->prompt.n_tokens;
    response->message.prompt = response->prompt.token_refs;
    response->prompt.n_tokens = 0;
    response->prompt.n_tops = 0;
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

static void build_finish(const mr_proto_response *response, mr_proto_choice *choice)
{
    const mr_request *request = response->request;
    Millrace__V1__Chunk *chunk = &choice->chunk;
    chunk->finish_reason = (Millrace__V1__FinishReason)choice->finish;
    if (choice->matched_token != MR_NO_TOKEN) {
        chunk->_matched_stop_token_case =
            MILLRACE__V1__CHUNK___MATCHED_STOP_TOKEN_MATCHED_STOP_TOKEN;
        chunk->matched_stop_token = choice->matched_token;
    }
    if (choice->matched_stop != MR_NO_STOP) {
        const mr_stop_string stop = mr_stop_string_get(request->stop, choice->matched_stop);
        /* protobuf-c only reads what it packs. */
        chunk->matched_stop =
            (ProtobufCBinaryData){.len = stop.bytes, .data = (uint8_t *)(uintptr_t)stop.data};
    }
    if (request->params.logprobs || request->params.beam_width > 1) {
        chunk->_cumulative_logprob_case =
            MILLRACE__V1__CHUNK___CUMULATIVE_LOGPROB_CUMULATIVE_LOGPROB;
        chunk->cumulative_logprob = choice->cumulative_logprob;
    }
}

static mr_status build_chunk(mr_proto_response *response, uint32_t index)
{
    mr_proto_choice *choice = &response->choices[index];
    Millrace__V1__Chunk *chunk = &choice->chunk;
    millrace__v1__chunk__init(chunk);
    chunk->index = index;
    const bool last = choice->finish != MR_FINISH_NONE;
    choice->text.size = 0;
    if (!response->skip_text) {
        MR_TRY(mr_text_stream_take(&choice->stream, choice->text_bytes, last, &choice->text));
    }
    chunk->text = (ProtobufCBinaryData){choice->text.size, choice->text.data};
    list_settle(&choice->tokens);
    chunk->n_tokens = choice->tokens.n_tokens;
    chunk->tokens = choice->tokens.token_refs;
    if (!choice->begun) {
        chunk->seed = response->request->params.seed;
    }
    if (last) {
        build_finish(response, choice);
    }
    choice->begun = true;
    choice->news = false;
    /* The arrays stay as they are until the next event is added: the message points into them. */
    choice->tokens.n_tokens = 0;
    choice->tokens.n_tops = 0;
    return MR_OK;
}

static mr_status build_chunks(mr_proto_response *response)
{
    Millrace__V1__GenerateResponse *message = &response->message;
    for (uint32_t i = 0; i < response->request->params.n; i++) {
        if (!response->choices[i].news) {
            continue;
        }
        MR_TRY(build_chunk(response, i));
        response->chunk_refs[message->n_chunks++] = &response->choices[i].chunk;
    }
    message->chunks = response->chunk_refs;
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
    if (build_prompt(response) != MR_OK) {
        return out_of_memory(err);
    }
    response->begun = true;
    *out = message;
    if (!prompt_is_shown(response)) {
        return MR_OK; /* chunks come after it */
    }
    if (build_chunks(response) != MR_OK) {
        return out_of_memory(err);
    }
    response->complete = response->ended;
    if (response->complete) {
        build_end(response);
    }
    return MR_OK;
}
