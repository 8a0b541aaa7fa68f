/* SPDX-License-Identifier: Apache-2.0 */
#include "service/proto_response.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "../model/tiny_vocab.h"

#include <math.h>
#include <stdlib.h>

static mr_tokenizer *tokenizer; /* the ids 0 … 255 are the bytes */

static int make_tokenizer(void **state)
{
    (void)state;
    static tiny_vocab vocab;
    tiny_vocab_init(&vocab);
    mr_error err = {0};
    if (mr_tokenizer_create(&vocab.spec, &tokenizer, &err) != MR_OK) {
        fail_msg("%s", err.message);
    }
    return 0;
}

static int drop_tokenizer(void **state)
{
    (void)state;
    mr_tokenizer_destroy(tokenizer);
    return 0;
}

typedef struct fixture {
    mr_request *request;
    mr_proto_response response;
    const Millrace__V1__GenerateResponse *message;
} fixture;

static void open_fixture(fixture *f, mr_request_spec spec, const mr_proto_response_options *options)
{
    static const uint32_t prompt[] = {'p'};
    mr_error err = {0};
    spec.id = "r";
    spec.deadline_ns = MR_NEVER;
    if (spec.n_prompt == 0) {
        spec.prompt = prompt;
        spec.n_prompt = 1;
    }
    spec.params.max_tokens = 8;
    spec.params.seed = 7;
    assert_int_equal(mr_request_create(&spec, &f->request, &err), MR_OK);
    assert_int_equal(mr_proto_response_init(&f->response, f->request, tokenizer, options, &err),
                     MR_OK);
}

static void close_fixture(fixture *f)
{
    mr_proto_response_deinit(&f->response);
    mr_request_unref(f->request);
}

static void add(fixture *f, mr_token_event event)
{
    event.matched_token = event.matched_token == 0 ? MR_NO_TOKEN : event.matched_token;
    assert_int_equal(mr_proto_response_add(&f->response, &event, NULL), MR_OK);
}

static void build(fixture *f)
{
    assert_true(mr_proto_response_waiting(&f->response));
    assert_int_equal(mr_proto_response_build(&f->response, &f->message, NULL), MR_OK);
}

static void check_chunk(const fixture *f, size_t at, uint32_t index, const char *text)
{
    assert_true(at < f->message->n_chunks);
    const Millrace__V1__Chunk *chunk = f->message->chunks[at];
    assert_int_equal(chunk->index, index);
    assert_int_equal(chunk->text.len, strlen(text));
    assert_memory_equal(chunk->text.len == 0 ? (const uint8_t *)"" : chunk->text.data, text,
                        chunk->text.len);
}

#define SHOWN .matched_stop = MR_NO_STOP, .text_bytes = UINT64_MAX

static void test_response_one_chunk_a_choice_with_news(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, (mr_request_spec){.params.n = 3}, &(mr_proto_response_options){0});
    assert_false(mr_proto_response_waiting(&f.response));
    add(&f, (mr_token_event){.token = 'b', .choice = 1, SHOWN});
    add(&f, (mr_token_event){.token = 'a', .choice = 0, SHOWN});
    add(&f, (mr_token_event){.token = 'B', .choice = 1, SHOWN});
    build(&f);
    assert_int_equal(f.message->n_chunks, 2);
    check_chunk(&f, 0, 0, "a");
    check_chunk(&f, 1, 1, "bB");
    assert_true(f.message->chunks[0]->seed == 7 && f.message->chunks[1]->seed == 7);
    assert_null(f.message->usage);
    assert_false(mr_proto_response_waiting(&f.response));

    add(&f, (mr_token_event){.token = MR_NO_TOKEN, .choice = 1, .finish = MR_FINISH_STOP, SHOWN});
    add(&f, (mr_token_event){.token = 'c', .choice = 2, .finish = MR_FINISH_LENGTH, SHOWN});
    build(&f);
    assert_int_equal(f.message->n_chunks, 2);
    check_chunk(&f, 0, 1, "");
    check_chunk(&f, 1, 2, "c");
    assert_true(f.message->chunks[0]->seed == 0 && f.message->chunks[1]->seed == 7);
    assert_int_equal(f.message->chunks[0]->finish_reason, MR_FINISH_STOP);
    assert_false(f.response.complete);

    add(&f, (mr_token_event){
                .token = 'A', .choice = 0, .finish = MR_FINISH_LENGTH, .last = true, SHOWN});
    build(&f);
    check_chunk(&f, 0, 0, "A");
    assert_true(f.response.complete && f.message->usage != NULL);
    close_fixture(&f);
}

