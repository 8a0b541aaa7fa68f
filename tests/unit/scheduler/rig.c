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

static uint64_t rig_now(void *ctx)
{
    return ((const rig *)ctx)->now_ns;
}

static void open_tier(rig *r, uint32_t block_size, uint32_t host_blocks, bool immediate)
{
    const uint32_t bytes = scripted_block_bytes(block_size);
    const mr_host_tier_options options = {
        .memory_bytes = (uint64_t)host_blocks * bytes,
        .block_bytes = bytes,
        .block_size = block_size,
        .immediate = immediate,
        .timeout_ns = RIG_TRANSFER_TIMEOUT_NS,
        .clock = {.now_ns = rig_now, .ctx = r},
    };
    assert_int_equal(mr_host_tier_create(&options, &r->exec.base, r->pool, &r->tier, NULL), MR_OK);
    r->options.host_tier = r->tier;
}

static void open_rig(rig *r, const mr_scheduler_options *options, uint32_t block_size,
                     uint32_t n_blocks, uint32_t host_blocks, bool immediate)
{
    mr_batch_limits limits;
    mr_error err = {0};
    *r = (rig){.sink.publish = count_publish, .options = *options, .now_ns = MR_NS_PER_S};
    mr_scheduler_batch_limits(options, block_size, &limits);
    assert_int_equal(mr_block_pool_create(n_blocks, block_size, &r->pool), MR_OK);
    scripted_exec_init(&r->exec, options, block_size, n_blocks);
    if (host_blocks > 0) {
        open_tier(r, block_size, host_blocks, immediate);
    }
    assert_int_equal(mr_scheduler_create(&r->options, r->pool, &r->scheduler, &err), MR_OK);
    assert_int_equal(mr_batch_storage_create(&limits, &r->storages[0]), MR_OK);
    assert_int_equal(mr_batch_storage_create(&limits, &r->storages[1]), MR_OK);
}

void rig_open(rig *r, const mr_scheduler_options *options, uint32_t block_size, uint32_t n_blocks)
{
    open_rig(r, options, block_size, n_blocks, 0, false);
}

void rig_open_swapping(rig *r, const mr_scheduler_options *options, uint32_t block_size,
                       uint32_t n_blocks, uint32_t host_blocks)
{
    open_rig(r, options, block_size, n_blocks, host_blocks, false);
}

void rig_open_immediate(rig *r, const mr_scheduler_options *options, uint32_t block_size,
                        uint32_t n_blocks, uint32_t host_blocks)
{
    open_rig(r, options, block_size, n_blocks, host_blocks, true);
}

void rig_close(rig *r)
{
    assert_true(mr_scheduler_idle(r->scheduler));
    if (r->in_flight) {
        assert_true(rig_step(r, NULL)); /* rows that nobody wants any more */
        assert_false(r->in_flight);
    }
    if (r->tier != NULL) {
        mr_host_tier_stats host;
        scripted_transfers_hurry(&r->exec.transfers);
        mr_host_tier_poll(r->tier);
        assert_true(mr_host_tier_check(r->tier));
        mr_host_tier_stats_get(r->tier, &host);
        assert_int_equal(host.owned + host.moving, 0);
    }
    assert_int_equal(rig_live_blocks(r), 0);
    mr_scheduler_destroy(r->scheduler);
    mr_host_tier_destroy(r->tier);
    assert_int_equal(r->exec.transfers.n_allocated + r->exec.transfers.n_unfinished, 0);
    mr_batch_storage_destroy(r->storages[0]);
    mr_batch_storage_destroy(r->storages[1]);
    mr_block_pool_destroy(r->pool);
    scripted_exec_deinit(&r->exec);
}

