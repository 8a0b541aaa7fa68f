/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Worlds drawn at random: tiny pools that are asked for several times what they have, tiny budgets,
 * cancels, deadlines, readers that are slow or never read. Whatever happens, each request gets the
 * script's tokens, or a beginning of them and a reason, exactly one last event, and all blocks come
 * back. The scripted executor checks every batch.
 */
#include "base/log.h"
#include "rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define MS            MR_NS_PER_MS
#define WORLDS        150u
#define STEPS         400u  /* of a world while requests arrive */
#define STEPS_TO_END  5000u /* and at most so many after that: more is a livelock */
#define CLIENTS       24u
#define MAX_TOKENS    40u
#define MAX_PROMPT    40u
#define SLOW_LIMIT_MS 60u

typedef enum reader {
    READER_PROMPT, /* takes all at once */
    READER_SLOW,   /* now and then an entry */
    READER_GONE,   /* never takes anything */
    READERS,
} reader;

typedef struct client {
    mr_request *request; /* NULL: free */
    reader reader;
    uint32_t expected[MAX_TOKENS];
    uint32_t n_expected;
    mr_finish finish; /* of the undisturbed run */
    uint32_t n_read;
    bool cancelled;
    bool ended;
} client;

typedef struct world {
    rig r;
    scripted_random random;
    client clients[CLIENTS];
    uint32_t total_blocks;
    uint32_t arrived;
    uint32_t ended;
} world;

static uint32_t draw(world *w, uint32_t low, uint32_t high)
{
    return low + scripted_draw(&w->random, high - low + 1);
}

static bool chance(world *w, uint32_t in)
{
    return scripted_draw(&w->random, in) == 0;
}

static void world_open(world *w, uint32_t number)
{
    static const uint32_t eos[] = {RIG_EOS_A, RIG_EOS_B};
    *w = (world){.random.state = 0x5eed0000u + number};
    const mr_scheduler_options options = {
        .max_batch_size = draw(w, 1, 7),
        .max_batch_tokens = draw(w, 1, 14),
        .max_seq_length = draw(w, 12, 64),
        .max_queue = draw(w, 0, 12),
        .max_preemptions = draw(w, 0, 3),
        .prefill_interval = draw(w, 1, 4),
        .batch_timeout_ns = chance(w, 2) ? 0 : draw(w, 1, 10) * MS,
        .slow_reader_timeout_ns = SLOW_LIMIT_MS * MS,
        .eos = eos,
        .n_eos = 2,
        .vocab_size = 40,
    };
    w->total_blocks = draw(w, 2, 24);
    rig_open(&w->r, &options, draw(w, 1, 5), w->total_blocks + 1);
}

static mr_request_params draw_params(world *w)
{
    mr_request_params params = rig_params(draw(w, 1, MAX_TOKENS));
    params.ignore_eos = chance(w, 2);
    params.min_tokens = chance(w, 3) ? draw(w, 1, 12) : 0;
    params.presence_penalty = chance(w, 3) ? 0.5f : 0;
    params.logprobs = chance(w, 3);
    params.top_logprobs = params.logprobs ? (uint8_t)draw(w, 0, MR_MAX_TOP_LOGPROBS) : 0;
    return params;
}

static void arrive(world *w, client *c)
{
    uint32_t prompt[MAX_PROMPT];
    const uint32_t n_prompt = draw(w, 1, chance(w, 8) ? MAX_PROMPT : 12);
    for (uint32_t i = 0; i < n_prompt; i++) {
        prompt[i] = scripted_draw(&w->random, w->r.options.vocab_size);
    }
    *c = (client){.reader = chance(w, 4) ? (reader)draw(w, 0, READERS - 1) : READER_PROMPT};
    const mr_request_spec spec = {
        .id = "random \"id\"",
        .prompt = prompt,
        .n_prompt = n_prompt,
        .params = draw_params(w),
        .arrived_ns = w->r.now_ns,
        .deadline_ns = chance(w, 6) ? w->r.now_ns + draw(w, 0, 80) * MS : MR_NEVER,
        .sink = &w->r.sink,
        .ring_capacity = chance(w, 2) ? 0 : draw(w, 1, 8),
    };
    assert_int_equal(mr_request_create(&spec, &c->request, NULL), MR_OK);
    c->n_expected =
        scripted_output(&w->r.options, prompt, n_prompt, &spec.params, c->expected, &c->finish);
    w->arrived++;
    rig_submit(&w->r, c->request);
}

/* True when the error is one that this request could get. */
static bool may_fail_so(const world *w, const client *c, const mr_error *err)
{
    const mr_request *request = c->request;
    const uint32_t block_size = w->r.scheduler->block_size;
    if (err->status == MR_INVALID_ARGUMENT) {
        return request->n_prompt >= w->r.options.max_seq_length ||
               mr_blocks_for(request->n_prompt + 1, block_size) > w->total_blocks;
    }
    if (err->status != MR_RESOURCE_EXHAUSTED) {
        return false;
    }
    if (strstr(err->message, "slow reader") != NULL) {
        return c->reader != READER_PROMPT;
    }
    if (strstr(err->message, "max_queue_requests") != NULL) {
        return err->retry_after_ms > 0 && request->usage.scheduled_ns == 0;
    }
    return mr_blocks_for(request->n_prompt + c->n_expected - 1, block_size) > w->total_blocks;
}