static void test_response_T1_holds_text_back_and_names_the_stop(void **state)
{
    (void)state;
    fixture f;
    const mr_stop_string string = {"XY", 2};
    mr_request_spec spec = {0};
    assert_int_equal(mr_stop_create(&string, 1, &spec.stop, NULL), MR_OK);
    open_fixture(&f, spec, &(mr_proto_response_options){0});
    add(&f, (mr_token_event){.token = 'a', .matched_stop = MR_NO_STOP, .text_bytes = 1});
    add(&f, (mr_token_event){.token = 'X', .matched_stop = MR_NO_STOP, .text_bytes = 1});
    build(&f);
    check_chunk(&f, 0, 0, "a");
    assert_int_equal(f.message->chunks[0]->n_tokens, 2);
    add(&f, (mr_token_event){.token = 'Y',
                             .matched_stop = 0,
                             .text_bytes = 1,
                             .finish = MR_FINISH_STOP,
                             .last = true});
    build(&f);
    check_chunk(&f, 0, 0, "");
    assert_int_equal(f.message->chunks[0]->matched_stop.len, 2);
    assert_memory_equal(f.message->chunks[0]->matched_stop.data, "XY", 2);
    close_fixture(&f);
}

static void test_response_cumulative_logprobs(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, (mr_request_spec){.params.beam_width = 2}, &(mr_proto_response_options){0});
    add(&f, (mr_token_event){.token = 'a', .logprob = -1, .cumulative_logprob = -1, SHOWN});
    add(&f, (mr_token_event){.token = 'b',
                             .logprob = -2,
                             .cumulative_logprob = -3,
                             .finish = MR_FINISH_LENGTH,
                             .last = true,
                             SHOWN});
    build(&f);
    const Millrace__V1__Chunk *chunk = f.message->chunks[0];
    assert_true(chunk->_cumulative_logprob_case !=
                MILLRACE__V1__CHUNK___CUMULATIVE_LOGPROB__NOT_SET);
    assert_true(chunk->cumulative_logprob == -3.0);
    /* A token's own only where it was asked for. */
    assert_int_equal(chunk->tokens[0]->_logprob_case, MILLRACE__V1__TOKEN___LOGPROB__NOT_SET);
    close_fixture(&f);
}

enum { LONG_PROMPT = 6000 };

static void open_long(fixture *f, bool whole)
{
    static uint32_t prompt[LONG_PROMPT];
    for (uint32_t i = 0; i < LONG_PROMPT; i++) {
        prompt[i] = i % 256;
    }
    open_fixture(f,
                 (mr_request_spec){.prompt = prompt,
                                   .n_prompt = LONG_PROMPT,
                                   .params = {.prompt_logprobs = true, .top_logprobs = 20}},
                 &(mr_proto_response_options){.show_prompt = true, .whole = whole});
    mr_request *request = f->request;
    request->n_prompt_scored = LONG_PROMPT;
    for (uint32_t i = 1; i < LONG_PROMPT; i++) {
        request->prompt_logprobs[i] = (mr_prompt_logprob){.logprob = -(float)i, .n_top = 20};
        for (uint32_t t = 0; t < 20; t++) {
            request->prompt_top[i * 20 + t] = (mr_alternative){.token = t, .logprob = -1};
        }
    }
    request->prompt_logprobs[2].logprob = -INFINITY;
    add(f, (mr_token_event){.token = 'a', .finish = MR_FINISH_LENGTH, .last = true, SHOWN});
}

