/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Worlds drawn at random: tiny pools that are asked for several times what they have, tiny budgets,
 * cancels, deadlines, readers that are slow or never read; in half of them a host tier whose
 * transfers are at once, late, failing, or never over. Whatever happens, each request gets the
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
#define TENANTS       3u
#define MAX_TOKENS    40u
#define MAX_PROMPT    40u
#define MAX_CHOICES   6u
#define FAMILIES      2u /* prompts that begin alike */
#define SLOW_LIMIT_MS 60u

typedef enum reader {
    READER_PROMPT, /* takes all at once */
    READER_SLOW,   /* now and then an entry */
    READER_GONE,   /* never takes anything */
    READERS,
} reader;

/* A choice, and its undisturbed run. */
typedef struct choice {
    scripted_result expected;
    double cumulative; /* of a hypothesis */
    uint32_t n_read;
    bool ended;
} choice;

typedef struct client {
    mr_request *request; /* NULL: free */
    reader reader;
    choice choices[MAX_CHOICES];
    uint32_t n_read; /* tokens of all choices */
    uint32_t n_ended;
    bool cancelled;
    bool ended;
} client;

typedef struct world {
    rig r;
    scripted_random random;
    client clients[CLIENTS];
    mr_tokenizer *tokenizer;
    uint32_t families[FAMILIES][MAX_PROMPT];
    mr_prefix_root roots[2];
    bool cached;
    uint32_t total_blocks;
    bool immediate; /* its transfers are over when they have started */
    uint32_t arrived;
    uint32_t ended;
} world;

/* What happened in all worlds. */
typedef struct tally {
    uint32_t preemptions;
    uint32_t swapped_in;
    uint32_t promoted; /* blocks, in worlds whose transfers are immediate */
    uint32_t transfers_failed;
    uint32_t transfers_timed_out;
    uint32_t copies;
    uint32_t stopped_by_string;
    uint32_t time_limits;
    uint32_t several; /* requests of several choices that went to their end */
    uint32_t searches;
    uint64_t prefix_hits;
    uint32_t ahead; /* steps planned before the tokens of the one before were known */
    uint64_t dropped;
} tally;

static tally seen;

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
    w->tokenizer = rig_tokenizer();
    const mr_scheduler_options options = {
        .max_batch_size = draw(w, 1, 7),
        .max_batch_tokens = draw(w, 1, 14),
        .max_seq_length = draw(w, 12, 64),
        .max_queue = draw(w, 0, 12),
        .max_preemptions = draw(w, 0, 3),
        .fair =
            {
                .ageing_ns = chance(w, 3) ? MR_NEVER : draw(w, 0, 40) * MS,
                .max_overtakes = draw(w, 0, 4),
                .overtake_ns = chance(w, 3) ? MR_NEVER : draw(w, 0, 30) * MS,
            },
        .prefill_interval = draw(w, 1, 4),
        .batch_timeout_ns = chance(w, 2) ? 0 : draw(w, 1, 10) * MS,
        .slow_reader_timeout_ns = SLOW_LIMIT_MS * MS,
        .eos = eos,
        .n_eos = 2,
        .vocab_size = 40,
        .max_rows = draw(w, 0, 12),
        .tokenizer = w->tokenizer,
    };
    w->total_blocks = draw(w, 2, 24);
    const uint32_t block_size = draw(w, 1, 5);
    /* Half of the worlds that cache prefixes, and half of those that do not, have a host tier. */
    const uint32_t host_blocks = number % 4 < 2 ? 0 : 1 + number * 7 % 40;
    w->immediate = number % 8 == 3;
    if (w->immediate) {
        rig_open_immediate(&w->r, &options, block_size, w->total_blocks + 1, host_blocks);
    } else {
        rig_open_swapping(&w->r, &options, block_size, w->total_blocks + 1, host_blocks);
    }
    w->r.exec.real_top = true;
    w->r.exec.transfers.cannot_stop = number % 16 > 13;
    w->cached = number % 2 == 1;
    if (w->cached) {
        assert_int_equal(mr_block_pool_enable_cache(w->r.pool), MR_OK);
    }
    for (uint32_t i = 0; i < FAMILIES * MAX_PROMPT; i++) {
        w->families[i / MAX_PROMPT][i % MAX_PROMPT] = scripted_draw(&w->random, 40);
    }
    for (uint32_t i = 0; i < 2; i++) {
        w->roots[i] = (mr_prefix_root){.hash = {{(uint8_t)i}}, .block_size = block_size};
    }
}

