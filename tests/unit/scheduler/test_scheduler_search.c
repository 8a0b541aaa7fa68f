/* SPDX-License-Identifier: Apache-2.0 */
/* Beam search against one that tries everything and never stops early. */
#include "base/log.h"
#include "rig.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define MS MR_NS_PER_MS

/* ---- the arithmetic ---- */

static mr_beams *beams_of(uint32_t width, float length_penalty)
{
    const mr_request_params params = {
        .beam_width = width, .length_penalty = length_penalty, .max_tokens = 8};
    mr_beams *beams = NULL;
    assert_int_equal(mr_beams_create(&params, &beams), MR_OK);
    return beams;
}

static void test_search_keeps_twice_the_width_of_candidates(void **state)
{
    (void)state;
    mr_beams *beams = beams_of(2, 1.0f);
    const double offered[] = {-3, -1, -5, -2, -4, -1, -9};
    const double kept[] = {-1, -1, -2, -3};
    for (uint32_t i = 0; i < 7; i++) {
        mr_beams_offer(beams, &(mr_candidate){.cumulative = offered[i], .token = i});
    }
    assert_int_equal(beams->n_candidates, 4);
    for (uint32_t i = 0; i < 4; i++) {
        assert_true(beams->candidates[i].cumulative == kept[i]);
    }
    assert_int_equal(beams->candidates[0].token, 1); /* equals in the order of the offers */
    assert_int_equal(beams->candidates[1].token, 5);
    mr_beams_destroy(beams);
}

static void test_search_pool_replaces_its_worst(void **state)
{
    (void)state;
    mr_beams *beams = beams_of(2, 1.0f);
    const double scores[] = {-2, -1, -3, -1.5, -1.5};
    const bool placed[] = {true, true, false, true, false};
    for (uint32_t i = 0; i < 5; i++) {
        mr_hypothesis *h = mr_beams_place(beams, scores[i]);
        assert_int_equal(h != NULL, placed[i]);
        if (h != NULL) {
            h->score = scores[i];
        }
    }
    mr_beams_sort(beams);
    assert_true(beams->pool[0].score == -1 && beams->pool[1].score == -1.5);
    assert_true(beams->pool[0].tokens != beams->pool[1].tokens);
    mr_beams_destroy(beams);
}

/* By hand: −4 over 2 tokens scores −2 at penalty 1. A beam at −3 may become −3 / 8 there; at
 * penalty 0 it stays −3, better than −4; at penalty −1 its next token makes it −9, worse than −8.
 */
static void test_search_is_decided_by_what_beams_can_become(void **state)
{
    (void)state;
    const struct {
        float penalty;
        double worst, best;
        bool decided;
    } cases[] = {
        {1.0f, -2, -3, false},  {1.0f, -2, -16, true},   {1.0f, -2, -15.9, false},
        {0.0f, -4, -3, false},  {0.0f, -4, -4, true},    {-1.0f, -8, -3, true},
        {-1.0f, -8, -2, false}, {2.0f, -0.5, -32, true}, {2.0f, -0.5, -31, false},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        mr_beams *beams = beams_of(2, cases[i].penalty);
        mr_beams_place(beams, cases[i].worst)->score = cases[i].worst;
        assert_false(mr_beams_decided(beams, -1000, 2, 8)); /* the pool is not full */
        mr_beams_place(beams, 0)->score = -0.25;
        assert_int_equal(mr_beams_decided(beams, cases[i].best, 2, 8), cases[i].decided);
        mr_beams_destroy(beams);
    }
}

/* ---- whole searches ---- */

static mr_scheduler_options search_options(void)
{
    mr_scheduler_options options = rig_options();
    options.max_batch_size = 16;
    options.max_batch_tokens = 20;
    options.vocab_size = 40;
    return options;
}