mr_tokenizer *rig_tokenizer(void)
{
    /* The byte-level alphabet of GPT-2 spells the bytes C3 and A9 as these characters. */
    static const char *const spellings[] = {
        "a",      "b",      "c",       "b",       "ab",  "ba",  "aa",  "bb",  "ac",  "ca",
        "bc",     "cb",     "cc",      "aab",     "aba", "abb", "baa", "bab", "bba", "bbb",
        "aaa",    "abc",    "acb",     "bac",     "bca", "cab", "cba", "aac", "aca", "caa",
        "\u00c3", "\u00a9", "a\u00c3", "\u00a9b", "ccc", "bbc", "bcb", "cbb", "cca", "acc",
    };
    mr_bytes tokens[40];
    uint8_t kinds[40] = {0};
    mr_tokenizer *tokenizer = NULL;
    mr_error err = {0};
    for (size_t i = 0; i < 40; i++) {
        tokens[i] = mr_bytes_of(spellings[i]);
    }
    tokens[3] = (mr_bytes){(const uint8_t *)"<b>", 3};
    kinds[3] = MR_TOKEN_SPECIAL;
    const mr_tokenizer_spec spec = {
        .model = "gpt2",
        .pre_tokenizer = "gpt-2",
        .tokens = tokens,
        .kinds = kinds,
        .n_tokens = 40,
        .bos_id = UINT32_MAX,
        .eos_id = UINT32_MAX,
    };
    if (mr_tokenizer_create(&spec, &tokenizer, &err) != MR_OK) {
        fail_msg("%s", err.message);
    }
    return tokenizer;
}

mr_stop *rig_stop(const char *const *strings, size_t count)
{
    mr_stop_string list[MR_MAX_STOP_STRINGS];
    mr_stop *stop = NULL;
    assert_true(count <= MR_MAX_STOP_STRINGS);
    for (size_t i = 0; i < count; i++) {
        list[i] = (mr_stop_string){.data = strings[i], .bytes = strlen(strings[i])};
    }
    assert_int_equal(mr_stop_create(list, count, &stop, NULL), MR_OK);
    return stop;
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

mr_request *rig_request_of(rig *r, uint32_t n_prompt, mr_request_spec *spec)
{
    uint32_t prompt[MAX_PROMPT];
    char id[16];
    mr_request *request = NULL;
    assert_in_range(n_prompt, 1, MAX_PROMPT);
    for (uint32_t i = 0; i < n_prompt; i++) {
        prompt[i] = (10 + i) % r->options.vocab_size;
    }
    snprintf(id, sizeof(id), "r%u", r->n_requests++);
    spec->id = id;
    spec->prompt = prompt;
    spec->n_prompt = n_prompt;
    spec->arrived_ns = r->now_ns;
    spec->deadline_ns = spec->deadline_ns == 0 ? MR_NEVER : spec->deadline_ns;
    spec->sink = &r->sink;
    assert_int_equal(mr_request_create(spec, &request, NULL), MR_OK);
    return request;
}

mr_request *rig_request(rig *r, uint32_t n_prompt, const mr_request_params *params)
{
    mr_request_spec spec = {.params = *params};
    return rig_request_of(r, n_prompt, &spec);
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

mr_request *rig_add_of(rig *r, uint32_t tenant, uint32_t weight, int32_t priority,
                       uint32_t n_prompt, uint32_t max_tokens)
{
    mr_request_spec spec = {.tenant = tenant, .weight = weight, .params = rig_params(max_tokens)};
    spec.params.priority = priority;
    mr_request *request = rig_request_of(r, n_prompt, &spec);
    rig_submit(r, request);
    return request;
}

static mr_batch_storage *next_storage(rig *r)
{
    mr_batch_storage *storage = r->storages[1 - r->last];
    mr_batch_follow(storage, r->n_steps);
    return storage;
}

static void submit(rig *r)
{
    r->last = 1 - r->last;
    r->n_steps++;
    r->batch = mr_batch_get(r->storages[r->last]);
    assert_int_equal(r->exec.base.vt->submit(&r->exec.base, r->batch, NULL), MR_OK);
}

/* Plans and submits a step, with none under way. */
static bool begin(rig *r)
{
    const bool planned = mr_scheduler_plan(r->scheduler, r->now_ns, next_storage(r), &r->wake_ns);
    mr_scheduler_publish(r->scheduler);
    assert_true(mr_block_pool_check(r->pool));
    assert_true(r->tier == NULL || mr_host_tier_check(r->tier));
    if (!planned) {
        r->batch = mr_batch_get(next_storage(r));
        return false;
    }
    size_t n_copies;
    const mr_block_copy *copies = mr_scheduler_copies(r->scheduler, &n_copies);
    assert_int_equal(r->exec.base.vt->copy_blocks(&r->exec.base, copies, n_copies, NULL), MR_OK);
    submit(r);
    return true;
}

bool rig_step(rig *r, const uint32_t *tokens)
{
    mr_step_output output;
    if (!r->in_flight && !begin(r)) {
        return false;
    }
    r->in_flight = r->ahead && mr_scheduler_plan_ahead(r->scheduler, r->now_ns, next_storage(r));
    if (r->in_flight) {
        r->n_ahead++;
        submit(r);
    }
    assert_int_equal(r->exec.base.vt->wait(&r->exec.base, &output, NULL), MR_OK);
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
            .choice = oldest->choice,
            .finish = (mr_finish)oldest->finish,
            .last = oldest->last,
            .matched_token = oldest->matched_token,
            .matched_stop = oldest->matched_stop,
            .text_bytes = oldest->text_bytes,
            .logprob = oldest->logprob,
            .cumulative = oldest->cumulative_logprob,
        };
        mr_ring_pop(&request->events, 1);
    }
    return event;
}