static mr_request_params draw_params(world *w)
{
    mr_request_params params = rig_params(draw(w, 1, MAX_TOKENS));
    params.priority = chance(w, 3) ? (int32_t)draw(w, 0, 4) - 2 : 0;
    params.ignore_eos = chance(w, 2);
    params.min_tokens = chance(w, 3) ? draw(w, 1, 12) : 0;
    params.presence_penalty = chance(w, 3) ? 0.5f : 0;
    params.n = chance(w, 3) ? draw(w, 2, MAX_CHOICES) : 1;
    params.include_stop_in_text = chance(w, 2);
    params.keep_special_tokens = chance(w, 2);
    params.prompt_logprobs = chance(w, 4);
    params.time_limit_ns = chance(w, 8) ? draw(w, 1, 60) * MS : 0;
    if (chance(w, 6)) {
        params.beam_width = draw(w, 2, MAX_CHOICES);
        params.n = draw(w, 1, params.beam_width);
        params.length_penalty = (float)draw(w, 0, 4) * 0.5f - 0.5f;
        return params;
    }
    params.logprobs = chance(w, 3);
    params.top_logprobs = params.logprobs ? (uint8_t)draw(w, 0, MR_MAX_TOP_LOGPROBS) : 0;
    return params;
}

/* NULL: none. */
static mr_stop *draw_stops(world *w)
{
    char strings[4][6];
    const char *list[4];
    const uint32_t count = draw(w, 1, 4);
    if (chance(w, 2)) {
        return NULL;
    }
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t length = draw(w, 2, 5);
        for (uint32_t k = 0; k < length; k++) {
            strings[i][k] = (char)('a' + scripted_draw(&w->random, 3));
        }
        strings[i][length] = '\0';
        list[i] = strings[i];
    }
    return rig_stop(list, count);
}

static void expect_of(const world *w, client *c)
{
    static scripted_result hypotheses[MAX_CHOICES];
    double cumulative[MAX_CHOICES];
    const mr_request *request = c->request;
    if (request->n_prompt >= w->r.options.max_seq_length) {
        return; /* refused */
    }
    if (request->params.beam_width > 1) {
        const uint32_t n = scripted_beams(&w->r.options, request, hypotheses, cumulative);
        for (uint32_t i = 0; i < n; i++) {
            c->choices[i].expected = hypotheses[i];
            c->choices[i].cumulative = cumulative[i];
        }
        return;
    }
    for (uint32_t i = 0; i < request->params.n; i++) {
        scripted_output(&w->r.options, request, i, &c->choices[i].expected);
    }
}

static void arrive(world *w, client *c)
{
    uint32_t prompt[MAX_PROMPT];
    uint32_t stops[2];
    const uint32_t n_prompt = draw(w, 1, chance(w, 8) ? MAX_PROMPT : 12);
    for (uint32_t i = 0; i < n_prompt; i++) {
        prompt[i] = scripted_draw(&w->random, w->r.options.vocab_size);
    }
    const uint32_t *family = w->families[draw(w, 0, FAMILIES - 1)];
    const uint32_t common = chance(w, 2) ? n_prompt : draw(w, 0, n_prompt);
    memcpy(prompt, family, common * sizeof(*family));
    stops[0] = draw(w, 8, 39);
    stops[1] = draw(w, 8, 39);
    const uint32_t tenant = draw(w, 0, TENANTS - 1);
    memset(c, 0, sizeof(*c));
    c->reader = chance(w, 4) ? (reader)draw(w, 0, READERS - 1) : READER_PROMPT;
    const mr_request_spec spec = {
        .id = "random \"id\"",
        .tenant = tenant,
        .weight = 1 + 2 * tenant,
        .prompt = prompt,
        .n_prompt = n_prompt,
        .params = draw_params(w),
        .stop_tokens = stops,
        .n_stop_tokens = chance(w, 3) ? draw(w, 1, 2) : 0,
        .stop = draw_stops(w),
        .arrived_ns = w->r.now_ns,
        .deadline_ns = chance(w, 6) ? w->r.now_ns + draw(w, 0, 80) * MS : MR_NEVER,
        .sink = &w->r.sink,
        .ring_capacity = chance(w, 2) ? 0 : draw(w, 1, 8),
        .prefix = chance(w, 8) ? NULL : &w->roots[chance(w, 4)],
    };
    assert_int_equal(mr_request_create(&spec, &c->request, NULL), MR_OK);
    expect_of(w, c);
    w->arrived++;
    rig_submit(&w->r, c->request);
}

