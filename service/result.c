/* SPDX-License-Identifier: Apache-2.0 */
#include "service/result.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define MAX_RING (1u << 20)

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
}

mr_status mr_result_add_token(mr_result *result, uint32_t id, const mr_result_token *logprob)
{
    MR_TRY(mr_ids_push(&result->token_ids, id));
    return result->logprobs && logprob != NULL
               ? mr_buffer_append(&result->tokens, logprob, sizeof(*logprob))
               : MR_OK;
}

mr_status mr_local_run_start(mr_local_run *run, mr_runtime *runtime, mr_waiter *waiter,
                             const mr_local_ask *ask, mr_error *err)
{
    run->request = NULL;
    mr_result_init(&run->result);
    run->result.logprobs = ask->params->logprobs;
    run->result.seed = ask->params->seed;
    run->result.prompt_tokens = (uint32_t)ask->n_prompt;
    mr_text_stream_init(&run->stream, mr_model_tokenizer(mr_runtime_model(runtime)), false);

    const uint32_t max_tokens = ask->params->max_tokens;
    const mr_clock clock = mr_clock_monotonic();
    const mr_request_spec spec = {
        .id = "local",
        .prompt = ask->prompt,
        .n_prompt = (uint32_t)ask->n_prompt,
        .params = *ask->params,
        .arrived_ns = mr_clock_now(&clock),
        .deadline_ns = MR_NEVER,
        .sink = &waiter->sink,
        .owner = run,
        .ring_capacity = max_tokens < MAX_RING ? max_tokens + 1 : MAX_RING,
    };
    MR_TRY(mr_request_create(&spec, &run->request, err));
    const mr_status status = mr_engine_submit(mr_runtime_engine(runtime), run->request, err);
    if (status != MR_OK) {
        mr_request_unref(run->request);
        run->request = NULL;
    }
    return status;
}

static mr_status take_event(mr_local_run *run, const mr_token_event *event)
{
    mr_result *result = &run->result;
    if (event->token != MR_NO_TOKEN) {
        mr_result_token token = {
            .id = event->token, .logprob = event->logprob, .n_top = event->n_top};
        memcpy(token.top, event->top, event->n_top * sizeof(event->top[0]));
        MR_TRY(mr_result_add_token(result, event->token, &token));
        /* The token that ended it is no part of the text, whatever its kind. */
        if (event->matched_token != event->token) {
            MR_TRY(mr_text_stream_push(&run->stream, event->token));
        }
    }
    if (event->finish != MR_FINISH_NONE) {
        result->finish = (mr_finish)event->finish;
        result->matched_token = event->matched_token;
        result->cached_tokens = run->request->usage.cached_tokens;
        result->error = run->request->error;
    }
    return mr_text_stream_take(&run->stream, event->finish != MR_FINISH_NONE, &result->text);
}

mr_status mr_local_run_take(mr_local_run *run, mr_error *err)
{
    mr_ring *ring = &run->request->events;
    while (run->result.finish == MR_FINISH_NONE) {
        const mr_token_event *event = mr_ring_peek(ring, 0);
        if (event == NULL) {
            return MR_OK;
        }
        const mr_status status = take_event(run, event);
        if (status != MR_OK) {
            return mr_fail(err, status, "out of memory for the result");
        }
        mr_ring_pop(ring, 1);
    }
    return MR_OK;
}

bool mr_local_run_discard(mr_local_run *run)
{
    const mr_token_event *event;
    while (run->result.finish == MR_FINISH_NONE &&
           (event = mr_ring_peek(&run->request->events, 0)) != NULL) {
        run->result.finish = (mr_finish)event->finish;
        mr_ring_pop(&run->request->events, 1);
    }
    return run->result.finish != MR_FINISH_NONE;
}

void mr_local_run_deinit(mr_local_run *run)
{
    if (run->request != NULL) {
        mr_request_unref(run->request);
        run->request = NULL;
    }
    mr_text_stream_deinit(&run->stream);
    mr_result_deinit(&run->result);
}