static void expect_hypothesis(mr_request *request, uint32_t choice, const scripted_result *expected,
                              double cumulative)
{
    double sum = 0;
    for (uint32_t i = 0; i < expected->n_tokens; i++) {
        const bool ends = i + 1 == expected->n_tokens;
        const rig_event event = rig_read(request);
        sum += (double)event.logprob;
        assert_int_equal(event.choice, choice);
        assert_int_equal(event.token, expected->tokens[i]);
        assert_int_equal(event.finish, ends ? expected->finish : MR_FINISH_NONE);
        assert_int_equal(event.matched_token, ends ? expected->matched_token : MR_NO_TOKEN);
        assert_int_equal(event.matched_stop, ends ? expected->matched_stop : MR_NO_STOP);
        assert_true(fabs(event.cumulative - sum) < 1e-9);
    }
    assert_true(fabs(sum - cumulative) < 1e-9);
}

static void expect_search(rig *r, mr_request *request)
{
    static scripted_result expected[MR_MAX_BEAMS];
    double cumulative[MR_MAX_BEAMS];
    uint32_t total = 0;
    assert_int_equal(request->error.status, MR_OK);
    const uint32_t n = scripted_beams(&r->options, request, expected, cumulative);
    assert_int_equal(n, request->params.n);
    for (uint32_t i = 0; i < n; i++) {
        expect_hypothesis(request, i, &expected[i], cumulative[i]);
        total += expected[i].n_tokens;
    }
    assert_int_equal(mr_ring_count(&request->events), 0);
    assert_int_equal(request->usage.completion_tokens, total);
}

static mr_request_params search_params(uint32_t width, uint32_t n, uint32_t max_tokens)
{
    mr_request_params params = rig_params(max_tokens);
    params.beam_width = width;
    params.n = n;
    params.length_penalty = 1.0f;
    return params;
}

static void test_search_equals_the_one_that_tries_everything(void **state)
{
    (void)state;
    static const char *const strings[] = {"ab", "ca"};
    static const uint32_t stops[] = {30, 31};
    mr_tokenizer *tokenizer = rig_tokenizer();
    uint32_t steps = 0;
    uint32_t rounds = 0;
    for (uint32_t width = 2; width <= MR_MAX_BEAMS; width += width < 4 ? 1 : 4) {
        for (int penalty = -1; penalty <= 3; penalty++) {
            rig r;
            mr_scheduler_options options = search_options();
            options.tokenizer = tokenizer;
            rig_open(&r, &options, 3, 400);
            r.exec.real_top = true;
            mr_request_spec spec = {.params = search_params(width, width, 24),
                                    .ring_capacity = 512};
            spec.params.length_penalty = (float)penalty * 0.75f;
            spec.params.ignore_eos = penalty == 0;
            spec.params.min_tokens = penalty == 2 ? 4 : 0;
            spec.stop = penalty == 1 ? rig_stop(strings, 2) : NULL;
            spec.stop_tokens = stops;
            spec.n_stop_tokens = penalty == 3 ? 2 : 0;
            mr_request *request = rig_request_of(&r, 5 + width, &spec);
            rig_submit(&r, request);
            rig_run(&r);
            expect_search(&r, request);
            steps += (uint32_t)r.batch->step;
            rounds++;
            mr_request_unref(request);
            rig_close(&r);
        }
    }
    assert_true(steps < rounds * 24); /* some were decided before their time */
    mr_tokenizer_destroy(tokenizer);
}

static void test_search_beams_share_blocks_and_run_together(void **state)
{
    (void)state;
    rig r;
    const mr_scheduler_options options = search_options();
    const mr_request_params params = search_params(4, 2, 12);
    rig_open(&r, &options, 4, 65);
    r.exec.real_top = true;
    mr_request *request = rig_request(&r, 16, &params);
    mr_request *other = rig_add(&r, 3, 8);
    rig_submit(&r, request);
    while (!mr_scheduler_idle(r.scheduler)) {
        assert_true(rig_step(&r, NULL));
        for (uint32_t i = 0; i < r.batch->n_rows; i++) {
            const mr_row_params *row = &r.batch->row_params[i];
            if (row->key == request->key) {
                assert_int_equal(row->n_top, 8);
                assert_true(row->processed && row->want_logprob && row->temperature == 0.0f);
            }
        }
        /* Four blocks of the prompt, not sixteen, and those of twelve tokens at most. */
        assert_true(rig_live_blocks(&r) <= 4 + 4 * 3 + 3);
    }
    assert_true(r.exec.n_copies > 0);
    expect_search(&r, request);
    rig_expect_whole(&r, other);
    mr_request_unref(request);
    mr_request_unref(other);
    rig_close(&r);
}