static void check_prompt_token(const Millrace__V1__Token *token, uint32_t index)
{
    assert_int_equal(token->id, index % 256);
    const bool scored = index != 0 && index != 2; /* the first has none, −∞ is left out (L2) */
    assert_int_equal(token->_logprob_case != MILLRACE__V1__TOKEN___LOGPROB__NOT_SET, scored);
    assert_true(!scored || token->logprob == -(float)index);
    assert_int_equal(token->n_top, index == 0 ? 0 : 20);
}

/* G2: no message is near 4 MiB, and what follows the prompt comes after all of it. */
static void test_response_G2_long_prompt_in_parts(void **state)
{
    (void)state;
    fixture f;
    open_long(&f, false);
    uint32_t seen = 0;
    uint32_t messages = 0;
    while (!f.response.complete) {
        build(&f);
        messages++;
        assert_true(millrace__v1__generate_response__get_packed_size(f.message) < 2u << 20);
        for (size_t i = 0; i < f.message->n_prompt; i++) {
            check_prompt_token(f.message->prompt[i], seen++);
        }
        assert_int_equal(f.message->n_chunks, seen == LONG_PROMPT ? 1 : 0);
    }
    assert_int_equal(seen, LONG_PROMPT);
    assert_true(messages > 1 && f.message->usage != NULL);
    assert_false(mr_proto_response_waiting(&f.response));
    close_fixture(&f);
}

/* What is known before a message is built is less than it has, and not much less. */
static void test_response_least_bytes_G4(void **state)
{
    (void)state;
    fixture f;
    mr_token_event *event = calloc(1, sizeof(*event) + 2 * sizeof(event->top[0]));
    assert_non_null(event);
    *event = (mr_token_event){.token = 'a', .n_top = 2, .matched_token = MR_NO_TOKEN, SHOWN};
    event->top[0] = (mr_alternative){.token = 'a', .logprob = -1.0f};
    event->top[1] = (mr_alternative){.token = 'b', .logprob = -2.0f};
    open_fixture(&f, (mr_request_spec){.params = {.n = 2, .logprobs = true, .top_logprobs = 2}},
                 &(mr_proto_response_options){.whole = true});
    assert_int_equal(f.response.min_bytes, 0);
    for (uint32_t i = 0; i < 8; i++) {
        event->choice = (uint16_t)(i % 2);
        assert_int_equal(mr_proto_response_add(&f.response, event, NULL), MR_OK);
    }
    /* Three entries a token: a tag, a length and at least the one byte of text. */
    assert_int_equal(f.response.min_bytes, 8 * 3 * 3);
    build(&f);
    assert_true(millrace__v1__generate_response__get_packed_size(f.message) > 8 * 3 * 3);
    free(event);
    close_fixture(&f);
}

static void test_response_whole_is_one_message(void **state)
{
    (void)state;
    fixture f;
    open_long(&f, true);
    build(&f);
    assert_true(f.response.complete);
    assert_int_equal(f.message->n_prompt, LONG_PROMPT);
    assert_int_equal(f.message->n_chunks, 1);
    close_fixture(&f);
}

/* What was not scored before the request ended has no logprob. */
static void test_response_prompt_scored_in_part(void **state)
{
    (void)state;
    fixture f;
    open_long(&f, true);
    f.request->n_prompt_scored = 4;
    build(&f);
    assert_int_equal(f.message->n_prompt, LONG_PROMPT);
    check_prompt_token(f.message->prompt[3], 3);
    assert_int_equal(f.message->prompt[4]->_logprob_case, MILLRACE__V1__TOKEN___LOGPROB__NOT_SET);
    assert_int_equal(f.message->prompt[4]->n_top, 0);
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_response_one_chunk_a_choice_with_news),
        cmocka_unit_test(test_response_T1_holds_text_back_and_names_the_stop),
        cmocka_unit_test(test_response_cumulative_logprobs),
        cmocka_unit_test(test_response_G2_long_prompt_in_parts),
        cmocka_unit_test(test_response_least_bytes_G4),
        cmocka_unit_test(test_response_whole_is_one_message),
        cmocka_unit_test(test_response_prompt_scored_in_part),
    };
    return cmocka_run_group_tests(tests, make_tokenizer, drop_tokenizer);
}