/* True when the error is one that this request could get. */
static bool may_fail_so(const world *w, const client *c, const mr_error *err)
{
    const mr_request *request = c->request;
    const uint32_t block_size = w->r.scheduler->block_size;
    const uint32_t width = request->params.beam_width;
    if (err->status == MR_INVALID_ARGUMENT) {
        const uint32_t full = request->n_prompt / block_size;
        const uint32_t wanted = mr_blocks_for(request->n_prompt + 1, block_size);
        return request->n_prompt >= w->r.options.max_seq_length || wanted > w->total_blocks ||
               (width > 1 && (full + width * (wanted - full) > w->total_blocks ||
                              width > w->r.scheduler->max_running));
    }
    if (err->status != MR_RESOURCE_EXHAUSTED) {
        /* Nothing could run on what blocks were left. */
        return err->status == MR_INTERNAL && w->r.exec.transfers.cannot_stop;
    }
    if (strstr(err->message, "slow reader") != NULL) {
        return c->reader != READER_PROMPT;
    }
    if (strstr(err->message, "max_queue_requests") != NULL) {
        return err->retry_after_ms > 0 && request->usage.scheduled_ns == 0;
    }
    uint32_t longest = 0;
    for (uint32_t i = 0; i < request->params.n; i++) {
        const uint32_t n = c->choices[i].expected.n_tokens;
        longest = n > longest ? n : longest;
    }
    /* Beams go on after hypotheses have ended, and up to `width` have blocks of their own. */
    longest = width > 1 ? request->params.max_tokens : longest;
    /* Blocks that a device which cannot be stopped may still write are not there for a while. */
    return w->r.exec.transfers.cannot_stop ||
           width * mr_blocks_for(request->n_prompt + longest - 1, block_size) > w->total_blocks;
}

/* The end of a choice whose request ended before it. */
static void expect_cut(const world *w, const client *c, const rig_event *event)
{
    const mr_error *err = &c->request->error;
    switch (event->finish) {
    case MR_FINISH_CANCELLED:
        assert_true(c->cancelled);
        assert_int_equal(err->status, MR_CANCELLED);
        break;
    case MR_FINISH_TIME_LIMIT:
        if (err->status == MR_OK) {
            const uint64_t limit_ns = c->request->params.time_limit_ns;
            assert_true(limit_ns > 0);
            assert_true(c->request->arrived_ns + limit_ns <= c->request->usage.finished_ns);
            seen.time_limits++;
        } else {
            assert_int_equal(err->status, MR_DEADLINE_EXCEEDED);
            assert_true(c->request->deadline_ns <= c->request->usage.finished_ns);
        }
        break;
    default:
        assert_int_equal(event->finish, MR_FINISH_ERROR);
        if (!may_fail_so(w, c, err)) {
            fail_msg("%s", err->message);
        }
        break;
    }
}

/* A search that its time limit cut gives what it had. */
static bool is_cut_search(const client *c)
{
    return c->request->params.beam_width > 1 && c->request->params.time_limit_ns > 0;
}

static void expect_hypothesis_token(const choice *ch, const rig_event *event)
{
    const scripted_result *expected = &ch->expected;
    const bool ends = ch->n_read + 1 == expected->n_tokens;
    assert_true(ch->n_read < expected->n_tokens);
    assert_int_equal(event->token, expected->tokens[ch->n_read]);
    assert_int_equal(event->finish, ends ? expected->finish : MR_FINISH_NONE);
    if (ends) {
        assert_int_equal(event->matched_token, expected->matched_token);
        assert_int_equal(event->matched_stop, expected->matched_stop);
        assert_true(event->cumulative == ch->cumulative);
    }
}