static void expect_end(const world *w, const client *c, const rig_event *event)
{
    const mr_error *err = &c->request->error;
    switch (event->finish) {
    case MR_FINISH_STOP:
    case MR_FINISH_LENGTH:
        assert_int_equal(event->finish, c->finish);
        assert_int_equal(c->n_read, c->n_expected);
        assert_int_equal(err->status, MR_OK);
        break;
    case MR_FINISH_CANCELLED:
        assert_true(c->cancelled);
        assert_int_equal(err->status, MR_CANCELLED);
        break;
    case MR_FINISH_TIME_LIMIT:
        assert_true(c->request->deadline_ns <= c->request->usage.finished_ns);
        assert_int_equal(err->status, MR_DEADLINE_EXCEEDED);
        break;
    default:
        assert_int_equal(event->finish, MR_FINISH_ERROR);
        assert_true(may_fail_so(w, c, err));
        break;
    }
    assert_int_equal(c->request->usage.completion_tokens, c->n_read);
    assert_true(c->request->usage.preemptions <= w->r.options.max_preemptions);
    assert_int_equal(mr_ring_count(&c->request->events), 0);
}

static void read_one(world *w, client *c)
{
    const rig_event event = rig_read(c->request);
    assert_false(c->ended);
    if (event.token != MR_NO_TOKEN) {
        assert_true(c->n_read < c->n_expected);
        assert_int_equal(event.token, c->expected[c->n_read]);
        c->n_read++;
    }
    if (event.finish != MR_FINISH_NONE) {
        expect_end(w, c, &event);
        c->ended = true;
    }
}

/* The last event of a request whose reader is gone is read by the test after all. */
static void read_client(world *w, client *c)
{
    const bool over = c->request->group->n_open == 0;
    uint32_t takes = mr_ring_count(&c->request->events);
    if (!over && c->reader == READER_GONE) {
        takes = 0;
    } else if (!over && c->reader == READER_SLOW) {
        takes = takes > 0 && chance(w, 12) ? 1 : 0;
    }
    for (uint32_t i = 0; i < takes; i++) {
        read_one(w, c);
    }
    assert_true(!over || c->ended);
    if (c->ended) {
        mr_request_unref(c->request);
        c->request = NULL;
        w->ended++;
    }
}

/* Blocks of running sequences are theirs alone, and those are all live ones. */
static void check_residents(const world *w)
{
    const mr_scheduler *s = w->r.scheduler;
    bool slots[16] = {false};
    uint32_t blocks = 0;
    for (uint32_t i = 0; i < s->running.count; i++) {
        const mr_sequence *sequence = s->running.items[i];
        assert_int_equal(sequence->state, MR_SEQUENCE_RUNNING);
        assert_true(sequence->slot < s->max_running && !slots[sequence->slot]);
        assert_true(i == 0 || s->running.items[i - 1]->ticket < sequence->ticket);
        slots[sequence->slot] = true;
        blocks += sequence->n_blocks;
        for (uint32_t b = 0; b < sequence->n_blocks; b++) {
            assert_int_equal(mr_block_pool_refs(w->r.pool, sequence->blocks[b]), 1);
        }
    }
    for (uint32_t i = 0; i < s->waiting.count; i++) {
        assert_int_equal(s->waiting.items[i]->n_blocks, 0);
    }
    assert_int_equal(blocks, rig_live_blocks(&w->r));
}

static void world_step(world *w, bool arrivals)
{
    for (size_t i = 0; i < CLIENTS; i++) {
        client *c = &w->clients[i];
        if (c->request == NULL && arrivals && chance(w, 20)) {
            arrive(w, c);
        }
        if (c->request != NULL && chance(w, 150)) {
            mr_flag_set(&c->request->cancelled);
            c->cancelled = true;
        }
    }
    if (!rig_step(&w->r, NULL)) {
        /* It must know when to come back if it has anything to do. */
        assert_true(mr_scheduler_idle(w->r.scheduler) || w->r.wake_ns != MR_NEVER);
        w->r.now_ns += draw(w, 1, 4) * MS;
    }
    check_residents(w);
    for (size_t i = 0; i < CLIENTS; i++) {
        if (w->clients[i].request != NULL) {
            read_client(w, &w->clients[i]);
        }
    }
}

static uint32_t world_run(uint32_t number)
{
    world w;
    world_open(&w, number);
    for (uint32_t i = 0; i < STEPS; i++) {
        world_step(&w, true);
    }
    uint32_t steps = 0;
    while (!mr_scheduler_idle(w.r.scheduler)) {
        assert_true(steps++ < STEPS_TO_END);
        world_step(&w, false);
    }
    world_step(&w, false);
    mr_scheduler_stats stats;
    mr_scheduler_stats_get(w.r.scheduler, &stats);
    uint64_t finished = 0;
    for (size_t i = 0; i <= MR_FINISH_ERROR; i++) {
        finished += stats.finished[i];
    }
    assert_int_equal(w.ended, w.arrived);
    assert_true(finished == w.arrived);
    rig_close(&w.r);
    return (uint32_t)stats.preemptions;
}

static void test_scheduler_random_worlds_end_every_request_once_M1_C3_C7(void **state)
{
    (void)state;
    uint32_t preemptions = 0;
    for (uint32_t i = 0; i < WORLDS; i++) {
        preemptions += world_run(i);
    }
    assert_true(preemptions > WORLDS); /* the pools were short indeed */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scheduler_random_worlds_end_every_request_once_M1_C3_C7),
    };
    mr_log_set_level(MR_LOG_WARN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