static void test_search_says_nothing_before_its_end_and_drains_into_a_small_ring(void **state)
{
    (void)state;
    rig r;
    const mr_scheduler_options options = search_options();
    mr_request_spec spec = {.params = search_params(3, 3, 12), .ring_capacity = 1};
    rig_open(&r, &options, 4, 65);
    r.exec.real_top = true;
    mr_request *request = rig_request_of(&r, 6, &spec);
    rig_submit(&r, request);
    while (mr_ring_count(&request->events) == 0) {
        assert_true(rig_step(&r, NULL));
    }
    assert_int_equal(rig_live_blocks(&r), 0);
    assert_false(mr_scheduler_idle(r.scheduler));
    static scripted_result expected[3];
    double cumulative[3];
    assert_int_equal(scripted_beams(&r.options, request, expected, cumulative), 3);
    for (uint32_t c = 0; c < 3; c++) {
        for (uint32_t i = 0; i < expected[c].n_tokens; i++) {
            const rig_event event = rig_read(request);
            assert_int_equal(event.token, expected[c].tokens[i]);
            assert_int_equal(event.choice, c);
            assert_false(rig_step(&r, NULL));
            assert_true(mr_scheduler_idle(r.scheduler) || r.wake_ns <= r.now_ns + 5 * MS);
        }
    }
    assert_true(mr_scheduler_idle(r.scheduler));
    mr_request_unref(request);
    rig_close(&r);
}

static void test_search_reader_that_stays_slow_ends_it_S8(void **state)
{
    (void)state;
    rig r;
    const mr_scheduler_options options = search_options();
    mr_request_spec spec = {.params = search_params(3, 3, 12), .ring_capacity = 1};
    rig_open(&r, &options, 4, 65);
    r.exec.real_top = true;
    mr_request *request = rig_request_of(&r, 6, &spec);
    rig_submit(&r, request);
    while (rig_step(&r, NULL)) {
    }
    r.now_ns += options.slow_reader_timeout_ns;
    assert_false(rig_step(&r, NULL));
    assert_true(mr_scheduler_idle(r.scheduler));
    rig_expect_end(request, MR_FINISH_ERROR, MR_RESOURCE_EXHAUSTED);
    mr_request_unref(request);
    rig_close(&r);
}

static void test_search_is_preempted_and_comes_back_whole_M1(void **state)
{
    (void)state;
    uint32_t preemptions = 0;
    for (uint32_t bound = 0; bound <= 3; bound++) {
        rig r;
        mr_scheduler_options options = search_options();
        options.max_preemptions = bound;
        mr_request_params params = search_params(4, 4, 16);
        params.presence_penalty = 0.5f; /* histories are sent anew */
        rig_open(&r, &options, 3, 27);
        r.exec.real_top = true;
        mr_request *older = rig_add(&r, 4, 58);
        assert_true(rig_step(&r, NULL));
        mr_request *first = rig_request(&r, 7, &params);
        mr_request *second = rig_request(&r, 8, &params);
        rig_submit(&r, first);
        rig_submit(&r, second);
        rig_run(&r);
        rig_expect_whole(&r, older);
        expect_search(&r, first);
        expect_search(&r, second);
        assert_true(first->usage.preemptions <= bound && second->usage.preemptions <= bound);
        preemptions += first->usage.preemptions + second->usage.preemptions;
        mr_request_unref(older);
        mr_request_unref(first);
        mr_request_unref(second);
        rig_close(&r);
    }
    assert_true(preemptions > 0);
}