static void read_one(world *w, client *c)
{
    const rig_event event = rig_read(c->request);
    assert_false(c->ended);
    assert_true(event.choice < c->request->params.n);
    choice *ch = &c->choices[event.choice];
    assert_false(ch->ended);
    if (event.token != MR_NO_TOKEN) {
        if (c->request->params.beam_width == 1) {
            rig_expect_event(&event, &ch->expected, ch->n_read);
        } else if (!is_cut_search(c)) {
            expect_hypothesis_token(ch, &event);
        }
        ch->n_read++;
        c->n_read++;
    } else if (!is_cut_search(c)) {
        expect_cut(w, c, &event);
    }
    ch->ended = event.finish != MR_FINISH_NONE;
    c->n_ended += ch->ended;
    c->ended = c->n_ended == c->request->params.n;
    assert_int_equal(event.last, c->ended);
    seen.stopped_by_string += event.matched_stop != MR_NO_STOP && event.finish == MR_FINISH_STOP;
}

static void expect_usage(const world *w, const client *c)
{
    const mr_request *request = c->request;
    const uint32_t lives = request->params.beam_width > 1 ? 1 : request->params.n;
    assert_int_equal(request->usage.completion_tokens, c->n_read);
    assert_true(request->usage.preemptions <= w->r.options.max_preemptions * lives);
    assert_int_equal(mr_ring_count(&request->events), 0);
    if (request->params.prompt_logprobs && c->n_read > 0) {
        assert_int_equal(request->n_prompt_scored, request->n_prompt);
        for (uint32_t i = 1; i < request->n_prompt; i++) {
            float d[64];
            scripted_distribution(request->prompt, i, w->r.options.vocab_size, NULL, 0, d);
            assert_true(request->prompt_logprobs[i].logprob == d[request->prompt[i]]);
        }
    }
    if (request->error.status == MR_OK && !is_cut_search(c)) {
        seen.several += request->params.n > 1 && request->params.beam_width == 1;
        seen.searches += request->params.beam_width > 1;
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
        expect_usage(w, c);
        mr_request_unref(c->request);
        c->request = NULL;
        w->ended++;
    }
}

/* Counts what a resident sequence holds. */
static void count_blocks(const world *w, const mr_sequence *sequence, bool *slots, uint32_t *held)
{
    assert_true(sequence->slot < w->r.scheduler->max_running && !slots[sequence->slot]);
    slots[sequence->slot] = true;
    for (uint32_t b = sequence->first_block; b < sequence->n_blocks; b++) {
        held[sequence->blocks[b]]++;
    }
}

/* Each block has as many references as resident sequences hold it; those that hold none are not
 * live. */
static void check_residents(const world *w)
{
    const mr_scheduler *s = w->r.scheduler;
    bool slots[16] = {false};
    uint32_t held[64] = {0};
    uint32_t n_slots = 0;
    for (uint32_t i = 0; i < s->running.count; i++) {
        const mr_sequence *sequence = s->running.items[i];
        const uint32_t members = sequence->group->beams != NULL ? sequence->group->n_sequences : 1;
        assert_int_equal(sequence->state, MR_SEQUENCE_RUNNING);
        assert_true(i == 0 || mr_sequence_runs_before(s->running.items[i - 1], sequence));
        n_slots += members;
        for (uint32_t m = 0; m < members; m++) {
            count_blocks(w, &sequence[m], slots, held);
        }
    }
    assert_int_equal(n_slots + s->n_free_slots, s->max_running);
    uint32_t waiting[TENANTS] = {0};
    for (uint32_t i = 0; i < s->waiting.count; i++) {
        const mr_sequence *sequence = s->waiting.items[i];
        assert_int_equal(sequence->n_blocks, 0);
        assert_true(sequence->overtaken <= s->options.fair.max_overtakes);
        waiting[sequence->request->tenant]++;
    }
    for (uint32_t t = 0; t < TENANTS; t++) {
        assert_int_equal(s->fair.tenants[t].waiting, waiting[t]);
    }
    /* Transfers hold theirs, too. */
    for (uint32_t i = 0; i < SCRIPTED_TRANSFERS; i++) {
        const scripted_transfer *t = &w->r.exec.transfers.list[i];
        for (uint32_t b = 0; t->ticket != 0 && b < t->count; b++) {
            /* What is only read is given back when it takes too long. */
            held[t->blocks[b]] += t->direction == MR_TRANSFER_IN || !t->unstoppable;
        }
    }
    for (uint32_t block = 1; block <= w->total_blocks; block++) {
        assert_int_equal(mr_block_pool_refs(w->r.pool, block), held[block]);
    }
}