void rig_expect_event(const rig_event *event, const scripted_result *expected, uint32_t index)
{
    const bool ends = index + 1 == expected->n_tokens;
    assert_true(index < expected->n_tokens);
    assert_int_equal(event->token, expected->tokens[index]);
    assert_int_equal(event->finish, ends ? expected->finish : MR_FINISH_NONE);
    assert_int_equal(event->matched_token, ends ? expected->matched_token : MR_NO_TOKEN);
    assert_int_equal(event->matched_stop, ends ? expected->matched_stop : MR_NO_STOP);
    if (expected->shown[index] == SIZE_MAX) {
        assert_true(event->text_bytes == UINT64_MAX);
    } else {
        assert_int_equal(event->text_bytes, expected->shown[index]);
    }
}

void rig_expect_whole(rig *r, mr_request *request)
{
    static scripted_result expected[MR_MAX_CHOICES];
    uint32_t n_read[MR_MAX_CHOICES] = {0};
    uint32_t total = 0;
    uint32_t longest = 0;
    for (uint32_t c = 0; c < request->params.n; c++) {
        scripted_output(&r->options, request, c, &expected[c]);
        total += expected[c].n_tokens;
        longest = expected[c].n_tokens > longest ? expected[c].n_tokens : longest;
    }
    for (uint32_t i = 0; i < total; i++) {
        const rig_event event = rig_read(request);
        assert_true(event.choice < request->params.n);
        rig_expect_event(&event, &expected[event.choice], n_read[event.choice]++);
        assert_int_equal(event.last, i + 1 == total);
    }
    assert_int_equal(mr_ring_count(&request->events), 0);
    assert_int_equal(request->usage.completion_tokens, total);
    assert_int_equal(request->usage.longest_choice, longest);
    assert_int_equal(request->error.status, MR_OK);
}

void rig_expect_end(mr_request *request, mr_finish finish, mr_status status)
{
    uint32_t ended = 0;
    uint32_t worst = MR_FINISH_NONE;
    bool last = false;
    assert_true(mr_ring_count(&request->events) > 0);
    while (mr_ring_count(&request->events) > 0) {
        const rig_event event = rig_read(request);
        assert_false(last);
        last = event.last;
        if (event.token == MR_NO_TOKEN) {
            assert_int_equal(event.finish, finish);
        }
        ended += event.finish != MR_FINISH_NONE;
        worst = event.finish > worst ? event.finish : worst;
    }
    assert_true(last);
    assert_int_equal(ended, request->params.n);
    assert_true(request->usage.finish >= worst); /* events may have been read before */
    assert_true(request->usage.finish >= finish);
    assert_int_equal(request->error.status, status);
    assert_true(status == MR_OK || request->error.message[0] != '\0');
    assert_true(request->usage.finished_ns > 0);
}

uint32_t rig_live_blocks(const rig *r)
{
    mr_block_pool_stats stats;
    mr_block_pool_stats_get(r->pool, &stats);
    return stats.live;
}
