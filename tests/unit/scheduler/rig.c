/* SPDX-License-Identifier: Apache-2.0 */
#include "rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define MAX_PROMPT 512u

static const uint32_t eos[] = {RIG_EOS_A, RIG_EOS_B};

mr_scheduler_options rig_options(void)
{
    return (mr_scheduler_options){
        .max_batch_size = 4,
        .max_batch_tokens = 8,
        .max_seq_length = 64,
        .max_queue = 16,
        .max_preemptions = 3,
        .prefill_interval = 1,
        .slow_reader_timeout_ns = MR_NS_PER_S,
        .eos = eos,
        .n_eos = 2,
        .vocab_size = 1000,
    };
}

static void count_publish(mr_sink *sink, mr_request *const *requests, uint32_t count)
{
    rig *r = (rig *)sink;
    (void)requests;
    r->publishes++;
    r->published += count;
}

void rig_open(rig *r, const mr_scheduler_options *options, uint32_t block_size, uint32_t n_blocks)
{
    mr_batch_limits limits;
    mr_error err = {0};
    *r = (rig){.sink.publish = count_publish, .options = *options, .now_ns = MR_NS_PER_S};
    mr_scheduler_batch_limits(options, block_size, &limits);
    assert_int_equal(mr_block_pool_create(n_blocks, block_size, &r->pool), MR_OK);
    assert_int_equal(mr_scheduler_create(options, r->pool, &r->scheduler, &err), MR_OK);
    assert_int_equal(mr_batch_storage_create(&limits, &r->storage), MR_OK);
    scripted_exec_init(&r->exec, options, block_size, n_blocks);
}

void rig_close(rig *r)
{
    assert_true(mr_scheduler_idle(r->scheduler));
    assert_int_equal(rig_live_blocks(r), 0);
    mr_scheduler_destroy(r->scheduler);
    mr_batch_storage_destroy(r->storage);
    mr_block_pool_destroy(r->pool);
    scripted_exec_deinit(&r->exec);
}

mr_request_params rig_params(uint32_t max_tokens)
{
    return (mr_request_params){
        .top_p = 1,
        .repetition_penalty = 1,
        .max_tokens = max_tokens,
        .ignore_eos = true,
    };
}

mr_request *rig_request(rig *r, uint32_t n_prompt, const mr_request_params *params)
{
    uint32_t prompt[MAX_PROMPT];
    char id[16];
    mr_request *request = NULL;
    assert_in_range(n_prompt, 1, MAX_PROMPT);
    for (uint32_t i = 0; i < n_prompt; i++) {
        prompt[i] = 10 + i;
    }
    snprintf(id, sizeof(id), "r%u", r->n_requests++);
    const mr_request_spec spec = {
        .id = id,
        .prompt = prompt,
        .n_prompt = n_prompt,
        .params = *params,
        .arrived_ns = r->now_ns,
        .deadline_ns = MR_NEVER,
        .sink = &r->sink,
    };
    assert_int_equal(mr_request_create(&spec, &request, NULL), MR_OK);
    return request;
}

void rig_submit(rig *r, mr_request *request)
{
    mr_request_ref(request);
    mr_scheduler_add(r->scheduler, request, r->now_ns);
}

mr_request *rig_add(rig *r, uint32_t n_prompt, uint32_t max_tokens)
{
    const mr_request_params params = rig_params(max_tokens);
    mr_request *request = rig_request(r, n_prompt, &params);
    rig_submit(r, request);
    return request;
}

bool rig_step(rig *r, const uint32_t *tokens)
{
    mr_step_output output;
    const bool planned = mr_scheduler_plan(r->scheduler, r->now_ns, r->storage, &r->wake_ns);
    mr_scheduler_publish(r->scheduler);
    assert_true(mr_block_pool_check(r->pool));
    r->batch = mr_batch_get(r->storage);
    if (!planned) {
        return false;
    }
    assert_int_equal(mr_exec_run(&r->exec.base, r->batch, &output, NULL), MR_OK);
    assert_string_equal(r->exec.violation, "");
    if (tokens != NULL) {
        output.tokens = tokens;
    }
    r->now_ns += MR_NS_PER_MS;
    mr_scheduler_apply(r->scheduler, &output, r->now_ns);
    mr_scheduler_publish(r->scheduler);
    assert_true(mr_block_pool_check(r->pool));
    return true;
}

void rig_run(rig *r)
{
    for (uint32_t i = 0; i < 10000 && !mr_scheduler_idle(r->scheduler); i++) {
        if (!rig_step(r, NULL)) {
            r->now_ns += 10 * MR_NS_PER_MS;
        }
    }
    assert_true(mr_scheduler_idle(r->scheduler));
}

rig_event rig_read(mr_request *request)
{
    rig_event event = {.token = MR_NO_TOKEN};
    const mr_token_event *oldest = mr_ring_peek(&request->events, 0);
    if (oldest != NULL) {
        event = (rig_event){
            .token = oldest->token,
            .finish = (mr_finish)oldest->finish,
            .matched_token = oldest->matched_token,
            .text_bytes = oldest->text_bytes,
        };
        mr_ring_pop(&request->events, 1);
    }
    return event;
}

void rig_expect_whole(rig *r, mr_request *request)
{
    uint32_t expected[MAX_PROMPT];
    mr_finish finish;
    const uint32_t n = scripted_output(&r->options, request->prompt, request->n_prompt,
                                       &request->params, expected, &finish);
    for (uint32_t i = 0; i < n; i++) {
        const rig_event event = rig_read(request);
        assert_int_equal(event.token, expected[i]);
        assert_int_equal(event.finish, i + 1 == n ? finish : MR_FINISH_NONE);
    }
    assert_int_equal(mr_ring_count(&request->events), 0);
    assert_int_equal(request->usage.completion_tokens, n);
    assert_int_equal(request->error.status, MR_OK);
}

void rig_expect_end(mr_request *request, mr_finish finish, mr_status status)
{
    rig_event event;
    assert_true(mr_ring_count(&request->events) > 0);
    do {
        event = rig_read(request);
    } while (mr_ring_count(&request->events) > 0);
    assert_int_equal(event.token, MR_NO_TOKEN);
    assert_int_equal(event.finish, finish);
    assert_int_equal(request->error.status, status);
    assert_true(request->error.message[0] != '\0');
    assert_true(request->usage.finished_ns > 0);
}

uint32_t rig_live_blocks(const rig *r)
{
    mr_block_pool_stats stats;
    mr_block_pool_stats_get(r->pool, &stats);
    return stats.live;
}
