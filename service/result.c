/* SPDX-License-Identifier: Apache-2.0 */
#include "service/result.h"

#include "base/checked.h"
#include "service/tenants.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

static void waiter_publish(mr_sink *sink, mr_request *const *requests, uint32_t count)
{
    (void)requests;
    (void)count;
    const mr_waiter *waiter = (const mr_waiter *)sink;
    const uint64_t one = 1;
    /* A full counter is readable already. */
    const ssize_t written = write(waiter->fd, &one, sizeof(one));
    (void)written;
}

mr_status mr_waiter_init(mr_waiter *waiter, mr_error *err)
{
    *waiter = (mr_waiter){.sink = {.publish = waiter_publish}};
    waiter->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (waiter->fd < 0) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "eventfd: %s", strerror(errno));
    }
    return MR_OK;
}

void mr_waiter_deinit(mr_waiter *waiter)
{
    if (waiter->fd >= 0) {
        close(waiter->fd);
    }
}

bool mr_waiter_wait(mr_waiter *waiter, int input_fd)
{
    struct pollfd fds[] = {{.fd = waiter->fd, .events = POLLIN},
                           {.fd = input_fd, .events = POLLIN}};
    if (poll(fds, 2, -1) <= 0) {
        return false;
    }
    if (fds[0].revents != 0) {
        uint64_t count;
        const ssize_t got = read(waiter->fd, &count, sizeof(count));
        (void)got;
    }
    return fds[1].revents != 0;
}

void mr_result_init(mr_result *result)
{
    *result = (mr_result){.matched_token = MR_NO_TOKEN};
}

void mr_result_deinit(mr_result *result)
{
    mr_buffer_deinit(&result->text);
    mr_ids_deinit(&result->token_ids);
    mr_buffer_deinit(&result->tokens);
    mr_buffer_deinit(&result->matched_stop);
}

mr_status mr_result_add_token(mr_result *result, uint32_t id, const mr_result_token *logprob)
{
    MR_TRY(mr_ids_push(&result->token_ids, id));
    return result->logprobs && logprob != NULL
               ? mr_buffer_append(&result->tokens, logprob, sizeof(*logprob))
               : MR_OK;
}

static mr_status make_results(mr_local_run *run, const mr_local_ask *ask,
                              const mr_tokenizer *tokenizer, mr_error *err)
{
    const mr_request_params *params = ask->params;
    run->streams = mr_calloc(params->n, sizeof(*run->streams));
    run->results = mr_calloc(params->n, sizeof(*run->results));
    if (run->streams == NULL || run->results == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "out of memory for %u results", params->n);
    }
    run->n_results = params->n;
    for (uint32_t i = 0; i < params->n; i++) {
        mr_result *result = &run->results[i];
        mr_result_init(result);
        result->index = i;
        result->logprobs = params->logprobs;
        result->scored = params->logprobs || params->beam_width > 1;
        result->seed = params->seed;
        result->prompt_tokens = (uint32_t)ask->n_prompt;
        mr_text_stream_init(&run->streams[i], tokenizer, params->keep_special_tokens);
    }
    return MR_OK;
}

/* Room for all tokens and an end of each choice. */
static uint32_t ring_capacity(const mr_request_params *params)
{
    const uint64_t all = (uint64_t)params->n * (params->max_tokens + UINT64_C(1));
    return (uint32_t)mr_min_u64(all, MR_RING_MAX_CAPACITY);
}

mr_status mr_local_run_start(mr_local_run *run, mr_runtime *runtime, mr_waiter *waiter,
                             const mr_local_ask *ask, mr_error *err)
{
    *run = (mr_local_run){0};
    MR_TRY(make_results(run, ask, mr_model_tokenizer(mr_runtime_model(runtime)), err));
    const mr_clock clock = mr_clock_monotonic();
    mr_request_spec spec = {
        .id = "local",
        .prompt = ask->prompt,
        .n_prompt = (uint32_t)ask->n_prompt,
        .params = *ask->params,
        .arrived_ns = mr_clock_now(&clock),
        .deadline_ns = MR_NEVER,
        .sink = &waiter->sink,
        .owner = run,
        .ring_capacity = ring_capacity(ask->params),
    };
    mr_generation_lists_fill(ask->lists, &spec);
    mr_prefix_root root;
    const mr_prefix_asker asker = {
        .tenant = mr_tenant_open.name,
        .salt = &ask->lists->cache_salt,
        .n_prompt = spec.n_prompt,
    };
    if (mr_runtime_prefix_root(runtime, &asker, &root)) {
        spec.prefix = &root;
    }
    MR_TRY(mr_request_create(&spec, &run->request, err));
    ask->lists->stop = NULL;
    const mr_status status = mr_engine_submit(mr_runtime_engine(runtime), run->request, err);
    if (status != MR_OK) {
        mr_request_unref(run->request);
        run->request = NULL;
    }
    return status;
}

static mr_status take_token(mr_local_run *run, const mr_token_event *event)
{
    mr_result *result = &run->results[event->choice];
    mr_result_token token = {.id = event->token, .logprob = event->logprob, .n_top = event->n_top};
    memcpy(token.top, event->top, event->n_top * sizeof(event->top[0]));
    result->cumulative_logprob = event->cumulative_logprob;
    MR_TRY(mr_result_add_token(result, event->token, &token));
    return mr_text_stream_add(&run->streams[event->choice], event);
}

static mr_status take_event(mr_local_run *run, const mr_token_event *event)
{
    mr_result *result = &run->results[event->choice];
    const bool last = event->finish != MR_FINISH_NONE;
    if (event->token != MR_NO_TOKEN) {
        MR_TRY(take_token(run, event));
    }
    if (event->matched_stop != MR_NO_STOP) {
        const mr_stop_string stop = mr_stop_string_get(run->request->stop, event->matched_stop);
        MR_TRY(mr_buffer_append(&result->matched_stop, stop.data, stop.bytes));
    }
    if (last) {
        result->finish = (mr_finish)event->finish;
        result->matched_token = event->matched_token;
    }
    return mr_text_stream_take(&run->streams[event->choice], event->text_bytes, last,
                               &result->text);
}

/* What holds for the request as a whole. */
static void end_run(mr_local_run *run)
{
    run->ended = true;
    for (uint32_t i = 0; i < run->n_results; i++) {
        run->results[i].cached_tokens = run->request->usage.cached_tokens;
        run->results[i].error = run->request->error;
    }
}

mr_status mr_local_run_take(mr_local_run *run, mr_error *err)
{
    mr_ring *ring = &run->request->events;
    while (!run->ended) {
        const mr_token_event *event = mr_ring_peek(ring, 0);
        if (event == NULL) {
            return MR_OK;
        }
        const mr_status status = take_event(run, event);
        if (status != MR_OK) {
            return mr_fail(err, status, "out of memory for the result");
        }
        if (event->last) {
            end_run(run);
        }
        mr_ring_pop(ring, 1);
    }
    return MR_OK;
}

bool mr_local_run_discard(mr_local_run *run)
{
    const mr_token_event *event;
    while (!run->ended && (event = mr_ring_peek(&run->request->events, 0)) != NULL) {
        run->ended = event->last;
        mr_ring_pop(&run->request->events, 1);
    }
    return run->ended;
}

void mr_local_run_deinit(mr_local_run *run)
{
    if (run->request != NULL) {
        mr_request_unref(run->request);
    }
    for (uint32_t i = 0; i < run->n_results; i++) {
        mr_text_stream_deinit(&run->streams[i]);
        mr_result_deinit(&run->results[i]);
    }
    free(run->streams);
    free(run->results);
    *run = (mr_local_run){0};
}