/* Of transfers to come. */
static void draw_transfers(world *w)
{
    scripted_transfers *t = &w->r.exec.transfers;
    t->start_fails = chance(w, 12);
    t->fails = chance(w, 12);
    t->polls = chance(w, 12) ? SCRIPTED_NEVER : chance(w, 2) ? 0 : draw(w, 1, 4);
    t->polls = w->immediate ? 0 : t->polls;
    if (chance(w, 60)) {
        scripted_transfers_hurry(t);
    }
}

static void world_step(world *w, bool arrivals)
{
    if (w->r.tier != NULL) {
        draw_transfers(w);
    }

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
    if (chance(w, 100)) {
        mr_scheduler_reset_prefix_cache(w->r.scheduler, 0);
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

static void world_run(uint32_t number, bool ahead)
{
    static world w;
    world_open(&w, number);
    w.r.ahead = ahead;
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
    assert_true(finished == w.arrived && stats.started == w.arrived);
    assert_int_equal(stats.running + stats.waiting, 0);
    seen.preemptions += (uint32_t)stats.preemptions;
    seen.swapped_in += (uint32_t)stats.swapped_in;
    seen.promoted += w.immediate ? (uint32_t)stats.host.blocks_in : 0;
    seen.transfers_failed += (uint32_t)stats.host.failed;
    seen.transfers_timed_out += (uint32_t)stats.host.timed_out;
    seen.copies += w.r.exec.n_copies;
    seen.prefix_hits += stats.prefix_hits;
    seen.ahead += w.r.n_ahead;
    seen.dropped += w.r.scheduler->n_dropped;
    rig_close(&w.r);
    mr_tokenizer_destroy(w.tokenizer);
}

static void
test_scheduler_random_worlds_end_every_request_once_M1_C3_C5_C7_T1_T2_T3_T6(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < WORLDS; i++) {
        world_run(i, false);
    }
    assert_int_equal(seen.ahead, 0);
    /* The pools were short indeed, and everything was there. */
    assert_true(seen.preemptions > WORLDS);
    assert_true(seen.copies > WORLDS);
    assert_true(seen.swapped_in > WORLDS / 2);
    assert_true(seen.promoted > WORLDS);
    assert_true(seen.transfers_failed > WORLDS / 10 && seen.transfers_timed_out > WORLDS / 10);
    assert_true(seen.stopped_by_string > WORLDS);
    assert_true(seen.several > WORLDS);
    assert_true(seen.searches > WORLDS / 2);
    assert_true(seen.time_limits > 0);
    assert_true(seen.prefix_hits > 10 * WORLDS);
}

/* The same where the device takes the next step before the tokens of the one before are known. */
static void test_scheduler_random_worlds_planned_ahead_M1_C3_C5(void **state)
{
    (void)state;
    seen = (tally){0};
    for (uint32_t i = 0; i < WORLDS; i++) {
        world_run(i, true);
    }
    assert_true(seen.ahead > 20 * WORLDS && seen.dropped > WORLDS / 10);
    assert_true(seen.preemptions > WORLDS);
    assert_true(seen.stopped_by_string > WORLDS);
    assert_true(seen.prefix_hits > 10 * WORLDS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            test_scheduler_random_worlds_end_every_request_once_M1_C3_C5_C7_T1_T2_T3_T6),
        cmocka_unit_test(test_scheduler_random_worlds_planned_ahead_M1_C3_C5),
    };
    mr_log_set_level(MR_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