static void test_search_cancel_and_limits(void **state)
{
    (void)state;
    rig r;
    const mr_scheduler_options options = search_options();
    mr_request_params params = search_params(3, 2, 30);
    rig_open(&r, &options, 4, 65);
    r.exec.real_top = true;
    mr_request *cancelled = rig_request(&r, 6, &params);
    rig_submit(&r, cancelled);
    params.time_limit_ns = 5 * MS;
    mr_request *limited = rig_request(&r, 6, &params);
    rig_submit(&r, limited);
    for (uint32_t i = 0; i < 5; i++) {
        assert_true(rig_step(&r, NULL));
    }
    mr_flag_set(&cancelled->cancelled);
    assert_false(rig_step(&r, NULL));
    assert_int_equal(rig_live_blocks(&r), 0);
    rig_expect_end(cancelled, MR_FINISH_CANCELLED, MR_CANCELLED);
    assert_int_equal(cancelled->usage.completion_tokens, 0);
    /* What it had: two beams of five tokens, the better one first. */
    double sums[2] = {0, 0};
    for (uint32_t i = 0; i < 10; i++) {
        const rig_event event = rig_read(limited);
        assert_int_equal(event.choice, i / 5);
        assert_int_equal(event.finish, i % 5 == 4 ? MR_FINISH_TIME_LIMIT : MR_FINISH_NONE);
        sums[i / 5] = event.cumulative;
    }
    assert_true(sums[0] >= sums[1]);
    assert_int_equal(limited->error.status, MR_OK);
    assert_true(mr_scheduler_idle(r.scheduler));
    mr_request_unref(cancelled);
    mr_request_unref(limited);
    rig_close(&r);
}

static void test_search_refuses_what_can_never_run(void **state)
{
    (void)state;
    rig r;
    mr_scheduler_options options = search_options();
    options.max_batch_size = 4;
    rig_open(&r, &options, 4, 8); /* 7 blocks */
    const uint32_t widths[] = {5, 4};
    const uint32_t prompts[] = {3, 17}; /* four full blocks and four of four beams */
    for (uint32_t i = 0; i < 2; i++) {
        const mr_request_params params = search_params(widths[i], 1, 4);
        mr_request *request = rig_request(&r, prompts[i], &params);
        rig_submit(&r, request);
        assert_string_equal(request->error.field, "beam_width");
        rig_expect_end(request, MR_FINISH_ERROR, MR_INVALID_ARGUMENT);
        mr_scheduler_publish(r.scheduler);
        mr_request_unref(request);
    }
    rig_close(&r);
}

/* Those that it preempted for nothing are planned again at once, not when something arrives. */
static void test_search_that_outgrows_the_pool_ends_and_others_go_on_M1_M2(void **state)
{
    (void)state;
    rig r;
    const mr_scheduler_options options = search_options();
    const mr_request_params params = search_params(4, 1, 50);
    mr_request *others[3];
    rig_open(&r, &options, 4, 12);
    r.exec.real_top = true;
    mr_request *request = rig_request(&r, 8, &params);
    rig_submit(&r, request);
    for (uint32_t i = 0; i < 3; i++) {
        others[i] = rig_add(&r, 3, 12);
    }
    while (!mr_scheduler_idle(r.scheduler)) {
        if (!rig_step(&r, NULL)) {
            assert_true(r.wake_ns == r.now_ns || mr_scheduler_idle(r.scheduler));
        }
    }
    rig_expect_end(request, MR_FINISH_ERROR, MR_RESOURCE_EXHAUSTED);
    mr_request_unref(request);
    for (uint32_t i = 0; i < 3; i++) {
        rig_expect_whole(&r, others[i]);
        mr_request_unref(others[i]);
    }
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_search_keeps_twice_the_width_of_candidates),
        cmocka_unit_test(test_search_pool_replaces_its_worst),
        cmocka_unit_test(test_search_is_decided_by_what_beams_can_become),
        cmocka_unit_test(test_search_equals_the_one_that_tries_everything),
        cmocka_unit_test(test_search_beams_share_blocks_and_run_together),
        cmocka_unit_test(test_search_says_nothing_before_its_end_and_drains_into_a_small_ring),
        cmocka_unit_test(test_search_reader_that_stays_slow_ends_it_S8),
        cmocka_unit_test(test_search_is_preempted_and_comes_back_whole_M1),
        cmocka_unit_test(test_search_cancel_and_limits),
        cmocka_unit_test(test_search_refuses_what_can_never_run),
        cmocka_unit_test(test_search_that_outgrows_the_pool_ends_and_others_go_on_M1_M2),
    };
    mr_log_set_level(MR_LOG_WARN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
